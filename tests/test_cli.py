"""Every verb, run as a user runs it; bad input ends with status 2, one message and no file."""

import json
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipesim import __version__
from pipesim.cli.app import app
from pipesim.errors import PipesimError
from pipesim.prediction import predict
from pipesim.questions import compare
from pipesim.scenario import load_scenario
from pipesim.show.amounts import amount
from pipesim.show.glossary import COLUMNS, PARTS

ROOT = Path(__file__).parent.parent
SCENARIOS = sorted((ROOT / "scenarios").glob("*.yaml"))
TEACHING = str(ROOT / "scenarios" / "teaching.yaml")
LLAMA70 = str(ROOT / "scenarios" / "llama3-70b-h100.yaml")
GPT3 = str(ROOT / "scenarios" / "gpt3-175b-a100.yaml")


def pipesim(*arguments):
    """Run in this process; returns (exit status, standard output, message)."""
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if isinstance(result.exception, PipesimError):
        return 2, result.stdout, str(result.exception)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def json_of(*arguments):
    status, out, message = pipesim(*arguments, "--json")
    assert status == 0, message
    return json.loads(out)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda path: path.stem)
def test_every_shipped_scenario_runs_and_compares(scenario):
    one = json_of("simulate", scenario)
    assert 0 <= one["bubble_ratio"] < 1
    assert one["step_time_s"] >= one["makespan_s"] > 0
    assert one["fits_memory"] in (True, None)
    several = json_of("compare", scenario, "--schedules", "gpipe,1f1b,interleaved-1f1b")
    assert [r["schedule"] for r in several["results"]] == ["gpipe", "1f1b", "interleaved-1f1b"]


def test_simulate_json_has_the_promised_fields():
    document = json_of("simulate", GPT3)
    promised = (
        "schedule num_ranks num_stages num_microbatches makespan_s step_time_s bubble_ratio bubble_overhead "
        "span_bubble_ratio tokens_per_s model_tflops_per_gpu mfu peak_memory_bytes usd_per_step ranks"
    )
    assert set(promised.split()) <= set(document)
    rank = document["ranks"][0]
    assert set(rank) >= {"rank", "busy_s", "idle_s", "bubble_ratio", "peak_in_flight", "peak_memory_bytes"}
    causes = {"busy_s", "warmup_s", "dependency_s", "p2p_s", "collective_s", "cooldown_s"}
    assert set(rank["breakdown"]) == causes
    assert sum(rank["breakdown"].values()) == pytest.approx(document["makespan_s"], rel=1e-12)


def test_compare_needs_no_file():
    document = json_of("compare", "--ranks", 8, "--microbatches", 32, "--forward", 1, "--backward", 2)
    makespans = {r["schedule"]: r["makespan_s"] for r in document["results"]}
    assert makespans["gpipe"] == makespans["1f1b"] == 117
    assert all(r["tokens_per_s"] is None for r in document["results"])


def test_chunks_and_p2p_without_a_file():
    document = json_of(
        *("compare", "--ranks", 8, "--microbatches", 32, "--forward", "1 s", "--backward", "2 s"),
        *("--chunks", "1,2,4", "--schedules", "1f1b,interleaved-1f1b"),
    )
    by_chunks = {r["num_chunks"]: r["makespan_s"] for r in document["results"][1:]}
    assert by_chunks == {1: 117, 2: 106.5, 4: 101.25}
    document = json_of(
        *("simulate", "--ranks", 4, "--microbatches", 8, "--forward", 1, "--backward", 2, "--p2p", 0.1)
    )
    assert document["makespan_s"] == pytest.approx(34.6, rel=1e-12)


def test_blocking_transfers_by_override():
    document = json_of("simulate", TEACHING, "--set", "network.p2p=blocking", "--set", "costs.p2p=0.1 s")
    assert document["makespan_s"] == pytest.approx(34.9, rel=1e-12)


