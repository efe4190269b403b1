"""`pipesim plot`: one picture of one kind."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipesim.cli import options, tables
from pipesim.scenario import load_scenario
from pipesim.study import bubble_curves, simulate_scenario

app = typer.Typer(help="Draw one picture, PNG or SVG.", no_args_is_help=True, rich_markup_mode=None)

File = Annotated[Path, typer.Argument(metavar="SCENARIO")]
Output = Annotated[Path, typer.Option("-o", "--output", help="PNG or SVG.")]


@app.command()
def gantt(scenario: File, output: Output, overrides: options.Overrides = None) -> None:
    """Who computes what, when."""
    from pipesim.plots import plot_gantt

    result = simulate_scenario(load_scenario(scenario, overrides or ()))
    plot_gantt([(f"{result.scenario.name}: {result.label}", result.timeline)], output)


@app.command()
def bubble(
    scenario: File,
    output: Output,
    overrides: options.Overrides = None,
    schedules: options.Schedules = None,
    microbatches: Annotated[
        str | None, typer.Option(metavar="M[,M...]", help="Numbers of microbatches to draw.")
    ] = None,
) -> None:
    """Bubble ratio of every schedule against the number of microbatches."""
    from pipesim.plots import plot_bubble

    asked = load_scenario(scenario, overrides or ())
    with tables.progress_bar("simulating", quiet=False) as progress:
        curves = bubble_curves(
            asked,
            names=options.parse_names(schedules),
            counts=options.parse_counts(microbatches, "--microbatches"),
            progress=progress,
        )
    plot_bubble(asked.name, curves, output, mark=asked.batch.num_microbatches)


@app.command()
def memory(scenario: File, output: Output, overrides: options.Overrides = None) -> None:
    """Memory of every rank over the step."""
    from pipesim.plots import plot_memory

    result = simulate_scenario(load_scenario(scenario, overrides or ()))
    title = f"{result.scenario.name}: {result.label}"
    plot_memory(title, result.timeline, result.schedule, result.costs, output)


@app.command()
def breakdown(scenario: File, output: Output, overrides: options.Overrides = None) -> None:
    """Where each rank's step goes."""
    from pipesim.plots import plot_breakdown

    result = simulate_scenario(load_scenario(scenario, overrides or ()))
    plot_breakdown(f"{result.scenario.name}: {result.label}", result.metrics, output)
