"""Where pipeline ranks lie on the wires, and the flows between them."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from itertools import takewhile
from math import lcm, prod
from typing import Any

import numpy as np
import numpy.typing as npt

from pipesim.costs.network.alpha_beta import Number
from pipesim.costs.network.fabric import Demand, Flow, reduce_wires
from pipesim.costs.network.wiring import Wiring

Axes = tuple[tuple[str, int], ...]
"""Axes by which devices are numbered and their sizes, the fastest first: tp, cp, dp, pp (tp, ep, dp, pp), and
dr for groups of replicas that share out among themselves."""


@dataclass(frozen=True, slots=True)
class Fabric:
    """A cluster's wires and which devices each pipeline rank of each replica has.

    Parameters
    ----------
    wiring : Wiring
        Nodes, cards, switches.
    axes : tuple of (str, int)
        How devices are numbered.
    expert_axes : tuple of (str, int)
        The same for layers with experts.
    """

    wiring: Wiring
    axes: Axes
    expert_axes: Axes

    @property
    def num_replicas(self) -> int:
        """Data-parallel replicas d."""
        sizes = dict(self.axes)
        return sizes["dp"] * sizes.get("dr", 1)

    def devices(self, rank: int) -> list[int]:
        """Devices of a pipeline rank, of all replicas."""
        found: list[int] = self._devices(self.axes, pp=rank).ravel().tolist()
        return found

    def with_fewest_replicas(self) -> Fabric:
        """Leave out replicas that show nothing new: what crosses each wire that is left stays the same.

        Replicas that lie a whole number of leaf switches (or nodes) apart are alike, and shifting all of
        them by as much changes nothing, for rings close. Two such shifts are kept, so that what leaves a leaf
        still does. Left as it is where the shift would break up nodes or groups, or where nodes differ.
        """
        wiring, num_replicas = self.wiring, self.num_replicas
        stride, num_devices = _stride(self.axes, "dp"), _stride(self.axes, "dp") * num_replicas
        of_experts, num_members = _stride(self.expert_axes, "dp"), dict(self.expert_axes)["dp"]
        shift = lcm(stride, of_experts, wiring.gpus_per_leaf)
        if wiring.degraded or wiring.site_of_node:
            return self
        if of_experts * num_members != num_devices or num_devices % shift:
            return self
        if num_devices <= 2 * shift:
            return self
        return Fabric(
            wiring,
            _resized(self.axes, 2 * shift // stride),
            _resized(self.expert_axes, 2 * shift // of_experts),
        )

    def place(self, rank: int) -> int:
        """Where in its leaf switch (or node) a rank begins; ranks that begin alike cross wires alike."""
        if self.wiring.degraded or self.wiring.site_of_node:
            return rank
        return rank * _stride(self.axes, "pp") % self.wiring.gpus_per_leaf

    def message(self, src: int, dst: int, replica: int) -> Demand:
        """Messages between two ranks of one replica, each device to its partner."""
        pairs = np.stack([self._of_replica(rank, replica).ravel() for rank in (src, dst)], axis=1)
        return _kept_transfer(_Devices.of(self.wiring, pairs))

    def _of_replica(self, rank: int, replica: int) -> npt.NDArray[np.intp]:
        """Devices of a rank of one replica."""
        group, member = divmod(replica, dict(self.axes)["dp"])
        return self._devices(self.axes, pp=rank, dp=member, dr=group)

    def reduction(self, *ranks: int, of_experts: bool = False, across: bool = False) -> Demand:
        """Rings of the replicas of all shards of a rank, or of the ranks that hold a stage together.

        Of those that share out among themselves, or, `across`, of the groups of them.
        """
        groups = self.groups(*ranks, of_experts=of_experts, across=across)
        return _kept_rings(_Devices.of(self.wiring, groups))

    def groups(self, *ranks: int, of_experts: bool = False, across: bool = False) -> npt.NDArray[np.intp]:
        """Devices of these rings, shape (rings, members)."""
        axes, members = (self.expert_axes, ("dp",)) if of_experts else (self.axes, ("cp", "dp"))
        members = ("dr",) if across else members
        num_members = np.prod([size for axis, size in axes if axis in members], dtype=int)
        of_rank = [self._devices(axes, last=members, pp=rank).reshape(-1, num_members) for rank in ranks]
        return np.concatenate(of_rank, axis=1)

    def exchange(self, rank: int, inside_share: float) -> Demand:
        """Exchanges of tokens in all groups of devices of a rank that share out experts."""
        num_members = dict(self.expert_axes)["ep"]
        devices = self._devices(self.expert_axes, last=("ep",), pp=rank).reshape(-1, num_members)
        return _kept_exchanges(_Devices.of(self.wiring, devices), inside_share)

    def between_ranks(self, *ranks: int) -> Demand:
        """Rings of the ranks' devices, in every replica each device with its partners on the other ranks."""
        of_rank = [self._devices(self.axes, pp=rank).ravel() for rank in ranks]
        return _kept_rings(_Devices.of(self.wiring, np.stack(of_rank, axis=1)))

    @staticmethod
    def _devices(axes: Axes, last: Collection[str] = (), **fixed: int) -> npt.NDArray[np.intp]:
        """Devices with some coordinates fixed; the axes in `last` become the last of the array."""
        names = [axis for axis, _ in reversed(axes)]
        chosen = _numbered(axes)[tuple(fixed.get(name, slice(None)) for name in names)]
        left = [name for name in names if name not in fixed]
        order = [left.index(name) for name in left if name not in last]
        order += [left.index(name) for name in left if name in last]
        return chosen.transpose(order)

    def traffic(
        self,
        routes: Iterable[tuple[int, int]],
        reductions: Mapping[Any, Reduction | Tokens],
        *,
        one_replica_for_all: bool,
    ) -> Traffic:
        """All flows of a step, on the wires that matter.

        Parameters
        ----------
        routes : iterable of (int, int)
            Source and destination rank of messages.
        reductions : mapping of key to Reduction or Tokens
            Collectives, over the replicas or between ranks, and exchanges with experts.
        one_replica_for_all : bool
            Keep the messages of replica 0 only, as loads of all replicas, which do the same at the same time.

        Raises
        ------
        UnlikeReplicasError
            If one replica cannot stand for all.
        """
        asked = tuple(routes), reductions, one_replica_for_all
        return _kept_traffic(_Asked(repr((self, asked)), self, asked))

    def _traffic(
        self,
        routes: Sequence[tuple[int, int]],
        reductions: Mapping[Any, Reduction | Tokens],
        one_replica_for_all: bool,
    ) -> Traffic:
        demands: dict[Hashable, Demand] = {}
        names: dict[Hashable, Hashable] = {}
        fabric = self.with_fewest_replicas() if one_replica_for_all else self
        for replica in range(fabric.num_replicas):
            for src, dst in routes:
                key = ("message", src, dst, replica)
                names[key] = ("message", src, dst, 0) if one_replica_for_all else key
                demands[key] = fabric.message(src, dst, replica)
        for name, reduction in reductions.items():
            names["reduction", name] = ("reduction", name)
            demands["reduction", name] = fabric._of_ranks(reduction)
        wires = {wire: self.wiring.bytes_per_s(wire) for demand in demands.values() for wire in demand.loads}
        flows, bytes_per_s = reduce_wires(demands, wires, alike=names if one_replica_for_all else None)
        return Traffic(
            bytes_per_s,
            {key[1:]: flow for key, flow in flows.items() if isinstance(key, tuple) and key[0] == "message"},
            {
                name: replace(flows["reduction", name], bytes_per_s=reduction.bytes_per_s)
                for name, reduction in reductions.items()
            },
        )

    def _of_ranks(self, reduction: Reduction | Tokens) -> Demand:
        """Rings of a collective's devices; where switches add up, fewer bytes pass the wires."""
        if isinstance(reduction, Tokens):
            return self.exchange(reduction.rank, reduction.inside_share)
        if reduction.between_ranks:
            on_rings = self.between_ranks(*reduction.ranks)
        else:
            on_rings = self.reduction(
                *reduction.ranks, of_experts=reduction.of_experts, across=reduction.across
            )
        loads, weight = on_rings.loads, on_rings.weight
        by_rings = self.wiring.alone_bytes_per_s(on_rings)
        if by_rings is None or reduction.bytes_per_s <= by_rings:
            return on_rings
        factor = Fraction(by_rings) / Fraction(reduction.bytes_per_s)
        return Demand(0, {wire: load * factor for wire, load in loads.items()}, weight)


