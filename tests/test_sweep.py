"""Sweeps: the grid, one row a run, resumed rows, failed rows, wrong input, pictures."""

import csv
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from pipesim.cli.app import app
from pipesim.errors import PipesimError, ScenarioError
from pipesim.prediction import predict
from pipesim.questions import sweep_row
from pipesim.questions.sweep import Sweep, run_sweep
from pipesim.questions.variations import Axis, axis_of, grid, parse_axis
from pipesim.scenario import load_scenario, read_yaml_mapping
from pipesim.show.figures import save_figure
from pipesim.show.figures.sweep_pictures import KINDS, crossings, plot_sweep, read_sweep

ROOT = Path(__file__).parent.parent
TEACHING = ROOT / "scenarios" / "teaching.yaml"
GPT3 = ROOT / "scenarios" / "gpt3-175b-h100.yaml"
DIRECT = {
    "parallel": {"pipeline": 2},
    "batch": {"microbatches": 4},
    "costs": {"forward": "1 s", "backward": "2 s", "p2p": "0.1 s"},
}
AXES = (
    parse_axis("parallel.pipeline=2,3,4"),
    parse_axis("batch.microbatches=4,6"),
    parse_axis("schedule=1f1b,dualpipe"),
)


def pipesim(*arguments):
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if isinstance(result.exception, PipesimError):
        return 2, result.stdout, str(result.exception)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize(
    ("text", "keys", "values"),
    [
        ("batch.micro=1,2, 4", ("batch.micro",), (("1",), ("2",), ("4",))),
        ("batch.micro=[1,2]", ("batch.micro",), (("1",), ("2",))),
        ("layers=[3,5],[4,4]", ("layers",), (("[3,5]",), ("[4,4]",))),
        ("layers=[[3,5],[4,4]]", ("layers",), (("[3,5]",), ("[4,4]",))),
        ('name="a,b",c', ("name",), (('"a,b"',), ("c",))),
        (
            "schedule={name: seq1f1b, num_slices: 2},1f1b",
            ("schedule",),
            (("{name: seq1f1b, num_slices: 2}",), ("1f1b",)),
        ),
        ("a.b,c=1:x,2:{d: 3}", ("a.b", "c"), (("1", "x"), ("2", "{d: 3}"))),
    ],
)
def test_what_varies_is_read(text, keys, values):
    assert parse_axis(text) == Axis(keys, values)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("batch.micro", "form KEY=VALUE"),
        ("=1,2", "form KEY=VALUE"),
        ("batch.micro=", "empty value"),
        ("batch.micro=1,,2", "empty value"),
        ("batch.micro=[]", "empty value"),
        ("a,b=1:2,3", "1 values for 2 keys"),
        ("a..b=1", "dotted KEY"),
        ("a=1,2,1", "occurs twice"),
        ("a=[1", "YAML|expected"),
    ],
)
def test_what_cannot_be_varied_is_refused(text, message):
    with pytest.raises(ScenarioError, match=message):
        parse_axis(text)


def test_the_first_axis_changes_slowest_and_no_key_varies_twice():
    axes = [parse_axis("a=1,2"), parse_axis("b,c=3:4,5:6")]
    assert grid(axes) == [
        *(("a=1", "b=3", "c=4"), ("a=1", "b=5", "c=6")),
        *(("a=2", "b=3", "c=4"), ("a=2", "b=5", "c=6")),
    ]
    with pytest.raises(ScenarioError, match="c is varied twice"):
        grid([*axes, parse_axis("c=1")])
    with pytest.raises(ScenarioError, match="at least once"):
        grid([])


