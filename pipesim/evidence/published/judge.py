"""Predict every row of a set and say how far off each one is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from pipesim.evidence.published.published_row import PublishedRow, halves, scenario_of
from pipesim.evidence.published.row_prediction import predict_row
from pipesim.evidence.published.sets import PublishedSet
from pipesim.evidence.published.zero_bubble_rows import PASS_TIME_FACTOR
from pipesim.prediction import Programs
from pipesim.scenario import ResolvedScenario
from pipesim.scenario.domain import Band, band_of

Role = Literal["fitted", "judged", "unseen", "left out"]
"""In the half that a parameter was fitted on, in the other half, in a set that no parameter has seen, or
without a prediction."""


CARDS = "cards."
_PASS_TIMES = ("forward_s", "backward_s", "input_gradient_s", "weight_gradient_s", "p2p_latency_s")


@dataclass(frozen=True, slots=True)
class Judged:
    """A row with its prediction, None where the row is left out. The error is signed.

    `band` is that of a step time, where its efficiency set knows one.
    """

    row: PublishedRow
    role: Role
    predicted: float | None
    error: float | None
    scenario: ResolvedScenario | None = None
    band: Band | None = None

    @property
    def is_in_band(self) -> bool | None:
        """Whether the measured value lies within the band; None without one."""
        if self.band is None or self.error is None:
            return None
        return self.error > -1 and abs(math.log1p(self.error)) <= self.band.half_width


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of several rows, as fractions: mean, median and largest of the sizes, mean with sign."""

    num_rows: int
    mape: float | None
    median: float | None
    max_error: float | None
    bias: float | None

    @classmethod
    def of(cls, judged: Sequence[Judged]) -> Errors:
        """Sum up the rows that have a prediction."""
        errors = np.array([one.error for one in judged if one.error is not None])
        if not len(errors):
            return cls(0, None, None, None, None)
        size = np.abs(errors)
        return cls(
            len(errors), float(size.mean()), float(np.median(size)), float(size.max()), float(errors.mean())
        )


