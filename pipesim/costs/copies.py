"""What depends on where a schedule puts its stages: the model held twice, a tied embedding held once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from pipesim.costs.network.alpha_beta import Number, Ring, all_reduce_s
from pipesim.costs.network.fabric import Demand
from pipesim.costs.network.traffic import Fabric
from pipesim.costs.table import Array, CostTable
from pipesim.ir.actions import Op, Schedule


def for_schedule(costs: CostTable, schedule: Schedule) -> CostTable:
    """Lay a cost table of stages along a schedule's ranks.

    Where one rank has both ends of the model, it has one tied embedding, not two. Where a rank runs all
    microbatches through one of its stages before the next, shared-out weights are gathered once for them.
    Where two ranks hold a stage, see `with_mirrored_copies`.
    """
    ends = {0, schedule.num_stages - 1}
    if any(ends <= set(schedule.stages_of(rank)) for rank in range(schedule.num_ranks)):
        costs = with_one_embedding(costs)
    if schedule.num_chunks > 1 and _passes_each_stage_once(schedule):
        costs = with_gathers_of_runs(costs)
    if schedule.holds_stages_twice:
        costs = with_mirrored_copies(costs, schedule.num_ranks)
    return costs


def _passes_each_stage_once(schedule: Schedule) -> bool:
    """Whether every rank's forwards of a stage follow each other, and its backwards do."""
    rows = np.flatnonzero(np.isin(schedule.op, (Op.F, Op.B, Op.I)))
    kind = (schedule.rank * schedule.num_stages + schedule.stage)[rows] * 2 + (schedule.op[rows] == Op.F)
    num_runs = 1 + int((kind[1:] != kind[:-1]).sum())
    return num_runs == len(np.unique(kind))


def with_gathers_of_runs(costs: CostTable) -> CostTable:
    """Gather shared-out weights, and reduce gradients, once for all microbatches that pass a stage in a row.

    As breadth-first schedules do (Lamy-Poirier 2022, arXiv 2211.05953); the whole stage is there meanwhile.
    """
    exchange = costs.shard_exchange
    if exchange is None or not any(exchange.gathers) or not exchange.in_every_operation:
        return costs
    exposed = exchange.exposed_s
    forward_parts, backward_parts = dict(costs.forward_parts_s), dict(costs.backward_parts_s)
    for parts in (forward_parts, backward_parts):
        parts.pop("shard_exchange", None)
    whole = costs.working_bytes if exchange.whole_bytes is None else exchange.whole_bytes
    return replace(
        costs,
        shard_exchange=replace(exchange, gathered="run", reduced="run"),
        forward_s=costs.forward_s - exposed[Op.F],
        backward_s=costs.backward_s - exposed[Op.B],
        input_gradient_s=costs.input_gradient_s - exposed[Op.I],
        weight_gradient_s=costs.weight_gradient_s - exposed[Op.W],
        working_bytes=costs.working_bytes + whole,
        of_ranks={rank: with_gathers_of_runs(of_rank) for rank, of_rank in costs.of_ranks.items()},
        forward_parts_s=forward_parts,
        backward_parts_s=backward_parts,
    )


def with_one_embedding(costs: CostTable) -> CostTable:
    """Take the last stage's copy of a tied embedding away; its rank has the first stage's."""
    copy = costs.second_embedding
    if copy is None:
        return costs

    def less(of_stages: Array, amount: float) -> Array:
        result = of_stages.copy()
        result[-1] -= amount
        return result

    gradient_bytes = less(costs.gradient_bytes, copy.gradient_bytes)
    experts = costs.expert_share
    if experts is not None:
        experts = experts * costs.gradient_bytes / np.where(gradient_bytes > 0, gradient_bytes, 1.0)
    return replace(
        costs,
        weight_bytes=less(costs.weight_bytes, copy.weight_bytes),
        updated_weight_bytes=None
        if costs.updated_weight_bytes is None
        else less(costs.updated_weight_bytes, copy.weight_bytes if copy.gradient_bytes else 0.0),
        gradient_bytes=gradient_bytes,
        optimizer_bytes=less(costs.optimizer_bytes, copy.optimizer_bytes),
        optimizer_s=less(costs.optimizer_s, copy.optimizer_s),
        expert_share=experts,
        second_embedding=None,
        of_ranks={rank: with_one_embedding(of_rank) for rank, of_rank in costs.of_ranks.items()},
    )


def with_mirrored_copies(costs: CostTable, num_ranks: int) -> CostTable:
    """Reduce gradients over both copies of each stage, which ranks r and p - 1 - r hold.

    The ring has twice the members, and no more than the rate that those of both ranks reach together, in the
    slowest pair of ranks. What is sharded over the replicas and updated where that ring scatters to is
    sharded over both copies, half as much on each device. Where every microbatch has reduced its gradients
    among the replicas, the two copies' shards of them are left to add up, all replicas at a time. Stated
    times stay as stated.
    """
    if num_ranks == 1 or not any(costs.gradient_bytes):
        return costs
    across = costs.p2p(0, num_ranks - 1)
    if across.bytes_per_s is None:
        return costs
    wires = None if costs.fabric is None else costs.fabric.with_fewest_replicas()
    pairs = [(rank, num_ranks - 1 - rank) for rank in range(num_ranks // 2)]

    def slowest(rings_of: Callable[[Fabric, int, int], Demand]) -> Number:
        if wires is None:
            return across.bytes_per_s or 0
        rates = (wires.wiring.alone_bytes_per_s(rings_of(wires, *pair)) for pair in pairs)
        return min(float(rate) for rate in rates if rate is not None)

    alone = Ring(1, across.bytes_per_s, across.latency_s, 0 * across.latency_s)
    together = slowest(lambda of, one, other: of.reduction(one, other))
    dense = _doubled(costs.gradient_ring, alone, together)
    if costs.shard_exchange is not None:
        pair = replace(alone, num_members=2, bytes_per_s=slowest(Fabric.between_ranks))
        # Held whole until then, they are scattered over the replicas first.
        ring = costs.gradient_ring
        shared = ring.num_members if ring is not None and costs.shard_exchange.reduced == "step" else 1
        of_shards = [all_reduce_s(nbytes / shared, pair) for nbytes in costs.gradient_bytes]
        costs = replace(costs, fixed_sync_s=costs.fixed_sync_s + np.array(of_shards))
    if costs.gradient_collective in ("reduce_scatter", "all_gather"):
        optimizer_s = (costs.optimizer_s + float(costs.optimizer_fixed_s)) / 2
        costs = replace(costs, optimizer_bytes=costs.optimizer_bytes / 2, optimizer_s=optimizer_s)
    if costs.expert_share is None:
        return replace(costs, gradient_ring=dense)
    of_experts = slowest(lambda of, one, other: of.reduction(one, other, of_experts=True))
    return replace(costs, gradient_ring=dense, expert_ring=_doubled(costs.expert_ring, alone, of_experts))


def _doubled(ring: Ring | None, alone: Ring, together: Number) -> Ring:
    # Shortcuts were found for the members of one copy.
    if ring is None:
        return replace(alone, num_members=2, bytes_per_s=together)
    slowest = min(ring.bytes_per_s, together)
    return replace(ring, num_members=2 * ring.num_members, bytes_per_s=slowest, shortcuts=())
