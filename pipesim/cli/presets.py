"""`pipesim presets`: what the package knows of hardware, models and software."""

from __future__ import annotations

from typing import Annotated

import typer

from pipesim.cli import options, tables
from pipesim.scenario import find_preset, list_presets


def presets(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]")] = None, as_json: options.AsJson = False
) -> None:
    """List presets, or show one with its source and date."""
    chosen = list_presets() if name is None else (find_preset(name),)
    if as_json:
        tables.print_json([{"name": p.name, "kind": p.kind, **p.fields} for p in chosen])
        return
    if name is None:
        rows = [[p.kind, p.name, p.source, p.date] for p in chosen]
        tables.console().print(tables.plain_table("", ["kind", "name", "source", "date"], rows, left=4))
    else:
        rows = [[key, str(value)] for key, value in chosen[0].fields.items()]
        tables.console().print(tables.plain_table(chosen[0].name, ["key", "value"], rows, left=2))
