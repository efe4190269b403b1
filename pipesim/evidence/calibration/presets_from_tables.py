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

from pipesim.errors import ScenarioError
from pipesim.evidence.calibration.least_squares import robust_fit
from pipesim.evidence.published import (
    SETS,
    PublishedRow,
    halves,
    predict_row,
    resolved,
    usable,
    with_parameters,
)
from pipesim.evidence.published.published_row import in_hash_order
from pipesim.prediction import Programs
from pipesim.scenario import ResolvedScenario

FloatArray = npt.NDArray[np.float64]

REPEAT_SCATTER = 0.02
"""Repeats of one configuration differ by 1 to 2 %: residuals well above it count linearly."""
NUM_FOLDS = 10

BOUNDS: Mapping[str, tuple[float, float, float]] = {
    "gemm": (0.2, 0.7, 0.95),
    "gemm_fp8": (0.2, 0.65, 0.95),
    "attention": (0.1, 0.45, 0.95),
    "layer_overhead_s": (0.0, 0.6e-3, 5e-3),
    "unaligned_gemm": (0.3, 0.75, 1.0),
    "tensor_collective_factor": (0.0, 1.0, 5.0),
    "intra_node_bandwidth_factor": (0.1, 0.6, 1.0),
    "pass_time_factor": (0.9, 1.05, 1.3),
}
"""Least, where a fit begins, greatest: of fields of `Efficiency`, and of the factor on pass times."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """Which sets a preset is fitted on, and which of its fields.

    With `sets_alike` sets weigh alike however many rows they have, otherwise rows do.
    """

    preset: str
    sets: tuple[str, ...]
    parameters: tuple[str, ...]
    sets_alike: bool = False


RECIPES: Mapping[str, Recipe] = {
    recipe.preset: recipe
    for recipe in (
        Recipe("a100-megatron-2022", ("korthikanti",), ("gemm", "layer_overhead_s")),
        Recipe("a100-megatron-2021", ("sc21",), ("gemm", "layer_overhead_s")),
        Recipe("a100-megatron-deepspeed-vtrain", ("vtrain",), ("gemm", "layer_overhead_s")),
        Recipe(
            "a100-megatron-deepspeed-bloom",
            ("bloom", "bloom-batches"),
            ("gemm", "layer_overhead_s", "tensor_collective_factor", "unaligned_gemm"),
        ),
        Recipe(
            "a100-megatron",
            ("korthikanti", "sc21", "vtrain"),
            ("gemm", "layer_overhead_s"),
            sets_alike=True,
        ),
        Recipe("a100-megatron-2024", ("vocabulary",), ("gemm", "attention", "layer_overhead_s")),
        Recipe(
            "h100-nemo",
            ("nvidia", "mlperf"),
            ("gemm", "gemm_fp8", "layer_overhead_s", "tensor_collective_factor"),
        ),
        Recipe("zero-bubble-pass-times", ("zero-bubble",), ("pass_time_factor",)),
        Recipe("b200-megatron", ("simumax",), ("gemm", "attention", "intra_node_bandwidth_factor")),
    )
}


@dataclass(frozen=True, slots=True)
class Sample:
    """A row ready to be predicted again and again."""

    set_name: str
    row: PublishedRow
    scenario: ResolvedScenario


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
    """

    recipe: Recipe
    values: Mapping[str, float]
    other_half: Mapping[str, float]
    all_rows: Mapping[str, float]
    ranges: Mapping[str, tuple[float, float]]
    errors: tuple[SetErrors, ...]

    @property
    def error_band(self) -> float:
        """Share of the measured time within which nine of ten rows lie, each predicted without its fold."""
        return float(np.quantile(np.abs(np.concatenate([one.folds for one in self.errors])), 0.9))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "preset": self.recipe.preset,
            "error_band": self.error_band,
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


