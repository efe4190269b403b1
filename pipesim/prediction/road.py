"""`predict`: from a scenario to its numbers, for every verb."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pipesim.ir.timeline import Timeline
from pipesim.metrics import measure
from pipesim.prediction.preparation import prepare
from pipesim.prediction.prepared import Prepared
from pipesim.prediction.programs import Programs
from pipesim.prediction.result import Prediction, TimedBy
from pipesim.prediction.stepping import Timing, step_within, timed_step
from pipesim.scenario import ResolvedScenario


def predict(
    scenario: ResolvedScenario,
    name: str | None = None,
    *,
    num_chunks: int | None = None,
    options: Mapping[str, Any] | None = None,
    timing: Timing = "engine",
    programs: Programs | None = None,
) -> Prediction:
    """Predict one step.

    Parameters
    ----------
    scenario : ResolvedScenario
        Sizes and costs.
    name : str, optional
        A schedule of the registry; by default the schedule that the scenario names, with its options.
    num_chunks : int, optional
        Chunks a rank; by default the schedule's own number, else the scenario's.
    options : Mapping, optional
        Settings of the schedule that is named; without a name, over those that the scenario has.
    timing : {"engine", "fast", "compiled"}
        What times it; see `Timing`.
    programs : Programs, optional
        Where schedules of earlier predictions are found.

    Raises
    ------
    PipesimError
        If the schedule does not go with the scenario's sizes, or cannot run.
    """
    prepared = prepare(scenario, name, num_chunks=num_chunks, options=options, programs=programs)
    return predict_prepared(prepared, timing=timing)


def predict_within(prepared: Prepared, limit_s: float) -> Prediction | float:
    """Simulate what `prepare` put together, or give up once the step is certain to take longer.

    Parameters
    ----------
    prepared : Prepared
        Schedule and costs.
    limit_s : float
        Seconds; how long a step is still of interest. Not heeded with jitter, where nothing bounds a step.

    Returns
    -------
    Prediction or float
        The step, or the seconds that it takes at least, more than `limit_s`.

    Raises
    ------
    DeadlockError
        If transfers block and the ranks wait for each other for ever.
    """
    if not math.isfinite(limit_s) or prepared.scenario.jitter is not None:
        return predict_prepared(prepared)
    found = step_within(prepared, limit_s)
    return found if isinstance(found, float) else _prediction(prepared, found, "engine")


def predict_prepared(prepared: Prepared, *, timing: Timing = "engine", repeat: int = 0) -> Prediction:
    """Time what `prepare` put together.

    Parameters
    ----------
    prepared : Prepared
        Schedule and costs.
    timing : {"engine", "fast", "compiled"}
        As for `predict`.
    repeat : int
        Which of many steps, where the scenario has jitter; the same number draws the same step.

    Raises
    ------
    ScenarioError
        If it is to be compiled and cannot be.
    DeadlockError
        If transfers block and the ranks wait for each other for ever.
    """
    return _prediction(prepared, *timed_step(prepared, timing, repeat))


def _prediction(prepared: Prepared, timeline: Timeline, timed_by: TimedBy) -> Prediction:
    return Prediction(
        scenario=prepared.scenario,
        schedule=prepared.schedule,
        costs=prepared.costs,
        events=timeline,
        metrics=measure(timeline, prepared.schedule, prepared.costs),
        asynchrony=prepared.asynchrony,
        notes=prepared.notes,
        shape=prepared.shape,
        timed_by=timed_by,
        choices=prepared.choices,
    )