def test_blocking_runs_several_chunks_in_batches():
    document = json_of(
        *("compare", TEACHING, "--set", "network.p2p=blocking", "--chunks", 2),
        *("--schedules", "1f1b,interleaved-1f1b"),
    )
    assert {r["schedule"] for r in document["results"]} == {"1f1b", "interleaved-1f1b"}
    assert document["skipped"] == []


def test_schedules_that_come_to_the_same_share_a_picture():
    compared = compare(load_scenario(TEACHING), schedules=["1f1b", "gpipe", "pipedream", "zb-h1", "zb-1p"])
    groups = [[result.label for result in same] for same in compared.same_timelines()]
    assert groups == [["1f1b", "pipedream"], ["gpipe"], ["zb-h1", "zb-1p"]]


def test_skipped_schedules_are_listed_with_the_reason():
    document = json_of("compare", TEACHING, "--set", "batch.microbatches=7", "--schedules", "1f1b,dualpipe")
    assert document["skipped"] == [{"schedule": "dualpipe", "reason": document["skipped"][0]["reason"]}]
    assert "nearest legal m" in document["skipped"][0]["reason"]


def test_one_chunk_a_rank_is_said_with_numbers_that_fit():
    cut = ("--set", "parallel.virtual_stages=1", "--set", "schedule=1f1b")
    asked = ("compare", LLAMA70, *cut, "--schedules", "1f1b,interleaved-1f1b,gis")
    _, out, _ = pipesim(*asked)
    note = re.search(r"note: v = 1: (.*); try --chunks ([\d,]+)", out)
    assert (
        note[1].partition(";")[0]
        == "interleaved-1f1b, gis ran with one chunk a rank, so without interleaving"
    )
    assert note[2] == "2,5,10"  # of 80 layers on 4 ranks
    document = json_of(*asked)
    assert document["notes"][0].startswith("v = 1: ")
    assert "v = 1" not in pipesim(*asked, "--chunks", note[2])[1]
    free = ("compare", TEACHING, "--schedules", "1f1b,interleaved-1f1b")
    assert "interleaved-1f1b then takes as long as 1f1b" in pipesim(*free)[1]
    # Messages cost the two schedules different waits.
    assert "takes as long as" not in pipesim(*free, "--set", "costs.p2p=0.1 s")[1]
    assert "v = 1" not in pipesim(*asked[:2], *cut, "--schedules", "1f1b,zb-v")[1]


def test_parts_of_the_step_have_names_that_say_of_which_rank():
    _, out, _ = pipesim("simulate", GPT3)
    _, _, table = out.partition("part of the step")
    shown = [line.split("|")[1].strip() for line in table.splitlines()[2:] if line.startswith("|")]
    names = [name for name, _ in PARTS.values()]
    assert shown[:5] == [name for name in names if name in shown[:5]]
    assert "idle of the busiest rank" in shown
    assert "bubble" not in shown
    assert "\nimbalance: what the busiest rank has to do above the mean" in out
    assert set(PARTS) == set(json_of("simulate", GPT3)["step_breakdown"])
    _, out, _ = pipesim("simulate", "--help")
    for name, words in [*COLUMNS.items(), *PARTS.values()]:
        assert re.search(f"{re.escape(name)} +{re.escape(words)}", out)


def test_which_framework_runs_what_is_said():
    cut = ("--set", "parallel.virtual_stages=10")
    asked = ("compare", LLAMA70, *cut, "--schedules", "1f1b,interleaved-1f1b,zb-v,v-half,dualpipe,pipedream")
    _, out, _ = pipesim(*asked, "--wide")
    assert "\ntorch runs: 1f1b, interleaved-1f1b v10, zb-v v2\n" in out
    assert "\nMegatron runs: 1f1b, interleaved-1f1b v10\n" in out
    assert "\nDeepSpeed runs: 1f1b\n" in out
    assert "\ntorch loads as a CSV (pipesim schedule export): v-half v2\n" in out
    by_name = {r["schedule"]: r["frameworks"] for r in json_of(*asked)["results"]}
    assert by_name["interleaved-1f1b"] == ["torch", "Megatron"]
    assert by_name["v-half"] == by_name["dualpipe"] == by_name["pipedream"] == []


