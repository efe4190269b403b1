"""Every kind of file that pipesim reads, with a verb that reads it, and random damage to its bytes."""

from __future__ import annotations

import gzip
import io
import json
import re
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from made_up_runs import run_of
from typer.main import get_command

from pipesim.cli.app import app
from pipesim.costs import build_costs
from pipesim.costs.file import write_cost_table
from pipesim.errors import PipesimError
from pipesim.questions.journal import Journal
from pipesim.questions.sweep import Sweep
from pipesim.questions.variations import parse_axis
from pipesim.scenario import load_scenario, read_yaml_mapping
from pipesim.schedules import Shape, generate

ROOT = Path(__file__).parent.parent
SCENARIOS = ROOT / "scenarios"
IMPORTS = ROOT / "tests" / "data" / "imports"
PUBLISHED = ROOT / "pipesim" / "data" / "published"
TEACHING = SCENARIOS / "teaching.yaml"
GPT3 = SCENARIOS / "gpt3-175b-a100.yaml"
NUMBERS = ("0", "-1", "1e308", "-1e308", "nan", "inf", ".inf", "9" * 30, "9" * 5000, "0.5", "1e-320", "0x10")
TEXTS = (
    *(
        "",
        "null",
        "~",
        "true",
        "[]",
        "{}",
        "[[[[",
        "}}",
        "'",
        '"',
        "\\",
        "\0",
        "\ufeff",
        "\ud83d",
        "漢",
        "\r",
    ),
    *(
        "${",
        "$(ls)",
        "`ls`",
        "<<",
        "&a",
        "*a",
        "!!python/object:os.system",
        "%s",
        "{0}",
        "../..",
        "/dev/zero",
    ),
    *(":", "- ", "\t", "\n", ",", ";", "=", "#", "x" * 10_000, "[" * 500, "\x1b[31m"),
)
_TOKEN = re.compile(rb"[A-Za-z_]+|[0-9.]+|\S")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of file.

    Parameters
    ----------
    sources : tuple of Path
        Whole files of it.
    arguments : Callable
        From the damaged file to the command line.
    """

    sources: tuple[Path, ...]
    arguments: Callable[[Path], tuple[object, ...]]


def kinds(folder: Path) -> dict[str, Kind]:
    """All kinds; files that do not ship are written into `folder`."""
    made = folder / "made"
    made.mkdir(exist_ok=True)
    schedule = generate("interleaved-1f1b", Shape(2, 2, 4))
    (made / "schedule.csv").write_text(schedule.to_csv())
    scenario = load_scenario(TEACHING, ["parallel.pipeline=2"])
    costs = build_costs(scenario, num_chunks=2)
    write_cost_table(costs, made / "costs.yaml")
    run_of(schedule, costs).write(made / "run.json")
    (made / "trace.json").write_text(json.dumps(_trace()))
    (made / "trace.json.gz").write_bytes(gzip.compress(json.dumps(_trace()).encode()))
    (made / "steps.csv").write_text("batch.global,parallel.data,step_time\n128,2,9.5 s\n256,2,17\n256,2,\n")
    published = (PUBLISHED / "megatron_sc21_table1.csv").read_text().splitlines(keepends=True)
    (made / "published.csv").write_text("".join(published[:3]))
    check(("sweep", TEACHING, "-o", made / "rows.csv", "--vary", "batch.microbatches=4,8", "--workers", "1"))
    check(("sweep", GPT3, "-o", made / "memory.csv", "--vary", "batch.global=128,256", "--workers", "1"))
    digest = Sweep(read_yaml_mapping(TEACHING), (parse_axis("seed=1,2"),), str(TEACHING)).digest()
    with Journal(made / "rows.journal", digest, 2) as journal:
        journal.append(0, {"row": 0, "seed": 1, "status": "failed", "reason": "was stopped"})
    (made / "with-file.yaml").write_text(
        "parallel: {pipeline: 2, virtual_stages: 2}\nbatch: {microbatches: 4}\ncosts: {file: FILE}\n"
        "schedule: interleaved-1f1b\n"
    )
    output = folder / "out"

    def importing(tool: str, *more: object) -> Callable[[Path], tuple[object, ...]]:
        return lambda path: ("import", tool, path, *more, "-o", folder / "imported.yaml")

    def resumed(path: Path) -> tuple[object, ...]:
        (folder / "again.csv").unlink(missing_ok=True)
        (folder / "again.csv.journal").write_bytes(path.read_bytes())
        return ("sweep", TEACHING, "-o", folder / "again.csv", "--vary", "seed=1,2", "--workers", "1")

    def with_costs(path: Path) -> tuple[object, ...]:
        return ("simulate", made / "with-file.yaml", "--set", f"costs.file={path}")

    def deepspeed(path: Path) -> tuple[object, ...]:
        return importing("deepspeed", IMPORTS / "deepspeed_arguments.txt")(path)

    shell = (IMPORTS / "megatron_175b.sh",)
    return {
        "scenario": Kind((TEACHING, SCENARIOS / "two-gpus.yaml", GPT3), lambda path: ("simulate", path)),
        "scenario, other verbs": Kind((TEACHING,), lambda path: ("goodput", path)),
        "actions": Kind((made / "schedule.csv",), lambda path: ("schedule", "check", path)),
        "cost table": Kind((made / "costs.yaml",), with_costs),
        "run": Kind((made / "run.json",), lambda path: ("calibrate", path, "-o", folder / "costs.yaml")),
        "trace": Kind((made / "trace.json",), lambda path: ("calibrate", path)),
        "packed trace": Kind((made / "trace.json.gz",), lambda path: ("calibrate", path)),
        "measured steps": Kind(
            (made / "steps.csv",), lambda path: ("calibrate", "--measured", path, "--scenario", GPT3)
        ),
        "published table": Kind((made / "published.csv",), lambda path: ("accuracy", "sc21", "--rows", path)),
        "table of a sweep": Kind(
            (made / "rows.csv",),
            lambda path: (
                "plot",
                "sweep",
                path,
                "--kind",
                "bubble-microbatches",
                "-o",
                output.with_suffix(".svg"),
            ),
        ),
        "table of a sweep, memory": Kind(
            (made / "memory.csv",),
            lambda path: ("plot", "sweep", path, "--kind", "memory-stage", "-o", output.with_suffix(".svg")),
        ),
        "journal": Kind((made / "rows.journal",), resumed),
        "hf": Kind(tuple(sorted((SCENARIOS / "configs").glob("*.json"))), importing("hf")),
        "megatron": Kind(shell, importing("megatron", "--gpus", 128)),
        "megatron yaml": Kind((IMPORTS / "megatron_test_7b.yaml",), importing("megatron", "--gpus", 8)),
        "nemo": Kind((IMPORTS / "nemo_405b.yaml",), importing("nemo")),
        "nemo table": Kind((IMPORTS / "nemo_table.csv",), importing("nemo", "--row", 4)),
        "torchtitan": Kind(tuple(sorted(IMPORTS.glob("*.toml"))), importing("torchtitan", "--gpus", 512)),
        "deepspeed": Kind((IMPORTS / "deepspeed.json",), deepspeed),
        "neox": Kind((IMPORTS / "neox_20b.yml",), importing("neox")),
        "nanotron": Kind((IMPORTS / "nanotron_tiny.yaml",), importing("nanotron")),
    }


def damaged(content: bytes, random: Random) -> bytes:
    """Change a few places of a file: bytes, words, numbers, lines, or where it ends."""
    for _ in range(random.choice((1, 1, 1, 2, 3, 8))):
        content = random.choice(_DAMAGES)(content, random)
    return content


def check(arguments: tuple[object, ...]) -> int:
    """Run a command line in this process; its status, 0 or 2. Whatever else comes is raised."""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        try:
            _command()([str(argument) for argument in arguments], standalone_mode=False)
        except PipesimError as error:
            return 2 if str(error).strip() else 1
        except Exception as error:
            if getattr(error, "exit_code", None) != 2:  # what is wrong with the options themselves
                raise
            return 2
    return 0


@cache
def _command() -> Any:
    return get_command(app)


def _place(content: bytes, random: Random) -> int:
    return random.randrange(len(content) + 1)


def _byte(content: bytes, random: Random) -> bytes:
    place = _place(content, random)
    return content[:place] + bytes([random.randrange(256)]) + content[place + 1 :]


def _cut(content: bytes, random: Random) -> bytes:
    first, last = sorted((_place(content, random), _place(content, random)))
    return content[:first] + content[last:] if random.random() < 0.5 else content[:first]


def _word(content: bytes, random: Random) -> bytes:
    words = list(_TOKEN.finditer(content))
    if not words:
        return _insert(content, random)
    word = random.choice(words)
    other = random.choice(words)[0] if random.random() < 0.4 else _text(random)
    return content[: word.start()] + other + content[word.end() :]


def _insert(content: bytes, random: Random) -> bytes:
    place = _place(content, random)
    return content[:place] + _text(random) + content[place:]


def _line(content: bytes, random: Random) -> bytes:
    lines = content.split(b"\n")
    place, other = random.randrange(len(lines)), random.randrange(len(lines))
    if random.random() < 0.5:
        del lines[place]
    else:
        lines.insert(place, lines[other])
    return b"\n".join(lines)


def _text(random: Random) -> bytes:
    return random.choice(random.choice((NUMBERS, TEXTS))).encode(errors="surrogatepass")


_DAMAGES = (_byte, _cut, _word, _word, _word, _insert, _line)


def _trace() -> dict[str, object]:
    """Two microbatches on one stage, as the profiler of a CPU writes them."""
    events = []
    for number, (name, begin) in enumerate(
        (("Forward 0", 0), ("Forward 1", 100), ("Backward 0", 200), ("Backward 1", 400))
    ):
        common = {"ph": "X", "pid": 1, "tid": 1}
        events.append(common | {"cat": "user_annotation", "name": name, "ts": begin, "dur": 90})
        work = {
            "cat": "cpu_op",
            "name": "aten::mm",
            "ts": begin + 5,
            "dur": 60 + number,
            "args": {"id": number},
        }
        events.append(common | work)
    return {"traceEvents": events, "distributedInfo": {"rank": 0, "world_size": 1}}