def test_a_row_has_the_configuration_and_the_numbers_of_simulate(tmp_path):
    status, _, message = pipesim(
        *("sweep", GPT3, "--vary", "parallel.pipeline,parallel.tensor=8:8,16:4", "--schedules", "1f1b,zb-h1"),
        *("--set", "parallel.virtual_stages=1", "-o", tmp_path / "out.csv"),
    )
    assert status == 0, message
    frame = pd.read_csv(tmp_path / "out.csv")
    assert frame["row"].tolist() == [0, 1, 2, 3]
    assert frame["schedule"].tolist() == ["1f1b", "zb-h1"] * 2
    assert frame["parallel.pipeline"].tolist() == [8, 8, 16, 16]
    assert (frame["status"] == "ok").all()
    assert set(frame["evaluator"]) <= {"compiled", "engine"}
    assert (frame["model.preset"] == "gpt3-175b").all()
    for _, row in frame.iterrows():
        changes = [f"{key}={row[key]}" for key in ("parallel.pipeline", "parallel.tensor", "schedule")]
        one = predict(load_scenario(GPT3, [*changes, "parallel.virtual_stages=1"])).to_dict()
        for name in ("step_time_s", "makespan_s", "bubble_ratio", "mfu", "usd_per_step", "peak_memory_bytes"):
            assert row[name] == pytest.approx(one[name], rel=1e-12), name
        assert row["batch.microbatches"] == one["num_microbatches"]
        of_ranks = [float(word) for word in row["peak_memory_bytes_by_rank"].split()]
        assert of_ranks == pytest.approx([rank["peak_memory_bytes"] for rank in one["ranks"]])