def test_help_explains_every_column_of_compare():
    _, out, _ = pipesim("compare", GPT3, "--schedules", "1f1b", "--wide")
    (line,) = [line for line in out.splitlines() if line.startswith("| schedule")]
    header = {cell.strip() for cell in line.strip("| ").split("|")}
    assert header == {"schedule", "tokens/s", *COLUMNS}
    _, out, _ = pipesim("compare", "--help")
    for name, words in COLUMNS.items():
        assert f"{name} " in out
        assert words in out


def test_tables_name_all_three_bubbles():
    for arguments in (("simulate", TEACHING), ("compare", TEACHING, "--wide")):
        _, out, _ = pipesim(*arguments)
        for name in ("bubble ratio", "bubble overhead", "span bubble"):
            assert name in out
        assert "27.27 %" in out
        assert "37.50 %" in out


def test_what_was_inferred_is_echoed():
    _, out, _ = pipesim("simulate", GPT3)
    assert "batch.microbatches = 64 (global 128 / (micro 1 x data 2))" in out


def test_what_does_not_fit_is_simulated_and_said():
    status, out, _ = pipesim("simulate", GPT3, "--set", "schedule=gpipe")
    assert status == 0
    assert "does not fit" in out
    assert json_of("simulate", GPT3, "--set", "schedule=gpipe")["fits_memory"] is False


def test_where_nothing_fits_changes_are_offered_that_fit():
    _, out, _ = pipesim("simulate", GPT3, "--set", "schedule=1f1b", "--set", "batch.micro=8")
    offered = re.search(r"note: 1f1b would fit with (\S+) \((\S+ GB)\); or (\S+) \((\S+ GB)\)", out)
    base = ["schedule=1f1b", "batch.micro=8"]
    assert predict(load_scenario(GPT3, base)).metrics.fits_memory is False
    for change, memory in (offered.groups()[:2], offered.groups()[2:]):
        metrics = predict(load_scenario(GPT3, [*base, change])).metrics
        assert metrics.fits_headroom is True
        assert amount(metrics.peak_memory_bytes) == memory
    small = ("cluster.num_nodes=2", "parallel.data=1", "parallel.pipeline=2", "schedule=1f1b")
    _, out, _ = pipesim("simulate", GPT3, *(word for key in small for word in ("--set", key)))
    peak = predict(load_scenario(GPT3, [*small, "recompute=full"])).metrics.peak_memory_bytes
    assert f"note: 1f1b would not fit even with recompute=full ({amount(peak)}), 5% of the usable" in out


def test_thin_headroom_is_said():
    small = "cluster.accelerator={preset: a100-sxm-80, memory: 64 GB}"
    _, out, _ = pipesim("compare", GPT3, "--schedules", "1f1b,dualpipe", "--set", small, "--wide")
    shares = re.search(
        r"note: fits, with less than the headroom of 5%.*; shares of the device's memory: (.*)", out
    )[1]
    one = predict(load_scenario(GPT3, ["schedule=dualpipe", small]))
    share = one.metrics.peak_memory_bytes / one.costs.memory_limit_bytes
    reserve = 2 * 2**30
    assert 0.95 * (64e9 - reserve) < share * 64e9 <= 64e9
    assert shares == f"dualpipe v2 {share:.1%}"


def test_simulate_writes_trace_timeline_and_picture(tmp_path):
    trace, timeline, picture = tmp_path / "t.json", tmp_path / "t.csv", tmp_path / "t.svg"
    status, _, _ = pipesim("simulate", TEACHING, "--trace", trace, "--timeline", timeline, "--plot", picture)
    assert status == 0
    events = json.loads(trace.read_text())["traceEvents"]
    assert sum(event["ph"] == "X" and event["cat"] == "F" for event in events) == 4 * 8
    assert sum(event["ph"] == "s" for event in events) == 2 * 3 * 8
    header = timeline.read_text().splitlines()[0]
    assert header == "rank,replica,stream,op,stage,microbatch,slice,step,start_s,end_s,nbytes"
    assert picture.read_text().startswith("<?xml")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.csv", "t.json", "t.svg"]


