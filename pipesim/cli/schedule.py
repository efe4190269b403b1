"""`pipesim schedule`: the registry, grids, torch's CSV."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from pipesim.cli import options, tables
from pipesim.errors import ScheduleError
from pipesim.files import write_text
from pipesim.graph import format_grid, lower, peak_in_flight
from pipesim.schedules import Shape, families, family, generate
from pipesim.study import load_csv

app = typer.Typer(help="Show, check and convert schedules.", no_args_is_help=True, rich_markup_mode=None)

Name = Annotated[str, typer.Argument(metavar="NAME")]
Ranks = Annotated[int, typer.Option("--ranks", help="Pipeline ranks p.")]
Chunks = Annotated[
    int | None, typer.Option("--chunks", help="Chunks a rank v; by default the schedule's own.")
]
Microbatches = Annotated[int, typer.Option("--microbatches", help="Microbatches m.")]
Options = Annotated[
    list[str] | None, typer.Option("--option", metavar="KEY=VALUE", help="A setting of the schedule.")
]
WithCommunication = Annotated[
    bool, typer.Option("--comms", help="With the derived sends, receives and reductions.")
]


@app.command("list")
def list_schedules(as_json: options.AsJson = False) -> None:
    """List every schedule, what it is and where it is from."""
    known = families().values()
    if as_json:
        tables.print_json([{"schedule": f.name, "summary": f.summary, "source": f.source} for f in known])
        return
    rows = [[f.name, str(f.chunks or "any"), f.summary, f.source] for f in known]
    tables.console().print(tables.plain_table("", ["schedule", "v", "what", "source"], rows, left=4))


@app.command()
def show(
    name: Name,
    ranks: Ranks = 4,
    chunks: Chunks = None,
    microbatches: Microbatches = 8,
    settings: Options = None,
    comms: WithCommunication = False,
) -> None:
    """Print a schedule as a grid: a line a position, a column a rank."""
    schedule = _generate(name, ranks, chunks, microbatches, settings)
    shown = lower(schedule) if comms else schedule
    longest = int((shown.offsets[1:] - shown.offsets[:-1]).max())
    console = tables.console()
    console.print(f"{family(name).summary} ({family(name).source})")
    console.print(format_grid(shown, around=longest))
    console.print("peak in flight: " + " ".join(map(str, peak_in_flight(schedule).tolist())))


@app.command()
def export(
    name: Name,
    output: Annotated[Path, typer.Option("-o", "--output", help="CSV file to write.")],
    ranks: Ranks = 4,
    chunks: Chunks = None,
    microbatches: Microbatches = 8,
    settings: Options = None,
    comms: WithCommunication = False,
) -> None:
    """Write the CSV that torch.distributed.pipelining loads."""
    schedule = _generate(name, ranks, chunks, microbatches, settings)
    write_text(output, (lower(schedule) if comms else schedule).to_csv())


@app.command()
def check(file: Annotated[Path, typer.Argument(metavar="FILE.csv")]) -> None:
    """Check a CSV of actions: complete, in order, free of deadlock."""
    schedule = load_csv(file)
    tables.console().print(
        f"{file}: legal; {schedule.num_ranks} ranks, {schedule.num_stages} stages, "
        f"{schedule.num_microbatches} microbatches; peak in flight: "
        + " ".join(map(str, peak_in_flight(schedule).tolist()))
    )


def _generate(
    name: str, ranks: int, chunks: int | None, microbatches: int, settings: list[str] | None
) -> Any:
    chosen = family(name)
    shape = Shape(ranks, chunks or chosen.chunks or 1, microbatches, _parse_settings(settings or []))
    return generate(chosen.name, shape)


def _parse_settings(settings: list[str]) -> dict[str, Any]:
    parsed: dict[str, Any] = {}
    for setting in settings:
        key, separator, value = setting.partition("=")
        if not separator or not key:
            raise ScheduleError(f"--option {setting!r}: expected KEY=VALUE")
        parsed[key] = int(value) if value.lstrip("-").isdecimal() else value
    return parsed
