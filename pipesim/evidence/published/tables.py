"""The published tables in the package, and files in the same columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path

from pipesim.errors import ScenarioError
from pipesim.reading import csv_rows, read_text


class TableLine:
    """One line of a table; a missing column or a bad number is reported with file, line and column."""

    def __init__(self, cells: Mapping[str, str], *, file: str, number: int) -> None:
        self._cells = cells
        self.file = file
        self.number = number

    def __getitem__(self, column: str) -> str:
        try:
            return self._cells[column].strip()
        except KeyError:
            known = ", ".join(self._cells)
            raise ScenarioError(
                f"no column {column!r}; the columns are: {known}", file=self.file, key=f"line {self.number}"
            ) from None

    def __contains__(self, column: object) -> bool:
        return column in self._cells

    def __iter__(self) -> Iterator[str]:
        return iter(self._cells)

    def get(self, column: str) -> str:
        """Read a cell, empty where there is no such column."""
        return self._cells.get(column, "").strip()

    def number_of(self, column: str) -> float:
        """Read a number.

        Raises
        ------
        ScenarioError
            If the cell holds none.
        """
        try:
            return float(self[column])
        except ValueError:
            raise ScenarioError(
                f"found {self[column]!r}; a number is needed",
                file=self.file,
                key=f"line {self.number}, {column}",
            ) from None

    def count(self, column: str, default: int | None = None) -> int:
        """Read a whole number of at least 1; an empty cell is `default` where there is one.

        Raises
        ------
        ScenarioError
            If the cell holds none.
        """
        if default is not None and not self.get(column):
            return default
        value = self.number_of(column)
        if value < 1 or not value.is_integer():
            raise ScenarioError(
                f"found {self[column]!r}; a whole number of at least 1 is needed",
                file=self.file,
                key=f"line {self.number}, {column}",
            )
        return int(value)


def read_table(name: str) -> list[TableLine]:
    """Read a table that ships with the package, such as ``korthikanti22_table5.csv``."""
    text = resources.files("pipesim").joinpath("data", "published", name).read_text(encoding="utf-8")
    return _lines(text, name)


def read_table_file(path: str | Path) -> list[TableLine]:
    """Read a user's file.

    Raises
    ------
    ScenarioError
        If it cannot be read, or has no line.
    """
    lines = _lines(read_text(path, large=True), str(path))
    if not lines:
        raise ScenarioError("has no line below its header", file=str(path))
    return lines


def _lines(text: str, file: str) -> list[TableLine]:
    rows = ((number, row) for number, row in csv_rows(text, file=file) if row)
    _, header = next(rows, (0, []))
    for name in header:
        if header.count(name) > 1:
            raise ScenarioError(f"has two columns {name!r}", file=file)
    lines = []
    for number, row in rows:
        if len(row) != len(header):
            found = "more" if len(row) > len(header) else "fewer"
            raise ScenarioError(f"has {found} cells than the header", file=file, key=f"line {number}")
        lines.append(TableLine(dict(zip(header, row, strict=True)), file=file, number=number))
    return lines