@pytest.mark.parametrize("kind", ["gantt", "bubble", "memory", "breakdown", "pareto"])
def test_each_plot_is_drawn(kind, tmp_path):
    output = tmp_path / "plot.png"
    arguments = [GPT3, "-o", output, "--set", "batch.global=16"]
    if kind in ("bubble", "pareto"):
        arguments += ["--schedules", "1f1b,interleaved-1f1b,zb-v"]
    status, _, message = pipesim("plot", kind, *arguments)
    assert status == 0, message
    assert output.read_bytes().startswith(b"\x89PNG")


def test_compare_draws_the_first_few_unless_asked_for_more(tmp_path):
    import matplotlib.image

    heights = {}
    for flags in ((), ("--all",), ("--schedules", "gpipe,1f1b,zb-h1,zb-h2,zb-v,v-min,v-half")):
        few = ("--set", "batch.microbatches=4")
        status, out, _ = pipesim("compare", TEACHING, *few, "--plot", tmp_path / "c.png", *flags)
        assert status == 0
        heights[flags] = matplotlib.image.imread(tmp_path / "c.png").shape[0]
        assert ("shows 6 of" in out) == (flags == ())
    assert heights[()] < 1500 < max(heights.values())


def test_a_colon_in_a_name_is_no_emoji():
    _, out, _ = pipesim("simulate", TEACHING, "--set", "name=':warning: [b]a[/b]'")
    assert "\n:warning: [b]a[/b]\n" in out


def test_schedule_verbs(tmp_path):
    names = [entry["schedule"] for entry in json_of("schedule", "list")]
    assert {"gpipe", "1f1b", "interleaved-1f1b"} <= set(names)
    _, out, _ = pipesim("schedule", "show", "1F1B", "--ranks", 4, "--microbatches", 8)
    assert "3B0" in out
    csv = tmp_path / "s.csv"
    assert pipesim("schedule", "export", "Interleaved_1F1B", "--chunks", 2, "-o", csv)[0] == 0
    assert csv.read_text().splitlines()[0].startswith("0F0,0F1")
    status, out, _ = pipesim("schedule", "check", csv)
    assert status == 0
    assert "legal" in out
    document = json_of("simulate", TEACHING, "--set", f"schedule={{csv: {csv}}}")
    assert document["makespan_s"] == 28.5


def test_schedule_show_says_what_transport_it_needs():
    _, out, _ = pipesim("schedule", "show", "zb-v", "--ranks", 4, "--microbatches", 8)
    assert "posted early, as exported, it needs blocking sends and receives, one by one in order" in out
    assert "right before their use it needs sends that return before they are received" in out


def test_schedule_check_speaks_for_frameworks(tmp_path):
    _, out, _ = pipesim("schedule", "check", TEACHING)
    assert out.count("accepts") == 3
    few = ("--set", "batch.microbatches=2")
    _, out, _ = pipesim("schedule", "check", TEACHING, *few)
    assert "torch: refuses: needs m >= p" in out
    assert "Megatron: accepts" in out
    status, _, message = pipesim("schedule", "check", TEACHING, "--framework", "TORCH", *few)
    assert status == 2
    assert "torch refuses it: needs m >= p" in message
    csv = tmp_path / "zbv.csv"
    pipesim("schedule", "export", "zb-v", "-o", csv)
    _, out, _ = pipesim("schedule", "check", csv, "--framework", "torch")
    assert "torch: accepts" in out
    status, _, message = pipesim("schedule", "check", csv, "--framework", "megatron")
    assert status == 2
    assert "Megatron reads no schedule file" in message


