"""Where the whole step went, in parts that add up: the busiest rank's time, and what is left to explain."""

from __future__ import annotations

from typing import Any

import numpy as np

from pipesim.costs import CostTable
from pipesim.ir.actions import Op, Schedule
from pipesim.metrics import StepMetrics, as_number
from pipesim.scenario import ResolvedScenario

_EXCHANGES = ("context_exchange", "expert_exchange", "boundary_gather", "offload")


def step_breakdown(
    metrics: StepMetrics, schedule: Schedule, costs: CostTable, scenario: ResolvedScenario
) -> dict[str, Any]:
    """Cut the step time into parts.

    Computing, overhead and exchanges are means over the ranks; what the busiest rank has above the mean is
    imbalance. Its idle time is bubble (warm-up, dependencies, cool-down) or exposed communication.

    Returns
    -------
    dict
        Seconds of computing, the layers' fixed overhead, tensor-parallel and other exchanges (0 where the
        costs do not tell them apart), imbalance, bubble, exposed p2p and collectives, data-parallel
        synchronisation, optimizer: together the step time. ``not_explained_s`` is what a measured step time
        has above that, None where none is stated.
    """
    busiest = max(metrics.ranks, key=lambda rank: float(rank.busy_s))
    parts = busiest.breakdown
    mean_busy_s = sum(rank.busy_s for rank in metrics.ranks) / metrics.num_ranks
    tensor_parallel_s = mean_of_parts(schedule, costs, ("tensor_collective",))
    other_s = mean_of_parts(schedule, costs, _EXCHANGES)
    overhead_s = mean_overhead_s(schedule, costs)
    measured_s = scenario.measured_step_time_s
    found = {
        "compute_s": mean_busy_s - tensor_parallel_s - other_s - overhead_s,
        "overhead_s": overhead_s,
        "tensor_parallel_s": tensor_parallel_s,
        "other_exchanges_s": other_s,
        "imbalance_s": parts.busy_s - mean_busy_s,
        "bubble_s": parts.warmup_s + parts.dependency_s + parts.cooldown_s,
        "exposed_p2p_s": parts.p2p_s,
        "exposed_collective_s": parts.collective_s,
        "data_parallel_s": metrics.exposed_sync_s,
        "optimizer_s": metrics.optimizer_s,
        "not_explained_s": None if measured_s is None else measured_s - float(metrics.step_time_s),
    }
    return {name: as_number(value) for name, value in found.items()}


def mean_overhead_s(schedule: Schedule, costs: CostTable) -> Any:
    """Seconds of the layers' fixed overhead, mean over the ranks: paid in full for every slice."""
    total: Any = 0
    for parts, op, share in (
        (costs.forward_parts_s, Op.F, 1),
        (costs.backward_parts_s, Op.B, 1),
        (costs.backward_parts_s, Op.I, 0.5),
        (costs.backward_parts_s, Op.W, 0.5),
    ):
        if "overhead" in parts:
            counts = np.bincount(schedule.stage[schedule.op == op], minlength=schedule.num_stages)
            total += share * (parts["overhead"] * counts).sum()
    return total / schedule.num_ranks


def mean_of_parts(schedule: Schedule, costs: CostTable, names: tuple[str, ...]) -> Any:
    """Seconds a rank spends on some parts of its computations, mean over the ranks."""
    total: Any = 0
    for table, ops in ((costs.forward_parts_s, (Op.F,)), (costs.backward_parts_s, (Op.B, Op.I))):
        stages = schedule.stage[np.isin(schedule.op, ops)]
        counts = np.bincount(stages, minlength=schedule.num_stages)
        total += sum((table[name] * counts).sum() for name in names if name in table)
    return total / schedule.num_slices / schedule.num_ranks
