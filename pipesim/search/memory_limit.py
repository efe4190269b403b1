"""Memory limits of a search: what the options state, else what the device has and need not keep free."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pipesim.costs.copies import with_one_embedding
from pipesim.costs.table import CostTable
from pipesim.ir.shape import Shape
from pipesim.search.problem import MemoryLimit


def memory_limit(
    shape: Shape, costs: CostTable, rank_of: Sequence[int], *, at_most: bool = False
) -> MemoryLimit:
    """Memory that activations may take on each rank: what the options state, else what the device leaves.

    With the headroom kept, beside the largest working set of a rank's stages, so that all fits whatever runs;
    or, `at_most`, all memory beside the least working set, which no order that fits can exceed.
    """
    room_for = np.min if at_most else np.max
    ranks, p = np.array(rank_of), shape.num_ranks
    stated = shape.options.get("max_in_flight")
    if stated is not None:
        per_rank = [stated] * p if isinstance(stated, int) else list(stated)
        return MemoryLimit(np.ones(shape.num_stages), np.array(per_rank, np.float64))
    if rank_of[0] == rank_of[-1]:
        costs = with_one_embedding(costs)
    amounts = np.array(costs.activation_bytes, np.float64)
    deferred = None if costs.deferred_bytes is None else np.array(costs.deferred_bytes, np.float64)
    if _budget_bytes(costs) is None or not amounts.any():
        return MemoryLimit(np.ones(shape.num_stages), np.full(p, np.inf))
    static = np.array(costs.weight_bytes + costs.gradient_bytes + costs.optimizer_bytes, np.float64)
    working = np.array(costs.working_bytes, np.float64)
    limit_of = _limit_bytes if at_most else _budget_bytes
    left = [
        (limit_of(costs.of_ranks.get(rank, costs)) or np.inf)
        - static[ranks == rank].sum()
        - room_for(working[ranks == rank])
        for rank in range(p)
    ]
    return MemoryLimit(amounts, np.array(left), deferred)


def _limit_bytes(costs: CostTable) -> float | None:
    return costs.memory_limit_bytes


def _budget_bytes(costs: CostTable) -> float | None:
    """Memory of a device less what is to be kept free of it."""
    return costs.memory_limit_bytes if costs.memory_budget_bytes is None else costs.memory_budget_bytes


def is_limit(value: Any, num_ranks: int) -> bool:
    """Whether a value is a number of microbatches, or one a rank."""

    def whole(number: Any) -> bool:
        return isinstance(number, int) and not isinstance(number, bool) and number >= 1

    if isinstance(value, list | tuple):
        return len(value) == num_ranks and all(map(whole, value))
    return value is None or whole(value)
