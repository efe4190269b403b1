"""HTML that needs nothing beside itself: no network, one script that its policy names, all texts escaped."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from pipesim.show.blocks import Lines, Picture, Section, Table, Timelines

SCRIPT = ("script/data.js", "script/lane.js", "script/page.js")
"""One script together: what a file names may stand in one before it."""

_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
"""What an HTML or a UTF-8 file may not hold; names of files can."""


def page(title: str, sections: Sequence[Section], *, footer: str) -> str:
    """Write a page; the first paragraph of the first section stands out as the answer.

    Parameters
    ----------
    title : str
        Heading of the page.
    sections : sequence of Section
        In order; timelines at most once.
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
    kinds = {"table": Table, "picture": Picture, "lines": Lines, "timelines": Timelines}
    environment.tests["a"] = lambda block, kind: isinstance(block, kinds[kind])
    data = [block.data for section in sections for block in section.blocks if isinstance(block, Timelines)]
    script = "\n".join(map(_beside, SCRIPT)) if data else ""
    return environment.from_string(_beside("page.html.jinja")).render(
        title=title,
        sections=sections,
        footer=footer,
        css=Markup(_beside("page.css")),
        script=Markup(script),
        script_hash=f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}",
        data=Markup("".join(data)),
    )


def _beside(name: str) -> str:
    return files("pipesim.show").joinpath(name).read_text("utf-8")


def _printable(value: Any) -> Any:
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return _UNPRINTABLE.sub("\ufffd", value)
