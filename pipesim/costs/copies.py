"""Schedules that hold the model twice in one pipeline: what that adds to synchronising gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from pipesim.costs.network.alpha_beta import Number, Ring, all_reduce_s
from pipesim.costs.network.fabric import Demand
from pipesim.costs.network.traffic import Fabric
from pipesim.costs.table import CostTable


def with_mirrored_copies(costs: CostTable, num_ranks: int) -> CostTable:
    """Reduce gradients over both copies of each stage, which ranks r and p - 1 - r hold.

    The ring has twice the members, and no more than the rate that those of both ranks reach together, in the
    slowest pair of ranks. Optimizer state stays sharded as it was. Where every microbatch has reduced its
    gradients among the replicas, the two copies' shards of them are left to add up, all replicas at a time.
    Stated times stay as stated.
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
        of_shards = [all_reduce_s(nbytes, pair) for nbytes in costs.gradient_bytes]
        costs = replace(costs, fixed_sync_s=costs.fixed_sync_s + np.array(of_shards))
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
