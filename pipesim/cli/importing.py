"""`pipesim import`: other tools' files as scenarios."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipesim.cli import options, terminal
from pipesim.errors import ScenarioError
from pipesim.files import check_outputs, write_text
from pipesim.importers.completing import Imported
from pipesim.importers.readers import READERS, import_files
from pipesim.importers.scenario_file import note_lines, scenario_text
from pipesim.scenario import load_scenario

Tool = Annotated[str, typer.Argument(metavar="FORMAT", help=f"One of {', '.join(READERS)}.")]
Files = Annotated[list[Path], typer.Argument(metavar="FILE...", help="The tool's files.")]
Output = Annotated[Path, typer.Option("-o", "--output", help="Scenario file to write.")]
Gpus = Annotated[
    int | None, typer.Option("--gpus", min=1, help="GPUs of the run, where the files do not say.")
]
Define = Annotated[
    list[str] | None,
    typer.Option("--define", metavar="NAME=VALUE", help="Value of a shell variable; scripts are never run."),
]
Row = Annotated[
    str | None,
    typer.Option("--row", help="Row of a CSV table (number from 1, or name), or function of a Python file."),
]
Ignore = Annotated[
    list[str] | None,
    typer.Option("--ignore", metavar="KEY", help="A setting of the files to read on without."),
]
EPILOG = "\n\n".join(f"{name}: {reader.what}." for name, reader in READERS.items())


def import_verb(
    tool: Tool,
    files: Files,
    output: Output,
    define: Define = None,
    gpus: Gpus = None,
    row: Row = None,
    ignore: Ignore = None,
    overrides: options.Overrides = None,
    as_json: options.AsJson = False,
) -> None:
    """Turn another tool's files into a scenario; whatever of them it does not use is named."""
    imported = import_files(
        tool,
        files,
        define=_definitions(define),
        num_gpus=gpus,
        row=row,
        overrides=overrides or (),
        ignore=ignore or (),
    )
    _write(imported, output, files, as_json=as_json)


def _definitions(stated: list[str] | None) -> dict[str, str]:
    pairs = [entry.partition("=") for entry in stated or ()]
    for name, equals, value in pairs:
        if not equals or not (name.isidentifier() or name.isdecimal()) or "\0" in value:
            raise ScenarioError(f"found {name!r}; NAME=VALUE is needed", key="--define")
    return {name: value for name, _, value in pairs}


def _write(imported: Imported, output: Path, sources: list[Path], *, as_json: bool) -> None:
    check_outputs(output, inputs=sources)
    write_text(output, scenario_text(imported), reader=load_scenario)
    if as_json:
        terminal.print_json(
            {
                "output": str(output),
                "tool": imported.tool,
                "inferred": imported.inferred,
                "not_used": imported.not_used,
                "placeholders": imported.placeholders,
            }
        )
        return
    for title, notes in (
        ("inferred", imported.inferred),
        ("not used", imported.not_used),
        ("placeholders, to be edited", imported.placeholders),
    ):
        if notes:
            terminal.show(f"{title}:")
        for line in note_lines(notes):
            terminal.show(f"  {line}")
    terminal.show(f"wrote {output}; next: pipesim compare {output}")
