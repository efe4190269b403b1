"""Schedules that hold the model twice in one pipeline: what that adds to synchronising gradients."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pipesim.costs.network.alpha_beta import Number, Ring, all_reduce_s
from pipesim.costs.table import CostTable


def with_mirrored_copies(costs: CostTable, num_ranks: int) -> CostTable:
    """Reduce gradients over both copies of each stage, which ranks r and p - 1 - r hold.

    The ring has twice the members, and no more than the rate of the link between the two ranks that are
    furthest apart. Optimizer state stays sharded as it was. Where every microbatch has reduced its gradients
    among the replicas, the two copies' shards of them are left to add up. Stated times stay as stated.
    """
    if num_ranks == 1 or not any(costs.gradient_bytes):
        return costs
    across = costs.p2p(0, num_ranks - 1)
    if across.bytes_per_s is None:
        return costs
    alone = Ring(1, across.bytes_per_s, across.latency_s, 0 * across.latency_s)
    dense = _doubled(costs.gradient_ring or alone, across.bytes_per_s)
    if costs.shard_exchange is not None:
        of_shards = [all_reduce_s(nbytes, replace(alone, num_members=2)) for nbytes in costs.gradient_bytes]
        costs = replace(costs, fixed_sync_s=costs.fixed_sync_s + np.array(of_shards))
    if costs.expert_share is None:
        return replace(costs, gradient_ring=dense)
    experts = _doubled(costs.expert_ring or alone, across.bytes_per_s)
    return replace(costs, gradient_ring=dense, expert_ring=experts)


def _doubled(ring: Ring, bytes_per_s: Number) -> Ring:
    # Shortcuts were found for the members of one copy.
    slowest = min(ring.bytes_per_s, bytes_per_s)
    return replace(ring, num_members=2 * ring.num_members, bytes_per_s=slowest, shortcuts=())
