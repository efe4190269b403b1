"""Many steps of one schedule where times differ: how long they take, and how much of it is idle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipesim.errors import ScenarioError
from pipesim.prediction.prepared import Prepared
from pipesim.prediction.road import predict_prepared


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of one number over all repeats."""

    mean: float
    p50: float
    p95: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Percentiles:
        """Summarise a sample."""
        p50, p95 = np.percentile(values, [50, 95])
        return cls(float(np.mean(values)), float(p50), float(p95))


@dataclass(frozen=True, slots=True)
class Repeats:
    """Steps that differ by chance, drawn from the scenario's seed.

    Parameters
    ----------
    num_repeats : int
        Steps in all.
    step_time_s, bubble_ratio : Percentiles
        A step ends with its slowest replica, of which the bubble ratio is.
    slowdown : float
        Mean step time over that of the same step without any jitter.
    """

    num_repeats: int
    step_time_s: Percentiles
    bubble_ratio: Percentiles
    slowdown: float


def repeat(prepared: Prepared, num_repeats: int) -> Repeats:
    """Run a schedule over and over with other draws.

    Parameters
    ----------
    prepared : Prepared
        In a scenario with jitter. Where only some ranks are slow and nothing is drawn, one repeat will do.
    num_repeats : int
        At least 1.

    Raises
    ------
    ScenarioError
        If nothing differs from step to step.
    """
    scenario = prepared.scenario
    if num_repeats < 1:
        raise ScenarioError(f"found {num_repeats}; at least 1 is needed", key="--repeats")
    if scenario.jitter is None or (num_repeats > 1 and not scenario.jitter.random):
        raise ScenarioError(
            "all repeats would be alike; state jitter, such as {compute: 0.02, devices: 0.02}",
            file=scenario.file,
            key="jitter",
        )
    drawn = [predict_prepared(prepared, repeat=number) for number in range(num_repeats)]
    even = predict_prepared(replace(prepared, scenario=scenario.with_(jitter=None)))
    times = [float(one.step_time_s) for one in drawn]
    return Repeats(
        num_repeats=num_repeats,
        step_time_s=Percentiles.of(times),
        bubble_ratio=Percentiles.of([float(one.bubble_ratio) for one in drawn]),
        slowdown=float(np.mean(times)) / float(even.step_time_s),
    )