def test_schedule_check_of_a_scenario_agrees_with_that_of_its_csv(tmp_path):
    for name, answer in (
        ("1f1b-v", "torch: no class of its own; loads the exported CSV"),
        ("zb-auto", "torch: no class of its own; loads the exported CSV"),
        ("dualpipe", "torch: refuses: has no dualpipe schedule"),
        ("pipedream", "torch: refuses: has no pipedream schedule"),
    ):
        own = ("--set", f"schedule={name}")
        _, out, _ = pipesim("schedule", "check", TEACHING, *own)
        assert f"\n{answer}\n" in out
        assert f"\nMegatron: refuses: has no {name} schedule\n" in out
        status, _, _ = pipesim("schedule", "check", TEACHING, *own, "--framework", "torch")
        assert status == (2 if "refuses" in answer else 0)
        csv = tmp_path / f"{name}.csv"
        pipesim("schedule", "export", name, "--ranks", 4, "--microbatches", 8, "-o", csv)
        if name != "pipedream":  # in a CSV it is synchronous: torch steps the optimizer outside
            assert pipesim("schedule", "check", csv, "--framework", "torch")[0] == status


def test_schedule_list_and_compare_say_the_same_of_chunks():
    _, out, _ = pipesim("schedule", "list")
    listed = dict(re.findall(r"^\| (\S+) +\| (\d+)", out, re.M))
    shown = {r["schedule"]: str(r["num_chunks"]) for r in json_of("compare", TEACHING)["results"]}
    assert {"dualpipe", "chimera", "zb-v", "1f1b"} <= set(listed) & set(shown)
    assert [listed[name] for name in listed if name in shown] == [
        shown[name] for name in listed if name in shown
    ]


def test_asynchronous_schedules_are_marked_and_come_last():
    document = json_of("compare", TEACHING)
    marks = [result["synchronous"] for result in document["results"]]
    assert marks == sorted(marks, reverse=True)
    late = {r["schedule"]: r["asynchrony"] for r in document["results"] if not r["synchronous"]}
    assert late["pipedream"] == {
        "weight_versions": [4, 3, 2, 1],
        "staleness": [3, 2, 1, 0],
        "steady_period_s": 24.0,
    }
    _, out, _ = pipesim("compare", TEACHING, "--schedules", "pipedream-2bw", "--wide")
    assert "asynchronous: gradients up to 1 updates late, 2 weight versions" in out


def test_what_does_not_fit_comes_after_what_does_and_each_by_step_time():
    results = json_of("compare", GPT3, "--set", "batch.global=80")["results"]
    order = [(r["fits_memory"] is False, not r["synchronous"], r["step_time_s"]) for r in results]
    assert order == sorted(order)
    assert any(late < early for (_, _, early), (_, _, late) in pairwise(order))
    assert {fits for fits, _, _ in order} == {False, True}


def test_weight_versions_take_memory():
    kept = ("--set", "batch.global=32")
    flushed = json_of("simulate", GPT3, *kept)["ranks"]
    never = json_of("simulate", GPT3, "--set", "schedule=pipedream", *kept)["ranks"]
    more = [b["peak_memory_bytes"] - a["peak_memory_bytes"] for a, b in zip(flushed, never, strict=True)]
    assert more[7] == 0
    assert more[5] == pytest.approx(2 * more[6], rel=1e-9)


def test_exported_csv_with_communication_reads_back(tmp_path):
    csv = tmp_path / "s.csv"
    assert pipesim("schedule", "export", "1f1b", "--comms", "-o", csv)[0] == 0
    assert "SEND_F" in csv.read_text()
    assert pipesim("schedule", "check", csv)[0] == 0


def test_import_hf_gives_a_scenario_that_runs(tmp_path):
    output = tmp_path / "llama.yaml"
    config = ROOT / "scenarios" / "configs" / "llama3-70b.json"
    assert pipesim("import", "hf", config, "-o", output)[0] == 0
    assert json_of("simulate", output)["num_ranks"] > 1