def recipe_of(name: str) -> Recipe:
    """Look a recipe up by its preset, or by a set that it is fitted on alone.

    Raises
    ------
    ScenarioError
        If there is none.
    """
    plain = name.strip().lower().replace("_", "-")
    if plain in RECIPES:
        return RECIPES[plain]
    for recipe in RECIPES.values():
        if recipe.preset == (SETS[plain].fitted if plain in SETS else None):
            return recipe
    raise ScenarioError(
        f"nothing is fitted to {name!r}; presets with a fit: {', '.join(RECIPES)}; "
        f"sets: {', '.join(name for name, one in SETS.items() if one.fitted)}"
    )


def calibrate_published(recipe: Recipe, *, progress: Callable[[str], None] = lambda _: None) -> PresetFit:
    """Fit a recipe on half of its rows, judge it by the other half and by folds.

    The many rounds of a fit leave out that traffic meets on wires; the errors are those of `simulate`.

    Parameters
    ----------
    recipe : Recipe
        What to fit on what.
    progress : Callable
        Told which fit begins.
    """
    samples = [Sample(name, row, resolved(row)) for name in recipe.sets for row in usable(SETS[name].rows())]
    first_ids = {
        id(row) for name in recipe.sets for row in halves([s.row for s in samples if s.set_name == name])[0]
    }
    in_first = np.array([id(s.row) in first_ids for s in samples])
    problem = _PresetErrors(recipe)
    progress("one half")
    on_first = problem.fit([s for s in samples if id(s.row) in first_ids])
    progress("the other half")
    on_other = problem.fit([s for s in samples if id(s.row) not in first_ids])
    progress("all rows")
    on_all = problem.fit(samples, start=on_first)
    by_folds = []
    fold_errors = np.full(len(samples), np.nan)
    for number, fold in enumerate(_folds(samples), start=1):
        progress(f"all but fold {number}")
        values = problem.fit([s for i, s in enumerate(samples) if i not in fold], start=on_all)
        by_folds.append(values)
        fold_errors[fold] = problem.errors([samples[i] for i in fold], values)
    by_first, by_other, by_all = (problem.errors(samples, v) for v in (on_first, on_other, on_all))
    crosswise = np.where(in_first, by_other, by_first)

    def of_set(name: str) -> SetErrors:
        here = np.array([s.set_name == name for s in samples])
        halves_of = by_first[here & in_first], by_first[here & ~in_first]
        return SetErrors(name, *halves_of, crosswise[here], fold_errors[here], by_all[here])

    return PresetFit(
        recipe,
        values=problem.named(on_first),
        other_half=problem.named(on_other),
        all_rows=problem.named(on_all),
        ranges={
            name: (min(values), max(values))
            for name, values in zip(recipe.parameters, zip(*by_folds, strict=True), strict=True)
        },
        errors=tuple(map(of_set, recipe.sets)),
    )


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
        self.programs = Programs()

    def named(self, values: Sequence[float]) -> dict[str, float]:
        return {name: float(value) for name, value in zip(self.names, values, strict=True)}

    def errors(
        self, samples: Sequence[Sample], values: Sequence[float], *, contended: bool = True
    ) -> FloatArray:
        parameters = self.named(values)
        predicted = [
            predict_row(
                SETS[s.set_name].quantity,
                s.row,
                with_parameters(s.scenario, parameters),
                self.programs,
                contended=contended,
            )
            for s in samples
        ]
        return np.array(predicted) / [s.row.measured for s in samples] - 1

    def fit(self, samples: Sequence[Sample], start: Sequence[float] | None = None) -> tuple[float, ...]:
        bounds = [BOUNDS[name] for name in self.names]
        values = robust_fit(
            lambda values: np.log1p(self.errors(samples, values.tolist(), contended=False)),
            start=start or [begin for _, begin, _ in bounds],
            lower=[least for least, _, _ in bounds],
            upper=[greatest for _, _, greatest in bounds],
            scale=REPEAT_SCATTER,
            weights=_set_weights(samples) if self.sets_alike else None,
            near=start is not None,
        )
        return tuple(values.tolist())


def _set_weights(samples: Sequence[Sample]) -> FloatArray:
    """Let sets weigh alike, however many rows they have."""
    names = [s.set_name for s in samples]
    return np.array([len(names) / len(set(names)) / names.count(name) for name in names])
