"""Links between pipeline ranks, and how long collectives take alone.

All bytes are those of one device: the devices of a tensor-parallel group move their shares side by side, each
through its own port.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

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
    pair_rates : tuple of (int, int, Number)
        Source and destination rank, and bytes per second, of links that have another rate than their kind.
    pair_latencies : tuple of (int, int, Number)
        The same of latencies.
    """

    intra: LinkCost
    inter: LinkCost
    gpus_per_rank: int = 1
    gpus_per_node: int = 1
    num_blocks: int = 1
    num_ranks: int = 1
    pair_rates: tuple[tuple[int, int, Number], ...] = ()
    pair_latencies: tuple[tuple[int, int, Number], ...] = ()

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
        link = self.intra if self.same_node(src, dst) else self.inter
        for one, other, latency_s in self.pair_latencies:
            if (one, other) == (src, dst):
                link = replace(link, latency_s=latency_s)
        for one, other, bytes_per_s in self.pair_rates:
            if (one, other) == (src, dst):
                return replace(link, bytes_per_s=bytes_per_s)
        return link


Algorithm = Literal["ring", "tree", "two-level", "in-network"]


@dataclass(frozen=True, slots=True)
class Shortcut:
    """Another way to all-reduce than the ring's; `bytes_per_s` in its terms, of 2(n-1)/n of the bytes."""

    algorithm: Algorithm
    latency_s: Number
    bytes_per_s: Number


@dataclass(frozen=True, slots=True)
class Ring:
    """A ring of devices: what each one sends to the next, and what a step costs beside bytes.

    Parameters
    ----------
    num_members : int
        Devices in all.
    bytes_per_s, step_latency_s, base_latency_s : Number
        Rate of each device; latency of every step, and once.
    ramp_s : Number
        How slowly the rate rises with size: S bytes take ``1 + sqrt(S0 / S)`` times as long as their bytes
        alone, with S0 = ramp * rate. 0: no ramp.
    shortcuts : tuple of Shortcut
        Other ways that the same devices can all-reduce.
    algorithm : str, optional
        The one to take; None: the fastest at the size, as NCCL does.
    """

    num_members: int
    bytes_per_s: Number
    step_latency_s: Number
    base_latency_s: Number
    ramp_s: Number = 0
    shortcuts: tuple[Shortcut, ...] = ()
    algorithm: Algorithm | None = None


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective alone: ``latency_s + nbytes / bytes_per_s``; `nbytes` pass each member's port."""

    algorithm: str
    latency_s: Number
    nbytes: Number
    bytes_per_s: Number

    @property
    def seconds(self) -> Number:
        """How long it takes on an idle network."""
        return self.latency_s + self.nbytes / self.bytes_per_s


def all_reduce(nbytes: Number, ring: Ring) -> Collective:
    """All-reduce of `nbytes` on every member, by the ring's algorithm or the one found fastest.

    The choice looks at latency and bytes alone, as NCCL's own model does; the ramp comes on top.
    """
    by_ring = _around(nbytes, ring, num_passes=2)
    if ring.num_members == 1:
        return by_ring
    others = [Collective(s.algorithm, s.latency_s, by_ring.nbytes, s.bytes_per_s) for s in ring.shortcuts]
    allowed = [found for found in (by_ring, *others) if ring.algorithm in (None, found.algorithm)]
    # An algorithm that these devices do not have leaves them the ring.
    return _ramped(min(allowed or [by_ring], key=lambda found: found.seconds), nbytes, ring)


def reduce_scatter(nbytes: Number, ring: Ring) -> Collective:
    """Reduce-scatter whose unscattered input has `nbytes`: half an all-reduce on a ring."""
    return _ramped(_around(nbytes, ring, num_passes=1), nbytes, ring)


def all_gather(nbytes: Number, ring: Ring) -> Collective:
    """All-gather whose gathered output has `nbytes`: half an all-reduce on a ring."""
    return _ramped(_around(nbytes, ring, num_passes=1), nbytes, ring)


def all_reduce_s(nbytes: Number, ring: Ring) -> Number:
    """Seconds of an all-reduce of `nbytes` alone.

    On a ring ``2(n-1)/n * bytes / bandwidth + 2(n-1) * latency``. The base latency is paid once. A
    single member has nothing to do and takes no time.
    """
    return all_reduce(nbytes, ring).seconds


def reduce_scatter_s(nbytes: Number, ring: Ring) -> Number:
    """Seconds of a reduce-scatter alone; see `reduce_scatter`."""
    return reduce_scatter(nbytes, ring).seconds


def all_gather_s(nbytes: Number, ring: Ring) -> Number:
    """Seconds of an all-gather alone; see `all_gather`."""
    return all_gather(nbytes, ring).seconds


def _around(nbytes: Number, ring: Ring, *, num_passes: int) -> Collective:
    num_steps = num_passes * (ring.num_members - 1)
    if num_steps == 0:
        return Collective("ring", 0 * nbytes, 0 * nbytes, ring.bytes_per_s)
    latency_s = ring.base_latency_s + num_steps * ring.step_latency_s
    return Collective("ring", latency_s, nbytes * num_steps / ring.num_members, ring.bytes_per_s)


def _ramped(alone: Collective, nbytes: Number, ring: Ring) -> Collective:
    if not ring.ramp_s or not alone.nbytes:
        return alone
    factor = 1 + math.sqrt(ring.ramp_s * alone.bytes_per_s / nbytes)
    return replace(alone, nbytes=alone.nbytes * factor)
