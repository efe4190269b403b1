"""`pipesim execute`, run as a user runs it."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

pytest.importorskip("torch")

from pipesim.cli.app import app
from pipesim.errors import PipesimError
from pipesim.executor import read_run

TEACHING = str(Path(__file__).parents[1] / "scenarios" / "teaching.yaml")
SHORT = ["--set", "costs.forward=2 ms", "--set", "costs.backward=4 ms", "--steps", "2", "--warmup", "1"]
MODEL = """
name: small
model: {num_hidden_layers: 2, hidden_size: 16, num_attention_heads: 2, vocab_size: 32, seq_length: 8}
cluster: {accelerator: h100-sxm, num_nodes: 1, gpus_per_node: 2, intra_node: nvlink4}
parallel: {pipeline: 2}
batch: {global: 4, micro: 1}
schedule: zb-h1
"""


def pipesim(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["execute", *arguments])
    if result.exception is not None:
        raise result.exception
    return result.stdout


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    folder = tmp_path_factory.mktemp("emulated")
    written = ["-o", str(folder / "run.json"), "--trace", str(folder / "trace.json")]
    asked = ["execute", TEACHING, "--device", "emulated", *SHORT, *written, "--json"]
    return folder, CliRunner().invoke(app, asked, catch_exceptions=False)


def test_an_emulated_run(emulated: tuple[Path, Result]) -> None:
    folder, result = emulated
    document = json.loads(result.stdout)
    assert document["schedule"] == "1f1b"
    assert document["num_ranks"] == len(document["ranks"]) == 4
    assert document["ranks"][0]["busy_s"] == pytest.approx(8 * 0.006, rel=1e-6)
    assert document["makespan_s"] > 11 * 0.006
    assert document["losses"] == [None, None]
    assert read_run(folder / "run.json").num_steps == 2
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    assert any(event.get("ph") == "X" for event in events)


def test_how_long_it_will_take_is_said_before(emulated: tuple[Path, Result]) -> None:
    _, result = emulated
    assert result.stderr == "running: 3 steps of 1f1b, 1 of them to warm up, about 1 s\n"


def test_the_scenarios_transformer_on_cpus_and_the_table(tmp_path: Path) -> None:
    scenario = tmp_path / "small.yaml"
    scenario.write_text(MODEL)
    text = pipesim(str(scenario), "--device", "cpu", "--steps", "2", "-o", str(tmp_path / "run.json"))
    for words in ("zb-h1", "step time, median", "disturbed, set aside", "peak activations"):
        assert words in text
    run = read_run(tmp_path / "run.json")
    assert (run.losses < 10).all()
    assert (run.deferred_share > 0.5).all()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--device", "cpu"], "states costs and no model"),
        (["--device", "cpu", "--model", "nonsense"], "found 'nonsense'; expected module:factory"),
        (["--device", "abacus"], "found device 'abacus'; expected one of cpu, cuda, emulated"),
        (["--device", "cpu", "--model", "cnn", "--set", "parallel.tensor=2"], "parallel.tensor: found 2"),
    ],
)
def test_what_cannot_run_is_said(arguments: list[str], words: str) -> None:
    with pytest.raises(PipesimError) as caught:
        pipesim(TEACHING, *arguments)
    assert words in str(caught.value)


def test_without_torch_one_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PipesimError, match=r"install it with: pip install '\.\[torch\]' in pipesim's folder"):
        pipesim(TEACHING, "--device", "emulated")


def test_nothing_but_a_run_imports_torch() -> None:
    program = (
        "import sys; import pipesim.executor, pipesim.questions.execution, pipesim.cli.app; "
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_where_every_step_was_disturbed_all_count(
    emulated: tuple[Path, Result], capsys: pytest.CaptureFixture[str]
) -> None:
    from pipesim.cli.execute import _blocks
    from pipesim.cli.terminal import show

    document = json.loads(emulated[1].stdout)
    for disturbed, words in ((2, "| 2, 2, 0 |"), (1, "| 2, 1, 1 |")):
        capsys.readouterr()
        show(*_blocks(document | {"num_disturbed_steps": disturbed}, "teaching", None))
        lines = capsys.readouterr().out.splitlines()
        line = next(line for line in lines if "steps, disturbed, set aside" in line)
        assert " ".join(line.split()).endswith(words)
        assert any("every step was disturbed, so all are counted" in line for line in lines) == (
            disturbed == 2
        )


def test_memory_on_gpus_is_shown_beside_its_prediction(
    emulated: tuple[Path, Result], capsys: pytest.CaptureFixture[str]
) -> None:
    from pipesim.cli.execute import _blocks
    from pipesim.cli.terminal import show

    document = json.loads(emulated[1].stdout)
    assert document["ranks"][0]["peak_memory_bytes"] is None
    for rank in document["ranks"]:
        rank |= {"peak_memory_bytes": 10 * 2**30, "predicted_peak_memory_bytes": 10.5 * 2**30}
    document["environment"]["cuda_device_max_connections"] = "1"
    capsys.readouterr()
    show(*_blocks(document, "teaching", None))
    shown = capsys.readouterr().out
    assert shown.count("+5.00 %") == 4
    assert "warning: CUDA_DEVICE_MAX_CONNECTIONS=1" in shown
