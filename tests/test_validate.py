"""Predictions beside real runs, and the parts of the comparison.

How true predictions are depends on what else the machine does; `benchmarks` judges that.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from executor_pool import shared_pool
from helpers import costs_of, texts
from made_up_runs import run_of
from typer.testing import CliRunner

from pipesim.errors import PipesimError
from pipesim.evidence.calibration.from_runs import samples_of_run
from pipesim.evidence.validation import Validation, ValidationRow, summary_of, validate
from pipesim.evidence.validation.micro import device_link_probe, link_probe, micro_schedule
from pipesim.evidence.validation.runner import Runner
from pipesim.evidence.validation.validation_row import make_row
from pipesim.executor import RankPool, execute
from pipesim.ir import validate as check_schedule
from pipesim.ir.actions import Op
from pipesim.questions.compare import Skipped
from pipesim.scenario import ResolvedScenario, scenario_from_mapping
from pipesim.schedules import Shape, family, generate


def emulated(num_ranks: int, **keys: Any) -> ResolvedScenario:
    return scenario_from_mapping(
        {
            "name": "emulated",
            "parallel": {"pipeline": num_ranks},
            "batch": {"microbatches": 4},
            "costs": {"forward": "2 ms", "backward": "4 ms", "boundary": "4 KiB"},
            "schedule": "gpipe",
            **keys,
        }
    )


COMPUTED = scenario_from_mapping(
    {
        "name": "computed",
        "model": {
            "num_hidden_layers": 4,
            "hidden_size": 16,
            "num_attention_heads": 4,
            "vocab_size": 32,
            "seq_length": 16,
        },
        "cluster": {
            "accelerator": "a100-sxm-80",
            "num_nodes": 1,
            "gpus_per_node": 2,
            "intra_node": "nvlink3",
        },
        "parallel": {"pipeline": 2},
        "batch": {"microbatches": 4, "micro": 1},
        "schedule": "gpipe",
    }
)


@pytest.fixture(scope="module")
def pool() -> RankPool:
    pytest.importorskip("torch")
    return shared_pool()


def check(found: Validation) -> None:
    for row in found.rows:
        assert row.measured_step_time_s > 0
        assert row.step_time_error == row.predicted_step_time_s / row.measured_step_time_s - 1
        assert len(row.measured_idle_s) == len(row.predicted_idle_s) == row.num_ranks
        assert row.num_steps == row.num_runs * 2


def test_emulated_four_ranks(pool: RankPool) -> None:
    """The device takes exactly the stated times, whatever else the machine does."""
    said: list[str] = []
    schedules, settings = ("gpipe", "zb-v"), {"num_steps": 2, "warmup": 0, "retries": 0}
    settings |= {"pool": pool, "progress": said.append}
    found = validate(emulated(4), device="emulated", schedules=schedules, microbatches=(4,), **settings)
    check(found)
    (last_probe,) = (at for at, words in enumerate(said) if "8 stages, backward split" in words)
    (first_row,) = (at for at, words in enumerate(said) if words.startswith("zb-v v2 m4"))
    assert last_probe < first_row == len(said) - 1, "all probes come first"
    assert [row.calibrated_on for row in found.rows] == [True, False]
    assert found.calibrated_on == "gpipe m4"
    assert found.calibrations[4].costs.forward_s.tolist() == pytest.approx([0.002] * 4)
    assert found.calibrations[8].costs.input_gradient_s.tolist() == pytest.approx([0.001] * 8)


def test_real_computing_on_two_ranks(pool: RankPool) -> None:
    found = validate(
        COMPUTED, device="cpu", schedules=("1f1b",), microbatches=(4, 2), num_steps=2, retries=0, pool=pool
    )
    check(found)
    assert [row.label for row in found.rows] == ["1f1b m4", "1f1b m2"]
    assert (found.calibrations[2].costs.forward_s > 0).all()


def test_the_verb(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from pipesim.cli.app import app

    file, picture = tmp_path / "scenario.yaml", tmp_path / "picture.png"
    file.write_text(
        "name: tiny\nparallel: {pipeline: 2}\nbatch: {microbatches: 2}\nschedule: 1f1b\n"
        "costs: {forward: 2 ms, backward: 4 ms, boundary: 4 KiB}\n"
    )
    asked = ["validate", str(file), "--device", "emulated", "--steps", "3", "--warmup", "1"]
    asked += ["--schedules", "1f1b,pipedream,dualpipe-v", "--microbatches", "2"]
    result = CliRunner().invoke(app, [*asked, "--json", "--plot", str(picture)])
    assert result.exit_code == 0, result.output
    said = result.stderr.splitlines()
    assert said[:2] == [
        "running: 3 runs, about 1 s in all, up to 3 times that where steps are disturbed",
        "running: gpipe m2, about 1 s",
    ]
    assert "running: 1f1b m2, about 1 s" in said
    found = json.loads(result.stdout)
    assert (found["device"], found["calibrated_on"]) == ("emulated", "gpipe m2")
    (row,) = found["rows"]
    assert row["schedule"] == "1f1b"
    assert row["step_time_error"] == pytest.approx(
        row["predicted_step_time_s"] / row["measured_step_time_s"] - 1
    )
    assert 0 < row["measured_bubble_ratio"] < 1
    assert 0 < row["predicted_bubble_ratio"] < 1
    assert row["p10_step_time_s"] <= row["measured_step_time_s"] <= row["p90_step_time_s"]
    reasons = {one["schedule"]: one["reason"] for one in found["skipped"]}
    assert "asynchronous" in reasons["pipedream m2"]
    assert "dualpipe-v needs" in reasons["dualpipe-v v2 m2"]
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_what_the_verb_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pipesim.cli.app import app

    lost = row_of(num_steps=4, disturbed=(0, 1, 2))
    skipped = (Skipped("dualpipe m4", "too few"),)
    made_up = Validation("cpu", "gpipe m8", (row_of(), lost), skipped, {}, {})
    monkeypatch.setattr("pipesim.evidence.validation.validate", lambda *_, **__: made_up)
    file = tmp_path / "scenario.yaml"
    file.write_text(
        "name: tiny\nparallel: {pipeline: 2}\nbatch: {microbatches: 2}\nschedule: 1f1b\n"
        "costs: {forward: 1 s, backward: 2 s}\n"
    )
    result = CliRunner().invoke(app, ["validate", str(file), "--device", "cpu"])
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert "tiny: cpu, calibrated on gpipe m8" in lines[0]
    assert any(line.startswith("| 1f1b m8   |") and "+0.00 %" in line for line in lines)
    assert any(line.startswith("| 1f1b m8 ! |") and "3 of 4" in line for line in lines)
    assert "warning: 1 schedules, marked !" in result.stdout
    assert lines[-1].startswith("verdict: over 1 of 2 predicted schedules, median (largest) error: ")
    assert "step time 0.00 (0.00) %" in lines[-1]
    assert "skipped: dualpipe m4: too few" in result.stdout


def test_a_busy_machine_gives_no_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    from pipesim.cli.terminal import show
    from pipesim.cli.validate import _blocks

    lost = row_of(num_steps=4, disturbed=(0, 1, 2, 3), num_runs=3)
    base = replace(lost, calibrated_on=True)
    show(*_blocks(Validation("emulated", "gpipe m8", (base, lost), (), {}, {}), "busy"))
    lines = capsys.readouterr().out.splitlines()
    assert any("12 of 12 in 3 runs" in line for line in lines)
    assert lines[-1] == (
        "no conclusion: other work disturbed 12 of 12 steps; "
        "run again on an idle machine, or on one with more cores"
    )
    show(*_blocks(Validation("emulated", "gpipe m8", (base,), (), {}, {}), "alone"))
    assert capsys.readouterr().out.splitlines()[-1].startswith("no conclusion: only the schedule")


def test_a_disturbed_calibration_gives_no_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    from pipesim.cli.terminal import show
    from pipesim.cli.validate import _blocks

    disturbed = ("gpipe m8", "micro-benchmark of 8 stages")
    found = Validation("cpu", "gpipe m8", (row_of(), row_of()), (), {}, {}, disturbed)
    show(*_blocks(found, "busy"))
    assert "no conclusion: other work disturbed what costs were measured from: gpipe m8," in (
        " ".join(capsys.readouterr().out.split())
    )
    summary = found.to_dict()["summary"]
    assert summary["median_step_time_error"] is None
    assert summary["disturbed_calibration"] == list(disturbed)


@pytest.mark.parametrize("disturbed", [(), (0, 1, 2, 3)])
def test_a_device_that_slows_down_is_predicted_as_it_is_by_then(
    monkeypatch: pytest.MonkeyPatch, disturbed: tuple[int, ...]
) -> None:
    """Computations take 1, 1.1 and 1.2 times as long in the calibration, the row and the probe after it."""
    pytest.importorskip("torch")
    speeds = iter([1.0, 1.1, 1.2])

    def slower_and_slower(schedule: Any, workload: Any, **how: Any) -> Any:
        speed = next(speeds) if how["device"] == "cpu" else 1.0
        seconds = {key: value * speed for key, value in FIVE_MS.items()}
        lost = disturbed if how["device"] == "cpu" and speed == 1 else ()
        return run_of(schedule.schedule, costs_of(2, number=float, **seconds), num_steps=4, disturbed=lost)

    monkeypatch.setattr(
        importlib.import_module("pipesim.evidence.validation.runner"), "execute", slower_and_slower
    )
    runner = Runner(COMPUTED, "cpu", None, 4, 0, 0, None, lambda _: None)
    runner.calibrate_on("gpipe", (), [(1, False)])
    row = runner.row(family("1f1b"), 1, 4)
    if disturbed:
        assert runner.disturbed_calibration == ["gpipe m4"]
        assert row.drift == 1
    else:
        assert row.drift == pytest.approx(1.1, rel=1e-9)
        assert row.step_time_error == pytest.approx(0, abs=1e-9)


def test_lateness_is_judged_by_the_shortest_computation() -> None:
    device = pytest.importorskip("pipesim.executor.device")
    assert device.undisturbed_lateness_ns([0, 50_000_000, 20_000_000]) == 2_000_000
    assert device.undisturbed_lateness_ns([0, 1_000_000]) == device.LEAST_LATENESS_NS


def test_bad_input() -> None:
    with pytest.raises(PipesimError, match="found device 'tpu'"):
        validate(emulated(2), device="tpu")
    with pytest.raises(PipesimError, match=r"parallel\.tensor"):
        validate(emulated(2, parallel={"pipeline": 2, "tensor": 2}), device="cpu")
    with pytest.raises(PipesimError, match="no schedule is called 'nothing'"):
        validate(emulated(2), device="emulated", schedules=("nothing",))


FIVE_MS = {"forward_s": 0.005, "backward_s": 0.01}


def row_of(
    change: Callable[[float], float] = lambda second: second, *, num_runs: int = 1, **run: Any
) -> ValidationRow:
    """Measured under known costs, predicted under costs that are off."""
    schedule = generate("1f1b", Shape(4, 1, 8))
    costs = costs_of(4, number=float, p2p_latency_s=1e-3, **FIVE_MS)
    predicted = costs_of(4, number=float, p2p_latency_s=1e-3, **{k: change(v) for k, v in FIVE_MS.items()})
    return make_row([run_of(schedule, costs, **run)] * num_runs, predicted)


def test_a_right_model_has_no_errors() -> None:
    row = row_of()
    assert row.step_time_error == pytest.approx(0, abs=1e-12)
    assert row.bubble_error == pytest.approx(0, abs=1e-12)
    assert row.measured_idle_s == pytest.approx(row.predicted_idle_s)
    assert row.measured.start_s.min() == 0
    assert (row.num_ranks, row.stages_per_rank, row.label) == (4, 1, "1f1b m8")


def test_errors_are_signed_and_replay_knows_the_steps_own_times() -> None:
    """Operations predicted 10 % too long: the step is predicted too long, the replay is not."""
    row = row_of(lambda second: 1.1 * second)
    assert 0.08 < row.step_time_error < 0.1
    assert row.replay_error == pytest.approx(0, abs=1e-12)


def test_disturbed_steps_do_not_count() -> None:
    row = row_of(num_steps=6, disturbed=(0, 4))
    assert (row.num_steps, row.num_disturbed_steps, row.disturbed) == (6, 2, False)
    assert row.step_time_error == pytest.approx(0, abs=1e-12)
    lost = row_of(num_steps=6, disturbed=(0, 1, 2, 4))
    assert lost.disturbed
    assert lost.step_time_error < -0.1
    assert summary_of([row, lost])["num_rows"] == 1
    assert summary_of([row, lost])["num_disturbed_rows"] == 1
    assert summary_of([lost])["median_step_time_error"] is None


def test_messages_are_probed_between_devices_that_compute(pool: RankPool) -> None:
    """As it is done on GPUs; here on CPUs."""
    probes = []
    for nbytes in (4_000, 4_000_000):
        schedule, workload = device_link_probe(nbytes)
        run = execute(schedule, workload, device="cpu", num_steps=5, warmup=1, pool=pool)
        assert run is not None
        probes.append(samples_of_run(run, str(nbytes)))
        assert probes[-1].boundary_bytes.tolist() == [nbytes, 0]
        assert set(probes[-1].message_s[:, 0]) <= {nbytes}
    assert sum(len(probe.message_s) for probe in probes)


def test_micro_benchmarks_run_every_operation_of_every_stage() -> None:
    whole = micro_schedule(2, 2, split=False)
    assert {(Op(op), stage) for op, stage in zip(whole.op.tolist(), whole.stage.tolist(), strict=True)} == {
        (op, stage) for op in (Op.F, Op.B) for stage in range(4)
    }
    split = micro_schedule(2, 1, split=True)
    check_schedule(split)
    assert texts(split)[1] == "1F0 1F1 1F2 1F3 1I0 1W0 1I1 1W1 1I2 1W2 1I3 1W3"
    schedule, workload = link_probe(1000)
    assert workload.boundary_bytes == (1000, 0)
    busy = np.array(workload.row_s) > 0
    assert busy.sum() == 8
    assert np.isin(schedule.op[busy], (Op.F, Op.B)).all()
