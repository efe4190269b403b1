"""`pipesim plot`: one picture of one kind."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipesim.cli import options, tables
from pipesim.cli.sweep import plot_table
from pipesim.files import check_outputs
from pipesim.prediction import predict
from pipesim.questions import bubble_curves, compare
from pipesim.scenario import load_scenario

app = typer.Typer(help="Draw one picture, PNG or SVG.", no_args_is_help=True, rich_markup_mode=None)

File = Annotated[Path, typer.Argument(metavar="SCENARIO")]
Output = Annotated[Path, typer.Option("-o", "--output", help="PNG or SVG.")]

app.command("sweep")(plot_table)


@app.command()
def gantt(scenario: File, output: Output, overrides: options.Overrides = None) -> None:
    """Who computes what, when."""
    from pipesim.show.figures import plot_gantt

    check_outputs(pictures=(output,), inputs=(scenario,))
    result = predict(load_scenario(scenario, overrides or ()))
    plot_gantt([(f"{result.scenario.name}: {result.label}", result.events)], output)


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
    from pipesim.show.figures import plot_bubble

    check_outputs(pictures=(output,), inputs=(scenario,))
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
    from pipesim.show.figures import plot_memory

    check_outputs(pictures=(output,), inputs=(scenario,))
    result = predict(load_scenario(scenario, overrides or ()))
    title = f"{result.scenario.name}: {result.label}"
    plot_memory(title, result.events, result.schedule, result.costs, output)


@app.command()
def breakdown(scenario: File, output: Output, overrides: options.Overrides = None) -> None:
    """Where each rank's step goes."""
    from pipesim.show.figures import plot_breakdown

    check_outputs(pictures=(output,), inputs=(scenario,))
    result = predict(load_scenario(scenario, overrides or ()))
    plot_breakdown(f"{result.scenario.name}: {result.label}", result.metrics, output)


@app.command()
def pareto(
    scenario: File,
    output: Output,
    overrides: options.Overrides = None,
    schedules: options.Schedules = None,
    chunks: options.Chunks = None,
) -> None:
    """Step time of every synchronous schedule against its peak memory."""
    from pipesim.show.figures import plot_pareto

    check_outputs(pictures=(output,), inputs=(scenario,))
    asked = load_scenario(scenario, overrides or ())
    with tables.progress_bar("simulating", quiet=False) as progress:
        results = compare(
            asked,
            names=options.parse_names(schedules),
            chunks=options.parse_counts(chunks, "--chunks"),
            progress=progress,
        ).results
    in_bytes = results[0].metrics.peak_memory_bytes is not None
    points = [
        (
            result.label,
            float(result.metrics.step_time_s),
            result.metrics.peak_memory_bytes or max(rank.peak_in_flight for rank in result.metrics.ranks),
        )
        for result in results
        if result.synchronous
    ]
    limit = results[0].costs.memory_limit_bytes
    plot_pareto(asked.name, points, output, limit_bytes=limit, in_bytes=in_bytes)
