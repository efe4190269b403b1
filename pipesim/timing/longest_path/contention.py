"""Whether a timeline of traffic that had the network to itself would hold on shared wires."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from pipesim.costs import CostTable
from pipesim.costs.network.alpha_beta import Collective
from pipesim.costs.network.fabric import Flow, UnlikeReplicasError
from pipesim.costs.network.traffic import Traffic
from pipesim.costs.reductions import reduction_key, step_reductions
from pipesim.costs.shards import ShardKey
from pipesim.costs.token_exchange import TokenKey
from pipesim.ir.actions import IntArray, Op
from pipesim.ir.timeline import Timeline

Spans = npt.NDArray[np.float64]
"""Start and end of the bytes of some transfers, shape (transfers, 2)."""

_ROUNDING = 1e-12
"""Makes a transfer that follows another at once seem early."""
_FULL = 1 + 1e-9
"""What a wire may seem to be loaded with that is exactly full."""


def wires_contend(
    timeline: Timeline,
    costs: CostTable,
    send_rows: IntArray,
    ends: npt.NDArray[np.integer[Any]],
    *,
    mode: Literal["fair", "fifo"] = "fair",
    tokens: Mapping[TokenKey, Spans] | None = None,
) -> bool:
    """Whether wires change when transfers end: more is asked of one than it has, or a link is not as said.

    Where all that is under way fits, each has its own rate; so in ``fair`` mode the answer is no exactly if
    the timeline holds, but for shards, which are taken to move all the time.

    Parameters
    ----------
    timeline : Timeline
        One replica, timed as if every transfer were alone.
    costs : CostTable
        With a fabric.
    send_rows : IntArray
        Rows of the timeline that are sends.
    ends : array of int, shape (sends, 2)
        Source and destination rank of each.
    mode : {"fair", "fifo"}
        How wires are shared; with ``fifo`` nothing passes that comes while a wire is taken.
    tokens : mapping of TokenKey to Spans, optional
        When ranks exchange tokens with experts.
    """
    routes, route = np.unique(ends, axis=0, return_inverse=True)
    traffic = _traffic(timeline, costs, [(src, dst) for src, dst in routes.tolist()], mode)
    if traffic is None:
        return True
    wires = _Wires(traffic)
    start_s, end_s = timeline.start_s[send_rows], timeline.end_s[send_rows]
    moves = timeline.nbytes[send_rows] > 0
    of_route = route.reshape(-1)
    for (src, dst, _), flow in traffic.messages.items():
        said = costs.p2p(src, dst)
        if said.bytes_per_s is None:
            continue
        if not (_equal(flow.bytes_per_s, said.bytes_per_s) and _equal(flow.latency_s, said.latency_s)):
            return True
        number = int(np.flatnonzero((routes == (src, dst)).all(axis=1))[0])
        mine = moves & (of_route == number)
        wires.occupy(flow, np.stack([start_s[mine] + float(flow.latency_s), end_s[mine]], axis=1))
    for key, flow in traffic.reductions.items():
        if isinstance(key, ShardKey):
            wires.occupy_always(flow)
        elif isinstance(key, TokenKey) and flow.loads and tokens is not None:
            wires.occupy(flow, tokens[key])
    for flow, spans in _collectives(timeline, costs, traffic):
        wires.occupy(flow, spans)
    return wires.are_taken() if mode == "fifo" else wires.are_over_full()


def _traffic(
    timeline: Timeline,
    costs: CostTable,
    routes: list[tuple[int, int]],
    mode: Literal["fair", "fifo"],
) -> Traffic | None:
    """All flows of the step; None where replicas have to be looked at one by one."""
    fabric = costs.fabric
    if fabric is None:
        raise ValueError("the costs have no fabric")
    holders: dict[int, list[int]] = defaultdict(list)
    for row in np.flatnonzero(timeline.op == Op.REDUCE_GRAD).tolist():
        holders[int(timeline.stage[row])].append(int(timeline.rank[row]))
    with_copies = timeline.rank[timeline.op == Op.REDUCE_EMBEDDING].tolist()
    reductions = step_reductions(costs, holders, with_copies)
    try:
        return fabric.traffic(routes, reductions, one_replica_for_all=fabric.num_replicas > 1)
    except UnlikeReplicasError:
        # Each computes at the same time as the others, as long as no transfer is held up.
        return fabric.traffic(routes, reductions, one_replica_for_all=False) if mode == "fair" else None


def _equal(one: Any, other: Any) -> bool:
    return abs(float(one) - float(other)) <= _ROUNDING * abs(float(other))


def _collectives(timeline: Timeline, costs: CostTable, traffic: Traffic) -> list[tuple[Flow, Spans]]:
    """When each collective at the end of the step has bytes under way."""
    found: list[tuple[Flow, Spans]] = []

    def follow(begin_s: float, steps: Sequence[tuple[Any, Collective]]) -> None:
        flows = [traffic.reductions.get(key) for key, _ in steps]
        shared = [flow is not None and bool(flow.loads) for flow in flows]
        pairs = list(zip(flows, steps, shared, strict=True))
        at_s = begin_s + sum(float(one.seconds) for _, (_, one), shares in pairs if not shares)
        for flow, (_, one), shares in pairs:
            if flow is not None and shares:
                from_s = at_s + float(one.latency_s)
                at_s = from_s + float(one.nbytes) / float(flow.bytes_per_s)
                found.append((flow, np.array([[from_s, at_s]])))

    reduced = np.flatnonzero(timeline.op == Op.REDUCE_GRAD)
    stages, first = np.unique(timeline.stage[reduced], return_index=True)
    for stage, row in zip(stages.tolist(), reduced[first].tolist(), strict=True):
        begin_s = float(timeline.start_s[row]) + float(costs.fixed_sync_s[stage])
        steps = costs.sync_steps(stage)
        follow(begin_s, [(reduction_key(stage, step), step.collective) for step in steps])
    embedding = np.flatnonzero(timeline.op == Op.REDUCE_EMBEDDING)[:1]
    if costs.tied_embedding is not None and len(embedding):
        follow(float(timeline.start_s[embedding[0]]), [(Op.REDUCE_EMBEDDING, costs.tied_embedding)])
    return found


@dataclass(slots=True)
class _Wires:
    """What is under way on each wire, and when."""

    traffic: Traffic
    _spans: dict[int, list[tuple[float, Spans]]] = field(default_factory=lambda: defaultdict(list))
    """For each wire, what transfers ask of it in bytes a second; a link of its own has a negative number."""
    _always: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    _rates: dict[int, float] = field(default_factory=dict)

    def occupy(self, flow: Flow, spans: Spans) -> None:
        """Add transfers that are under way during these spans."""
        rate = float(flow.bytes_per_s)
        if not flow.loads:
            own = -1 - len(self._rates)
            self._rates[own] = rate
            self._spans[own].append((rate, spans))
        for wire, load in flow.loads:
            self._spans[wire].append((rate * float(load), spans))

    def occupy_always(self, flow: Flow) -> None:
        """Add a flow that may be under way at any time, once."""
        for wire, load in flow.loads:
            self._always[wire] += float(flow.bytes_per_s) * float(load)

    def are_over_full(self) -> bool:
        """Whether at any time more is asked of a wire than it has."""
        return any(self._is_over_full(wire) for wire in self._spans.keys() | self._always.keys())

    def _is_over_full(self, wire: int) -> bool:
        has = self._rates[wire] if wire < 0 else float(self.traffic.bytes_per_s[wire])
        left = has * _FULL - self._always.get(wire, 0.0)
        if left < 0:
            return True
        asked = self._spans.get(wire, [])
        if sum(rate * len(spans) for rate, spans in asked) <= left:
            return False
        starts = np.concatenate([spans[:, 0] for _, spans in asked])
        ends = np.concatenate([spans[:, 1] for _, spans in asked])
        rates = np.concatenate([np.full(len(spans), rate) for rate, spans in asked])
        time_s = np.concatenate([ends - _ROUNDING * np.abs(ends), starts])
        change = np.concatenate([-rates, rates])
        level = np.cumsum(change[np.argsort(time_s, kind="stable")])
        return bool(level.max() > left)

    def are_taken(self) -> bool:
        """Whether a transfer comes to a wire while another one is on it."""
        if self._always:
            return True
        return any(
            _overlap(np.concatenate([spans for _, spans in asked])) for asked in self._spans.values() if asked
        )


def _overlap(spans: Spans) -> bool:
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    until = np.maximum.accumulate(spans[:, 1])[:-1]
    return bool((spans[1:, 0] < until - _ROUNDING * np.abs(until)).any())
