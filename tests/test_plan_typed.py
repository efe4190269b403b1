"""What a plan prints can be typed: as a file and as ``--set``, each row gives the numbers beside it."""

import itertools
import json
import shlex

import pytest
from typer.testing import CliRunner

import pipesim
from pipesim.cli.app import app
from pipesim.cli.plan import choice_table
from pipesim.errors import PipesimError
from pipesim.show.amounts import amount, seconds

SMALL = {
    "name": "small",
    "model": {
        "num_hidden_layers": 4,
        "hidden_size": 1024,
        "num_attention_heads": 8,
        "vocab_size": 32000,
        "seq_length": 2048,
    },
    "cluster": {"accelerator": "h100-sxm", "num_nodes": 2, "gpus_per_node": 2, "inter_node": "ib-ndr"},
    "parallel": {"pipeline": 1},
    "batch": {"global": 8},
    "memory_reserve": "0 B",
    "headroom": 0,
}
SCHEDULES = ("1f1b", "zb-v", "interleaved-1f1b")
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 2048}
CHANGES = [
    {"model.num_hidden_layers": layers, "network.mode": mode, "cluster.accelerator.memory": memory}
    for layers, mode, memory in itertools.product((4, 6), ("fair", "ideal"), ("80 GB", "3 GB"))
]
CHANGES += [
    {"batch.global": 32, "cluster.accelerator": "a100-sxm-40"},
    {"batch.global": 16, "network.mode": "fifo", "cluster.nics_per_node": 1},
    {"optimizer": "sharded", "model.seq_length": 4096},
    {"optimizer": "zero3", "batch.global": 4},
    {"parallel.overlap_gradients": True},
    {"network.p2p": "blocking"},
    {"network.p2p": "send-blocking", "batch.global": 12},
    {"parallel.microbatch_group_size": 4, "schedule": {"name": "seq1f1b", "num_slices": 2}},
    {"jitter": {"slow_ranks": {"0": 1.2}}},
    {"layers": "balanced", "model.tie_word_embeddings": True},
    {"model": SMALL["model"] | EXPERTS},
    {"recompute": "full", "precision.compute": "fp8"},
]


def run(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if isinstance(result.exception, PipesimError):
        pytest.fail(str(result.exception))
    assert result.exit_code == 0, result.output
    return result.stdout


def test_there_are_twenty_plans():
    assert len(CHANGES) == 20


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_each_row_of_the_top_five_is_what_a_simulation_of_its_file_says(changes, tmp_path):
    scenario = pipesim.Scenario.of(SMALL).with_(changes)
    scenario.save(tmp_path / "asked.yaml")
    found = pipesim.plan(scenario, schedules=SCHEDULES, num_workers=1)
    for choice, row in zip(found.choices, choice_table(found).rows, strict=True):
        file = tmp_path / f"{row[0]}.yaml"
        choice.result.scenario.save(file)
        said = json.loads(run("simulate", file, "--json"))
        by_flags = [text for override in choice.overrides() for text in ("--set", override)]
        typed = json.loads(run("simulate", tmp_path / "asked.yaml", *by_flags, "--json"))
        assert said == typed | {"inferred": said["inferred"]}
        assert seconds(said["step_time_s"]) in row
        assert amount(said["peak_memory_bytes"]) in row
        assert said["step_time_s"] == choice.step_time_s
        assert said["peak_memory_bytes"] == choice.result.memory


def typed_line(printed):
    """Arguments of the command that a plan prints; a long one goes on after a backslash."""
    command, *_ = printed.partition("to type it: pipesim ")[2].replace("\\\n", " ").splitlines()
    return command


def test_the_line_under_a_plan_types_its_winner_and_the_file_is_it(tmp_path):
    asked, best = tmp_path / "asked file.yaml", tmp_path / "best.yaml"
    pipesim.Scenario.of(SMALL).save(asked)
    arguments = ["plan", asked, "--schedules", "1f1b,zb-v", "--workers", 1, "-o", best]
    arguments += ["--set", "batch.global=16", "--set", "cluster.accelerator={preset: h100-sxm, memory: 2 GB}"]
    printed = run(*arguments)
    line = typed_line(printed)
    typed, written = run(*shlex.split(line), "--json"), run("simulate", best, "--json")
    assert numbers(typed) == numbers(written)
    assert seconds(numbers(written)[0]) in printed
    assert "parallel.sequence_parallel=true" in line
    assert ", sequence parallel, " in printed


def test_bands_warnings_and_inferred_values_are_printed(tmp_path):
    file = tmp_path / "asked.yaml"
    pipesim.Scenario.of(SMALL).with_({"cluster.accelerator": "a100-sxm-40"}).save(file)
    few = ("--schedules", "1f1b", "--workers", 1, "--top", 1)
    (first,) = json.loads(run("plan", file, *few, "--json"))["results"]
    printed = run("plan", file, *few)
    assert first["warnings"]
    assert all(f"warning: {words}" in printed for words in first["warnings"])
    low_s, high_s = first["step_time_band_s"]
    wide = run("plan", file, *few, "--wide", "--assumptions")
    assert f"{seconds(low_s)} to {seconds(high_s)}" in wide
    assert f"+-{100 * (high_s / first['step_time_s'] - 1):.2g} %" in printed
    assert all(f"  {key} = " in wide for key in first["inferred"] if "." in key)


def test_the_smallest_cluster_can_be_typed_too(tmp_path):
    file, best = tmp_path / "asked.yaml", tmp_path / "best.yaml"
    pipesim.Scenario.of(SMALL).with_({"cluster.accelerator.memory": "3 GB"}).save(file)
    few = ("--schedules", "1f1b", "--workers", 1, "--max-nodes", 4, "-o", best)
    line = typed_line(run("plan", file, *few))
    assert "cluster.num_nodes=1" in line
    assert numbers(run(*shlex.split(line), "--json")) == numbers(run("simulate", best, "--json"))


def test_a_time_limit_ends_the_search_and_what_is_certain_is_said(tmp_path):
    file = tmp_path / "asked.yaml"
    pipesim.Scenario.of(SMALL).save(file)
    few = ("--schedules", "1f1b", "--workers", 1)
    document = json.loads(run("plan", file, *few, "--time-limit", 3600, "--json"))
    assert document["certain"] is True
    result = CliRunner().invoke(app, ["plan", str(file), "--time-limit", "0"])
    assert "--time-limit: found 0; needed: seconds above zero" in str(result.exception)
    result = CliRunner().invoke(app, ["plan", str(file), "--workers", "1", "--time-limit", "1e-9"])
    assert "nothing was confirmed within 1e-09 s; allow more time" in str(result.exception)


def numbers(document):
    return [json.loads(document)[key] for key in ("step_time_s", "peak_memory_bytes", "bubble_ratio")]
