"""Devices that compute faster or slower than when costs were measured: by how much, and costs that know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pipesim.costs import CostTable
from pipesim.evidence.calibration.from_runs import samples_of_run
from pipesim.executor import Run


def drift_of(runs: Sequence[Run], costs: CostTable) -> float:
    """How many times as long computations take as calibrated: the median over operations of all stages.

    Parameters
    ----------
    runs : sequence of Run
        Of the schedule that was calibrated on, for a few steps.
    costs : CostTable
        As calibrated.
    """
    ratios = [
        float(np.median(seconds)) / float(costs.duration(op, stage))
        for run in runs
        for (op, stage), seconds in samples_of_run(run, "drift").op_s.items()
        if costs.duration(op, stage) > 0
    ]
    return float(np.median(ratios)) if ratios else 1.0


def drifted(costs: CostTable, factor: float) -> CostTable:
    """Multiply what computations take; messages and reductions stay."""
    if factor == 1:
        return costs
    pairs = costs.overlapped_pair_s
    return replace(
        costs,
        forward_s=factor * costs.forward_s,
        backward_s=factor * costs.backward_s,
        input_gradient_s=factor * costs.input_gradient_s,
        weight_gradient_s=factor * costs.weight_gradient_s,
        optimizer_s=factor * costs.optimizer_s,
        overlapped_pair_s=None if pairs is None else factor * pairs,
    )
