"""Nothing in a file is ignored in silence: whatever is added to a sample is echoed or refused."""

from __future__ import annotations

import json
import random
import re
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from import_samples import DATA, refusal
from typer.testing import CliRunner

from pipesim.cli.app import app
from pipesim.errors import ScenarioError
from pipesim.importers.readers import READERS, import_files
from pipesim.importers.scenario_file import scenario_text
from pipesim.scenario.loading import parse_yaml

SHIPPED = Path(__file__).parents[1] / "scenarios" / "configs" / "llama3-70b.json"
SAMPLES: dict[str, tuple[str, list[Path], dict[str, Any]]] = {
    "hf": ("hf", [SHIPPED], {}),
    "megatron script": ("megatron", [DATA / "megatron_175b.sh"], {}),
    "megatron sizes": (
        "megatron",
        [DATA / "megatron_table_arguments.sh", DATA / "megatron_table_sizes.sh"],
        {"order": [1, 0]},
    ),
    "megatron yaml": ("megatron", [DATA / "megatron_test_7b.yaml"], {}),
    "megatron zero bubble": ("megatron", [DATA / "megatron_zero_bubble.sh"], {}),
    "nemo": ("nemo", [DATA / "nemo_405b.yaml"], {}),
    "nemo table": ("nemo", [DATA / "nemo_table.csv"], {"row": "2"}),
    "nemo recipe": ("nemo", [DATA / "bridge_recipe.py"], {"row": "small_llama_64gpu_config"}),
    "nemo workload": (
        "nemo",
        [DATA / "bridge_workloads.py"],
        {"row": "LLAMA31_405B_PRETRAIN_CONFIG_H100_FP8_CS_V1"},
    ),
    "nemo mlperf": (
        "nemo",
        [DATA / "mlperf_gpt3.yaml", DATA / "mlperf_common.sh", DATA / "config_DGXH100_64x8x128x4x8_mbs2.sh"],
        {},
    ),
    "mlperf scripts": (
        "nemo",
        [DATA / "mlperf_common.sh", DATA / "config_DGXH100_64x8x288xtp8pp8cp2.sh"],
        {},
    ),
    "torchtitan": ("torchtitan", [DATA / "torchtitan_405b.toml"], {}),
    "torchtitan 2024": ("torchtitan", [DATA / "torchtitan_405b_2024.toml"], {}),
    "torchtitan python": ("torchtitan", [DATA / "torchtitan_registry.py"], {"row": "deepseek_v3_671b"}),
    "deepspeed json": ("deepspeed", [DATA / "deepspeed.json", DATA / "deepspeed_arguments.txt"], {}),
    "deepspeed text": ("deepspeed", [DATA / "deepspeed_arguments.txt", DATA / "deepspeed.json"], {}),
    "deepspeed script": ("deepspeed", [DATA / "deepspeed_bloom.sh"], {}),
    "neox": ("neox", [DATA / "neox_20b.yml"], {}),
    "nanotron": ("nanotron", [DATA / "nanotron_tiny.yaml"], {}),
    "maxtext": ("maxtext", [DATA / "maxtext_8b.yml"], {"num_gpus": 32}),
    "internevo": ("internevo", [DATA / "internevo_7b.py"], {"num_gpus": 32}),
}
VALUES: tuple[Any, ...] = (7, 0, 0.5, True, False, None, "word", "", [1, 2], [], {"inner": 3}, {})
NUM_SEEDS = 3
"""Settings added to each sample here; benchmarks/test_long_checks.py adds more."""
COMMAND = re.compile(r"--num-layers\b")