def _stride(axes: Axes, axis: str) -> int:
    """Distance of neighbours along an axis."""
    faster = takewhile(lambda other: other[0] != axis, axes)
    return prod(size for _, size in faster)


def _resized(axes: Axes, num_replicas: int) -> Axes:
    return tuple((axis, num_replicas if axis == "dp" else size) for axis, size in axes)


@dataclass(frozen=True, slots=True)
class _Asked:
    """What `Fabric.traffic` was asked; equal where it reads the same, so that 1 is not 1.0."""

    text: str
    fabric: Fabric = field(compare=False)
    arguments: tuple[tuple[tuple[int, int], ...], Mapping[Any, Reduction | Tokens], bool] = field(
        compare=False
    )


@lru_cache(maxsize=64)
def _kept_traffic(asked: _Asked) -> Traffic:
    """Work out traffic once for all steps of a schedule, and for all schedules that send along the same."""
    return asked.fabric._traffic(*asked.arguments)


@dataclass(frozen=True, slots=True)
class _Devices:
    """Pairs or rings of devices; equal where they load wires alike, which rates do not change."""

    text: str
    shape: tuple[int, ...]
    data: bytes
    wiring: Wiring = field(compare=False)

    @classmethod
    def of(cls, wiring: Wiring, devices: npt.NDArray[np.intp]) -> _Devices:
        return cls(repr(wiring.without_rates()), devices.shape, devices.tobytes(), wiring)

    def lists(self) -> list[list[int]]:
        found: list[list[int]] = np.frombuffer(self.data, np.intp).reshape(self.shape).tolist()
        return found


