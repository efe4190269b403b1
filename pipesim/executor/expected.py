"""How long a run on the emulated device will take, said before it starts."""

from __future__ import annotations

import os

import numpy as np

from pipesim.executor.workload import EmulatedWorkload, Workload
from pipesim.ir.actions import Lowered, Op
from pipesim.timing.longest_path import evaluate

_REDUCED_BYTES_PER_S_AND_CORE = 1.5e9
"""Sent by all ranks together: gloo's all-reduce over the loopback of two cores moved 2.6 to 3.2 GB/s."""


def expected_run_s(
    schedule: Lowered, workload: Workload, *, num_replicas: int, num_steps: int
) -> float | None:
    """Estimate the seconds of a run from the times that its ranks sleep and the gradients that they send.

    What boundaries take to send is left out: most of it goes on beside the sleeps.

    Parameters
    ----------
    schedule : Lowered
        Lowered.
    workload : Workload
        Whose times and bytes.
    num_replicas, num_steps : int
        Replicas, and steps with those to warm up.

    Returns
    -------
    float or None
        None for a model: nobody knows before it runs.
    """
    if not isinstance(workload, EmulatedWorkload):
        return None
    row_s = np.asarray(workload.row_s)
    makespan_s = max(evaluate(schedule.schedule, row_s[schedule.op <= Op.W].tolist()).end)
    optimizer_s = row_s[schedule.op == Op.OPTIMIZER].max(initial=0)
    sent = 0
    for stage, nbytes in enumerate(workload.gradient_bytes):
        copies = num_replicas * sum(stage in schedule.stages_of(rank) for rank in range(schedule.num_ranks))
        sent += 2 * (copies - 1) * nbytes
    reduction_s = sent / _REDUCED_BYTES_PER_S_AND_CORE / (os.cpu_count() or 1)
    return num_steps * float(makespan_s + optimizer_s + reduction_s)


def in_words(seconds: float | None) -> str:
    """Say a duration as the end of a line: ``, about 3 min``; nothing where it is not known."""
    if seconds is None:
        return ""
    return f", about {seconds / 60:.0f} min" if seconds >= 120 else f", about {max(1, seconds):.0f} s"
