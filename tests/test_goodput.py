"""Failures and checkpoints: Daly's model against limits, simulated runs and its own optimum."""

import json
import math

import pytest
from typer.testing import CliRunner

from pipesim.cli.app import app
from pipesim.errors import ScenarioError
from pipesim.questions import goodput
from pipesim.questions.goodput import best_interval_s, expected_goodput
from pipesim.scenario import scenario_from_mapping

DIRECT = {
    "parallel": {"pipeline": 4, "data": 256},
    "batch": {"microbatches": 8},
    "costs": {"forward": 0.1, "backward": 0.2},
}


def found(*overrides):
    return goodput(scenario_from_mapping(DIRECT, overrides=overrides))


def test_without_failures_only_checkpoints_cost():
    assert expected_goodput(900, 100, 600, 1e15) == pytest.approx(0.9)
    assert expected_goodput(900, 0, 600, 1e15) == pytest.approx(1)


def test_long_intervals_lose_half_of_one_a_failure():
    """To first order 1 - C/tau - tau/2M - R/M (Young 1974)."""
    mtbf = 1e7
    assert expected_goodput(2000, 20, 100, mtbf) == pytest.approx(
        1 - 20 / 2020 - 2000 / 2 / mtbf - 100 / mtbf, abs=2e-5
    )


def test_a_run_that_never_reaches_a_checkpoint():
    assert expected_goodput(1e6, 60, 600, 1000) == 0


@pytest.mark.parametrize("mtbf", [1e3, 1e4, 1e6])
@pytest.mark.parametrize("checkpoint", [1, 60])
def test_the_best_interval_is_the_best(checkpoint, mtbf):
    best = best_interval_s(checkpoint, mtbf)
    at_best = expected_goodput(best, checkpoint, 600, mtbf)
    for factor in (0.5, 0.9, 0.99, 1.01, 1.1, 2):
        assert expected_goodput(best * factor, checkpoint, 600, mtbf) < at_best
    if mtbf == 1e6:
        assert best == pytest.approx(math.sqrt(2 * checkpoint * mtbf), rel=0.01)


@pytest.mark.parametrize("mtbf", [1e9, 1e14, 1e17, 1e20, 1e300])
def test_where_failures_are_rare_youngs_estimate_is_the_best(mtbf):
    """To first order in its share of M the best interval is a third of that share shorter."""
    young = math.sqrt(2 * 60 * mtbf)
    assert best_interval_s(60, mtbf) == pytest.approx(young * (1 - young / mtbf / 3), rel=1e-7)


def test_a_run_that_ends_before_its_first_checkpoint_has_lost_nothing():
    run = found("reliability={days: 1, mtbf_per_gpu: 1e15 h, checkpoint: 1 min, interval: 240 h}")
    assert run.simulated_goodput["mean"] == 1


def test_simulated_runs_have_the_expected_goodput():
    run = found("reliability={days: 300, runs: 200, restart: 20 min, checkpoint: 2 min}")
    assert run.num_gpus == 1024
    assert run.mtbf_s == pytest.approx(50_700 * 3600 / 1024)
    assert run.simulated_goodput["mean"] == pytest.approx(run.goodput, abs=0.001)
    assert run.simulated_goodput["p5"] < run.simulated_goodput["p50"] < run.simulated_goodput["p95"] < 1
    assert run.failures_per_day == pytest.approx(86_400 / run.mtbf_s)


def test_llama_3_on_16k_gpus():
    """3.1 hours between failures, checkpoints of 60 s every third of an hour, restarts of 10 min."""
    mtbf = 50_700 * 3600 / 16_384
    assert mtbf / 3600 == pytest.approx(3.1, abs=0.02)
    best = best_interval_s(60, mtbf)
    assert best / 3600 == pytest.approx(0.32, abs=0.01)
    assert expected_goodput(best, 60, 600, mtbf) == pytest.approx(0.85, abs=0.01)


def test_intervals_are_whole_steps():
    stated = found("reliability.interval=1 h")
    assert stated.interval_s == pytest.approx(3600, abs=stated.step_time_s / 2)
    assert stated.goodput < found().goodput
    assert found("reliability.interval=1 ms").interval_steps == 1


def test_the_seed_decides():
    assert found() == found()
    assert found().simulated_goodput != found("seed=1").simulated_goodput


def test_command_line():
    flags = ["--ranks", "4", "--microbatches", "8", "--forward", "1", "--backward", "2"]
    run = CliRunner().invoke(app, ["goodput", *flags, "--json", "--set", "parallel.data=256"])
    assert run.exit_code == 0
    document = json.loads(run.output)
    assert 0.9 < document["goodput"] < 1
    assert document["interval_s"] == document["interval_steps"] * document["step_time_s"]
    assert "best interval" in CliRunner().invoke(app, ["goodput", *flags]).output


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("reliability.mtbf_per_gpu=0 s", "reliability.mtbf_per_gpu"),
        ("reliability.restart=-1 s", "reliability.restart"),
        ("reliability.hope=1", "reliability.hope"),
        ("reliability.days=1e9", "reliability"),
        ("reliability.mtbf_per_gpu=1 s", "reliability"),
    ],
)
def test_bad_input(override, key):
    with pytest.raises(ScenarioError) as caught:
        found(override)
    assert caught.value.key == key
