"""Runs as the executor would record them if ranks took exactly what a cost table says."""

from __future__ import annotations

import numpy as np

from pipesim.costs import CostTable
from pipesim.costs.host import HostCost
from pipesim.executor import Run
from pipesim.executor.run import timeline_of
from pipesim.ir import lower
from pipesim.ir.actions import SENDS, Op, Schedule
from pipesim.timing.engine import simulate


def run_of(
    schedule: Schedule,
    costs: CostTable,
    *,
    num_steps: int = 3,
    disturbed: tuple[int, ...] = (),
    device: str = "cpu",
    stretched: float = 3.0,
    num_replicas: int = 1,
) -> Run:
    """What the executor would record if ranks took what the costs say; disturbed steps take longer."""
    lowered = lower(schedule)
    host = costs.host or HostCost()
    timeline = simulate(lowered, costs)  # alike replicas run alike
    start, end = timeline.start_s.astype(float), timeline.end_s.astype(float)
    own = end - start
    sends = np.isin(lowered.op, SENDS)
    own[sends] = [float(host.send_s(n)) for n in timeline.nbytes[sends]]
    wait_start, wait_end = np.full(len(start), np.nan), np.full(len(start), np.nan)
    for rank in range(lowered.num_ranks):
        free = 0.0
        for row in range(*lowered.rows_of(rank).indices(len(start))):
            if sends[row]:
                free += own[row]
            elif lowered.op[row] <= Op.W:
                if start[row] > free + host.per_action_s + 1e-9:
                    wait_start[row], wait_end[row] = free, start[row]
                free = end[row]
            elif lowered.op[row] == Op.REDUCE_GRAD:
                free = end[row]
            elif lowered.op[row] == Op.OPTIMIZER:
                wait_start[row], wait_end[row] = free, start[row]
    factor = np.array([stretched if step in disturbed else 1.0 for step in range(num_steps)])

    def over_steps(values: np.ndarray) -> np.ndarray:
        return (factor[:, None] * np.tile(values, num_replicas)).reshape(-1)

    return Run(
        schedule=lowered,
        device=device,
        num_replicas=num_replicas,
        num_steps=num_steps,
        warmup=0,
        timeline=timeline_of(
            lowered,
            num_replicas,
            num_steps,
            over_steps(start),
            over_steps(end),
            timeline.nbytes.astype(np.int64),
        ),
        own_s=over_steps(own),
        wait_start_s=over_steps(wait_start),
        wait_end_s=over_steps(wait_end),
        cpu_s=over_steps(own),
        step_s=factor * end.max(),
        disturbed=factor > 1,
        losses=np.zeros(num_steps),
        peak_activation_bytes=np.zeros((num_replicas, lowered.num_ranks), np.int64),
        peak_memory_bytes=np.zeros((num_replicas, lowered.num_ranks), np.int64),
        deferred_share=np.ones(lowered.num_stages),
        clock_offset_s=np.zeros((2, num_replicas * lowered.num_ranks)),
        clock_bound_s=np.zeros((2, num_replicas * lowered.num_ranks)),
        workload={"kind": "transformer"},
        environment={"torch": "none"},
    )
