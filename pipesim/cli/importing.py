"""`pipesim import`: other tools' files as scenarios."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipesim.cli import tables
from pipesim.files import write_text
from pipesim.scenario import hf_scenario_text

app = typer.Typer(help="Turn other tools' files into scenarios.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def importing() -> None:
    """Turn other tools' files into scenarios."""


@app.command()
def hf(
    file: Annotated[Path, typer.Argument(metavar="config.json")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Scenario file to write.")],
) -> None:
    """Read a Hugging Face config.json; cluster and batch are placeholders to edit."""
    write_text(output, hf_scenario_text(file))
    tables.console().print(
        f"wrote {output}; edit cluster, parallel and batch, then: pipesim compare {output}"
    )
