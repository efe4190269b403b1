"""Careless or hostile use of files and numbers: one message, nothing clobbered, nothing infinite."""

import csv
import json
import os
import stat
import subprocess
import sys
import threading
from dataclasses import replace
from operator import itemgetter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipesim.cli.app import app
from pipesim.cli.calibrate import _write_yaml
from pipesim.costs import build_costs
from pipesim.costs.file import write_cost_table
from pipesim.errors import PipesimError, ScenarioError, ScheduleError
from pipesim.executor.run import read_run
from pipesim.files import check_outputs, complete_file, write_text
from pipesim.ir import lower
from pipesim.prediction import load_csv, predict
from pipesim.questions import compare
from pipesim.reading import read_json
from pipesim.scenario import load_scenario, scenario_from_mapping
from pipesim.schedules import Shape, generate

ROOT = Path(__file__).parent.parent
TEACHING = ROOT / "scenarios" / "teaching.yaml"
GPT3 = ROOT / "scenarios" / "gpt3-175b-a100.yaml"
ONE_GPU_A_RANK = ("--set", "parallel.tensor=1", "--set", "parallel.data=16")
FLAGS = ("--ranks", "4", "--microbatches", "8", "--forward", "1", "--backward", "2")


def pipesim(*arguments):
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if isinstance(result.exception, PipesimError):
        return 2, str(result.exception)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


@pytest.fixture
def scenario(tmp_path):
    copy = tmp_path / "scenario.yaml"
    copy.write_bytes(TEACHING.read_bytes())
    return copy


@pytest.mark.parametrize("flag", ["--trace", "--timeline", "--plot"])
def test_an_output_never_replaces_the_scenario(scenario, flag):
    link = scenario.parent / "link.svg"
    link.symlink_to(scenario)
    for name in (scenario, link):
        status, message = pipesim("simulate", scenario, flag, name)
        assert status == 2
        assert "read as input" in message
    assert scenario.read_bytes() == TEACHING.read_bytes()


def test_an_import_never_replaces_what_it_reads(tmp_path):
    config = tmp_path / "config.json"
    config.write_bytes((ROOT / "scenarios" / "configs" / "llama3-70b.json").read_bytes())
    before = config.read_bytes()
    status, message = pipesim("import", "hf", config, "-o", config)
    assert status == 2
    assert "read as input" in message
    assert config.read_bytes() == before


def test_two_outputs_need_two_names(scenario):
    target = scenario.parent / "out"
    status, message = pipesim("simulate", scenario, "--trace", target, "--timeline", target)
    assert status == 2
    assert "already another output" in message
    assert not target.exists()


def test_missing_outputs_are_skipped():
    check_outputs(None, pictures=(None,), inputs=(None,))


NOWHERE = "nowhere.yaml"
WRITERS = (
    ("simulate", NOWHERE, "--trace"),
    ("simulate", NOWHERE, "--timeline"),
    ("simulate", NOWHERE, "--plot"),
    ("compare", NOWHERE, "--plot"),
    *(("plot", kind, NOWHERE, "-o") for kind in ("gantt", "bubble", "memory", "breakdown", "pareto")),
    ("plot", "sweep", NOWHERE, "--kind", "network", "-o"),
    ("sweep", NOWHERE, "-o"),
    ("plan", NOWHERE, "--plot"),
    ("execute", NOWHERE, "--device", "emulated", "-o"),
    ("execute", NOWHERE, "--device", "emulated", "--trace"),
    ("calibrate", NOWHERE, "-o"),
    ("validate", NOWHERE, "--device", "emulated", "--plot"),
    ("accuracy", "no-set", "--plot"),
    ("schedule", "export", "no-schedule", "-o"),
)