@lru_cache(maxsize=1024)
def _kept_rings(devices: _Devices) -> Demand:
    return devices.wiring.rings(devices.lists())


@lru_cache(maxsize=1024)
def _kept_exchanges(devices: _Devices, inside_share: float) -> Demand:
    return devices.wiring.exchanges(devices.lists(), inside_share)


@lru_cache(maxsize=1024)
def _kept_transfer(devices: _Devices) -> Demand:
    return devices.wiring.transfer((src, dst) for src, dst in devices.lists())


@lru_cache(maxsize=8)
def _numbered(axes: Axes) -> npt.NDArray[np.intp]:
    """All devices, the slowest axis first."""
    numbers = np.arange(np.prod([size for _, size in axes], dtype=int))
    numbers.flags.writeable = False
    return numbers.reshape([size for _, size in reversed(axes)])


@dataclass(frozen=True, slots=True)
class Reduction:
    """A collective over all replicas of some ranks; `bytes_per_s` is its rate alone.

    Between ranks the replicas do it side by side, each for itself; `across` is between groups of replicas
    that share out among themselves.
    """

    ranks: Sequence[int]
    bytes_per_s: Number
    of_experts: bool = False
    between_ranks: bool = False
    across: bool = False


@dataclass(frozen=True, slots=True)
class Tokens:
    """Exchanges of tokens among the devices of a rank; see `pipesim.costs.token_exchange.TokenExchange`."""

    rank: int
    bytes_per_s: Number
    inside_share: float


@dataclass(frozen=True, slots=True)
class Traffic:
    """Flows of a step, not to be changed; `messages` by source rank, destination rank and replica."""

    bytes_per_s: list[Number]
    messages: dict[tuple[int, int, int], Flow]
    reductions: dict[Any, Flow]
