"""How far a predicted difference of two configurations can be trusted.

Errors of one efficiency set are shared between configurations of one model: what is 10 % too slow is so on
both sides. Of 355 published pairs of layouts or schedules that differ in nothing else (A100 grids of Megatron
and DeepSpeed, zero-bubble schedules, NeMo), nine of ten differences of logs are predicted within 0.05 of the
measured one where the configurations are close, and within three tenths of larger differences
(`pipesim accuracy`, differences).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pipesim.prediction.result import Prediction
from pipesim.scenario import ResolvedScenario
from pipesim.scenario.domain import band_of, model_key

CLOSE = 0.05
_OTHER_FORMAT_OR_CARD = 0.11
"""Of pairs that also differ in number format or card."""
SHARE_OF_DIFFERENCE = 0.3


@dataclass(frozen=True, slots=True)
class Difference:
    """One predicted step time against another.

    Parameters
    ----------
    log_ratio : float
        Natural logarithm of the first over the second.
    half_width : float, optional
        Nine of ten measured logs should lie within this of the predicted one; None where nobody measured.
    """

    log_ratio: float
    half_width: float | None

    @property
    def is_certain(self) -> bool:
        """Whether nine times of ten the faster one is the faster one."""
        return self.half_width is None or abs(self.log_ratio) > self.half_width


def difference(first: Prediction, second: Prediction) -> Difference:
    """Compare two predictions, with the error of their difference.

    Parameters
    ----------
    first, second : Prediction
        Of any scenarios; of unlike models, sets or software their own bands add up in quadrature.
    """
    log_ratio = math.log(float(first.step_time_s) / float(second.step_time_s))
    names = first.schedule.name, second.schedule.name
    return Difference(
        log_ratio, difference_half_width((first.scenario, names[0]), (second.scenario, names[1]), log_ratio)
    )


def difference_half_width(
    first: tuple[ResolvedScenario, str], second: tuple[ResolvedScenario, str], log_ratio: float
) -> float | None:
    """Half-width of a difference of two scenarios, each under a schedule; see `Difference`."""
    bands = band_of(*first), band_of(*second)
    if bands[0] is None or bands[1] is None:
        return None
    apart = math.hypot(bands[0].half_width, bands[1].half_width)
    if _base(first[0]) != _base(second[0]):
        return apart
    least = CLOSE if _kind(first[0]) == _kind(second[0]) else _OTHER_FORMAT_OR_CARD
    return min(apart, math.hypot(least, SHARE_OF_DIFFERENCE * log_ratio))


def _base(scenario: ResolvedScenario) -> tuple[object, ...]:
    """Collect what must be alike for errors to be shared."""
    efficiency, model = scenario.efficiency, scenario.model
    return (
        None if efficiency is None else (efficiency.name, efficiency.release),
        None if model is None else model_key(model),
    )


def _kind(scenario: ResolvedScenario) -> tuple[object, ...]:
    cluster = scenario.cluster
    return scenario.precision.compute, None if cluster is None else cluster.accelerator.name