def test_presets_show_source_and_date():
    _, out, _ = pipesim("presets")
    for name in (
        "a100-sxm-80",
        "h100-sxm",
        "h200-sxm",
        "b200-sxm",
        "mi300x",
        "nvlink3",
        "ib-hdr",
        "gpt3-175b",
    ):
        assert name in out
    document = json_of("presets", "a100-sxm-80")
    assert document[0]["source"]
    assert document[0]["date"]


def write(path, text):
    path.write_text(text)
    return path


BAD_SCHEDULES = {
    "missing action": ("0F0,0B0\n1F0\n", "stage 1, microbatch 0 has no B"),
    "doubled action": ("0F0,0B0,0B0\n1F0,1B0\n", "<-"),
    "not an action": ("0F0,0X0\n", "rank 0, cell 2"),
    "deadlock": ("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n", "rank 0: at 0B0, waits for 1B0"),
    "empty file": ("", "no action"),
    "wrong order": ("0B0,0F0\n", "stands before its own F"),
}


@pytest.mark.parametrize("case", BAD_SCHEDULES)
def test_a_bad_csv_is_refused_with_its_file_and_place(case, tmp_path):
    text, words = BAD_SCHEDULES[case]
    csv = write(tmp_path / "bad.csv", text)
    status, _, message = pipesim("schedule", "check", csv)
    assert status == 2
    assert words in message
    assert message.startswith(str(csv))


BAD_ARGUMENTS = {
    "unknown schedule": (("compare", TEACHING, "--schedules", "1fb1"), "did you mean 1f1b"),
    "unknown schedule in the scenario": (("simulate", TEACHING, "--set", "schedule=zb-x"), "did you mean"),
    "no scenario and no flags": (("compare",), "--ranks"),
    "file and flags": (("simulate", TEACHING, "--ranks", "4"), "--set"),
    "chunks not numbers": (("compare", TEACHING, "--chunks", "two"), "--chunks"),
    "chunks not positive": (("compare", TEACHING, "--chunks", "0"), "--chunks"),
    "no ranks": (
        ("compare", "--ranks", "0", "--microbatches", "4", "--forward", "1", "--backward", "1"),
        "parallel.pipeline",
    ),
    "negative time": (
        ("compare", "--ranks", "2", "--microbatches", "4", "--forward=-1", "--backward", "1"),
        "costs.forward",
    ),
    "not a time": (
        ("compare", "--ranks", "2", "--microbatches", "4", "--forward", "fast", "--backward", "1"),
        "costs.forward",
    ),
    "missing file": (("simulate", "nowhere.yaml"), "nowhere.yaml"),
    "unknown key by override": (("simulate", TEACHING, "--set", "paralel.pipeline=2"), "paralel"),
    "unknown section by override": (
        ("simulate", TEACHING, "--set", "PARALLEL.pipeline=2"),
        "--set PARALLEL.pipeline=2: PARALLEL: unknown key; did you mean 'parallel'?",
    ),
    "incomplete section by override": (
        ("simulate", TEACHING, "--set", "model.hidden_size=64"),
        "--set model.hidden_size=64: model.num_hidden_layers: missing",
    ),
    "override without value": (("simulate", TEACHING, "--set", "name"), "--set"),
    "picture of an unknown kind": (("simulate", TEACHING, "--plot", "x.jpeg"), ".png or .svg"),
    "output in no folder": (("simulate", TEACHING, "--trace", "/nowhere/x.json"), "/nowhere/x.json"),
    "interleaved needs whole groups": (
        ("simulate", TEACHING, "--set", "schedule=interleaved-1f1b", "--set", "batch.microbatches=18"),
        "nearest legal m: 16 or 20",
    ),
    "unknown option of a schedule": (
        ("simulate", TEACHING, "--set", "schedule={name: gpipe, depth: 3}"),
        "unknown option 'depth'",
    ),
    "csv of other sizes": (("simulate", TEACHING, "--set", "schedule={csv: nowhere.csv}"), "nowhere.csv"),
    "no legal schedule": (
        ("compare", TEACHING, "--schedules", "dualpipe", "--set", "batch.microbatches=3"),
        "no schedule can run",
    ),
    "too many chunks for the model": (
        ("simulate", GPT3, "--set", "schedule=interleaved-1f1b", "--set", "parallel.virtual_stages=24"),
        "layers",
    ),
}