def mappings(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for item in value.values():
            yield from mappings(item)
    elif isinstance(value, list):
        for item in value:
            yield from mappings(item)


def with_key(path: Path, name: str, value: Any, draw: random.Random) -> str:
    """Write a sample with one setting more, somewhere."""
    text = path.read_text()
    if path.suffix in (".json", ".yaml", ".yml"):
        document = parse_yaml(text.replace("\t", " "))
        draw.choice(list(mappings(document)))[name] = value
        return json.dumps(document) if path.suffix == ".json" else yaml.safe_dump(document)
    if path.suffix == ".toml":
        sections = re.findall(r"^\[.*\]$", text, re.M)
        section = draw.choice(sections)
        scalar = 1 if value is None or isinstance(value, dict) else value
        return text.replace(section, f"{section}\n{name} = {json.dumps(scalar)}")
    if path.suffix == ".csv":
        header, *rows = text.splitlines()
        return "\n".join([f"{header},{name}", *(f"{row},{draw.choice(['7', '0', 'x'])}" for row in rows)])
    if path.suffix == ".py":
        places = [
            match.end() for match in re.finditer(r"(?:dict|Config)\((?=\w+=)|(?:dict|Config)\(\n", text)
        ]
        place = draw.choice([each for each in places if each > text.find("def deepseek_v3_671b()")])
        return f"{text[:place]}{name}={value!r}, {text[place:]}"
    if not COMMAND.search(text):
        return f"export {name.upper()}={json.dumps(value)}\n{text}"
    flag = f"--{name.replace('_', '-')}" + draw.choice(["", " 7", " word", "=x", " 1 2"])
    place = draw.choice([match.start() for match in COMMAND.finditer(text)])
    return f"{text[:place]}{flag} {text[place:]}"


@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("seed", range(NUM_SEEDS))
def test_an_unknown_setting_is_echoed_or_refused(tmp_path: Path, sample: str, seed: int) -> None:
    draw = random.Random(f"{sample} {seed}")
    tool, files, options = SAMPLES[sample]
    options = dict(options)
    order = options.pop("order", range(len(files)))
    name = "zz_" + "".join(draw.choices(string.ascii_lowercase, k=8))
    changed = tmp_path / files[0].name
    if sample == "nemo recipe":
        where = draw.choice(["cfg.", "cfg.model.", "cfg.train.", "cfg.ddp.", "cfg.other."])
        line = f"    {where}{name} = {draw.choice(VALUES)!r}\n    cfg.mixed_precision"
        changed.write_text(files[0].read_text().replace("    cfg.mixed_precision", line, 1))
    else:
        changed.write_text(with_key(files[0], name, draw.choice(VALUES), draw))
    paths = [[changed, *files[1:]][index] for index in order]
    try:
        imported = import_files(tool, paths, **options)
        notes = " ".join(f"{key} {words}" for key, words in imported.not_used.items())
        written = "".join(scenario_text(imported).split())
    except ScenarioError as error:
        notes = written = str(error)
    assert name in notes.replace("-", "_").lower()
    assert name in written.replace("-", "_").lower()


def test_every_format_is_tried() -> None:
    assert {tool for tool, _, _ in SAMPLES.values()} == set(READERS)


@pytest.mark.parametrize(
    ("tool", "names"),
    [
        ("megatron", ["megatron_175b.sh", "megatron_zero_bubble.sh"]),
        ("neox", ["neox_20b.yml", "empty.yml"]),
        ("torchtitan", ["torchtitan_405b.toml", "megatron_175b.sh"]),
        ("deepspeed", ["deepspeed.json", "deepspeed_arguments.txt", "empty.sh"]),
        ("nemo", ["nemo_405b.yaml", "empty.sh"]),
        ("maxtext", ["maxtext_8b.yml", "empty.sh"]),
    ],
)
def test_a_file_that_adds_nothing_is_named(tmp_path: Path, tool: str, names: list[str]) -> None:
    (tmp_path / "empty.sh").write_text("echo hello\n")
    (tmp_path / "empty.yml").write_text("{}\n")
    paths = [path if (path := DATA / name).exists() else tmp_path / name for name in names]
    if tool == "megatron":
        paths[1] = tmp_path / "empty.sh"
    message = refusal(import_files, tool, paths)
    assert message.startswith(str(paths[-1]))
    assert "adds nothing" in message


def test_what_is_switched_off_stands_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(SHIPPED.read_text()) | {"use_a": False, "use_b": None, "use_c": 3}))
    output = tmp_path / "out.yaml"
    result = CliRunner().invoke(app, ["import", "hf", str(path), "-o", str(output)])
    assert result.exit_code == 0
    lines = [line.strip() for line in result.output.splitlines()]
    assert "use_c = 3" in lines
    assert any(line.startswith("switched off:") and "use_a" in line and "use_b" in line for line in lines)