@pytest.mark.parametrize("arguments", WRITERS, ids=" ".join)
def test_an_output_is_checked_before_anything_is_read(arguments, tmp_path):
    is_picture = arguments[0] == "plot" or arguments[-1] == "--plot"
    name = "out.svg" if is_picture else "out.csv"
    (tmp_path / name).mkdir()
    wrong = {tmp_path / "missing" / name: "No such file", tmp_path / name: "is a directory"}
    if is_picture:
        wrong[tmp_path / "out.jpeg"] = ".png or .svg"
    for place, words in wrong.items():
        status, message = pipesim(*arguments, place)
        assert status == 2
        assert message.startswith(f"{place}: ")
        assert words in message
    assert list(tmp_path.iterdir()) == [tmp_path / name]


def test_a_pipe_is_written_into_and_stays(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_text(pipe, "whole")
    reader.join(timeout=10)
    assert read == ["whole"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert list(tmp_path.iterdir()) == [pipe]


def test_a_link_is_followed_and_stays(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    write_text(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"


def test_a_name_too_long_is_one_message(tmp_path):
    with pytest.raises(ScenarioError, match="too long"):
        write_text(tmp_path / ("x" * 300), "text")


def test_a_full_disk_is_one_message_and_leaves_no_file(tmp_path):
    with (
        pytest.raises(ScenarioError, match=r"table\.csv: cannot be written: No space left on device"),
        complete_file(tmp_path / "table.csv"),
        open("/dev/full", "w") as full,
    ):
        full.write("text")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", ["1e31 s", "1e308", "1e-31 s"])
def test_quantities_that_sums_cannot_hold_are_refused(value):
    with pytest.raises(ScenarioError, match=r"between 1e-30 and 1e\+30"):
        load_scenario(TEACHING, [f"costs.forward={value}"])


@pytest.mark.parametrize("key", ["efficiency.gemm", "cluster.inter_node.efficiency"])
def test_shares_too_small_to_divide_by_are_refused(key):
    with pytest.raises(ScenarioError, match="at least 1e-06"):
        load_scenario(GPT3, [f"{key}=1e-308"])


def test_the_largest_quantities_give_finite_numbers():
    result = predict(load_scenario(TEACHING, ["costs.forward=1e30 s", "costs.p2p=1e30 s"]))
    json.dumps(result.to_dict(), allow_nan=False)


@pytest.mark.parametrize("num_layers", range(1, 40))
def test_one_rank_has_no_bubble_whatever_the_rounding(num_layers):
    costs = {"forward": 0.1 + 0.01 * num_layers, "backward": 0.3 / num_layers, "p2p": 0}
    mapping = {"parallel": {"pipeline": 1}, "batch": {"microbatches": num_layers}, "costs": costs}
    metrics = predict(scenario_from_mapping(mapping)).metrics
    ratios = (metrics.bubble_ratio, metrics.bubble_overhead, metrics.span_bubble_ratio)
    assert all(0 <= ratio < 1e-12 for ratio in ratios)
    assert all(rank.idle_s >= 0 and rank.bubble_ratio >= 0 for rank in metrics.ranks)


@pytest.mark.parametrize("name", [r"\ud83d", r"\e[31m", r"\0", r"\a"])
def test_unprintable_characters_are_refused(name):
    with pytest.raises(ScenarioError, match=r"line 1, column 1: a character that cannot be printed, U\+"):
        load_scenario(TEACHING, [f'name="{name}"'])


def test_a_file_name_that_is_not_text_can_be_printed_and_drawn(tmp_path):
    named = os.fsencode(tmp_path) + b"/\xff.yaml"
    with open(named, "wb") as stream:
        stream.write(TEACHING.read_bytes())
    command = "from pipesim.cli import main; main()"
    picture = tmp_path / "p.svg"
    arguments = [sys.executable, "-c", command, "simulate", named, "--plot", picture]
    done = subprocess.run(arguments, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert picture.exists()


def test_a_csv_needs_as_many_stages_on_every_rank(tmp_path):
    (tmp_path / "s.csv").write_text("0F0,1F0,1B0,0B0\n2F0,2B0\n")
    mapping = {
        "parallel": {"pipeline": 2},
        "batch": {"microbatches": 1},
        "costs": {"forward": 1, "backward": 2},
        "schedule": {"csv": str(tmp_path / "s.csv")},
    }
    with pytest.raises(ScenarioError, match="has 3 stages on 2 ranks"):
        predict(scenario_from_mapping(mapping))


def test_a_csv_may_begin_with_a_byte_order_mark(tmp_path):
    (tmp_path / "s.csv").write_text("0F0,0B0\n1F0,1B0\n", encoding="utf-8-sig")
    assert load_csv(tmp_path / "s.csv").num_ranks == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("simulate", TEACHING, "--chunks", "2"), "--chunks: is for runs without a file"),
        (("simulate", *FLAGS, "--chunks", "2,4"), "one run has one number of chunks"),
        (("compare", *FLAGS, "--chunks", "9" * 5000), "expected whole numbers"),
        (("compare", TEACHING, "--slow-rank", "3"), "--slow-rank: found '3'; RANK=FACTOR is needed"),
        (("schedule", "show", "1f1b", "--chunks", "0"), "at least one rank, one chunk"),
        (
            ("schedule", "show", "interleaved-1f1b", "--option", "microbatch_group_size=--3"),
            "whole number of at least 1",
        ),
        (
            ("schedule", "show", "interleaved-1f1b", "--option", f"microbatch_group_size={'9' * 5000}"),
            "whole number of at least 1",
        ),
    ],
)
def test_options_that_would_be_ignored_or_crash_are_refused(arguments, message):
    status, said = pipesim(*arguments)
    assert status == 2
    assert message in said


def test_a_schedule_too_large_to_hold_is_refused_at_once():
    with pytest.raises(ScheduleError, match="too many to hold"):
        generate("1f1b", Shape(100_000, 1, 100_000))
    status, message = pipesim(
        *("compare", "--ranks", "1000000", "--chunks", "1000000", "--microbatches", "8"),
        *("--forward", "1", "--backward", "2"),
    )
    assert status == 2
    assert "no schedule can run" in message


@pytest.mark.parametrize(
    ("name", "shape", "count"),
    [
        ("gpipe", Shape(4, 1, 1_000_000), "4,000,000 forwards"),
        ("seq1f1b", Shape(4, 1, 8, {"num_slices": 100_000}), "3,200,000 forwards"),
        ("1f1b", Shape(1_000_000, 1, 1), "1,000,000 stages"),
    ],
)
def test_amounts_are_counted_before_work(name, shape, count):
    with pytest.raises(ScheduleError, match=count):
        generate(name, shape)


def test_replicas_are_counted_before_work():
    scenario = load_scenario(TEACHING, ["parallel.data=1000000", "jitter.compute=0.1"])
    with pytest.raises(ScheduleError, match="1,000,000 unlike replicas"):
        predict(scenario)


def test_rows_of_a_sweep_are_counted_before_work(tmp_path):
    values = ",".join(map(str, range(1, 101)))
    keys = ("seed", "costs.forward", "costs.backward", "batch.microbatches")
    varied = [word for key in keys for word in ("--vary", f"{key}={values}")]
    status, message = pipesim("sweep", TEACHING, "-o", tmp_path / "rows.csv", *varied)
    assert status == 2
    assert "100 x 100 x 100 x 100 = 100,000,000 rows; at most 100,000" in message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("verb", ["execute", "validate"])
def test_a_run_that_no_machine_holds_is_refused_before_processes_start(verb):
    emulated = (verb, TEACHING, "--device", "emulated")
    for arguments, words in (
        ((*emulated, "--set", "parallel.data=1000"), "4,000 processes; at most 512"),
        ((*emulated, "--steps", "100000000"), "at most 10,000,000 can be recorded"),
        ((verb, GPT3, "--device", "cpu", *ONE_GPU_A_RANK), "22,351 GB in float32"),
    ):
        status, message = pipesim(*arguments)
        assert status == 2
        assert words in message


def test_many_ranks_with_one_microbatch_are_lowered():
    """A rank computes F and B, reduces and steps; a boundary is sent and received over both ways."""
    scheduled = generate("gpipe", Shape(5_000, 1, 1))
    assert len(lower(scheduled).op) == 2 * 5_000 + 4 * 4_999 + 2 * 5_000


def test_json_nested_too_deeply_is_one_message(tmp_path):
    deep = tmp_path / "deep.json"
    deep.write_text("[" * 100_000)
    for read in (read_json, read_run):
        with pytest.raises(PipesimError, match="is not JSON"):
            read(deep)
    output = tmp_path / "rows.csv"
    journal = tmp_path / "rows.csv.journal"
    journal.write_text("[" * 100_000 + "\n")
    status, message = pipesim("sweep", TEACHING, "--vary", "seed=1", "-o", output, "--workers", "1")
    assert status == 2
    assert "is not the journal of a sweep" in message
    assert not output.exists()


@pytest.mark.parametrize("name", ["price $x_{$ b", "漢字", "100 % & <b>"])
@pytest.mark.parametrize("kind", ["gantt", "breakdown"])
def test_names_are_drawn_as_they_are(kind, name, tmp_path):
    picture = tmp_path / "p.svg"
    status, message = pipesim("plot", kind, TEACHING, "-o", picture, "--set", f"name={name}")
    assert (status, message) == (0, "")
    assert picture.exists()


def test_what_could_not_be_read_again_is_not_written(tmp_path):
    """A fit may end where no scenario may be: a negative time, for one."""
    output = tmp_path / "efficiency.yaml"
    output.write_text("before")
    efficiency = {"preset": "a100-megatron-2022"}
    for wrong in ({"step_overhead": "-0.01 s"}, {"gemm": 1.2}, {"no_such_key": 1}):
        (key,) = wrong
        with pytest.raises(ScenarioError, match=rf"efficiency\.yaml: is not written.*{key}"):
            _write_yaml({"efficiency": efficiency | wrong}, output, itemgetter("efficiency"))
    assert output.read_text() == "before"
    _write_yaml({"efficiency": efficiency | {"gemm": 0.5}}, output, itemgetter("efficiency"))
    assert "gemm: 0.5" in output.read_text()
    assert list(tmp_path.iterdir()) == [output]


def test_a_cost_table_that_could_not_be_read_again_is_not_written(tmp_path):
    costs = build_costs(load_scenario(TEACHING), num_chunks=1)
    wrong = replace(costs, forward_s=-costs.forward_s)
    with pytest.raises(ScenarioError, match=r"is not written.*cannot be negative"):
        write_cost_table(wrong, tmp_path / "costs.yaml")
    assert list(tmp_path.iterdir()) == []


def test_text_in_a_table_is_no_formula(tmp_path):
    output = tmp_path / "rows.csv"
    arguments = ("--set", "name='=HYPERLINK(1)'", "--vary", "seed=1", "--workers", "1")
    assert pipesim("sweep", TEACHING, "-o", output, *arguments)[0] == 0
    (row,) = csv.DictReader(output.read_text().splitlines())
    assert row["name"] == "'=HYPERLINK(1)"


def test_a_schedule_with_two_chunks_takes_lists_of_as_many_stages():
    """Only the schedule knows how many stages a rank holds; those with fewer have neighbours added up."""
    stated = ["costs.forward=[1,1,1,1,1,1,1,1]", "costs.backward=2", "schedule=dualpipe-v"]
    result = predict(load_scenario(TEACHING, stated))
    assert result.schedule.num_stages == 8
    alike = predict(load_scenario(TEACHING, ["costs.forward=2", "costs.backward=2", "schedule=1f1b"]))
    assert predict(load_scenario(TEACHING, [*stated, "schedule=1f1b"])).step_time_s == alike.step_time_s
    compared = compare(load_scenario(TEACHING, stated), schedules=["1f1b", "dualpipe-v"])
    assert [one.schedule.name for one in compared.results] == ["1f1b", "dualpipe-v"]
    with pytest.raises(ScenarioError, match=r"has 3 entries.*a multiple of these 4 ranks"):
        load_scenario(TEACHING, ["costs.forward=[1 s,1 s,1 s]"])


def test_a_rank_has_one_factor():
    with pytest.raises(ScenarioError, match=r"slow_ranks: number 1 is stated twice"):
        load_scenario(TEACHING, ["jitter={slow_ranks: {'01': 2, '1': 3}}"])


def test_a_setting_without_effect_is_named():
    arguments = ("simulate", TEACHING, "--set", "parallel.microbatch_group_size=4", "--set")
    note = "note: parallel.microbatch_group_size has no effect on 1f1b"
    assert note in pipesim(*arguments, "schedule=1f1b")[1]
    assert "no effect" not in pipesim(*arguments, "schedule=interleaved-1f1b")[1]


@pytest.mark.parametrize(("schedule", "own"), [("1f1b", 1), ("zb-v", 2)])
def test_chunks_that_a_schedule_has_of_its_own_are_said_and_only_its_stages_are_checked(schedule, own):
    changed = ("parallel.virtual_stages=3", "model.num_hidden_layers=32", f"schedule={schedule}")
    _, said = pipesim("simulate", GPT3, *(f"--set={one}" for one in changed))
    assert f"virtual_stages 3 has no effect on {schedule}, which has {own} a rank" in " ".join(said.split())
    assert "remainder" not in said
    uneven = pipesim("simulate", GPT3, "--set", "model.num_hidden_layers=33", "--set", "schedule=1f1b")[1]
    assert "33 layers on" in uneven


def test_what_is_wrong_in_a_line_of_measurements_is_said_of_the_line(tmp_path):
    table = tmp_path / "steps.csv"
    table.write_text("batch.global,step_time\n512,35\n-5,3\n")
    status, message = pipesim("calibrate", "--measured", table, "--scenario", GPT3)
    assert (status, message) == (2, f"{table}: line 3, batch.global: found -5; at least 1 is needed")


def test_a_column_occurs_once(tmp_path):
    table = tmp_path / "steps.csv"
    table.write_text("batch.global,step_time,step_time\n512,35,36\n")
    status, message = pipesim("calibrate", "--measured", table, "--scenario", GPT3)
    assert status == 2
    assert message.startswith(f"{table}: has two columns 'step_time'; needed: CSV with a header: step_time")


def test_without_numba_what_needs_it_is_skipped_with_the_reason():
    code = "import sys; sys.modules['numba'] = None; from pipesim.cli import main; main()"
    command = [sys.executable, "-c", code, "compare", TEACHING, "--schedules", "1f1b,zb-2p,auto", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert [result["schedule"] for result in found["results"]] == ["1f1b"]
    assert [entry["schedule"] for entry in found["skipped"]] == ["zb-2p", "auto"]
    assert all("pip install numba" in entry["reason"] for entry in found["skipped"])


def test_a_long_or_unprintable_message_is_shortened_and_shown():
    code = "from pipesim.cli import main; main()"
    command = [sys.executable, "-c", code, "simulate", TEACHING, "--set", "name=\x1b[31m" + "x" * 50_000]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "\x1b" not in done.stderr
    assert len(done.stderr) < 5_000


def test_an_accelerator_on_a_rank_that_a_cut_has_not_is_refused():
    """A plan tries cuts of fewer ranks than the scenario names."""
    stated = ["cluster.other_accelerators={'7': h100-sxm}"]
    scenario = load_scenario(GPT3, stated, uncut=True)
    narrow = replace(scenario, parallel=replace(scenario.parallel, pipeline=4))
    with pytest.raises(ScenarioError, match="found rank 7; ranks are 0 to 3"):
        build_costs(narrow, num_chunks=1)
