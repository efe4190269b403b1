"""The parts of a step add up, and the layers' fixed overhead is one of them, paid for every slice."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipesim.cli.app import app
from pipesim.prediction import predict
from pipesim.scenario import load_scenario

LLAMA70 = Path(__file__).parent.parent / "scenarios" / "llama3-70b-h100.yaml"


@pytest.fixture(scope="module")
def scenario():
    return load_scenario(LLAMA70, ["parallel.virtual_stages=1", "schedule=1f1b", "batch.global=16"])


def parts_of(scenario, name, **options):
    result = predict(scenario, name, options=options)
    parts = {key: float(value) for key, value in result.breakdown.items() if value is not None}
    assert sum(parts.values()) == pytest.approx(float(result.metrics.step_time_s), rel=1e-9)
    return parts


def test_overhead_is_that_of_all_layers_once_a_slice(scenario):
    costs = predict(scenario, "1f1b").costs
    of_stages = costs.forward_parts_s["overhead"] + costs.backward_parts_s["overhead"]
    m = scenario.batch.num_microbatches
    once = parts_of(scenario, "1f1b")
    assert once["overhead_s"] == pytest.approx(m * of_stages.mean(), rel=1e-9)
    assert parts_of(scenario, "zb-h1")["overhead_s"] == pytest.approx(once["overhead_s"], rel=1e-9)
    sliced = parts_of(scenario, "seq1f1b", num_slices=4)
    assert sliced["overhead_s"] == pytest.approx(4 * once["overhead_s"], rel=1e-9)
    assert sliced["compute_s"] == pytest.approx(once["compute_s"], rel=1e-9)


def test_compare_says_where_overhead_makes_slices_slow():
    cut = ("--set", "parallel.virtual_stages=1", "--set", "schedule=1f1b")
    out = (
        CliRunner()
        .invoke(app, ["compare", "--wide", str(LLAMA70), *cut, "--schedules", "1f1b,seq1f1b"])
        .stdout
    )
    (overhead_s, more_s) = re.findall(r"of 4 slices: (\S+) s of its step, (\S+) s more", out)[0]
    assert float(more_s) == pytest.approx(0.75 * float(overhead_s), rel=1e-3)
    free = ("--set", "efficiency={preset: h100-nemo, layer_overhead: 0}")
    run = CliRunner().invoke(
        app, ["compare", "--wide", str(LLAMA70), *cut, *free, "--schedules", "1f1b,seq1f1b"]
    )
    assert run.exit_code == 0, run.exception
    assert "slices:" not in run.stdout
