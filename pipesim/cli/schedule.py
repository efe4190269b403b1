"""`pipesim schedule`: the registry, grids, torch's CSV."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from pipesim.cli import options, terminal
from pipesim.costs import CostTable, build_costs
from pipesim.errors import ScheduleError
from pipesim.files import check_outputs, write_text
from pipesim.ir import TRANSPORTS, format_grid, lower, needed_transport, peak_in_flight
from pipesim.ir.actions import ActionTable, Op, Schedule
from pipesim.prediction import is_scenario_file, load_csv, load_order, schedule_of, shape_of
from pipesim.prediction.schedule_source import read_csv_text
from pipesim.scenario import ResolvedScenario, load_scenario, scenario_from_mapping
from pipesim.schedules import Family, Shape, families, family, generate
from pipesim.schedules.frameworks import (
    FRAMEWORKS,
    check_csv,
    find_framework,
    runs_only_as_csv,
    skip_refusals,
    verdict,
)
from pipesim.show.blocks import Table, Verbatim
from pipesim.show.glossary import OPERATIONS, ORDER_FILE
from pipesim.show.order_words import order_words

_MOST_DIGITS = 19
_ONLY_AS_CSV = ("no class of its own; loads the exported CSV",)
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
def list_schedules(as_json: options.AsJson = False, wide: options.Wide = False) -> None:
    """List every schedule and what it is; with --wide also where it is from."""
    known = families().values()
    if as_json:
        terminal.print_json([{"schedule": f.name, "summary": f.summary, "source": f.source} for f in known])
        return
    columns = ["schedule", "v", "what", *(["source"] if wide else [])]
    rows = [[f.name, _chunks_words(f), f.summary, f.source][: len(columns)] for f in known]
    terminal.show(Table("", columns, rows, num_left=4), wide=wide)


def _chunks_words(chosen: Family) -> str:
    """Say how many stages a rank holds; with two replicas of the model, one of each."""
    if chosen.chunks is None:
        return "any"
    held = chosen.chunks * chosen.num_model_replicas
    return f"{held}" if chosen.num_model_replicas == 1 else f"{held} ({chosen.chunks} a replica)"


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
    terminal.show(
        f"{family(name).summary} ({family(name).source})",
        Verbatim(format_grid(shown, around=longest)),
        _key(shown),
        f"most microbatches held, a stage by its share of a rank's layers: {_held(schedule)}",
        _transport_words(schedule),
    )


def _key(shown: ActionTable) -> str:
    """Say how cells read, by the first one, and what the letters of this grid mean."""
    first, words = shown.action(0), {op.name: said for op, said in OPERATIONS.items() if op in shown.op}
    meanings = ", ".join(f"{letter} {meaning}" for letter, meaning in words.items())
    return f"{first} is stage {first.stage}, {first.op.name}, microbatch {first.microbatch}; {meanings}"


def _held(schedule: ActionTable) -> str:
    share = schedule.num_ranks / schedule.num_stages / schedule.num_slices
    return " ".join(f"{share * peak:.4g}" for peak in peak_in_flight(schedule).tolist())


@app.command()
def export(
    what: Annotated[
        str,
        typer.Argument(
            metavar="NAME|SCENARIO.yaml", help="A schedule, or a scenario: the order for its costs."
        ),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="CSV file to write.")],
    ranks: Annotated[
        int | None, typer.Option("--ranks", help="Of a NAME: pipeline ranks p; by default 4.")
    ] = None,
    chunks: Chunks = None,
    microbatches: Annotated[
        int | None, typer.Option("--microbatches", help="Of a NAME: microbatches m; by default 8.")
    ] = None,
    settings: Options = None,
    comms: WithCommunication = False,
    overrides: options.Overrides = None,
) -> None:
    """Write the CSV that torch.distributed.pipelining loads, and say which stages each rank builds."""
    scenario = Path(what) if is_scenario_file(what) else None
    check_outputs(output, inputs=(scenario,))
    if scenario is None:
        if overrides:
            raise ScheduleError(f"--set {overrides[0]} is for scenarios; {what} is the name of a schedule")
        schedule = _generate(what, ranks or 4, chunks, microbatches or 8, settings)
    else:
        _refuse_shape(
            {"--ranks": ranks, "--chunks": chunks, "--microbatches": microbatches, "--option": settings}
        )
        schedule = load_order(scenario, *(overrides or ()))
        if refused := skip_refusals(schedule, "torch"):
            raise ScheduleError(f"{scenario}: {refused[0]}")
    written: ActionTable = schedule
    if comms:
        lowered = lower(schedule)
        written = lowered.select(lowered.op != Op.OPTIMIZER)  # torch steps the optimizer outside
    write_text(output, written.to_csv(), reader=load_csv)
    terminal.show(*order_words(schedule, output))
    if scenario is None and family(what).needs_costs:
        terminal.show(
            "note: made for F = I = W = 1 on every rank and free messages; "
            "pipesim schedule export SCENARIO.yaml makes it for a scenario's own times"
        )


def _refuse_shape(flags: dict[str, Any]) -> None:
    """Raise where a flag states what a scenario has."""
    for flag, value in flags.items():
        if value is not None:
            raise ScheduleError(f"{flag} is for schedules by name; use --set KEY=VALUE with a scenario")


@app.command()
def check(
    file: Annotated[
        Path, typer.Argument(metavar="FILE.csv|SCENARIO.yaml", help=f"{ORDER_FILE}; or a scenario.")
    ],
    framework: Annotated[
        str | None, typer.Option("--framework", help="torch, Megatron or DeepSpeed; all by default.")
    ] = None,
    overrides: options.Overrides = None,
) -> None:
    """Check a CSV of actions, or a scenario's schedule, and say which frameworks take it and why not."""
    asked = [find_framework(framework)] if framework else list(FRAMEWORKS)
    if is_scenario_file(file):
        headline, answers = _ask_scenario(load_scenario(file, overrides or ()), asked)
    else:
        headline, answers = _ask_csv(file, asked)
    refusals = {name: reasons for name, reasons in answers.items() if reasons and reasons != _ONLY_AS_CSV}
    if framework and refusals:
        raise ScheduleError(f"{file}: {asked[0]} refuses it: {'; '.join(refusals[asked[0]])}")
    terminal.show(f"{file}: {headline}")
    for name, reasons in answers.items():
        terminal.show(f"{name}: {'refuses: ' if name in refusals else ''}{'; '.join(reasons) or 'accepts'}")


