"""`pipesim simulate`: one run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipesim.cli import options, terminal
from pipesim.errors import ScenarioError
from pipesim.files import check_outputs
from pipesim.prediction import predict
from pipesim.questions.judgement import judge
from pipesim.questions.memory_advice import changes_for_memory
from pipesim.show.advice_lines import run_lines
from pipesim.show.glossary import IMBALANCE, epilog
from pipesim.show.remarks import inferred, notes
from pipesim.show.result_tables import memory_table, rank_table, step_table, summary_table

EPILOG = epilog(with_parts=True)


@options.grouped
def simulate(
    wanted: options.Asked,
    as_json: options.AsJson = False,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Write a trace (trace-event JSON) for chrome://tracing or ui.perfetto.dev: actions, "
            "messages, idle slices with their cause, memory."
        ),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the timeline, PNG or SVG.")] = None,
    window: options.Window = None,
    timeline: Annotated[Path | None, typer.Option(help="Write the timeline as CSV.")] = None,
) -> None:
    """Predict one step of the scenario's schedule."""
    check_outputs(trace, timeline, pictures=(plot,), inputs=(wanted.scenario,))
    options.check_window(window, plot)
    if wanted.scenario is not None and wanted.chunks is not None:
        raise ScenarioError(
            "is for runs without a file; use --set parallel.virtual_stages=V",
            file=str(wanted.scenario),
            key="--chunks",
        )
    if len(options.parse_counts(wanted.chunks, "--chunks")) > 1:
        raise ScenarioError(f"found {wanted.chunks!r}; one run has one number of chunks", key="--chunks")
    asked = wanted.read()
    with terminal.progress_bar("simulating", quiet=as_json) as progress:
        progress(asked.name)
        result = predict(asked)
    if trace is not None:
        from pipesim.show.traces import write_trace

        write_trace(result.events, trace, run=result)
    if timeline is not None:
        from pipesim.show.traces import write_timeline

        write_timeline(result.events, timeline)
    if plot is not None:
        from pipesim.show.figures import TimeWindow, plot_gantt, save_figure

        save_figure(plot_gantt(result, window=TimeWindow(*options.parse_window(window))), plot)
    if as_json:
        terminal.print_json(result.to_dict())
        return
    terminal.show(
        *run_lines(judge([result])),
        "",
        summary_table(result),
        step_table(result),
        IMBALANCE,
        rank_table(result),
        *([] if result.memory is None else [memory_table(result)]),
        *notes([result], changes_for_memory),
        *inferred(result),
    )
