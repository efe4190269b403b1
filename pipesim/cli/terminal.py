"""What verbs print: JSON, blocks as text, and progress."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

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

from pipesim.show.blocks import Block
from pipesim.show.text_layout import text_lines

_WIDE = 100_000
"""For who asks for whole lines, whatever the terminal."""


def show(*blocks: Block, wide: bool = False) -> None:
    """Print blocks in the columns of the terminal (80 of a pipe, or COLUMNS), or as wide as they are."""
    columns = _WIDE if wide else width()
    for block in blocks:
        for line in text_lines(block, columns):
            sys.stdout.write(f"{line}\n")


def width() -> int:
    """Columns of the terminal; 80 where there is none and COLUMNS says nothing."""
    return shutil.get_terminal_size().columns


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
    if quiet or sys.stderr is None or not sys.stderr.isatty():
        yield lambda **_: None
        return
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(words, total=None)
        yield lambda **state: bar.update(task, **state)
