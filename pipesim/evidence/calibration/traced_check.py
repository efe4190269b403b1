"""Traced runs beside what their own calibration says of them: makespan, and each rank's time by cause."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from pipesim.costs import CostTable
from pipesim.evidence.calibration.traced_run import TracedRun
from pipesim.metrics import StepMetrics, measure
from pipesim.prediction import replay

CAUSES = ("busy_s", "warmup_s", "dependency_s", "p2p_s", "cooldown_s")


@dataclass(frozen=True, slots=True)
class TracedCheck:
    """The step of median length of a run beside the prediction.

    Parameters
    ----------
    source : str
        The traces.
    num_steps : int
        Steps in them.
    measured_s, predicted_s : float
        Makespan in seconds.
    measured, predicted : dict of str to float
        Seconds by cause, mean over ranks.
    """

    source: str
    num_steps: int
    measured_s: float
    predicted_s: float
    measured: dict[str, float]
    predicted: dict[str, float]

    @property
    def error(self) -> float:
        """(predicted - measured) / measured."""
        return self.predicted_s / self.measured_s - 1

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self) | {"error": self.error}


def check_traced(run: TracedRun, costs: CostTable) -> TracedCheck:
    """Predict the order that ran from costs, and put the prediction beside what was traced."""
    compute = run.schedule.schedule
    steps = [measure(run.step(step), compute, costs) for step in range(run.num_steps)]
    middle = sorted(steps, key=lambda step: step.makespan_s)[(len(steps) - 1) // 2]
    timeline = replay(run.schedule, costs)
    predicted = measure(timeline.select(timeline.compute), compute, costs)
    return TracedCheck(
        source=run.schedule.name,
        num_steps=run.num_steps,
        measured_s=float(middle.makespan_s),
        predicted_s=float(predicted.makespan_s),
        measured={cause: _mean(middle, cause) for cause in CAUSES},
        predicted={cause: _mean(predicted, cause) for cause in CAUSES},
    )


def _mean(step: StepMetrics, cause: str) -> float:
    return float(np.mean([float(getattr(rank.breakdown, cause)) for rank in step.ranks]))
