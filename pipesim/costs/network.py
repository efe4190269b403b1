"""Links between pipeline ranks, and how long a collective alone takes on a ring.

All bytes are those of one device: the devices of a tensor-parallel group move their shares side by side, each
through its own port.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

Number = float | Fraction


@dataclass(frozen=True, slots=True)
class LinkCost:
    """One direction of one link: a message takes ``latency_s + nbytes / bytes_per_s`` when alone.

    Latency occupies nothing. ``bytes_per_s`` None means that size costs nothing either.
    """

    latency_s: Number
    bytes_per_s: Number | None

    def transfer_s(self, nbytes: Number) -> Number:
        """Seconds for `nbytes` on an otherwise empty link."""
        if self.bytes_per_s is None:
            return self.latency_s
        return self.latency_s + nbytes / self.bytes_per_s


@dataclass(frozen=True, slots=True)
class PointToPoint:
    """Links between pipeline ranks whose devices lie in blocks side by side.

    Parameters
    ----------
    intra, inter : LinkCost
        Link of two ranks whose devices share a node, and of two that do not.
    gpus_per_rank : int
        Neighbouring devices that are of one pipeline rank (all of its tensor shards and replicas where the
        pipeline is the slowest axis).
    gpus_per_node : int
        Devices of one node.
    num_blocks, num_ranks : int
        The ranks, `num_ranks` of them, follow each other so often.
    """

    intra: LinkCost
    inter: LinkCost
    gpus_per_rank: int = 1
    gpus_per_node: int = 1
    num_blocks: int = 1
    num_ranks: int = 1

    @classmethod
    def uniform(cls, link: LinkCost) -> PointToPoint:
        """Give every pair of ranks the same link."""
        return cls(intra=link, inter=link)

    def same_node(self, src: int, dst: int) -> bool:
        """Whether every device of `src` finds its partner of `dst` in its own node.

        Where only some replicas do, the slowest one decides, so the answer is no.
        """
        first, last = min(src, dst), max(src, dst)
        period = self.num_ranks * self.gpus_per_rank
        # Where blocks start in a node repeats after at most so many of them as a node has devices.
        for block in range(min(self.num_blocks, self.gpus_per_node)):
            first_device = block * period + first * self.gpus_per_rank
            last_device = block * period + (last + 1) * self.gpus_per_rank - 1
            if first_device // self.gpus_per_node != last_device // self.gpus_per_node:
                return False
        return True

    def between(self, src: int, dst: int) -> LinkCost:
        """Link from rank `src` to rank `dst`."""
        return self.intra if self.same_node(src, dst) else self.inter


@dataclass(frozen=True, slots=True)
class Ring:
    """A ring of devices: what each one sends to the next, and what a step costs beside bytes."""

    num_members: int
    bytes_per_s: Number
    step_latency_s: Number
    base_latency_s: Number


def all_reduce_s(nbytes: Number, ring: Ring) -> Number:
    """Seconds of a ring all-reduce of `nbytes` alone: ``2(n-1)/n * bytes / bandwidth + 2(n-1) * latency``.

    The base latency is paid once. A single member has nothing to do and takes no time.
    """
    return _ring_s(nbytes, ring, num_passes=2)


def reduce_scatter_s(nbytes: Number, ring: Ring) -> Number:
    """Seconds of a ring reduce-scatter whose unscattered input has `nbytes`: half an all-reduce."""
    return _ring_s(nbytes, ring, num_passes=1)


def all_gather_s(nbytes: Number, ring: Ring) -> Number:
    """Seconds of a ring all-gather whose gathered output has `nbytes`: half an all-reduce."""
    return _ring_s(nbytes, ring, num_passes=1)


def _ring_s(nbytes: Number, ring: Ring, *, num_passes: int) -> Number:
    num_steps = num_passes * (ring.num_members - 1)
    if num_steps == 0:
        return 0 * nbytes
    moved_bytes = nbytes * num_steps / ring.num_members
    return ring.base_latency_s + num_steps * ring.step_latency_s + moved_bytes / ring.bytes_per_s
