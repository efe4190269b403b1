"""HTML that needs nothing beside itself: no network, no scripts, pictures inside, every text escaped."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from string import Template
from typing import TypeAlias

_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
"""What an HTML or a UTF-8 file may not hold; names of files can."""


@dataclass(frozen=True, slots=True)
class Table:
    """Cells as text; the first of a row names it.

    Parameters
    ----------
    caption : str
        What the rows are.
    columns : sequence of str
        Headings.
    rows : sequence of sequence of str
        As many cells each.
    numeric : bool
        Whether all columns but the first are flush right.
    marks : Mapping
        Row to words that set it apart.
    """

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: bool = True
    marks: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Picture:
    """A PNG, words under it, and words for those who do not see it."""

    png: bytes
    caption: str
    alternative: str


@dataclass(frozen=True, slots=True)
class Lines:
    """A list."""

    lines: Sequence[str]


@dataclass(frozen=True, slots=True)
class Verbatim:
    """Text whose lines and spaces matter."""

    text: str


Block: TypeAlias = str | Table | Picture | Lines | Verbatim
"""A text is a paragraph."""


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what stands below it."""

    heading: str
    blocks: Sequence[Block]


_PAGE = Template("""\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>$title</title>
<style>$style</style>
</head>
<body>
<main>
<h1>$title</h1>
$sections
</main>
<footer>$footer</footer>
</body>
</html>
""")

_STYLE = """
:root { --text: #1c1c1c; --back: #fff; --soft: #5c5c5c; --line: #d0d0d0; --mark: #e8f0fe; --pad: #f6f6f6; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e8e8e8; --back: #161616; --soft: #a8a8a8; --line: #444; --mark: #1d3050; --pad: #222; }
}
body { margin: 0 auto; padding: 1rem 1.5rem; max-width: 75rem; color: var(--text); background: var(--back);
  font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.25; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2rem 0 0.5rem; border-bottom: 1px solid var(--line); }
p, li { max-width: 50rem; overflow-wrap: anywhere; }
section:first-of-type p:first-of-type { font-size: 1.25rem; font-weight: 600; }
.wide { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: 0.875rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--soft); padding-bottom: 0.3rem; }
th, td { padding: 0.2rem 0.5rem; border-bottom: 1px solid var(--line); }
th, td { text-align: left; vertical-align: top; }
.numeric th:not(:first-child), .numeric td { text-align: right; }
.numeric td, .numeric tbody th { white-space: nowrap; }
thead th { vertical-align: bottom; }
tr.marked > * { background: var(--mark); }
small { font-weight: normal; color: var(--soft); }
figure { margin: 1rem 0; }
img { display: block; max-width: 100%; height: auto; background: #fff; }
figcaption, footer { color: var(--soft); font-size: 0.875rem; }
pre { background: var(--pad); padding: 0.8rem; font-size: 0.875rem; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; }
@media print {
  :root { --text: #000; --back: #fff; --soft: #444; --line: #bbb; --mark: #eee; --pad: #fff; }
  body { max-width: none; padding: 0; font-size: 10pt; }
  .wide { overflow: visible; }
  table { font-size: 6.5pt; }
  th, td { padding: 0.1rem 0.25rem; }
  h2, caption { break-after: avoid; }
  figure, tr { break-inside: avoid; }
}
"""


def page(title: str, sections: Sequence[Section], *, footer: str) -> str:
    """Write a page; the first paragraph of the first section stands out as the answer.

    Parameters
    ----------
    title : str
        Heading of the page.
    sections : sequence of Section
        In order.
    footer : str
        What made it.

    Returns
    -------
    str
        A whole HTML document; the same for the same arguments.
    """
    return _PAGE.substitute(
        title=_escape(title),
        style=_STYLE,
        sections="\n".join(_section(section, number) for number, section in enumerate(sections, start=1)),
        footer=_escape(footer),
    )


def _section(section: Section, number: int) -> str:
    blocks = "\n".join(map(_block, section.blocks))
    heading = f'<h2 id="section{number}">{_escape(section.heading)}</h2>'
    return f'<section aria-labelledby="section{number}">\n{heading}\n{blocks}\n</section>'


def _block(block: Block) -> str:
    match block:
        case Table():
            return _table(block)
        case Picture(png, caption, alternative):
            source = f"data:image/png;base64,{base64.b64encode(png).decode()}"
            # Where a PNG keeps its size; shown as large as it was drawn, 150 dots an inch.
            width, height = (round(int.from_bytes(png[at : at + 4]) * 96 / 150) for at in (16, 20))
            size = f'width="{width}" height="{height}"'
            picture = f'<img src="{source}" {size} alt="{_escape(alternative)}">'
            return f"<figure>\n{picture}\n<figcaption>{_escape(caption)}</figcaption>\n</figure>"
        case Lines(lines):
            return "<ul>\n" + "".join(f"<li>{_escape(line)}</li>\n" for line in lines) + "</ul>"
        case Verbatim(text):
            # The parser drops one line feed after <pre>, which may be the text's own.
            return f"<pre>\n{_escape(text)}</pre>"
        case str():
            return f"<p>{_escape(block)}</p>"


def _table(table: Table) -> str:
    heads = "".join(f'<th scope="col">{_escape(column)}</th>' for column in table.columns)
    rows = "\n".join(_row(cells, table.marks.get(number)) for number, cells in enumerate(table.rows))
    kind = ' class="numeric"' if table.numeric else ""
    # The keyboard can scroll what it can focus.
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{_escape(table.caption)}">\n'
        f"<table{kind}>\n<caption>{_escape(table.caption)}</caption>\n"
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table>\n</div>"
    )


def _row(cells: Sequence[str], mark: str | None) -> str:
    name, *others = cells
    words = f" <small>{_escape(mark)}</small>" if mark else ""
    kind = ' class="marked"' if mark else ""
    values = "".join(f"<td>{_escape(cell)}</td>" for cell in others)
    return f'<tr{kind}><th scope="row">{_escape(name)}{words}</th>{values}</tr>'


def _escape(text: str) -> str:
    return html.escape(_UNPRINTABLE.sub("\ufffd", text))