def test_failed_rows_have_a_reason_and_the_others_run(tmp_path):
    status, out, _ = pipesim(
        *("sweep", TEACHING, "--vary", "batch.microbatches=7,8,0", "--schedules", "1f1b,dualpipe"),
        *("-o", tmp_path / "out.csv"),
    )
    assert status == 0
    assert "6 rows; 3 failed" in out
    with (tmp_path / "out.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [row["status"] for row in rows] == ["ok", "failed", "ok", "ok", "failed", "failed"]
    assert "nearest legal m" in rows[1]["reason"]
    assert "batch.microbatches: found 0" in rows[4]["reason"]
    for row in rows:
        assert (row["step_time_s"] == "") == (row["status"] == "failed")
        if row["status"] == "failed":
            assert row["reason"] in out


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_sweep_without_any_result_fails(tmp_path, more):
    out = tmp_path / "out.csv"
    status, said, message = pipesim(
        *("sweep", TEACHING, "--vary", "batch.microbatches=7,0", "--schedules", "dualpipe", "-o", out, *more)
    )
    assert status == 2
    assert said
    assert "no row has a result; row 0: " in message
    assert "nearest legal m" in message
    assert out.read_text().count("failed") == 2


def test_a_bug_in_one_row_leaves_the_others(tmp_path, monkeypatch):
    real = sweep_row.predict

    def predict(scenario, **others):
        if scenario.batch.num_microbatches == 6:
            raise ZeroDivisionError("oh")
        return real(scenario, **others)

    monkeypatch.setattr(sweep_row, "predict", predict)
    report = run_sweep(Sweep(DIRECT, AXES[1:2]), tmp_path / "out.csv", num_workers=1)
    assert [row["status"] for row in report.rows] == ["ok", "failed"]
    assert report.rows[1]["reason"] == "ZeroDivisionError: oh"


class StoppedError(Exception):
    pass


def test_an_interrupted_sweep_goes_on_without_repeating_or_losing_a_row(tmp_path, monkeypatch):
    sweep = Sweep(DIRECT, AXES)
    run_sweep(sweep, tmp_path / "whole.csv", num_workers=1)
    ran = []
    real = sweep_row.predict
    monkeypatch.setattr(sweep_row, "predict", lambda s, **others: ran.append(s) or real(s, **others))

    def stop(done, total):
        if done == 5:
            raise StoppedError

    output, journal = tmp_path / "out.csv", tmp_path / "out.csv.journal"
    with pytest.raises(StoppedError):
        run_sweep(sweep, output, num_workers=1, progress=stop)
    assert not output.exists()
    with journal.open("ab") as stream:
        stream.write(b'{"row": 5, "val')  # the sixth row was being written
    before = len(ran)
    report = run_sweep(sweep, output, num_workers=1)
    assert report.num_resumed == 5
    assert before == 5
    assert len(ran) == 12
    assert output.read_bytes() == (tmp_path / "whole.csv").read_bytes()
    assert not journal.exists()


def test_the_journal_of_another_sweep_is_refused_and_kept(tmp_path):
    output, journal = tmp_path / "out.csv", tmp_path / "out.csv.journal"

    def stop(done, total):
        if done == 2:
            raise StoppedError

    with pytest.raises(StoppedError):
        run_sweep(Sweep(DIRECT, AXES), output, num_workers=1, progress=stop)
    begun = journal.read_bytes()
    other = DIRECT | {"costs": {"forward": "2 s", "backward": "2 s"}}
    for sweep in (Sweep(other, AXES), Sweep(DIRECT, AXES[:2]), Sweep(DIRECT, AXES, timing="engine")):
        with pytest.raises(ScenarioError, match="begun by another sweep"):
            run_sweep(sweep, output, num_workers=1)
    assert journal.read_bytes() == begun
    for text, message in (
        (b"my notes\n", "not the journal"),
        (b"my notes", "not the journal"),
        (b"[1]\n", "not the journal"),
        (begun + b"{\n", "line 4 is damaged"),
        (begun + b'{"row": 99, "values": {}}\n', "line 4 is damaged"),
    ):
        journal.write_bytes(text)
        with pytest.raises(ScenarioError, match=message):
            run_sweep(Sweep(DIRECT, AXES), output, num_workers=1)
        assert journal.read_bytes() == text
    assert not output.exists()


def test_only_the_same_sweep_replaces_a_table(tmp_path):
    output = tmp_path / "out.csv"
    run_sweep(Sweep(DIRECT, AXES[:2]), output, num_workers=1)
    table = output.read_bytes()
    other = DIRECT | {"costs": {"forward": "2 s", "backward": "2 s"}}
    for sweep in (Sweep(other, AXES[:2]), Sweep(DIRECT, AXES)):
        with pytest.raises(ScenarioError, match=r"out\.csv: holds 6 rows that are not of this sweep"):
            run_sweep(sweep, output, num_workers=1)
    assert list(tmp_path.iterdir()) == [output]
    assert output.read_bytes() == table
    run_sweep(Sweep(DIRECT, AXES[:2]), output, num_workers=1)
    assert output.read_bytes() == table
    output.write_bytes(b"\xff\x00")
    with pytest.raises(ScenarioError, match="not the table of a sweep"):
        run_sweep(Sweep(DIRECT, AXES[:2]), output, num_workers=1)


def test_a_file_that_the_scenario_names_belongs_to_the_sweep(tmp_path):
    (tmp_path / "s.csv").write_text("0F0,0B0\n1F0,1B0\n")
    mapping = DIRECT | {"schedule": {"csv": "s.csv"}, "batch": {"microbatches": 1}}
    sweep = Sweep(mapping, (parse_axis("costs.p2p=0,1"),), str(tmp_path / "scenario.yaml"))
    before = sweep.digest()
    assert sweep.digest() == before
    (tmp_path / "s.csv").write_text("0F0,0B0\n1F0,1B0\n\n")
    assert sweep.digest() != before


def test_processes_give_the_same_table(tmp_path):
    for name, workers in (("one.csv", 1), ("two.csv", 2)):
        run_sweep(Sweep(DIRECT, AXES), tmp_path / name, num_workers=workers)
    assert (tmp_path / "one.csv").read_bytes() == (tmp_path / "two.csv").read_bytes()


def children(pid):
    found = []
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            words = (entry / "cmdline").read_text()
        except (OSError, IndexError):
            continue
        if entry.name.isdecimal() and int(fields[1]) == pid and "spawn_main" in words:
            found.append(int(entry.name))
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds the workers in /proc")
def test_a_worker_killed_in_mid_sweep_loses_nothing(tmp_path):
    output = tmp_path / "out.csv"
    command = [
        "sweep",
        TEACHING,
        "--engine",
        "--workers",
        2,
        "-o",
        output,
        "--vary",
        "parallel.pipeline=6,8",
    ]
    command += ["--vary", "batch.microbatches=24,28,32,36,40,44"]
    code = "from pipesim.cli import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", code, *map(str, command)], stdout=subprocess.PIPE, text=True
    ) as process:
        journal = Path(f"{output}.journal")
        until = time.monotonic() + 60
        while not (journal.exists() and journal.read_bytes().count(b"\n") > 3):
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.01)
        os.kill(children(process.pid)[0], signal.SIGKILL)
        text, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert "12 rows; 0 failed" in text
    frame = pd.read_csv(output)
    assert frame["row"].tolist() == list(range(12))
    assert (frame["status"] == "ok").all()
    assert (frame["evaluator"] == "engine").all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--vary", "parallel.pipelines=2,4"], "unknown key; did you mean 'pipeline'"),
        (["--vary", "paralel.pipeline=2,4"], "--vary: paralel: unknown key; did you mean 'parallel'?"),
        (["--vary", "name.first=2,4"], "nothing can be set below it"),
        (["--vary", "batch.microbatches="], "empty value"),
        ([], "at least once"),
        (["--schedules", "1f1b,2f2b"], "no schedule is called '2f2b'"),
        (["--vary", "batch.microbatches=4", "--vary", "batch.microbatches=8"], "varied twice"),
        (["--vary", "batch.microbatches=4", "--engine", "--compiled"], "exclude each other"),
    ],
)
def test_a_wrong_sweep_ends_with_one_message_and_no_file(tmp_path, arguments, message):
    status, out, said = pipesim("sweep", TEACHING, *arguments, "-o", tmp_path / "out.csv")
    assert status == 2
    assert message in said
    assert out == ""
    assert list(tmp_path.iterdir()) == []


