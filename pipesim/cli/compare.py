"""`pipesim compare`: all schedules side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipesim import questions
from pipesim.cli import options, tables
from pipesim.cli.notes import framework_lines, print_notes
from pipesim.errors import ScenarioError
from pipesim.files import check_outputs


def compare(
    scenario: options.ScenarioFile = None,
    overrides: options.Overrides = None,
    as_json: options.AsJson = False,
    schedules: options.Schedules = None,
    chunks: options.Chunks = None,
    repeats: Annotated[
        int | None, typer.Option(help="Draw so many steps of each schedule, where the scenario has jitter.")
    ] = None,
    slow_rank: Annotated[
        list[str] | None,
        typer.Option(metavar="RANK=FACTOR", help="Make a pipeline rank slower, such as 3=1.1."),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw all timelines, PNG or SVG.")] = None,
    ranks: options.Ranks = None,
    microbatches: options.Microbatches = None,
    forward: options.Forward = None,
    backward: options.Backward = None,
    p2p: options.P2p = None,
) -> None:
    """Predict every schedule that can run in the scenario; say why the others cannot."""
    check_outputs(pictures=(plot,), inputs=(scenario,))
    for text in slow_rank or ():
        if not text.partition("=")[0].isdecimal() or not text.partition("=")[2]:
            raise ScenarioError(f"found {text!r}; RANK=FACTOR is needed, such as 3=1.1", key="--slow-rank")
    asked = options.read_scenario(
        scenario,
        [*(overrides or ()), *(f"jitter.slow_ranks.{text}" for text in slow_rank or ())],
        ranks=ranks,
        microbatches=microbatches,
        forward=forward,
        backward=backward,
        p2p=p2p,
        chunks=chunks,
    )
    with tables.progress_bar("comparing", quiet=as_json) as progress:
        comparison = questions.compare(
            asked,
            names=options.parse_names(schedules),
            chunks=options.parse_counts(chunks, "--chunks"),
            num_repeats=repeats,
            progress=progress,
        )
    if plot is not None:
        from pipesim.show.figures import plot_gantt

        titles = [
            (
                f"{', '.join(result.label for result in same)}: "
                f"step {tables.seconds(same[0].metrics.step_time_s)}, "
                f"bubble ratio {tables.percent(same[0].metrics.bubble_ratio)}",
                same[0].timeline,
            )
            for same in comparison.same_timelines()
        ]
        plot_gantt(titles, plot)
    if as_json:
        tables.print_json(comparison.to_dict())
        return
    console = tables.console()
    console.print(tables.comparison_table(comparison))
    if comparison.repeats:
        console.print(tables.repeats_table(comparison))
    for line in framework_lines(comparison.results):
        console.print(line)
    for skipped in comparison.skipped:
        console.print(f"skipped: {skipped.schedule}: {skipped.reason}")
    if comparison.one_chunk_note:
        console.print(f"note: {comparison.one_chunk_note}")
    print_notes(console, comparison.results)
