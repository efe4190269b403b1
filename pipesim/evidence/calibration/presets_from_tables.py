"""Fit the parameters of one accelerator and software generation to published step times.

A recipe names the tables and the few parameters; nothing is fitted to a row or a model. The fit sees one half
of each table's rows and is judged by the other (`pipesim.evidence.published.halves`), then by folds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipesim.evidence.calibration.domains import found_domains, model_of, with_pairs
from pipesim.evidence.calibration.least_squares import robust_fit
from pipesim.evidence.calibration.linearised_fit import Linear, Unknowns, linearised_fit
from pipesim.evidence.calibration.recipes import ANCHORS, BOUNDS, ROW_SCATTER, Recipe
from pipesim.evidence.calibration.row_samples import Sample, has_experts
from pipesim.evidence.published import (
    SETS,
    PublishedRow,
    halves,
    predict_row,
    preset_of,
    resolved,
    usable,
    with_parameters,
)
from pipesim.evidence.published.judge import CARDS, card_factors
from pipesim.evidence.published.published_row import in_hash_order
from pipesim.prediction import Programs
from pipesim.scenario.presets import get_preset
from pipesim.scenario.schema_efficiency import Domain

FloatArray = npt.NDArray[np.float64]

REPEAT_SCATTER = 0.02
"""Repeats of one configuration differ by 1 to 2 %: residuals well above it count linearly."""
NUM_FOLDS = 10


@dataclass(frozen=True, slots=True)
class SetErrors:
    """Signed errors of one set's rows, as fractions."""

    set_name: str
    fitted_half: FloatArray
    judged_half: FloatArray
    two_halves: FloatArray
    """Each row by the fit of the half it is not in."""
    folds: FloatArray
    """Each row by the fit of all folds but its own."""
    all_rows: FloatArray
    """By a fit of all rows."""


@dataclass(frozen=True, slots=True)
class PresetFit:
    """Parameters of a recipe with their errors.

    Parameters
    ----------
    recipe : Recipe
        What was fitted on what.
    values : Mapping
        Parameters fitted on the first half of the rows: the ones to use.
    other_half, all_rows : Mapping
        The same fitted on the other half, and on all rows.
    ranges : Mapping
        Smallest and largest value over the folds.
    errors : tuple of SetErrors
        One entry a set.
    domains : tuple of Domain
        What its rows cover, and how sure it is there.
    """

    recipe: Recipe
    values: Mapping[str, float]
    other_half: Mapping[str, float]
    all_rows: Mapping[str, float]
    ranges: Mapping[str, tuple[float, float]]
    errors: tuple[SetErrors, ...]
    domains: tuple[Domain, ...]

    def preset_keys(self) -> dict[str, Any]:
        """Values as an efficiency preset states them."""
        if set(self.values) == {"pass_time_factor"}:
            return dict(self.values)
        stated: dict[str, Any] = {
            name.removesuffix("_s"): f"{1e3 * value:.4g} ms" if name.endswith("_s") else float(f"{value:.4g}")
            for name, value in self.values.items()
            if not name.startswith(CARDS)
        }
        if factors := {name: value for name, value in self.values.items() if name.startswith(CARDS)}:
            cards = get_preset("efficiency", self.recipe.preset).fields["cards"]
            found = card_factors(factors, cards)
            stated["cards"] = {card: float(f"{value:.4g}") for card, value in found.items()}
        return stated

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "preset": self.recipe.preset,
            "domains": [domain.model_dump(mode="json") for domain in self.domains],
            "parameters": {
                name: {
                    "value": value,
                    "other_half": self.other_half[name],
                    "all_rows": self.all_rows[name],
                    "smallest": self.ranges[name][0],
                    "largest": self.ranges[name][1],
                }
                for name, value in self.values.items()
            },
            "sets": [
                {
                    "set": one.set_name,
                    "rows": len(one.all_rows),
                    "mape_fitted_half": mape(one.fitted_half),
                    "mape_judged_half": mape(one.judged_half),
                    "mape_two_halves": mape(one.two_halves),
                    "mape_folds": mape(one.folds),
                    "mape_all_rows": mape(one.all_rows),
                }
                for one in self.errors
            ],
        }


