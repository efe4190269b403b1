"""Blocks as lines of text that a terminal of some width takes whole: nothing is cut, no number broken."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from pipesim.show.blocks import Block, Lines, Table, Verbatim

_NARROWEST = 18
"""Columns of words are wrapped down to this; then a table is cut into parts of fewer columns."""


def text_lines(block: Block, width: int) -> Iterator[str]:
    """Lay a block out.

    Parameters
    ----------
    block : Block
        A text wraps between words, each of its lines by itself, and hangs in by two; a table stands in
        Markdown's form unless it is not ruled; verbatim text stays as it is; of a picture there is none.
    width : int
        Columns of the terminal; only a single word can be longer.
    """
    match block:
        case Table():
            yield from _table_lines(block, width)
        case Verbatim():
            yield from block.text.splitlines()
        case Lines():
            for line in block.lines:
                yield from _wrapped(line, width)
        case str():
            for line in block.splitlines() or [""]:
                yield from _wrapped(line, width)


def command_lines(words: Sequence[str], width: int) -> Iterator[str]:
    """Break a command between its words where a shell reads on."""
    line = ""
    for word in words:
        if line and len(line) + len(word) + 3 > width:
            yield f"{line} \\"
            line = f"    {word}"
        else:
            line = f"{line} {word}" if line else word
    yield line


def _wrapped(line: str, width: int) -> list[str]:
    indent = line[: len(line) - len(line.lstrip())]
    return textwrap.wrap(
        line,
        max(width, 20),
        subsequent_indent=f"{indent}  ",
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
        replace_whitespace=False,
    ) or [""]


def _table_lines(table: Table, width: int) -> Iterator[str]:
    if table.caption:
        yield from _wrapped(table.caption, width)
        yield ""
    for columns in _parts(table, width):
        yield from _rows(table, columns, _widths(table, columns, width))
        if table.ruled:
            yield ""


def _natural(table: Table, column: int) -> int:
    """Width of a column; headings wrap between words."""
    heading = max((len(word) for word in table.columns[column].split()), default=0)
    if column < table.num_left:
        heading = len(table.columns[column])
    return max(heading, *(len(row[column]) for row in table.rows), 1)


def _total(table: Table, widths: Sequence[int]) -> int:
    return sum(widths) + (3 * len(widths) + 1 if table.ruled else 2 * (len(widths) - 1))


def _parts(table: Table, width: int) -> Iterator[list[int]]:
    """Columns of each part: all of them, or as many as go beside the first."""
    least = [
        min(_NARROWEST, _natural(table, i)) if i < table.num_left else _natural(table, i)
        for i in range(len(table.columns))
    ]
    part = [0]
    for column in range(1, len(table.columns)):
        if len(part) > 1 and _total(table, [least[i] for i in (*part, column)]) > width:
            yield part
            part = [0]
        part.append(column)
    yield part


def _widths(table: Table, columns: list[int], width: int) -> list[int]:
    widths = [_natural(table, column) for column in columns]
    whole = [max(w, len(table.columns[column])) for w, column in zip(widths, columns, strict=True)]
    if _total(table, whole) <= width:
        return whole
    for at in reversed(range(len(columns))):
        over = _total(table, widths) - width
        if over > 0 and columns[at] < table.num_left:
            widths[at] = max(min(_NARROWEST, widths[at]), widths[at] - over)
    return widths


def _rows(table: Table, columns: list[int], widths: list[int]) -> Iterator[str]:
    yield from _row([table.columns[i] for i in columns], columns, widths, table)
    if table.ruled:
        yield f"|{'|'.join('-' * (width + 2) for width in widths)}|"
    for row in table.rows:
        yield from _row([row[i] for i in columns], columns, widths, table)


def _row(cells: list[str], columns: list[int], widths: list[int], table: Table) -> Iterator[str]:
    wrapped = [
        textwrap.wrap(cell, width, break_on_hyphens=False) or [""]
        for cell, width in zip(cells, widths, strict=True)
    ]
    for at in range(max(map(len, wrapped))):
        placed = [
            f"{(lines[at] if at < len(lines) else ''):{'<' if column < table.num_left else '>'}{width}}"
            for lines, column, width in zip(wrapped, columns, widths, strict=True)
        ]
        yield f"| {' | '.join(placed)} |" if table.ruled else "  ".join(placed).rstrip()
