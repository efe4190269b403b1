"""What verbs print: JSON, blocks as text, and progress."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table as RichTable

from pipesim.show.blocks import Table

_WIDTH = 400
"""More than any table takes: a narrow terminal breaks lines, but no name or number is cut short."""


def show(*blocks: str | Table) -> None:
    """Print lines as they stand, and tables in Markdown's form, as wide as they need."""
    console = Console(width=_WIDTH, soft_wrap=True, highlight=False, markup=False, emoji=False)
    for block in blocks:
        console.print(block if isinstance(block, str) else _rich(block))


def _rich(table: Table) -> RichTable:
    drawn = RichTable(title=table.caption or None, title_justify="left", box=box.MARKDOWN, title_style="")
    for position, column in enumerate(table.columns):
        drawn.add_column(column, justify="left" if position < table.num_left else "right", no_wrap=True)
    for row in table.rows:
        drawn.add_row(*row)
    return drawn


def print_json(document: Any) -> None:
    """Print a document and nothing else."""
    sys.stdout.write(json.dumps(document, indent=1, allow_nan=False) + "\n")


@contextmanager
def progress_bar(words: str, *, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Show on standard error what runs; the block gets a function that is told the next name."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with _bar(words, *columns, quiet=quiet) as update:
        yield lambda name: update(description=f"{words}: {name}")


@contextmanager
def counting_bar(words: str, *, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """Show on standard error how far it is; the block gets a function that is told (done, total)."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with _bar(words, *columns, quiet=quiet) as update:
        yield lambda done, total: update(completed=done, total=total)


@contextmanager
def _bar(words: str, *columns: Any, quiet: bool) -> Iterator[Callable[..., None]]:
    if quiet or not sys.stderr.isatty():
        yield lambda **_: None
        return
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(words, total=None)
        yield lambda **state: bar.update(task, **state)
