"""What stands in a report, section by section."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.table import Table as RichTable

from pipesim.cli import glossary, tables
from pipesim.cli.notes import framework_lines, print_notes
from pipesim.cli.report_answer import Answer
from pipesim.cli.report_pictures import pictures
from pipesim.prediction import Prediction
from pipesim.show.report import Block, Lines, Section, Table


def sections(answer: Answer, local: Callable[[str], str]) -> list[Section]:
    """Lay out an answer, the most important first.

    Parameters
    ----------
    answer : Answer
        What was found.
    local : Callable
        Takes from a text what concerns one machine only.
    """
    best, shown = answer.choice.best, answer.shown
    headline, *sentences = map(local, answer.sentences())
    inferred = best.to_dict()["inferred"]
    sources = Table(
        "Values that the scenario does not state, and where numbers are from",
        ["key", "value"],
        [[key, local(words)] for key, words in inferred.items()],
        numeric=False,
    )
    meanings = Table(
        "Columns of the tables", ["column", "meaning"], list(glossary.COLUMNS.items()), numeric=False
    )
    parts = Table("Parts of the step", ["part", "meaning"], list(glossary.PARTS.values()), numeric=False)
    return [
        Section("The answer", [headline, Lines([*sentences, *map(local, _notes([best]))])]),
        Section("All schedules", _comparison(answer, local)),
        Section("Pictures", pictures(answer)),
        Section("Numbers", [_side_by_side(tables.summary_table, shown, "One step", "number")]),
        Section(
            "Where the step time goes",
            [
                _side_by_side(tables.step_table, shown, "Parts that add up to the step time", "part"),
                f"{glossary.IMBALANCE.capitalize()}.",
                *(_table(tables.rank_table(result), f"Ranks of {result.label}") for result in shown),
            ],
        ),
        Section("What was inferred and assumed", [sources, meanings, parts]),
    ]


def _comparison(answer: Answer, local: Callable[[str], str]) -> list[Block]:
    comparison = answer.comparison
    roles = ((answer.choice.best, "chosen"), (answer.own, "in the scenario"))
    marks = {
        row: " and ".join(words)
        for row, result in enumerate(comparison.results)
        if (words := [role for one, role in roles if one is result])
    }
    caption = (
        "Fastest step first, asynchronous schedules after the others, what does not fit in memory at the end"
    )
    blocks: list[Block] = [_table(tables.comparison_table(comparison), caption, marks)]
    if comparison.skipped:
        rows = [[skipped.schedule, local(skipped.reason)] for skipped in comparison.skipped]
        blocks.append(Table("Schedules that cannot run here", ["schedule", "reason"], rows, numeric=False))
    blocks.append(Lines(framework_lines(comparison.results)))
    chunk_notes = [f"note: {comparison.one_chunk_note}"] if comparison.one_chunk_note else []
    if notes := chunk_notes + _notes(comparison.results):
        blocks.append(Lines([local(note) for note in notes]))
    return blocks


def _notes(results: Sequence[Prediction]) -> list[str]:
    """Warnings and notes as the other verbs print them, without what was inferred."""
    console = tables.console()
    with console.capture() as capture:
        print_notes(console, results)
    return capture.get().partition("inferred:\n")[0].splitlines()


def _table(table: RichTable, caption: str, marks: dict[int, str] | None = None) -> Table:
    return Table(caption, _heads(table), list(zip(*_cells(table), strict=True)), marks=marks or {})


def _side_by_side(
    table_of: Callable[[Prediction], RichTable], results: Sequence[Prediction], caption: str, lines_are: str
) -> Table:
    """Join tables of one result each by the names of their lines."""
    parts = [table_of(result) for result in results]
    columns = [
        result.label if head == "value" else f"{result.label}: {head}"
        for result, part in zip(results, parts, strict=True)
        for head in _heads(part)[1:]
    ]
    by_name = [{name: values for name, *values in zip(*_cells(part), strict=True)} for part in parts]
    missing = [["-"] * (len(part.columns) - 1) for part in parts]
    rows = [
        [name, *(cell for one, none in zip(by_name, missing, strict=True) for cell in one.get(name, none))]
        for name in dict.fromkeys(name for one in by_name for name in one)
    ]
    return Table(caption, [lines_are, *columns], rows)


def _heads(table: RichTable) -> list[str]:
    return [str(column.header) for column in table.columns]


def _cells(table: RichTable) -> list[list[str]]:
    return [[str(cell) for cell in column.cells] for column in table.columns]
