"""Fits to published step times: the minimiser, known parameters found again, shipped presets repeated."""

import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from pipesim.cli.app import app
from pipesim.errors import ScenarioError
from pipesim.evidence.calibration.domains import seen_half_width, unseen_half_width
from pipesim.evidence.calibration.least_squares import robust_fit
from pipesim.evidence.calibration.linearised_fit import Unknowns, linearised_fit
from pipesim.evidence.calibration.presets_from_tables import calibrate_published
from pipesim.evidence.calibration.recipes import RECIPES, Recipe, recipe_of
from pipesim.evidence.published import SETS, halves, resolved, usable, with_parameters
from pipesim.prediction import predict


def line_fit(measured, **more):
    x = np.arange(10.0)
    return robust_fit(
        lambda v: v[0] * x + v[1] - measured, start=[0.5, 0.5], lower=[0, 0], upper=[5, 10], scale=0.1, **more
    )


def test_an_exact_line_is_found():
    assert line_fit(2 * np.arange(10.0) + 3) == pytest.approx([2, 3], abs=1e-5)


def test_an_outlier_pulls_no_harder_than_any_other_row():
    measured = 2 * np.arange(10.0) + 3
    measured[4] += 50
    assert line_fit(measured) == pytest.approx([2, 3], abs=0.1)


def test_bounds_hold():
    assert line_fit(9 * np.arange(10.0))[0] == pytest.approx(5, abs=1e-6)


def test_weights_count():
    measured = np.where(np.arange(10) < 5, 1.0, 2.0)
    x = np.zeros(10)
    weights = np.where(np.arange(10) < 5, 9.0, 1.0)
    fit = robust_fit(
        lambda v: v[0] + x - measured, start=[1.5], lower=[0], upper=[3], scale=10.0, weights=weights
    )
    assert fit[0] == pytest.approx(1.1, abs=0.01)


def only(monkeypatch, name, rows):
    """Let one set, with these rows, be all there is."""
    published = {name: replace(SETS[name], read=lambda _: rows)}
    monkeypatch.setattr("pipesim.evidence.calibration.presets_from_tables.SETS", published)


def test_a_fit_is_judged_as_simulate_predicts(monkeypatch):
    """Where traffic meets on wires it takes longer; rounds of the fit leave that out, the errors do not."""
    rows = usable(SETS["simumax"].rows())[2:6]
    only(monkeypatch, "simumax", rows)
    found = calibrate_published(Recipe("b200-megatron", ("simumax",), ("gemm",)))
    scenarios = [with_parameters(resolved(row), found.all_rows) for row in rows]
    engine = np.array(
        [predict(s).step_time_s / row.measured - 1 for s, row in zip(scenarios, rows, strict=True)]
    )
    alone = np.array(
        [
            predict(s, timing="compiled").step_time_s / r.measured - 1
            for s, r in zip(scenarios, rows, strict=True)
        ]
    )
    assert found.errors[0].all_rows == pytest.approx(engine, abs=1e-12)
    assert np.abs(engine - alone).max() > 1e-4


def test_parameters_that_made_the_times_are_found_again(monkeypatch):
    truth = {"gemm": 0.7, "layer_overhead_s": 0.9e-3}
    rows = [
        replace(row, measured=predict(with_parameters(resolved(row), truth)).step_time_s)
        for row in usable(SETS["sc21"].rows())[:6]
    ]
    only(monkeypatch, "sc21", rows)
    found = calibrate_published(Recipe("a100-megatron-2021", ("sc21",), tuple(truth)))
    assert found.values == pytest.approx(truth, rel=1e-3)
    assert found.other_half == pytest.approx(truth, rel=1e-3)
    assert max(abs(found.errors[0].folds)) < 1e-3


def test_the_shipped_preset_is_what_the_command_finds():
    """The quickest of them; benchmarks fit all."""
    result = CliRunner().invoke(app, ["calibrate", "--published", "simumax", "--json"])
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found["preset"] == "b200-megatron"
    efficiency = resolved(SETS["simumax"].rows()[0]).efficiency
    for name, fit in found["parameters"].items():
        assert getattr(efficiency, name) == pytest.approx(fit["value"], rel=0.01)
        assert fit["smallest"] <= fit["all_rows"] * 1.01
        assert fit["largest"] >= fit["all_rows"] * 0.99
    (errors,) = found["sets"]
    assert errors["mape_folds"] < 0.032
    fitted, judged = halves(usable(SETS["simumax"].rows()))
    assert errors["rows"] == len(fitted) + len(judged)


def test_each_fitted_set_names_the_preset_that_is_fitted_on_it():
    for recipe in RECIPES.values():
        for name in recipe.sets:
            assert set(SETS[name].fitted) <= set(RECIPES)
    for name, one in SETS.items():
        for preset in one.fitted:
            assert name in RECIPES[preset].sets
        if len(one.fitted) == 1 and name not in ("mlperf",):
            assert recipe_of(name).preset == one.fitted[0]


def line(unit, *, is_anchored, rows):
    """Fit y = a x to rows of x = 1..n with y = 2 x, in units of a scatter of 1."""
    unknowns = Unknowns(np.array([1.0]), np.array([0.0]), np.array([9.0]), np.array([unit]), is_anchored)
    x = np.arange(1.0, rows + 1)
    return linearised_fit(lambda values: values[0] * x - 2 * x, unknowns).at[0]


def test_an_anchor_decides_only_what_rows_leave_open():
    assert line(1.0, is_anchored=False, rows=3) == pytest.approx(2, abs=1e-4)
    assert line(0.01, is_anchored=True, rows=1) == pytest.approx(1, abs=0.03)
    assert line(1.0, is_anchored=True, rows=50) == pytest.approx(2, abs=1e-2)


def test_half_widths_by_hand():
    """Worst of a cluster; with 20 clusters the 90 % quantile of them; t(5 % each side, 6) is 1.943."""
    assert seen_half_width(["a", "a", "b"], np.array([0.01, -0.05, 0.02])) == 0.05
    many = list(range(20))
    assert seen_half_width(many, np.linspace(0.01, 0.20, 20)) == pytest.approx(0.181)
    residuals = np.array([0.1, 0.1, -0.1, -0.1])
    between = (0.1**2 + 0.1**2 + 4 * 0.05**2) / 6
    expected = 1.9432 * (between * (1 + 1 / 6)) ** 0.5
    assert unseen_half_width(["a", "a", "b", "b"], residuals, 0.05) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--published", "torchtitan"], "nothing is fitted"),
        ([], "--published SET and --measured"),
        (["--published", "sc21", "--measured", "x.csv"], "one of"),
        (["--measured", "x.csv"], "cannot be read"),
    ],
)
def test_bad_requests_end_with_one_message(arguments, words):
    result = CliRunner().invoke(app, ["calibrate", *arguments])
    assert isinstance(result.exception, ScenarioError)
    assert words in str(result.exception)