def mape(errors: FloatArray) -> float | None:
    """Mean absolute error; None without rows."""
    return float(np.abs(errors).mean()) if len(errors) else None


def calibrate_published(recipe: Recipe, *, progress: Callable[[str], None] = lambda _: None) -> PresetFit:
    """Fit a recipe on half of its rows, judge it by the other half, by folds and by leaving models out.

    Fits without a fold or a model start from the slopes around the fit of all rows. The many rounds of a fit
    leave out that traffic meets on wires; the errors are those of `simulate`.

    Parameters
    ----------
    recipe : Recipe
        What to fit on what.
    progress : Callable
        Told which fit begins.
    """
    rows_of = {name: usable(SETS[name].rows()) for name in recipe.sets}
    samples = [
        Sample(name, row, resolved(row)) for name, rows in rows_of.items() for row in rows_with(recipe, rows)
    ]
    first_ids = {id(row) for rows in rows_of.values() for row in halves(rows)[0]}
    in_first = np.array([id(s.row) in first_ids for s in samples])
    problem = _PresetErrors(recipe)
    progress("one half")
    on_first = problem.fit([s for s in samples if id(s.row) in first_ids])
    progress("the other half")
    on_other = problem.fit([s for s in samples if id(s.row) not in first_ids], start=on_first)
    progress("all rows")
    on_all = problem.fit(samples, start=on_first)
    progress("errors")
    values = [fit.at.tolist() for fit in (on_first, on_other, on_all)]
    by_first, by_other, by_all = (problem.errors(samples, one) for one in values)
    without = _Without(problem, samples, on_all, by_all)
    folds, models = without.each(_folds(samples)), without.each(_models(samples))
    crosswise = np.where(in_first, by_other, by_first)

    def of_set(name: str) -> SetErrors:
        here = np.array([s.set_name == name for s in samples])
        halves_of = by_first[here & in_first], by_first[here & ~in_first]
        return SetErrors(name, *halves_of, crosswise[here], folds.errors[here], by_all[here])

    others = [
        Sample(name, row, resolved(row))
        for name in recipe.compared
        for row in rows_with(recipe, usable(SETS[name].rows()))
    ]
    logs = -np.log1p(np.concatenate([models.errors, problem.errors(others, values[0])]))
    return PresetFit(
        recipe,
        values=problem.named(values[0]),
        other_half=problem.named(values[1]),
        all_rows=problem.named(values[2]),
        ranges={
            name: (min(found), max(found))
            for name, found in zip(recipe.parameters, zip(*folds.values, strict=True), strict=True)
        },
        errors=tuple(map(of_set, recipe.sets)),
        domains=tuple(
            with_pairs(domain, [*samples, *others], logs)
            for domain in found_domains(samples, crosswise, models.errors)
        ),
    )


@dataclass(frozen=True, slots=True)
class _Left:
    """Fits without each of several parts, and the errors of the parts by them."""

    values: list[list[float]]
    errors: FloatArray


class _Without:
    """Fits of all rows but some, from the slopes around the fit of all."""

    def __init__(
        self, problem: _PresetErrors, samples: Sequence[Sample], on_all: Linear, by_all: FloatArray
    ) -> None:
        self.problem, self.on_all, self.by_all = problem, on_all, by_all
        self.scatter = problem.scatter(samples)
        self.weights = _set_weights(samples) if problem.sets_alike else None

    def each(self, parts: Sequence[Sequence[int]]) -> _Left:
        values, errors = [], np.full(len(self.by_all), np.nan)
        for part in parts:
            rest = np.setdiff1d(np.arange(len(self.by_all)), part)
            best = self.on_all.at
            if len(rest):
                best = self.on_all.best(self.problem.unknowns, rest, self.weights)
            moved = (self.on_all.of(best) - self.on_all.residuals)[list(part)] * self.scatter[list(part)]
            errors[list(part)] = np.exp(np.log1p(self.by_all[list(part)]) + moved) - 1
            values.append(best.tolist())
        return _Left(values, errors)