def test_the_ending_and_the_place_must_be_right(tmp_path):
    for output, message in (
        (tmp_path / "out.xlsx", ".csv or .parquet"),
        (tmp_path / "missing" / "out.csv", "cannot be written"),
    ):
        status, _, said = pipesim("sweep", TEACHING, "--vary", "batch.microbatches=4", "-o", output)
        assert status == 2
        assert message in said
    assert list(tmp_path.iterdir()) == []


def test_json_says_what_failed(tmp_path):
    status, out, _ = pipesim(
        *("sweep", TEACHING, "--vary", "batch.microbatches=7,8", "--schedules", "dualpipe", "--json"),
        *("-o", tmp_path / "out.csv"),
    )
    assert status == 0
    document = json.loads(out)
    assert (document["num_rows"], document["num_resumed"]) == (2, 0)
    assert [entry["row"] for entry in document["failed"]] == [0]
    assert document["rows"][1]["step_time_s"] > 0


def test_parquet_holds_what_csv_holds(tmp_path):
    pytest.importorskip("pyarrow")
    for name in ("out.csv", "out.parquet"):
        run_sweep(Sweep(DIRECT, AXES), tmp_path / name, num_workers=1)
    text, binary = pd.read_csv(tmp_path / "out.csv"), pd.read_parquet(tmp_path / "out.parquet")
    assert text.columns.tolist() == binary.columns.tolist()
    assert text["step_time_s"].tolist() == pytest.approx(
        binary["step_time_s"].astype(float).tolist(), nan_ok=True
    )
    assert (
        read_sweep(tmp_path / "out.parquet")["schedule"].tolist()
        == read_sweep(tmp_path / "out.csv")["schedule"].tolist()
    )


def test_without_pyarrow_parquet_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ScenarioError, match=r"pip install '\.\[parquet\]'"):
        run_sweep(Sweep(DIRECT, AXES), tmp_path / "out.parquet")
    assert list(tmp_path.iterdir()) == []


