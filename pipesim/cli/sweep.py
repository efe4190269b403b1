"""`pipesim sweep`: many runs of one scenario, one row a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from pipesim.cli import options, terminal
from pipesim.errors import ScenarioError
from pipesim.files import check_outputs
from pipesim.prediction import Timing
from pipesim.questions.call_pool import dask_executor
from pipesim.questions.sweep import Sweep, SweepReport, run_sweep
from pipesim.questions.variations import axis_of, parse_axis
from pipesim.scenario import apply_overrides, read_yaml_mapping
from pipesim.show.amounts import amount, seconds
from pipesim.show.blocks import Verbatim
from pipesim.show.glossary import SWEEP_FILE

_NUM_NAMED = 20
_KINDS = "bubble-microbatches, pipeline-tensor, pipeline-data, weak-scaling, memory-stage, network"
Workers = Annotated[
    int | None,
    typer.Option(min=1, max=512, help="Processes; 1: none beside this one. By default one a core."),
]
Dask = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Scheduler of a Dask cluster, such as tcp://host:8786. Dask sends code: who reaches its ports "
        "runs some. Keep them closed to others, or use tls:// with Dask's certificates (docs/network.md).",
    ),
]


@dataclass(frozen=True, slots=True)
class Workforce:
    """Where rows or configurations are predicted."""

    workers: Workers = None
    dask: Dask = None

    def __post_init__(self) -> None:
        if self.workers is not None and self.dask is not None:
            raise ScenarioError("--workers and --dask exclude each other")

    def executor(self) -> AbstractContextManager[Executor | None]:
        """Connect to the Dask cluster, if one is asked for."""
        return nullcontext() if self.dask is None else dask_executor(self.dask)


@options.grouped
def sweep(
    scenario: options.NeededScenario,
    output: Annotated[
        Path,
        typer.Option(
            "-o", "--output", metavar="FILE", help="Table, .csv or .parquet; another sweep's is kept."
        ),
    ],
    workforce: Workforce,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUES", help="A dotted key and its values, as batch.micro=1,2,4 or A,B=1:2,2:4."
        ),
    ] = None,
    schedules: Annotated[
        str | None,
        typer.Option(
            "--schedules", metavar="A,B,C", help="Schedules of each row; the scenario's by default."
        ),
    ] = None,
    overrides: options.Overrides = None,
    engine: Annotated[bool, typer.Option("--engine", help="Time every row with the engine.")] = False,
    compiled: Annotated[
        bool, typer.Option("--compiled", help="Time every row compiled, as if nothing shared a wire.")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Run a grid of scenarios, one row a run; goes on where an interrupted sweep stopped."""
    if engine and compiled:
        raise ScenarioError("--engine and --compiled exclude each other")
    check_outputs(output, inputs=(scenario,))
    axes = [parse_axis(text) for text in vary or []]
    if names := options.parse_names(schedules, "--schedules"):
        axes.append(axis_of("schedule", names))
    timing: Timing = "engine" if engine else "compiled" if compiled else "fast"
    mapping = apply_overrides(read_yaml_mapping(scenario), overrides or ())
    asked = Sweep(mapping, tuple(axes), str(scenario), timing)
    with workforce.executor() as executor, terminal.counting_bar("sweeping", quiet=as_json) as progress:
        report = run_sweep(asked, output, num_workers=workforce.workers, executor=executor, progress=progress)
    if as_json:
        terminal.print_json(_document(report, output))
    else:
        terminal.show(*_lines(report, output))
    if len(report.failed) == len(report.rows):
        first = report.failed[0]
        raise ScenarioError(f"no row has a result; row {first['row']}: {first['reason']}", file=str(output))
    if report.best is not None and not as_json:
        changes = [*(overrides or ()), *asked.tasks()[report.best["row"]].overrides]
        settings = " ".join(f"--set {quote(text)}" for text in changes)
        terminal.show(_best(report, report.best), "next:")
        terminal.show(Verbatim(f"pipesim compare {quote(str(scenario))} {settings}"))


def _best(report: SweepReport, row: Mapping[str, Any]) -> str:
    """Say which row is best, by what, and what it comes to."""
    varied = ", ".join(f"{key}={row[key]}" for key in report.varied) or "as it stands"
    tokens, peak_bytes = row["tokens_per_s_per_gpu"], row["peak_memory_bytes"]
    numbers = [f"{seconds(row['step_time_s'])} a step"]
    numbers += [] if tokens is None else [f"{tokens:,.4g} tokens/s a GPU"]
    numbers += [] if peak_bytes is None else [amount(peak_bytes)]
    rule = "least time a microbatch" if tokens is None else "most tokens a second and GPU"
    fit = "that fit in memory" if row["fits_memory"] is not None else "compared"
    return f"best: {varied}: {', '.join(numbers)} ({rule} of {len(report.fitting)} {fit})"


def plot_table(
    table: Annotated[Path, typer.Argument(metavar="FILE", help=f"{SWEEP_FILE.capitalize()}.")],
    kind: Annotated[str, typer.Option(help=_KINDS)],
    output: Annotated[Path, typer.Option("-o", "--output", help="PNG or SVG.")],
) -> None:
    """One picture of the field from the table of a sweep."""
    from pipesim.show.figures import save_figure
    from pipesim.show.figures.sweep_pictures import plot_sweep, read_sweep

    check_outputs(pictures=(output,), inputs=(table,))
    save_figure(plot_sweep(read_sweep(table), kind, table.stem), output)


def _lines(report: SweepReport, output: Path) -> Iterator[str]:
    num_failed = len(report.failed)
    before = f", {report.num_resumed} of them from the interrupted sweep before"
    resumed = before if report.num_resumed else ""
    yield f"{output}: {len(report.rows)} rows{resumed}; {num_failed} failed"
    used = Counter(row["evaluator"] for row in report.rows if row["status"] == "ok")
    for evaluator, count in sorted(used.items()):
        yield f"timed by the {'engine' if evaluator == 'engine' else 'compiled evaluator'}: {count}"
    for row in report.failed[:_NUM_NAMED]:
        yield f"failed: row {row['row']}: {row['reason']}"
    if num_failed > _NUM_NAMED:
        yield f"... and {num_failed - _NUM_NAMED} more; see the column 'reason'"


def _document(report: SweepReport, output: Path) -> dict[str, object]:
    return {
        "file": str(output),
        "num_rows": len(report.rows),
        "num_resumed": report.num_resumed,
        "best": report.best,
        "failed": [{"row": row["row"], "reason": row["reason"]} for row in report.failed],
        "rows": list(report.rows),
    }
