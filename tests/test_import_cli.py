"""`pipesim import`: every tool's verb, hostile files, whole files or none."""

from __future__ import annotations

import json
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import yaml
from import_samples import DATA
from typer.testing import CliRunner

from pipesim.cli.app import app
from pipesim.errors import PipesimError, ScenarioError
from pipesim.importers.completing import Imported
from pipesim.importers.scenario_file import scenario_text
from pipesim.scenario import load_scenario

HF = Path(__file__).parents[1] / "scenarios" / "configs" / "llama3-70b.json"
VERBS: dict[str, list[str]] = {
    "hf": [str(HF)],
    "megatron": [str(DATA / "megatron_test_7b.yaml")],
    "nemo": [str(DATA / "nemo_405b.yaml")],
    "torchtitan": [str(DATA / "torchtitan_405b.toml")],
    "deepspeed": [str(DATA / "deepspeed.json"), str(DATA / "deepspeed_arguments.txt")],
    "neox": [str(DATA / "neox_20b.yml")],
    "nanotron": [str(DATA / "nanotron_tiny.yaml")],
}
SUFFIX = {"hf": "json", "megatron": "yaml", "torchtitan": "toml", "deepspeed": "json", "neox": "yml"}


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["import", *arguments])
    if result.exception is not None and not isinstance(result.exception, (SystemExit, PipesimError)):
        raise result.exception
    refused = isinstance(result.exception, PipesimError)
    return (2 if refused else result.exit_code), (str(result.exception) if refused else result.output)


@pytest.mark.parametrize("verb", VERBS)
def test_every_tool_writes_a_scenario_that_simulates(tmp_path: Path, verb: str) -> None:
    output = tmp_path / "out.yaml"
    status, printed = run(verb, *VERBS[verb], "-o", str(output))
    assert (status, "wrote" in printed) == (0, True)
    text = output.read_text()
    assert "placeholder" in text
    scenario = load_scenario(output)
    assert scenario.model is not None
    assert text.startswith(f"# From {Path(VERBS[verb][0]).name}")
    result = CliRunner().invoke(app, ["simulate", str(output), "--json"])
    assert result.exit_code == 0
    assert json.loads(result.output)["num_microbatches"] == scenario.batch.num_microbatches


def test_row_gpus_define_set_and_json(tmp_path: Path) -> None:
    output = str(tmp_path / "out.yaml")
    assert run("nemo", str(DATA / "nemo_table.csv"), "--row", "4", "-o", output)[0] == 0
    assert load_scenario(output).parallel.context == 2
    status, printed = run(
        "megatron",
        str(DATA / "megatron_zero_bubble.sh"),
        "--define",
        "LAYERS=16",
        "--define",
        "PIPELINE=4",
        "--define",
        "MICRO=1",
        "--define",
        "GLOBAL=32",
        "--define",
        "HIDDEN=4096",
        "--gpus",
        "16",
        "--set",
        "cluster.accelerator=a100-sxm-80",
        "--json",
        "-o",
        output,
    )
    assert status == 0
    document = json.loads(printed)
    assert document["tool"] == "Megatron-LM"
    assert document["inferred"]["batch.microbatches"].startswith("16 ")
    scenario = load_scenario(output)
    assert scenario.cluster is not None
    assert (scenario.cluster.num_gpus, scenario.cluster.accelerator.name) == (16, "a100-sxm-80")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nemo", str(DATA / "nemo_table.csv")], "choose one by --row"),
        (["nemo", str(DATA / "nemo_405b.yaml"), "--row", "1"], "is for CSV tables"),
        (["nemo", str(DATA / "nemo_table.csv"), "--row", "4", "--gpus", "8"], "a multiple of 32"),
        (["megatron", str(DATA / "megatron_175b.sh"), "--define", "x"], "NAME=VALUE is needed"),
        (["megatron", str(DATA / "megatron_175b.sh"), "--define", "a b=1"], "NAME=VALUE is needed"),
        (
            ["megatron", str(DATA / "megatron_175b.sh"), "--set", "parallel.data=7"],
            "not a multiple of micro 1 x data 7",
        ),
        (["megatron", "no-such-file.sh"], "no-such-file.sh: cannot be read: no such file"),
        (["megatron", str(DATA)], "is a directory"),
    ],
)
def test_refused_and_nothing_written(tmp_path: Path, arguments: list[str], words: str) -> None:
    output = tmp_path / "out.yaml"
    status, message = run(*arguments, "-o", str(output))
    assert status == 2
    assert words in message
    assert "\n" not in message
    assert list(tmp_path.iterdir()) == []


