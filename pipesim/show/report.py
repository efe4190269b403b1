"""One page on which schedule to run: the answer, all schedules, pictures, and what was assumed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from pipesim import __version__
from pipesim.scenario import ResolvedScenario
from pipesim.show import glossary
from pipesim.show.advice_lines import difference_notes
from pipesim.show.amounts import amount, time_unit
from pipesim.show.blocks import Block, Lines, Picture, Section, Table, Timelines, Verbatim
from pipesim.show.decision import Answer
from pipesim.show.figures import plot_breakdown, plot_gantt, plot_memory, plot_pareto
from pipesim.show.figures.canvas import png
from pipesim.show.page import page
from pipesim.show.protocols import R, TimedRun
from pipesim.show.remarks import Advice, framework_lines, notes
from pipesim.show.result_tables import comparison_table, rank_table, side_by_side, step_table, summary_table
from pipesim.show.timeline_data import packed_timelines

_ABSOLUTE_FOLDER = r"/(?:[^\s/:;,'\"()]+/)+"


def report_page(
    asked: ResolvedScenario,
    answer: Answer[R],
    *,
    text: str,
    flags: Sequence[tuple[str, str]],
    changes_for_memory: Advice[R],
) -> str:
    """Lay out an answer, the most important first; no folder of this machine is on the page.

    Parameters
    ----------
    asked : ResolvedScenario
        Read from a file.
    answer : Answer
        What was found.
    text : str
        Of that file.
    flags : sequence of (str, str)
        With which the verb was called.
    changes_for_memory : Callable
        Finds what would make a result fit.

    Returns
    -------
    str
        A whole HTML document.
    """
    local = _without_folders(asked)
    shown = answer.shown
    headline, *sentences = map(local, answer.sentences())
    best_notes = map(local, notes([answer.best], changes_for_memory))
    sections = [
        Section("The answer", [headline, Lines([*sentences, *best_notes])]),
        Section("All schedules", _comparison(answer, changes_for_memory, local)),
        Section("Timelines", _timelines(answer)),
        Section("Pictures", list(_pictures(answer))),
        Section("Numbers", [side_by_side(summary_table, shown, "One step", "number")]),
        Section(
            "Where the step time goes",
            [
                side_by_side(step_table, shown, "Parts that add up to the step time", "part"),
                f"{glossary.IMBALANCE.capitalize()}.",
                *(_captioned(rank_table(run), f"Ranks of {run.label}") for run in shown),
            ],
        ),
        Section("What was inferred and assumed", _assumptions(answer.best, local)),
        _source(asked, text, [(flag, local(value)) for flag, value in flags]),
    ]
    return page(asked.name, sections, footer=f"Made by pipesim {__version__}.")


def _comparison(answer: Answer[R], changes_for_memory: Advice[R], local: Callable[[str], str]) -> list[Block]:
    comparison = answer.comparison
    roles = ((answer.best, "chosen"), (answer.own, "in the scenario"))
    marks = {
        row: " and ".join(words)
        for row, result in enumerate(comparison.results)
        if (words := [role for one, role in roles if one is result])
    }
    caption = (
        "Fastest step first, asynchronous schedules after the others, what does not fit in memory at the end"
    )
    blocks: list[Block] = [
        replace(_captioned(comparison_table(comparison.results), caption, marks), kind="schedules")
    ]
    if comparison.skipped:
        rows = [[skipped.schedule, local(skipped.reason)] for skipped in comparison.skipped]
        blocks.append(_words("Schedules that cannot run here", ["schedule", "reason"], rows))
    blocks.append(Lines(list(framework_lines(comparison.results))))
    lines = [f"note: {comparison.one_chunk_note}"] if comparison.one_chunk_note else []
    lines += map(local, notes(comparison.results, changes_for_memory))
    lines += map(local, difference_notes(answer.judged))
    return [*blocks, Lines(lines)] if lines else blocks


def _timelines(answer: Answer[R]) -> list[Block]:
    """Give the timelines of all schedules, those of the answer shown at first."""
    results, shown = answer.comparison.results, answer.shown
    others = [run for run in results if not any(run is one for one in shown)]
    first = [*shown, *others][:2]
    rows = [row for one in first for row, run in enumerate(results) if run is one]
    labels = " and ".join(run.label for run in shown)
    pictures = [
        Picture(
            png(plot_gantt(*shown)),
            f"Who computes what, when: {labels}. A row is a rank, a number a microbatch, near white is idle.",
            f"Timelines of {labels}: one row a rank, one box a forward or backward, time to the right.",
        )
    ]
    for run in shown:
        if (peak_bytes := run.metrics.peak_memory_bytes) is not None:
            words = f"Memory of a device of every rank over the step: {run.label}."
            alternative = (
                f"Memory of every rank of {run.label} over time; the highest is {amount(peak_bytes)}."
            )
            pictures.append(Picture(png(plot_memory(run)), words, alternative))
    unit = time_unit(answer.best.scenario)
    return [Timelines(packed_timelines(dict(enumerate(results)), shown=rows, unit=unit), pictures)]


def _pictures(answer: Answer[R]) -> Iterator[Picture]:
    """Draw where the step of the answer's schedules goes, and all schedules by time and memory."""
    for run in answer.shown:
        yield Picture(
            png(plot_breakdown(run)),
            f"Where each rank's step goes: {run.label}.",
            f"Stacked bars, one a rank, of the step of {run.label}; the table of its ranks has the numbers.",
        )
    if any(run.synchronous for run in answer.comparison.results):
        yield Picture(
            png(plot_pareto(answer.comparison.results)),
            "Step time against memory: no other schedule beats in both what lies on the line.",
            "One point a synchronous schedule; the table of all schedules has the numbers.",
        )


def _assumptions(best: TimedRun, local: Callable[[str], str]) -> list[Block]:
    known = {**best.scenario.echo, **best.costs.provenance}
    return [
        _words(
            "Values that the scenario does not state, and where numbers are from",
            ["key", "value"],
            [[key, local(words)] for key, words in known.items()],
        ),
        _words("Columns of the tables", ["column", "meaning"], list(glossary.COLUMNS.items())),
        _words("Parts of the step", ["part", "meaning"], list(glossary.PARTS.values())),
    ]


def _source(asked: ResolvedScenario, text: str, flags: Sequence[tuple[str, str]]) -> Section:
    name = Path(asked.file or "")
    words = [name.name, *(word for flag in flags for word in flag), "-o", name.with_suffix(".html").name]
    return Section(
        "The scenario",
        [
            "This text as a file, beside it the files that it names, and the command make this page.",
            Verbatim(text),
            Verbatim(shlex.join(["pipesim", "report", *words])),
        ],
    )


def _captioned(table: Table, caption: str, marks: dict[int, str] | None = None) -> Table:
    return Table(caption, table.columns, table.rows, table.num_left, marks or {})


def _words(caption: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    return Table(caption, columns, rows, num_left=len(columns))


def _without_folders(asked: ResolvedScenario) -> Callable[[str], str]:
    """Make a function that leaves the names of the scenario's files in a text, not where they lie."""
    files = [Path(name) for name in (asked.file, asked.schedule.csv, asked.costs_file) if name is not None]
    folders = {str(form.parent) for file in files for form in (file, file.absolute(), file.resolve())}
    known = sorted(folders - {".", "/"}, key=lambda folder: (-len(folder), folder))
    forms = [*(f"{re.escape(folder)}/" for folder in known), _ABSOLUTE_FOLDER]
    return partial(re.sub, rf"(?<![\w./-])(?:{'|'.join(forms)})", "")
