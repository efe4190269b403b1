"""One schedule run and predicted: what was measured, what was predicted, and how far apart they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pipesim.costs import CostTable
from pipesim.executor import Run
from pipesim.ir.actions import Lowered
from pipesim.ir.timeline import Timeline
from pipesim.metrics import StepMetrics, measure
from pipesim.prediction import replay

FloatArray = npt.NDArray[np.float64]
ENOUGH_STEPS = 3
"""Undisturbed steps that a run needs; with fewer it is repeated."""


@dataclass(frozen=True, slots=True)
class ValidationRow:
    """Measured and predicted; times in seconds, errors (predicted - measured) / measured.

    Parameters
    ----------
    schedule : str
        Its name.
    num_ranks, num_chunks, num_microbatches : int
        Its shape.
    stages_per_rank : int
        Most stages of one rank: of two model replicas it counts both.
    calibrated_on : bool
        The costs come from this very run.
    num_runs, num_steps, num_disturbed_steps : int
        Runs, as one with too few undisturbed steps is repeated; the steps of all of them, and those set
        aside because other work on the machine got in the way.
    disturbed : bool
        Fewer than `ENOUGH_STEPS` were left; the numbers are of all steps and mean little.
    measured_step_time_s, p10_step_time_s, p90_step_time_s : float
        Median and percentiles over the steps that count.
    predicted_step_time_s, step_time_error : float
        From the calibration.
    measured_bubble_ratio, predicted_bubble_ratio : float
        Idle / (p * makespan).
    replay_error : float
        Median over the steps that count of the error in their makespans where the engine is given each step's
        own durations: what the timeline model gets wrong, apart from durations that differ between runs.
    measured_idle_s, predicted_idle_s : tuple of float
        By rank.
    drift : float
        How many times as long as calibrated the device computed before and after the run, which the
        prediction takes into account.
    measured, predicted : Timeline
        The step next to the median from its own start on, and the prediction.
    """

    schedule: str
    num_ranks: int
    num_chunks: int
    num_microbatches: int
    stages_per_rank: int
    calibrated_on: bool
    num_runs: int
    num_steps: int
    num_disturbed_steps: int
    disturbed: bool
    measured_step_time_s: float
    p10_step_time_s: float
    p90_step_time_s: float
    predicted_step_time_s: float
    step_time_error: float
    measured_bubble_ratio: float
    predicted_bubble_ratio: float
    replay_error: float
    measured_idle_s: tuple[float, ...]
    predicted_idle_s: tuple[float, ...]
    drift: float
    measured: Timeline
    predicted: Timeline

    @property
    def label(self) -> str:
        """Schedule with its shape."""
        return label(self.schedule, self.num_chunks, self.num_microbatches)

    @property
    def bubble_error(self) -> float:
        """Predicted less measured bubble ratio."""
        return self.predicted_bubble_ratio - self.measured_bubble_ratio

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        names = [name for name in ValidationRow.__slots__ if name not in ("measured", "predicted")]
        found: dict[str, Any] = {name: getattr(self, name) for name in names}
        found["bubble_error"] = self.bubble_error
        found["measured_idle_s"] = list(self.measured_idle_s)
        found["predicted_idle_s"] = list(self.predicted_idle_s)
        return found


def label(schedule: str, num_chunks: int, num_microbatches: int) -> str:
    """Name a schedule with its shape: ``zb-v v2 m8``."""
    return f"{schedule}{'' if num_chunks == 1 else f' v{num_chunks}'} m{num_microbatches}"


def make_row(
    runs: Sequence[Run], costs: CostTable, *, calibrated_on: bool = False, drift: float = 1.0
) -> ValidationRow:
    """Predict what was run and put both side by side.

    Parameters
    ----------
    runs : sequence of Run
        Of one lowered schedule; more than one where steps were disturbed and it was run again.
    costs : CostTable
        Calibrated.
    calibrated_on : bool
        On these runs.
    drift : float
        What the costs already hold of it.
    """
    lowered = runs[0].schedule
    compute = lowered.schedule
    steps = [(run, step) for run in runs for step in run.undisturbed_steps]
    disturbed = len(steps) < min(ENOUGH_STEPS, runs[0].num_steps)
    if disturbed:
        steps = [(run, step) for run in runs for step in range(run.num_steps)]
    timelines = [run.step(step) for run, step in steps]
    measured = [measure(timeline, compute, costs) for timeline in timelines]
    prediction = replay(lowered, costs)
    predicted = measure(prediction, compute, costs)
    times = _numbers(measured, lambda step: step.step_time_s)
    middle = float(np.median(times))
    replayed = [_replay_error(timeline, costs, lowered) for timeline in timelines]
    shown = timelines[int(np.abs(times - middle).argmin())]
    return ValidationRow(
        schedule=lowered.name,
        num_ranks=lowered.num_ranks,
        num_chunks=lowered.num_chunks,
        num_microbatches=lowered.num_microbatches,
        stages_per_rank=max(len(lowered.stages_of(rank)) for rank in range(lowered.num_ranks)),
        calibrated_on=calibrated_on,
        num_runs=len(runs),
        num_steps=sum(run.num_steps for run in runs),
        num_disturbed_steps=sum(int(run.disturbed.sum()) for run in runs),
        disturbed=disturbed,
        measured_step_time_s=middle,
        p10_step_time_s=float(np.percentile(times, 10)),
        p90_step_time_s=float(np.percentile(times, 90)),
        predicted_step_time_s=float(predicted.step_time_s),
        step_time_error=float(predicted.step_time_s) / middle - 1,
        measured_bubble_ratio=float(np.median(_numbers(measured, lambda step: step.bubble_ratio))),
        predicted_bubble_ratio=float(predicted.bubble_ratio),
        replay_error=float(np.median(replayed)),
        measured_idle_s=tuple(
            float(np.median(_numbers(measured, lambda step, r=rank: step.ranks[r].idle_s)))  # type: ignore[misc]
            for rank in range(lowered.num_ranks)
        ),
        predicted_idle_s=tuple(float(rank.idle_s) for rank in predicted.ranks),
        drift=drift,
        measured=_from_its_start(shown),
        predicted=prediction,
    )


def _numbers(steps: Sequence[StepMetrics], number: Callable[[StepMetrics], Any]) -> FloatArray:
    return np.array([float(number(step)) for step in steps])


def _replay_error(timeline: Timeline, costs: CostTable, lowered: Lowered) -> float:
    again = replay(lowered, costs, durations=timeline.end_s - timeline.start_s)
    return _makespan_s(again) / _makespan_s(timeline) - 1


def _makespan_s(timeline: Timeline) -> float:
    compute = timeline.select(timeline.compute)
    return float(compute.end_s.max() - compute.start_s.min())


def _from_its_start(timeline: Timeline) -> Timeline:
    computing = timeline.select(timeline.compute)
    origin = computing.start_s.min()
    return replace(timeline, start_s=timeline.start_s - origin, end_s=timeline.end_s - origin)
