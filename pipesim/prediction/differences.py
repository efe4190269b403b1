"""How far a predicted difference of two configurations can be trusted.

Errors of one efficiency set are shared between configurations of one model: what is 10 % too slow is so on
both sides. Published pairs that differ in the schedule alone, or in the cut, tell what is left: nine of ten
differences of logs lie within ``hypot(c, 0.3 d)`` of the predicted d. The c of a set is that of its own pairs
(`Domain.cut_close`, by `pipesim calibrate --published`), with few of them that of all sets' pairs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pipesim.prediction.result import Prediction
from pipesim.scenario import ResolvedScenario
from pipesim.scenario.domain import band_of, domain_of, model_key

What = Literal["schedule", "cut"]
POOLED: Mapping[What, tuple[int, float]] = {"schedule": (46, 0.04), "cut": (268, 0.057)}
"""How many pairs all sets have, and their half-width where close: zero-bubble schedules; A100 grids of
Megatron and DeepSpeed, SimuMax on B200."""
MEASURED_TIMES = (36, 0.018)
"""The same of schedules timed from what passes took in the same run (arXiv 2401.10241)."""
_OTHER_FORMAT_OR_CARD = 0.11
"""Of pairs that also differ in number format or card."""
SHARE_OF_DIFFERENCE = 0.3
_FEW_PAIRS = 20
_ROUNDING = 1e-9
"""Step times that differ by less are one: the rounding of sums in another order."""

Side = tuple[ResolvedScenario, str]
"""A scenario under a schedule, which need not be its own."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One predicted step time against another.

    Parameters
    ----------
    log_ratio : float
        Natural logarithm of the first over the second.
    half_width : float, optional
        Nine of ten measured logs should lie within this of the predicted one; None where times are stated.
    basis : str
        What that rests on, in words.
    """

    log_ratio: float
    half_width: float | None
    basis: str = ""

    @property
    def is_certain(self) -> bool:
        """Whether nine times of ten the faster one is the faster one."""
        return abs(self.log_ratio) > (self.half_width or _ROUNDING)

    @property
    def share(self) -> float:
        """How much longer the first takes, as a share of the second; negative where it is faster."""
        return math.expm1(self.log_ratio)

    @property
    def between(self) -> tuple[float, float]:
        """Least and greatest share of nine in ten."""
        width = self.half_width or 0.0
        return math.expm1(self.log_ratio - width), math.expm1(self.log_ratio + width)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "share": self.share,
            "between": None if self.half_width is None else list(self.between),
            "half_width": self.half_width,
            "basis": self.basis,
            "is_certain": self.is_certain,
        }


def difference(first: Prediction, second: Prediction) -> Difference:
    """Compare two predictions, with the error of their difference.

    Parameters
    ----------
    first, second : Prediction
        Of any scenarios; of unlike models, sets or software their own bands add up in quadrature.
    """
    log_ratio = math.log(float(first.step_time_s) / float(second.step_time_s))
    return difference_of(
        (first.scenario, first.schedule.name), (second.scenario, second.schedule.name), log_ratio
    )


def difference_of(first: Side, second: Side, log_ratio: float) -> Difference:
    """Give a difference of logs its error.

    Parameters
    ----------
    first, second : tuple
        A scenario and the schedule it is under.
    log_ratio : float
        As in `Difference`.
    """
    bands = band_of(*first), band_of(*second)
    if bands[0] is None or bands[1] is None:
        if first[0].costs_file is not None and second[0].costs_file is not None:
            number, close = MEASURED_TIMES
            words = f"{number} published pairs of schedules, timed from measured passes"
        elif first[0].efficiency is not None and _base(first[0]) == _base(second[0]):
            close, words = _close(first, second)  # a set that nobody measured has pairs as others have
        else:
            return Difference(log_ratio, None)
        return Difference(log_ratio, math.hypot(close, SHARE_OF_DIFFERENCE * log_ratio), words)
    apart = math.hypot(bands[0].half_width, bands[1].half_width)
    if _base(first[0]) != _base(second[0]):
        return Difference(log_ratio, apart, "both bands, as models, sets or releases differ")
    close, basis = _close(first, second)
    together = math.hypot(close, SHARE_OF_DIFFERENCE * log_ratio)
    if apart < together:
        return Difference(log_ratio, apart, f"both bands, which are narrower than {basis}")
    return Difference(log_ratio, together, basis)


def is_cut_alike(first: ResolvedScenario, second: ResolvedScenario) -> bool:
    """Tell whether two scenarios of one model differ in no more than schedule and chunks."""
    one, other = (
        (
            (p.pipeline, p.tensor, p.data, p.context, p.expert),
            scenario.batch.micro,
            scenario.recompute,
            scenario.sharding,
        )
        for scenario in (first, second)
        for p in (scenario.parallel,)
    )
    return one == other


def _close(first: Side, second: Side) -> tuple[float, str]:
    """Find the half-width of a small difference, and what it rests on."""
    if _kind(first[0]) != _kind(second[0]):
        return _OTHER_FORMAT_OR_CARD, "published pairs of all sets that differ in number format or card too"
    what: What = "schedule" if is_cut_alike(first[0], second[0]) else "cut"
    number, pooled = POOLED[what]
    everywhere = f"{number} published pairs of {what}s in all sets, as"
    efficiency, model = first[0].efficiency, first[0].model
    assert efficiency is not None
    if first[0].borrowed_for:
        return pooled, f"{everywhere} {efficiency.name} is borrowed"
    domain = None if model is None else domain_of(efficiency, model)
    if domain is None:
        return pooled, f"{everywhere} {efficiency.name} has none"
    own, close = domain.pairs_of(what)
    if own < _FEW_PAIRS:
        return pooled, f"{everywhere} {efficiency.name} has {own or 'none'}"
    return close, f"{own} published pairs of {what}s in {efficiency.name}"


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