@pytest.mark.parametrize("case", BAD_ARGUMENTS)
def test_bad_arguments_end_with_one_message(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments, words = BAD_ARGUMENTS[case]
    status, out, message = pipesim(*arguments)
    assert status == 2
    assert words in message
    assert out == ""
    assert list(tmp_path.iterdir()) == []


def test_the_installed_command_exits_with_2_and_without_a_traceback(tmp_path):
    bad = write(
        tmp_path / "bad.yaml", "parallel: {pipeline: 4}\nbatch: {microbatches: 8}\ncosts: {forward: 1}\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", "from pipesim.cli import main; main()", "simulate", bad],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 2
    assert "Traceback" not in run.stderr
    assert run.stderr.startswith(f"pipesim: {bad}: costs")
    assert len(run.stderr.splitlines()) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("verb", [("simulate", TEACHING), ("simulate", TEACHING, "--json"), ("--help",)])
def test_an_output_without_room_or_reader_is_no_traceback(verb):
    command = [sys.executable, "-c", "from pipesim.cli import main; main()", *verb]
    with open("/dev/full", "w") as full:
        run = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert run.returncode == 2
    assert run.stderr == "pipesim: standard output cannot be written: No space left on device\n"
    reading, writing = os.pipe()
    os.close(reading)
    run = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (run.returncode, run.stderr) == (141, "")  # as of a program that SIGPIPE ended


FEW_TIMES = ("--ranks", "2", "--microbatches", "4", "--forward", "1", "--backward", "2")


def test_a_schedule_that_no_file_names_is_called_the_default():
    _, out, _ = pipesim("compare", *FEW_TIMES, "--schedules", "1f1b,zb-h1")
    assert "vs 1f1b, the default schedule: -" in out
    _, out, _ = pipesim("compare", *FEW_TIMES, "--schedules", "1f1b,gpipe")
    assert "It is the default schedule." in out
    _, out, _ = pipesim("compare", *FEW_TIMES, "--schedules", "1f1b,zb-h1", "--set", "schedule=1f1b")
    assert "vs 1f1b, the schedule in the scenario: -" in out


@pytest.mark.parametrize("verb", ["compare", "plan", "report -o page.html", "sweep -o table.csv"])
@pytest.mark.parametrize("names", ["", " , "])
def test_schedules_that_name_none_are_not_taken_for_all(verb, names, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, *more = verb.split()
    status, _, message = pipesim(first, GPT3, *more, "--schedules", names)
    assert (status, message) == (2, f"--schedules: found {names!r}; needed: names with commas between them")


@pytest.mark.skipif(os.name == "nt", reason="needs a pseudo-terminal")
def test_a_run_says_on_a_terminal_what_it_is_at():
    reading, terminal = os.openpty()
    command = [sys.executable, "-m", "pipesim", "simulate", TEACHING]
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=terminal, text=True, check=True)
    os.close(terminal)
    assert b"simulating" in os.read(reading, 10_000)
    assert "simulating" not in run.stdout


def test_the_version_is_printed():
    assert pipesim("--version")[:2] == (0, f"pipesim {__version__}\n")


def test_a_failed_write_leaves_the_old_file(tmp_path):
    old = write(tmp_path / "trace.json", "old")
    status, _, _ = pipesim("simulate", TEACHING, "--set", "schedule=zb-x", "--trace", old)
    assert status == 2
    assert old.read_text() == "old"
