"""HTML that needs nothing beside itself: no network, no scripts, pictures inside, every text escaped."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined

from pipesim.show.blocks import Lines, Picture, Section, Table

_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
"""What an HTML or a UTF-8 file may not hold; names of files can."""


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
    environment = Environment(
        autoescape=True,
        finalize=_printable,
        trim_blocks=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    kinds = {"table": Table, "picture": Picture, "lines": Lines}
    environment.tests["a"] = lambda block, kind: isinstance(block, kinds[kind])
    template = environment.from_string(files("pipesim.show").joinpath("page.html.jinja").read_text("utf-8"))
    return template.render(title=title, sections=sections, footer=footer)


def _printable(value: Any) -> Any:
    return _UNPRINTABLE.sub("\ufffd", value) if isinstance(value, str) else value
