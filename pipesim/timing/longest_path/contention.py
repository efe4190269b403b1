"""Whether a timeline of traffic that had the network to itself would hold on shared wires."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from typing import Any

import numpy as np
import numpy.typing as npt

from pipesim.costs import CostTable
from pipesim.costs.network.fabric import UnlikeReplicasError
from pipesim.costs.network.traffic import Reduction
from pipesim.ir.actions import IntArray, Op
from pipesim.ir.timeline import Timeline

_ROUNDING = 1e-12
"""Makes a transfer that follows another at once seem early."""


def wires_contend(
    timeline: Timeline, costs: CostTable, send_rows: IntArray, ends: npt.NDArray[np.integer[Any]]
) -> bool:
    """Whether wires change when transfers end: two meet on one, or a link is not as fast as costs say.

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
    """
    fabric = costs.fabric
    if fabric is None:
        raise ValueError("the costs have no fabric")
    routes, route = np.unique(ends, axis=0, return_inverse=True)
    route = route.reshape(-1)
    reduced = np.flatnonzero(timeline.op == Op.REDUCE_GRAD)
    holders: dict[int, list[int]] = defaultdict(list)
    for row in reduced.tolist():
        holders[int(timeline.stage[row])].append(int(timeline.rank[row]))
    of_stages = {
        (stage, step.of_experts, step.collective.bytes_per_s): Reduction(
            ranks, step.collective.bytes_per_s, step.of_experts
        )
        for stage, ranks in holders.items()
        for step in costs.sync_steps(stage)
    }
    reductions: dict[Hashable, Reduction] = dict(of_stages.items())
    span_of: dict[Hashable, npt.NDArray[np.float64]] = {
        key: _span(timeline, reduced[timeline.stage[reduced] == key[0]]) for key in of_stages
    }
    embedding = np.flatnonzero(timeline.op == Op.REDUCE_EMBEDDING)
    if costs.tied_embedding is not None and len(embedding):
        ranks, rate = timeline.rank[embedding].tolist(), costs.tied_embedding.bytes_per_s
        reductions[Op.REDUCE_EMBEDDING] = Reduction(ranks, rate, between_ranks=True)
        span_of[Op.REDUCE_EMBEDDING] = _span(timeline, embedding)
    held = {(rank, stage) for stage, ranks in holders.items() for rank in ranks}
    shards = {} if costs.shard_exchange is None else costs.shard_exchange.traffic(sorted(held))
    reductions |= shards
    try:
        traffic = fabric.traffic(
            [(src, dst) for src, dst in routes.tolist()], reductions, one_replica_for_all=True
        )
    except UnlikeReplicasError:
        return True
    if any(traffic.reductions[key].loads for key in shards):
        return True
    occupied: dict[int, list[npt.NDArray[np.float64]]] = defaultdict(list)
    start_s, end_s = timeline.start_s[send_rows], timeline.end_s[send_rows]
    for number, (src, dst) in enumerate(routes.tolist()):
        flow, cost = traffic.messages[src, dst, 0], costs.p2p(src, dst)
        # Of some links the costs know no more than their kind's slowest rate.
        said = cost.bytes_per_s
        if said is not None and abs(float(flow.bytes_per_s) / float(said) - 1) > _ROUNDING:
            return True
        mine = route == number
        spans = np.stack([start_s[mine] + float(flow.latency_s), end_s[mine]], axis=1)
        for wire, _ in flow.loads or ((-1 - number, 1),):
            occupied[wire].append(spans)
    for key, span in span_of.items():
        for wire, _ in traffic.reductions[key].loads:
            occupied[wire].append(span)
    return any(_overlap(np.concatenate(spans)) for spans in occupied.values())


def _span(timeline: Timeline, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.float64]:
    """Start and end of a collective, which all of its rows have in common, shape (1, 2)."""
    return np.stack([timeline.start_s[rows[:1]], timeline.end_s[rows[:1]]], axis=1)


def _overlap(spans: npt.NDArray[np.float64]) -> bool:
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    until = np.maximum.accumulate(spans[:, 1])[:-1]
    return bool((spans[1:, 0] < until - _ROUNDING * np.abs(until)).any())