@dataclass(frozen=True, slots=True)
class Report:
    """A set judged row by row.

    Parameters
    ----------
    published : PublishedSet
        The set.
    rows : tuple of Judged
        In the order of the table.
    num_groups, num_groups_ranked : int
        Groups whose rows differ in the schedule alone, and those of them that are ranked as measured.
    """

    published: PublishedSet
    rows: tuple[Judged, ...]
    num_groups: int
    num_groups_ranked: int

    def errors(self, *roles: Role, explained: bool = False) -> Errors:
        """Errors of all rows, or of those in some roles; `explained` leaves out the unexplained ones."""
        return Errors.of(
            [
                one
                for one in self.rows
                if (not roles or one.role in roles) and not (explained and one.row.unexplained)
            ]
        )

    def coverage(self, *roles: Role) -> float | None:
        """Share of the rows that lie within their own bands, of all or of those in some roles."""
        return coverage([one for one in self.rows if not roles or one.role in roles])

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, without the rows."""
        errors, fitted, judged = self.errors(), self.errors("fitted"), self.errors("judged")
        return {
            "set": self.published.name,
            "title": self.published.title,
            "quantity": self.published.quantity,
            "rows": errors.num_rows,
            "mape": errors.mape,
            "median": errors.median,
            "max_error": errors.max_error,
            "bias": errors.bias,
            "mape_fitted_half": fitted.mape,
            "mape_judged_half": judged.mape,
            "mape_without_unexplained": self.errors(explained=True).mape,
            "coverage": self.coverage(),
            "coverage_not_fitted": self.coverage("judged", "unseen"),
            "left_out": sum(one.error is None for one in self.rows),
            "parameters": list(self.published.fitted),
            "groups": self.num_groups,
            "groups_ranked_as_measured": self.num_groups_ranked,
        }

    def rows_to_dicts(self) -> list[dict[str, Any]]:
        """Plain data for JSON, one entry a row."""
        return [
            {
                "set": self.published.name,
                "row": number,
                "label": one.row.label,
                "quantity": self.published.quantity,
                "measured": None if math.isnan(one.row.measured) else one.row.measured,
                "predicted": one.predicted,
                "error": one.error,
                "role": one.role,
                "half_width": None if one.band is None else one.band.half_width,
                "in_band": one.is_in_band,
                "unexplained": one.row.unexplained,
                "left_out": one.row.left_out,
                "source": one.row.source,
            }
            for number, one in enumerate(self.rows, start=1)
        ]


def judge(
    published: PublishedSet,
    rows: Sequence[PublishedRow] | None = None,
    *,
    parameters: Mapping[str, float] | None = None,
    programs: Programs | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Report:
    """Predict the rows of a set.

    Parameters
    ----------
    published : PublishedSet
        The set.
    rows : sequence of PublishedRow, optional
        Other rows of the same kind; by default the shipped ones. Others are no part of a fit.
    parameters : Mapping, optional
        Fields of the efficiency to try in place of the preset's.
    programs : Programs, optional
        Where schedules of other sets are found.
    progress : Callable
        Told the label of each row before it is predicted.
    """
    programs = programs or Programs()
    own = rows is None
    rows = published.rows() if rows is None else rows
    in_fit = {id(row) for row in halves(usable(rows))[0]}
    judged = []
    known: dict[str, float] = {}
    for row in rows:
        progress(row.label)
        if row.scenario is None or row.left_out:
            judged.append(Judged(row, "left out", None, None))
            continue
        scenario = resolved(row, parameters)
        key = row.decides
        if key not in known:
            known[key] = predict_row(published.quantity, row, scenario, programs)
        predicted = known[key]
        band = None
        if published.quantity == "step_time_s":
            band = band_of(scenario, scenario.schedule.name or "")
        role: Role = "unseen"
        if own and published.fits(row):
            role = "fitted" if id(row) in in_fit and not row.unexplained else "judged"
        judged.append(Judged(row, role, predicted, predicted / row.measured - 1, scenario, band))
    ranked = _rankings(judged)
    return Report(published, tuple(judged), len(ranked), sum(ranked))


def coverage(judged: Sequence[Judged]) -> float | None:
    """Share of rows within their own bands; None where no row has one."""
    inside = [one.is_in_band for one in judged if one.is_in_band is not None]
    return sum(inside) / len(inside) if inside else None


def bands_summary(reports: Sequence[Report]) -> dict[str, Any]:
    """How many of all rows that were not fitted lie in their own bands, and how wide these are."""
    rows = [one for report in reports for one in report.rows if one.band is not None and one.role != "fitted"]
    widths = [one.band.half_width for one in rows if one.band is not None]
    return {
        "rows": len(rows),
        "coverage": coverage(rows),
        "half_width": float(np.median(widths)) if widths else None,
    }


def by_domain(reports: Sequence[Report]) -> list[dict[str, Any]]:
    """Errors and coverage of step times by efficiency set, dense and MoE apart, as plain data."""
    groups: dict[tuple[str, bool], list[Judged]] = {}
    for one in (one for report in reports for one in report.rows):
        if one.band is not None and one.scenario is not None and one.scenario.efficiency is not None:
            has_experts = one.scenario.model is not None and one.scenario.model.experts is not None
            groups.setdefault((one.scenario.efficiency.name, has_experts), []).append(one)
    return [
        {
            "efficiency": name,
            "models": "MoE" if experts else "dense",
            "rows": len(rows),
            "mape": Errors.of(rows).mape,
            "mape_not_fitted": Errors.of([one for one in rows if one.role != "fitted"]).mape,
            "coverage": coverage(rows),
            "coverage_not_fitted": coverage([one for one in rows if one.role != "fitted"]),
            "half_width": float(np.median([one.band.half_width for one in rows if one.band is not None])),
        }
        for (name, experts), rows in sorted(groups.items())
    ]


def usable(rows: Sequence[PublishedRow]) -> list[PublishedRow]:
    """Rows that a fit may look at: those with a prediction that a smooth model can be held to."""
    return [row for row in rows if row.scenario is not None and not row.left_out and not row.unexplained]


def resolved(row: PublishedRow, parameters: Mapping[str, float] | None = None) -> ResolvedScenario:
    """Scenario of a row, with other values for some fields of its efficiency.

    Raises
    ------
    ScenarioError
        If the row's sizes contradict each other.
    """
    return with_parameters(scenario_of(row), parameters or {})


def with_parameters(scenario: ResolvedScenario, parameters: Mapping[str, float]) -> ResolvedScenario:
    """Put values into the efficiency of a scenario, or scale its stated times by ``pass_time_factor``.

    Names may be those of groups of cards, see `card_factors`.
    """
    if not parameters:
        return scenario
    if scenario.costs is not None:
        scale = parameters["pass_time_factor"] / PASS_TIME_FACTOR
        scaled = {name: scale * getattr(scenario.costs, name) for name in _PASS_TIMES}
        return replace(scenario, costs=replace(scenario.costs, **scaled))
    if scenario.efficiency is None:
        return scenario
    changed: dict[str, Any] = {name: value for name, value in parameters.items() if "." not in name}
    if "expert_layer_floor_s" in changed and not scenario.efficiency.expert_layer_floor_s:
        # A row without the host's waits stays so.
        changed["expert_layer_floor_s"] = 0.0
    if factors := {name: value for name, value in parameters.items() if name.startswith(CARDS)}:
        changed["cards"] = card_factors(factors, scenario.efficiency.cards)
    return replace(scenario, efficiency=scenario.efficiency.model_copy(update=changed))


def card_factors(factors: Mapping[str, float], cards: Iterable[str]) -> dict[str, float]:
    """Factor of each card from those of groups, named ``cards.ONE,OTHER``: the product of those it is in."""
    return {
        card: math.prod(v for n, v in factors.items() if card in n.removeprefix(CARDS).split(","))
        for card in cards
    }


def _rankings(judged: Sequence[Judged]) -> list[bool]:
    """Whether each group of rows is ranked as measured; ties count as right."""
    groups: dict[str, list[Judged]] = {}
    for one in judged:
        if one.row.group is not None and one.predicted is not None:
            groups.setdefault(one.row.group, []).append(one)
    results = []
    for members in groups.values():
        if len(members) < 2:
            continue
        measured = np.array([one.row.measured for one in members])
        predicted = np.array([one.predicted for one in members], dtype=float)
        order = np.sign(measured[:, None] - measured) * np.sign(predicted[:, None] - predicted)
        results.append(bool((order >= 0).all()))
    return results