def bomb(depth: int) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, depth)]
    return "\n".join(lines) + "\nmodel: *a5\n"


HOSTILE: dict[str, str | bytes] = {
    "100 MB": b"\x20" * 100_000_000,
    "aliases that explode": bomb(12),
    "an alias of itself": "a: &a [*a]\nmodel: *a\n",
    "deep": "[" * 20_000,
    "deep braces": '{"a":' * 20_000,
    "python objects": "model: !!python/object/apply:os.system ['true']\n",
    "zero bytes": b"\0" * 100,
    "not text": bytes(range(128, 256)) * 10,
    "empty": "",
    "a list": "[1, 2, 3]",
    "one word": "yes",
    "long line": "a" * 1_000_000,
    "long key": "'" + "k" * 900_000 + "': 1\n",
    "a huge number": '{"num_layers": ' + "9" * 100_000 + "}",
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_files_are_refused_soon(tmp_path: Path, verb: str, kind: str) -> None:
    path = tmp_path / f"file.{SUFFIX.get(verb, 'yaml')}"
    content = HOSTILE[kind]
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    before = time.process_time()
    status, message = run(verb, str(path), "-o", str(tmp_path / "out.yaml"))
    spent_s = time.process_time() - before
    assert status == 2
    assert str(path) in message or path.name in message
    assert len(message) < 2000
    assert "\n" not in message
    assert spent_s < 20
    assert not (tmp_path / "out.yaml").exists()


@pytest.mark.parametrize("verb", VERBS)
def test_a_large_file_is_not_read_whole(tmp_path: Path, verb: str) -> None:
    path = tmp_path / f"file.{SUFFIX.get(verb, 'yaml')}"
    with path.open("wb") as stream:
        stream.truncate(10**9)
    tracemalloc.start()
    status, message = run(verb, str(path), "-o", str(tmp_path / "out.yaml"))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert status == 2
    assert "larger than 1 MiB" in message
    assert peak < 20e6


@pytest.mark.parametrize(
    "name",
    ["plain", "a\nb: 1", "x # y", "'quoted\"", "a\u2028b\x85c", "é \U0001f600", "{", "- x", "x" * 5000],
)
def test_names_cannot_break_the_file(name: str) -> None:
    mapping: dict[str, Any] = {"name": name, "model": {"source": name}, "batch": {"global": 1}}
    notes = {name: name, "model.source": name}
    imported = Imported("tool", name, mapping, notes, notes, {"model": name, f"model.{name}": name})
    document = yaml.safe_load(scenario_text(imported))
    assert set(document) == {"name", "model", "batch"}
    assert document["batch"] == {"global": 1}
    if name.isprintable() and len(name) < 400:
        assert document["name"] == document["model"]["source"] == name


def test_names_of_files_are_only_names(tmp_path: Path) -> None:
    outside = tmp_path / "outside.sh"
    outside.write_text("LAYERS=8\n")
    script = tmp_path / "run.sh"
    script.write_text(
        ". ../outside.sh\nsource /etc/passwd\npython x.py --num-layers $LAYERS --hidden-size 8\n"
    )
    status, message = run("megatron", str(script), "-o", str(tmp_path / "out.yaml"))
    assert status == 2
    assert "$LAYERS" in message
    with pytest.raises(ScenarioError):
        load_scenario(tmp_path / "out.yaml")
