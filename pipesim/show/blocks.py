"""What is shown, as plain data: made once from results, rendered to a terminal or to a page."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

_PIXELS_A_DOT = 96 / 150


@dataclass(frozen=True, slots=True)
class Table:
    """Cells as text; the first of a row names it.

    Parameters
    ----------
    caption : str
        What the rows are; may be empty.
    columns : sequence of str
        Headings.
    rows : sequence of sequence of str
        As many cells each.
    num_left : int
        So many columns are flush left, the others flush right.
    marks : Mapping
        Row to words that set it apart.
    ruled : bool
        Whether a terminal draws lines between its columns.
    kind : str
        What its rows are, for a page: "schedules", or nothing.
    """

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    num_left: int = 1
    marks: Mapping[int, str] = field(default_factory=dict)
    ruled: bool = True
    kind: str = ""

    @classmethod
    def of_lines(cls, caption: str, columns: Sequence[str], lines: Sequence[Sequence[str]]) -> Table:
        """Make a table of names and values, without the lines that have none."""
        return cls(caption, columns, [line for line in lines if line[1] != "-"])

    def to_html(self) -> str:
        """Render for a notebook, without the caption."""
        import pandas as pd

        frame = pd.DataFrame([list(row) for row in self.rows], columns=list(self.columns))
        html: str = frame.to_html(index=False)
        return html

    def without_empty_columns(self) -> Table:
        """Leave out the columns in which nothing stands."""
        kept = [i for i in range(len(self.columns)) if i == 0 or any(row[i] != "-" for row in self.rows)]
        columns = [self.columns[i] for i in kept]
        rows = [[row[i] for i in kept] for row in self.rows]
        return Table(self.caption, columns, rows, self.num_left, self.marks, self.ruled)


@dataclass(frozen=True, slots=True)
class Picture:
    """A PNG, words under it, and words for those who do not see it."""

    png: bytes
    caption: str
    alternative: str

    @property
    def source(self) -> str:
        """The picture itself, as an address."""
        return f"data:image/png;base64,{base64.b64encode(self.png).decode()}"

    @property
    def size(self) -> tuple[int, int]:
        """Width and height on a page as large as it was drawn, from where a PNG keeps its own."""
        width, height = (round(int.from_bytes(self.png[at : at + 4]) * _PIXELS_A_DOT) for at in (16, 20))
        return width, height


@dataclass(frozen=True, slots=True)
class Timelines:
    """Timelines that a page's script draws, and pictures for where no script runs and for paper."""

    data: str
    pictures: Sequence[Picture]


@dataclass(frozen=True, slots=True)
class Lines:
    """A list."""

    lines: Sequence[str]


@dataclass(frozen=True, slots=True)
class Verbatim:
    """Text whose lines and spaces matter."""

    text: str


Block: TypeAlias = str | Table | Picture | Timelines | Lines | Verbatim
"""A text is a paragraph."""


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what stands below it."""

    heading: str
    blocks: Sequence[Block]
