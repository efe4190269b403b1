"""Costs that are put into a run come out of its calibration; what is disturbed or unknown is said."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers import costs_of
from made_up_runs import run_of
from typer.testing import CliRunner

from pipesim.costs import CostTable
from pipesim.costs.file import read_cost_table, write_cost_table
from pipesim.costs.host import HostCost
from pipesim.errors import ExecutionError, PipesimError
from pipesim.evidence.calibration.fit import calibrate
from pipesim.evidence.calibration.from_runs import samples_of_run
from pipesim.evidence.calibration.lines import fit_line
from pipesim.evidence.calibration.sources import read_samples
from pipesim.ir import lower
from pipesim.ir.actions import Op, Schedule
from pipesim.schedules import Shape, generate
from pipesim.timing.engine import simulate

STAGES = 4
HOST = HostCost(2e-5, 1e-11, 3e-5, 5e-4)


def true_costs(**stated: object) -> CostTable:
    facts = {
        "forward_s": (0.010, 0.012, 0.011, 0.015),
        "backward_s": (0.020, 0.023, 0.022, 0.031),
        "p2p_latency_s": 4e-5,
        "p2p_bytes_per_s": 2e9,
        "boundary_bytes": 1e6,
        "optimizer_s": 0.002,
    }
    return replace(costs_of(STAGES, number=float, **{**facts, **stated}), host=HOST)


def gpipe(num_microbatches: int = 6) -> Schedule:
    return generate("gpipe", Shape(STAGES, 1, num_microbatches))


def test_costs_of_a_run_come_back() -> None:
    costs = true_costs()
    larger = true_costs(boundary_bytes=4e6)
    runs = [run_of(gpipe(), costs), replace(run_of(gpipe(), larger), workload={"kind": "another"})]
    found = calibrate([samples_of_run(run, f"run {i}") for i, run in enumerate(runs)])
    np.testing.assert_allclose(found.costs.forward_s, costs.forward_s)
    np.testing.assert_allclose(found.costs.backward_s, costs.backward_s)
    np.testing.assert_allclose(found.costs.optimizer_s, 0.002)
    link = found.costs.p2p(0, 1)
    assert link.latency_s == pytest.approx(4e-5, rel=1e-6)
    assert link.bytes_per_s == pytest.approx(2e9, rel=1e-6)
    for name in HostCost.__slots__:
        assert getattr(found.costs.host, name) == pytest.approx(getattr(HOST, name), rel=1e-6), name
    assert all(abs(group["residual_s"]) < 1e-9 for group in found.evidence["message_s"]["sizes"])
    assert any("used for links only" in note for note in found.notes)
    assert any("I and W of stages 0, 1, 2, 3 never ran apart" in note for note in found.notes)


@pytest.mark.parametrize("name", ["1f1b", "gpipe"])
def test_what_was_calibrated_predicts_other_schedules(name: str) -> None:
    costs = true_costs()
    found = calibrate([samples_of_run(run_of(gpipe(), costs), "gpipe")])
    lowered = lower(generate(name, Shape(STAGES, 1, 9)))
    expected, predicted = simulate(lowered, costs), simulate(lowered, found.costs)
    np.testing.assert_allclose(predicted.end_s, expected.end_s, rtol=1e-9)


def test_i_and_w_are_measured_where_they_run_apart() -> None:
    costs = true_costs(input_gradient_s=(0.0, 0.012, 0.012, 0.017), weight_gradient_s=(0.02,) * 4)
    split = run_of(generate("zb-h1", Shape(STAGES, 1, 8)), costs)
    found = calibrate([samples_of_run(split, "zb-h1")])
    np.testing.assert_allclose(found.costs.input_gradient_s, costs.input_gradient_s, atol=1e-12)
    np.testing.assert_allclose(found.costs.weight_gradient_s, costs.weight_gradient_s)
    np.testing.assert_allclose(found.costs.backward_s, costs.input_gradient_s + costs.weight_gradient_s)
    assert any("never ran whole" in note for note in found.notes)


def test_replicas_reduce_for_as_long_as_all_are_there() -> None:
    costs = true_costs(gradient_sync_s=(0.003, 0.004, 0.005, 0.006))
    found = calibrate([samples_of_run(run_of(gpipe(), costs, num_replicas=2), "a")])
    np.testing.assert_allclose(found.costs.fixed_sync_s, costs.fixed_sync_s)
    assert found.evidence["gradient_reduction_s"]["sizes"][0]["num_samples"] == 12
    assert found.costs.host.meeting_s == pytest.approx(HOST.meeting_s)
    alone = calibrate([samples_of_run(run_of(gpipe(), costs), "a")])
    assert alone.costs.fixed_sync_s.tolist() == [0] * STAGES


def test_disturbed_steps_are_set_aside_and_counted() -> None:
    costs = true_costs()
    found = calibrate([samples_of_run(run_of(gpipe(), costs, num_steps=4, disturbed=(0, 1, 3)), "a.json")])
    np.testing.assert_allclose(found.costs.forward_s, costs.forward_s)
    assert (found.evidence["steps_used"], found.evidence["steps_disturbed"]) == (1, 3)
    assert "a.json: 3 of 4 steps were disturbed and set aside" in found.notes
    never = calibrate([samples_of_run(run_of(gpipe(), costs, num_steps=2, disturbed=(0, 1)), "b.json")])
    assert any("every step was disturbed" in note for note in never.notes)


def test_a_device_that_runs_ahead_hides_its_host() -> None:
    found = calibrate([samples_of_run(run_of(gpipe(), true_costs(), device="emulated"), "a")])
    assert found.costs.host.per_message_s == 0
    assert found.costs.host.meeting_s == pytest.approx(HOST.meeting_s)
    assert found.evidence["send_call_s"]["hidden_by_the_device"]
    assert found.evidence["send_call_s"]["sizes"][0]["median_s"] == pytest.approx(3e-5)


def test_one_size_cannot_tell_latency_from_bandwidth() -> None:
    found = calibrate([samples_of_run(run_of(gpipe(), true_costs()), "a")])
    link = found.costs.p2p(0, 1)
    assert link.bytes_per_s is None
    assert link.latency_s == pytest.approx(4e-5 + 1e6 / 2e9)
    assert any("cannot be told apart" in note for note in found.notes)


def test_a_stage_that_never_ran_by_itself_is_an_error() -> None:
    samples = samples_of_run(run_of(gpipe(), true_costs()), "a.json")
    kept = {key: value for key, value in samples.op_s.items() if key != (Op.F, 2)}
    with pytest.raises(ExecutionError, match=r"a\.json: F of stages 2 was never measured"):
        calibrate([replace(samples, op_s=kept)])


def test_lines() -> None:
    assert fit_line(np.zeros((0, 2))).fixed_s == 0
    line = fit_line(np.array([[1.0, 3.0], [2.0, 5.0], [2.0, 5.5], [2.0, 100.0]]))
    assert line.groups[1].median_s == 5.5
    falling = fit_line(np.array([[1.0, 5.0], [3.0, 3.0]]))
    assert (falling.fixed_s, falling.per_byte_s) == pytest.approx((4.0, 0.0))
    below = fit_line(np.array([[1.0, 1.0], [2.0, 4.0]]))
    assert below.fixed_s == 0
    assert below.per_byte_s == pytest.approx(9 / 5)
    anchored = fit_line(np.array([[2.0, 9.0]]), np.array([[1.0, 3.0], [2.0, 5.0]]))
    assert (anchored.fixed_s, anchored.per_byte_s) == pytest.approx((5.0, 2.0))
    assert [group.num_samples for group in anchored.groups] == [1, 2]


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    run_of(gpipe(), true_costs()).write(path)
    (samples,) = read_samples([path])
    found = calibrate([samples])
    write_cost_table(found.costs, tmp_path / "costs.yaml", evidence=found.evidence)
    table = read_cost_table(tmp_path / "costs.yaml")
    np.testing.assert_allclose(table.forward_s, true_costs().forward_s, atol=1e-9)
    (from_folder,) = read_samples([tmp_path])
    assert from_folder.num_stages == STAGES
    (tmp_path / "other.json").write_text('{"a": 1}')
    with pytest.raises(PipesimError, match=r"other\.json: is none of what is read"):
        read_samples([tmp_path / "other.json"])
    with pytest.raises(PipesimError, match="cannot be read"):
        read_samples([tmp_path / "none.json"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(PipesimError, match="holds no"):
        read_samples([tmp_path / "empty"])


def test_the_verb_writes_costs_for_a_scenario(tmp_path: Path) -> None:
    from pipesim.cli.app import app

    run_of(gpipe(), true_costs()).write(tmp_path / "run.json")
    costs, scenario = tmp_path / "costs.yaml", tmp_path / "scenario.yaml"
    done = CliRunner().invoke(app, ["calibrate", str(tmp_path / "run.json"), "-o", str(costs)])
    assert done.exit_code == 0, done.output
    assert "| F         | 3     |  15 ms |" in done.stdout
    assert "host gap between actions: 30 us" in done.stdout
    assert "note: I and W of stages 0, 1, 2, 3 never ran apart" in done.stdout
    scenario.write_text(
        "name: measured\nparallel: {pipeline: 4}\nbatch: {microbatches: 6}\nschedule: gpipe\n"
        "costs: {file: costs.yaml}\n"
    )
    predicted = CliRunner().invoke(app, ["simulate", str(scenario), "--json"])
    assert predicted.exit_code == 0, predicted.output
    expected = simulate(lower(gpipe()), true_costs()).end_s.max()
    assert json.loads(predicted.stdout)["step_time_s"] == pytest.approx(expected, rel=1e-6)
    evidence = CliRunner().invoke(app, ["calibrate", str(tmp_path / "run.json"), "--json"])
    assert json.loads(evidence.stdout)["operations_s"]["B"]["3"]["num_samples"] == 18
    with pytest.raises(PipesimError, match="needed: one of RUN"):
        CliRunner().invoke(app, ["calibrate"], catch_exceptions=False)
