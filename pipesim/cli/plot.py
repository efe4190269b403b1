"""`pipesim plot`: one picture of one kind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from pipesim.cli import options, terminal
from pipesim.cli.sweep import plot_table
from pipesim.files import check_outputs
from pipesim.prediction import predict
from pipesim.questions import bubble_curves, compare
from pipesim.scenario import load_scenario

app = typer.Typer(help="Draw one picture, PNG or SVG.", no_args_is_help=True, rich_markup_mode=None)

File = options.NeededScenario
Output = Annotated[Path, typer.Option("-o", "--output", help="PNG or SVG.")]

app.command("sweep")(plot_table)


def _of_one_run(kind: str) -> Callable[..., None]:
    def draw(scenario: File, output: Output, overrides: options.Overrides = None) -> None:
        from pipesim.show import figures

        check_outputs(pictures=(output,), inputs=(scenario,))
        result = predict(load_scenario(scenario, overrides or ()))
        figures.save_figure(getattr(figures, f"plot_{kind.replace('-', '_')}")(result), output)

    return draw


@app.command()
def gantt(
    scenario: File, output: Output, overrides: options.Overrides = None, window: options.Window = None
) -> None:
    """Who computes what, when."""
    from pipesim.show.figures import save_figure

    check_outputs(pictures=(output,), inputs=(scenario,))
    part = options.parse_window(window)
    save_figure(predict(load_scenario(scenario, overrides or ())).gantt(window=part), output)


for _kind, _words in (
    ("memory", "Memory of every rank over the step."),
    ("memory-parts", "What every rank's memory is full of."),
    ("breakdown", "Where each rank's step goes."),
):
    app.command(_kind, help=_words)(_of_one_run(_kind))


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
    """Bubble ratio of every schedule against the number of microbatches, and by closed form."""
    from pipesim.show.figures import plot_bubble, save_figure

    check_outputs(pictures=(output,), inputs=(scenario,))
    asked = load_scenario(scenario, overrides or ())
    with terminal.progress_bar("simulating", quiet=False) as progress:
        curves = bubble_curves(
            asked,
            schedules=options.parse_names(schedules, "--schedules"),
            counts=options.parse_counts(microbatches, "--microbatches"),
            progress=progress,
        )
    figure = plot_bubble(
        asked.name,
        curves.simulated,
        mark=asked.batch.num_microbatches,
        closed_forms=curves.closed_form,
        too_large=curves.too_large,
    )
    save_figure(figure, output)


@app.command()
def pareto(
    scenario: File,
    output: Output,
    overrides: options.Overrides = None,
    schedules: options.Schedules = None,
    chunks: options.Chunks = None,
) -> None:
    """Step time of every synchronous schedule against its peak memory."""
    from pipesim.show.figures import plot_pareto, save_figure

    check_outputs(pictures=(output,), inputs=(scenario,))
    asked = load_scenario(scenario, overrides or ())
    with terminal.progress_bar("simulating", quiet=False) as progress:
        results = compare(
            asked,
            schedules=options.parse_names(schedules, "--schedules"),
            chunks=options.parse_counts(chunks, "--chunks"),
            progress=progress,
        ).results
    save_figure(plot_pareto(results), output)
