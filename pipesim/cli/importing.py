"""`pipesim import`: other tools' files as scenarios."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from pipesim.cli import options, terminal
from pipesim.errors import ScenarioError
from pipesim.files import check_outputs, write_text
from pipesim.importers.facts import Imported
from pipesim.importers.writing import scenario_text
from pipesim.scenario import load_scenario

app = typer.Typer(help="Turn other tools' files into scenarios.", no_args_is_help=True, rich_markup_mode=None)

File = Annotated[Path, typer.Argument(metavar="FILE")]
Files = Annotated[list[Path], typer.Argument(metavar="FILE...")]
Output = Annotated[Path, typer.Option("-o", "--output", help="Scenario file to write.")]
Gpus = Annotated[
    int | None, typer.Option("--gpus", min=1, help="GPUs of the run, where the files do not say.")
]
Define = Annotated[
    list[str] | None,
    typer.Option("--define", metavar="NAME=VALUE", help="Value of a shell variable; scripts are never run."),
]


@app.callback()
def importing() -> None:
    """Turn other tools' files into scenarios."""


@app.command()
def hf(
    file: Annotated[Path, typer.Argument(metavar="config.json")],
    output: Output,
    overrides: options.Overrides = None,
    as_json: options.AsJson = False,
) -> None:
    """Read a Hugging Face config.json; cluster and batch are placeholders to edit."""
    from pipesim.importers.hugging_face import import_hf

    _write(import_hf(file, overrides=overrides or ()), output, [file], as_json=as_json)


@app.command()
def nemo(
    file: File,
    output: Output,
    row: Annotated[
        str | None, typer.Option("--row", help="Row of a CSV table: its number from 1, or its name.")
    ] = None,
    gpus: Gpus = None,
    overrides: options.Overrides = None,
    as_json: options.AsJson = False,
) -> None:
    """Read NeMo's training YAML, or a row of its table of recommended configurations (CSV)."""
    if file.suffix.lower() == ".csv":
        from pipesim.importers.nemo_table import read_nemo_table

        if gpus is not None:
            raise ScenarioError("a table states its GPUs; remove it", file=str(file), key="--gpus")
        imported = read_nemo_table(file, row=row, overrides=overrides or ())
    else:
        from pipesim.importers.nemo import read_nemo

        if row is not None:
            raise ScenarioError("is for CSV tables; remove it", file=str(file), key="--row")
        imported = read_nemo(file, num_gpus=gpus, overrides=overrides or ())
    _write(imported, output, [file], as_json=as_json)


def _of_scripts(tool: str) -> Callable[..., None]:
    def read(
        files: Files,
        output: Output,
        define: Define = None,
        gpus: Gpus = None,
        overrides: options.Overrides = None,
        as_json: options.AsJson = False,
    ) -> None:
        reader = getattr(import_module(f"pipesim.importers.{tool}"), f"read_{tool}")
        variables = _definitions(define)
        imported = reader(files, define=variables, num_gpus=gpus, overrides=overrides or ())
        _write(imported, output, files, as_json=as_json)

    return read


for _tool, _words in (
    (
        "megatron",
        "Read arguments of Megatron-LM: shell scripts (in sourcing order), test YAML, plain text.",
    ),
    ("torchtitan", "Read torchtitan's TOML, and launch scripts that override it."),
    ("deepspeed", "Read DeepSpeed's JSON together with the launcher's script or arguments."),
):
    app.command(_tool, help=_words)(_of_scripts(_tool))


@app.command()
def neox(
    files: Files,
    output: Output,
    gpus: Gpus = None,
    overrides: options.Overrides = None,
    as_json: options.AsJson = False,
) -> None:
    """Read GPT-NeoX's .yml files."""
    from pipesim.importers.neox import read_neox

    _write(read_neox(files, num_gpus=gpus, overrides=overrides or ()), output, files, as_json=as_json)


@app.command()
def nanotron(
    file: File,
    output: Output,
    gpus: Gpus = None,
    overrides: options.Overrides = None,
    as_json: options.AsJson = False,
) -> None:
    """Read nanotron's YAML."""
    from pipesim.importers.nanotron import read_nanotron

    _write(read_nanotron(file, num_gpus=gpus, overrides=overrides or ()), output, [file], as_json=as_json)


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
        for key, words in notes.items():
            terminal.show(f"  {key} = {words}")
    terminal.show(f"wrote {output}; next: pipesim compare {output}")