def rows_with(recipe: Recipe, rows: Sequence[PublishedRow]) -> list[PublishedRow]:
    """Rows of a set that a recipe's preset predicts; all where it is no efficiency."""
    return [row for row in rows if preset_of(row) in (*recipe.presets, None)]


def _models(samples: Sequence[Sample]) -> list[list[int]]:
    """List the indices of each model's rows."""
    keys = [model_of(s.scenario) for s in samples]
    return [[i for i, key in enumerate(keys) if key == one] for one in dict.fromkeys(keys)]


def _folds(samples: Sequence[Sample]) -> list[list[int]]:
    """Deal configurations out in the order of their hash; return the indices of each fold."""
    order = in_hash_order([s.row for s in samples])
    fold_of = {configuration: index % NUM_FOLDS for index, configuration in enumerate(order)}
    numbers = [fold_of[s.row.configuration] for s in samples]
    return [[i for i, n in enumerate(numbers) if n == fold] for fold in sorted(set(numbers))]


class _PresetErrors:
    """Errors as a function of the recipe's parameters."""

    def __init__(self, recipe: Recipe) -> None:
        self.names = recipe.parameters
        self.sets_alike = recipe.sets_alike
        self.anchored = recipe.anchored
        self.programs = Programs()

    def named(self, values: Sequence[float]) -> dict[str, float]:
        return {name: float(value) for name, value in zip(self.names, values, strict=True)}

    def errors(
        self, samples: Sequence[Sample], values: Sequence[float], *, contended: bool = True
    ) -> FloatArray:
        parameters = self.named(values)
        known: dict[tuple[str, str], float] = {}
        for s in samples:
            if (key := (s.set_name, s.row.decides)) not in known:
                scenario, quantity = with_parameters(s.scenario, parameters), SETS[s.set_name].quantity
                known[key] = predict_row(quantity, s.row, scenario, self.programs, contended=contended)
        predicted = [known[s.set_name, s.row.decides] for s in samples]
        return np.array(predicted) / [s.row.measured for s in samples] - 1

    def fit(self, samples: Sequence[Sample], start: Linear | None = None) -> Linear:
        """Fit to samples; the residuals of these around what was found."""

        def misfits(values: FloatArray) -> FloatArray:
            logs = np.log1p(self.errors(samples, values.tolist(), contended=False))
            return np.asarray(logs / self.scatter(samples))

        weights = _set_weights(samples) if self.sets_alike else None
        if self.anchored or start is not None:
            begin = None if start is None else start.at
            return linearised_fit(misfits, self.unknowns, start=begin, weights=weights)
        bounds = [BOUNDS[name] for name in self.names]
        values = robust_fit(
            misfits,
            start=[begin for _, begin, _ in bounds],
            lower=[least for least, _, _ in bounds],
            upper=[greatest for _, _, greatest in bounds],
            scale=1.0,
            weights=weights,
        )
        return Linear.around(misfits, values, self.unknowns)

    def scatter(self, samples: Sequence[Sample]) -> FloatArray:
        if not self.anchored:
            return np.full(len(samples), REPEAT_SCATTER)
        return np.array([ROW_SCATTER[has_experts(s.scenario)] for s in samples])

    @property
    def unknowns(self) -> Unknowns:
        box = [BOUNDS[name] for name in self.names]
        anchors = [
            ANCHORS.get(name, (begin, 0.3 * (greatest - least)))
            for name, (least, begin, greatest) in zip(self.names, box, strict=True)
        ]
        return Unknowns(
            start=np.array([anchor for anchor, _ in anchors]),
            lower=np.array([least for least, _, _ in box]),
            upper=np.array([greatest for _, _, greatest in box]),
            unit=np.array([unit for _, unit in anchors]),
            is_anchored=self.anchored,
        )


def _set_weights(samples: Sequence[Sample]) -> FloatArray:
    """Let sets weigh alike, however many rows they have."""
    names = [s.set_name for s in samples]
    return np.array([len(names) / len(set(names)) / names.count(name) for name in names])
