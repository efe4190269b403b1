"""`pipesim compare`: all schedules side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from pipesim.api import Scenario
from pipesim.cli import options, terminal
from pipesim.errors import ScenarioError
from pipesim.files import check_outputs
from pipesim.questions import Comparison
from pipesim.questions import compare as compare_schedules
from pipesim.questions.memory_advice import changes_for_memory
from pipesim.schedules import families_named
from pipesim.second_process import SecondProcess
from pipesim.show.advice_lines import difference_notes
from pipesim.show.amounts import percent, seconds
from pipesim.show.blocks import Block, Table
from pipesim.show.comparison_lines import comparison_lines
from pipesim.show.glossary import epilog
from pipesim.show.remarks import framework_lines, inferred, notes, urgent_notes
from pipesim.show.result_tables import comparison_table

EPILOG = epilog()
_NUM_DRAWN = 6


@options.grouped
def compare(
    wanted: options.Asked,
    advice: options.Advice,
    as_json: options.AsJson = False,
    repeats: Annotated[
        int | None,
        typer.Option(max=100_000, help="Draw so many steps of each schedule, where the scenario has jitter."),
    ] = None,
    slow_rank: Annotated[
        list[str] | None,
        typer.Option(metavar="RANK=FACTOR", help="Make a pipeline rank slower, such as 3=1.1."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(help="Draw the first six timelines, or all --schedules; PNG or SVG."),
    ] = None,
    window: options.Window = None,
    draw_all: Annotated[bool, typer.Option("--all", help="With --plot: draw all timelines.")] = False,
    wide: options.Wide = False,
    assumptions: options.Assumptions = False,
) -> None:
    """Predict every schedule that can run in the scenario; say why the others cannot."""
    check_outputs(pictures=(plot,), inputs=(wanted.scenario,))
    options.check_window(window, plot)
    for text in slow_rank or ():
        if not text.partition("=")[0].isdecimal() or not text.partition("=")[2]:
            raise ScenarioError(f"found {text!r}; RANK=FACTOR is needed, such as 3=1.1", key="--slow-rank")
    overrides = advice.overrides(wanted.overrides)
    overrides += [f"jitter.slow_ranks.{text}" for text in slow_rank or ()]
    searches = any(one.searches for one in families_named(advice.names))
    with SecondProcess(searches, meanwhile=_load_figures if plot else lambda: None) as second:
        asked = replace(wanted, overrides=overrides).read()
        with terminal.progress_bar("comparing", quiet=as_json) as progress:
            comparison = compare_schedules(
                asked,
                schedules=advice.names,
                chunks=options.parse_counts(wanted.chunks, "--chunks"),
                num_repeats=repeats,
                framework=advice.framework,
                second=second,
                progress=progress,
            )
    drawn = ""
    if plot is not None:
        drawn = _draw(comparison, plot, None if draw_all or advice.schedules else _NUM_DRAWN, window)
    if as_json:
        terminal.print_json(comparison.to_dict())
        return
    terminal.show(*_blocks(comparison, asked, drawn, wide=wide))
    if wide:
        terminal.show(*_details(comparison), wide=True)
    if assumptions:
        terminal.show(*inferred(comparison.results[0]))


def _blocks(comparison: Comparison, asked: Scenario, drawn: str, *, wide: bool) -> Iterator[Block]:
    yield from comparison_lines(comparison, comparison.judged, comparison.own_refusal)
    yield from (f"note: {note}" for note in (comparison.one_chunk_note, drawn) if note)
    if comparison.repeats:
        yield _repeats_table(comparison)
    yield from urgent_notes(comparison.results, changes_for_memory)
    more = [] if wide else ["more columns and notes: --wide"]
    if asked.echo:
        more.append(f"{len(asked.echo)} values inferred: --assumptions")
    yield "   ".join(more)


def _details(comparison: Comparison) -> Iterator[Block]:
    yield comparison_table(comparison.results)
    yield from framework_lines(comparison.results)
    yield from (f"skipped: {skipped.schedule}: {skipped.reason}" for skipped in comparison.skipped)
    yield from notes(comparison.results, changes_for_memory)
    yield from difference_notes(comparison.judged)


def _load_figures() -> None:
    import_module("pipesim.show.figures")


def _draw(comparison: Comparison, path: Path, at_most: int | None, window: str | None) -> str:
    """Draw the first few that differ; say what was left out."""
    from pipesim.show.figures import save_figure

    save_figure(comparison.gantt(at_most, window=options.parse_window(window)), path)
    num_timelines = len(comparison.same_timelines())
    if at_most is None or num_timelines <= at_most:
        return ""
    return f"{path} shows {at_most} of {num_timelines} timelines; --all draws all"


def _repeats_table(comparison: Comparison) -> Table:
    """One line a schedule: step time and bubble ratio over all repeats, and what jitter costs it."""
    columns = ["schedule", "steps", "step time mean", "p50", "p95", "bubble ratio mean", "p50", "p95"]
    rows = []
    for result, repeats in zip(comparison.results, comparison.repeats, strict=True):
        both = (repeats.step_time_s, repeats.bubble_ratio)
        times, ratios = ((one.mean, one.p50, one.p95) for one in both)
        row = [result.label, str(repeats.num_repeats), *map(seconds, times), *map(percent, ratios)]
        rows.append([*row, f"{repeats.slowdown:.4f}"])
    return Table("over all repeats", [*columns, "times without jitter"], rows)