def _ask_csv(file: Path, asked: list[str]) -> tuple[str, dict[str, tuple[str, ...]]]:
    schedule = load_csv(file)
    headline = (
        f"legal; {schedule.num_ranks} ranks, {schedule.num_stages} stages, "
        f"{schedule.num_microbatches} microbatches; most held by each rank: {_held(schedule)}\n"
        f"{_transport_words(schedule)}"
    )
    text = read_csv_text(file)
    return headline, {name: check_csv(text, name, name=file.stem) for name in asked}


def _ask_scenario(scenario: ResolvedScenario, asked: list[str]) -> tuple[str, dict[str, tuple[str, ...]]]:
    if scenario.schedule.csv is not None:
        return _ask_csv(Path(scenario.schedule.csv), asked)
    chosen = family(scenario.schedule.name or "")
    shape = shape_of(scenario, chosen, options=scenario.schedule.options)
    chosen.check(shape)
    schedule = schedule_of(scenario)
    answers = {
        name: verdict(chosen.name, shape, name).reasons + skip_refusals(schedule, name) for name in asked
    }
    if "torch" in asked and "torch" not in chosen.known_as and runs_only_as_csv(schedule):
        answers["torch"] = _ONLY_AS_CSV
    return f"{chosen.name} is legal for {shape}", answers


def _transport_words(schedule: Schedule) -> str:
    early = TRANSPORTS[needed_transport(lower(schedule, receive="early"))]
    late = TRANSPORTS[needed_transport(lower(schedule, receive="late"))]
    return (
        f"with receives posted early, as exported, it needs {early}\n"
        f"with receives right before their use it needs {late}"
    )


def _generate(
    name: str, ranks: int, chunks: int | None, microbatches: int, settings: list[str] | None
) -> Schedule:
    chosen = family(name)
    num_chunks = chosen.chunks or 1 if chunks is None else chunks
    shape = Shape(ranks, num_chunks, microbatches, _parse_settings(settings or []))
    return generate(chosen.name, shape, _unit_costs(shape) if chosen.needs_costs else None)


def _unit_costs(shape: Shape) -> CostTable:
    """F = I = W = 1 a rank, free messages: what a schedule that follows from times is shown for."""
    unit = {
        "parallel": {"pipeline": shape.num_ranks},
        "batch": {"microbatches": shape.num_microbatches},
        "costs": {"forward": 1, "backward": 2, "p2p": 0},
    }
    return build_costs(scenario_from_mapping(unit), num_chunks=shape.num_chunks)


def _parse_settings(settings: list[str]) -> dict[str, Any]:
    parsed: dict[str, Any] = {}
    for setting in settings:
        key, separator, value = setting.partition("=")
        if not separator or not key:
            raise ScheduleError(f"--option {setting!r}: expected KEY=VALUE")
        is_number = value.removeprefix("-").isdecimal() and len(value) < _MOST_DIGITS
        parsed[key] = int(value) if is_number else value
    return parsed