def test_every_picture_is_drawn_and_says_what_it_lacks(tmp_path):
    pairs = "parallel.pipeline,parallel.tensor,cluster.num_nodes=8:8:16,16:4:16,8:8:32"
    pipesim(
        *("sweep", GPT3, "--vary", pairs, "--vary", "cluster.inter_node.bandwidth=50 Gbit/s,400 Gbit/s"),
        *("--schedules", "1f1b", "--compiled", "-o", tmp_path / "gpt3.csv"),
        *("--set", "parallel.data=null", "--set", "parallel.virtual_stages=1"),
    )
    run_sweep(Sweep(DIRECT, AXES), tmp_path / "direct.csv", num_workers=1)
    gpt3, direct = read_sweep(tmp_path / "gpt3.csv"), read_sweep(tmp_path / "direct.csv")
    one_size = gpt3[gpt3["num_gpus"] == 128]
    drawn = {kind: one_size if kind.startswith("pipeline") else gpt3 for kind in KINDS}
    drawn["bubble-microbatches"] = direct
    for kind, frame in drawn.items():
        save_figure(plot_sweep(frame, kind, kind), tmp_path / f"{kind}.svg")
        assert b"</svg>" in (tmp_path / f"{kind}.svg").read_bytes()
    for frame, kind, message in (
        (gpt3, "pipeline-tensor", "number of GPUs"),
        (one_size, "weak-scaling", "does not vary the number"),
        (direct, "network", "no link between nodes"),
        (direct, "memory-stage", "no memory of ranks"),
        (direct, "pie", "allowed: bubble-microbatches"),
    ):
        with pytest.raises(ScenarioError, match=message):
            plot_sweep(frame, kind, kind)


def test_pictures_need_a_sweeps_table(tmp_path):
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    (tmp_path / "failed.csv").write_text("row,status,step_time_s\n0,failed,\n")
    for name, message in (
        ("missing.csv", "cannot be read"),
        ("other.csv", "no result of a sweep"),
        ("failed.csv", "no row"),
    ):
        status, _, said = pipesim(
            *("plot", "sweep", tmp_path / name, "--kind", "network", "-o", tmp_path / "out.png")
        )
        assert status == 2
        assert message in said


def test_where_the_fastest_changes():
    rates = np.array([1.0, 100.0])
    assert crossings(rates, np.array([[4.0, 1.0], [2.0, 3.0]])) == [pytest.approx(10.0)]
    assert crossings(rates, np.array([[4.0, 1.0], [5.0, 3.0]])) == []
    assert crossings(rates, np.array([[np.inf, 1.0], [2.0, 3.0]])) == []


def test_the_best_row_and_the_next_command_are_printed(tmp_path):
    """4 ranks, F 1, B 2: 1F1B's step is 3 (m + p - 1), so m = 16 takes least a microbatch; GPipe as long."""
    status, text, _ = pipesim(
        *("sweep", TEACHING, "--vary", "batch.microbatches=4,16,8", "--schedules", "1f1b"),
        *("-o", tmp_path / "s.csv", "--set", "name='a b'"),
    )
    assert status == 0
    lines = " ".join(text.split())
    assert "best: batch.microbatches=16, schedule=1f1b: 57 s a step (least time a microbatch of 3" in lines
    command = text.splitlines()[-1]
    assert command.startswith("pipesim compare ")
    again, *_ = pipesim(*shlex.split(command)[1:], "--schedules", "1f1b", "--json")
    assert again == 0


def test_the_best_row_fits_in_memory(tmp_path):
    """GPipe is as fast as 1F1B and needs 120 of 80 GB (README)."""
    file = ROOT / "scenarios" / "gpt3-175b-a100.yaml"
    sweep = Sweep(read_yaml_mapping(file), (axis_of("schedule", ["gpipe", "1f1b", "zb-h1"]),), str(file))
    report = run_sweep(sweep, tmp_path / "s.csv", num_workers=1)
    assert [row["schedule"] for row in report.fitting] == ["1f1b", "zb-h1"]
    assert report.best["schedule"] == "zb-h1"
