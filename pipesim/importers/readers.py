"""The table of readers: which tools' files can be read, by what, and with which options."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipesim.errors import ScenarioError
from pipesim.importers import (
    deepspeed,
    hugging_face,
    internevo,
    maxtext,
    megatron,
    nanotron,
    nemo,
    neox,
    torchtitan,
)
from pipesim.importers.completing import Imported, complete
from pipesim.importers.facts import Facts
from pipesim.importers.request import Request, known_of


@dataclass(frozen=True, slots=True)
class Reader:
    """One tool's reader.

    Parameters
    ----------
    read : callable
        From a request to the facts of its files.
    what : str
        What it reads, in words.
    options : tuple of str
        Options of ``pipesim import`` beside ``--set`` and ``--ignore`` that have a meaning for it.
    many : bool
        Whether it takes several files.
    """

    read: Callable[[Request], Facts]
    what: str
    options: tuple[str, ...] = ("--gpus",)
    many: bool = True


READERS: dict[str, Reader] = {
    "hf": Reader(
        hugging_face.read,
        "a Hugging Face config.json; cluster and batch are placeholders to edit",
        options=(),
        many=False,
    ),
    "megatron": Reader(
        megatron.read,
        "arguments of Megatron-LM: shell scripts (in sourcing order), test YAML, or plain text",
        options=("--gpus", "--define"),
    ),
    "nemo": Reader(
        nemo.read,
        "YAML of NeMo and Megatron-Bridge with Hydra overrides, Python recipes and workloads, a row of a "
        "table of recommended configurations (CSV), or MLPerf's scripts of exports, after YAML or alone",
        options=("--gpus", "--row", "--define"),
    ),
    "torchtitan": Reader(
        torchtitan.read,
        "torchtitan's TOML or a function of its Python configurations, and launch scripts that override them",
        options=("--gpus", "--row", "--define"),
    ),
    "deepspeed": Reader(
        deepspeed.read,
        "DeepSpeed's JSON together with the launcher's script or arguments",
        options=("--gpus", "--define"),
    ),
    "neox": Reader(neox.read, "GPT-NeoX's .yml files"),
    "nanotron": Reader(nanotron.read, "nanotron's YAML", many=False),
    "maxtext": Reader(maxtext.read, "MaxText's YAML, base files first"),
    "internevo": Reader(internevo.read, "InternEvo's Python configuration", many=False),
}


def import_files(
    tool: str,
    paths: str | Path | Sequence[str | Path],
    *,
    define: Mapping[str, str] | None = None,
    num_gpus: int | None = None,
    row: str | None = None,
    overrides: Iterable[str] = (),
    ignore: Iterable[str] = (),
) -> Imported:
    """Read another tool's files as a scenario.

    Parameters
    ----------
    tool : str
        One of `READERS`.
    paths : path or sequence of path
        The files, in the order in which they count.
    define : Mapping, optional
        Values of variables that the files take from outside.
    num_gpus : int, optional
        GPUs of the run, where the files do not say.
    row : str, optional
        The row of a table, or the function of a Python file.
    overrides : iterable of str
        ``KEY=VALUE`` by the scenario's keys; they stand in place of what the files say.
    ignore : iterable of str
        Settings of the files to be read on without.

    Returns
    -------
    Imported
        A scenario that loads; whatever the files state and it does not use is named.

    Raises
    ------
    ScenarioError
        Another tool's files, settings that cannot be modelled, sizes that cannot be, options without a
        meaning for the tool, or one of several files that adds nothing.
    """
    if tool not in READERS:
        raise ScenarioError(f"found {tool[:60]!r}; there are: {', '.join(READERS)}", key="format")
    reader = READERS[tool]
    files = [Path(path) for path in ([paths] if isinstance(paths, (str, Path)) else paths)]
    options = {"--define": define, "--gpus": num_gpus, "--row": row}
    for option, value in options.items():
        if value and option not in reader.options:
            raise ScenarioError(f"has no meaning for {tool}; remove it", file=str(files[0]), key=option)
    if not reader.many and len(files) > 1:
        raise ScenarioError(f"{tool} is read from one file, found {len(files)}", file=str(files[1]))
    request = Request(
        tuple(files), known_of(tool), define or {}, num_gpus, row, tuple(overrides), tuple(ignore)
    )
    facts = _read(reader, request, tool)
    _refuse_files_that_add_nothing(reader, request)
    facts.not_used = request.unused() | facts.not_used
    return complete(facts, overrides=request.overrides)


def _read(reader: Reader, request: Request, tool: str) -> Facts:
    """Read; where a file as a whole is refused, and no setting of it, say what is read."""
    try:
        return reader.read(request)
    except ScenarioError as error:
        if error.key is not None:
            raise
        message = f"{error.message}; {tool} reads {reader.what}"
        raise ScenarioError(message, file=error.file) from None


def _refuse_files_that_add_nothing(reader: Reader, request: Request) -> None:
    """Read again without each of several files: what then comes out must differ, or fail.

    Raises
    ------
    ScenarioError
        A file makes no difference.
    """
    if len(request.paths) == 1:
        return
    whole = _outcome(reader, request.without(len(request.paths)))
    for index, path in enumerate(request.paths):
        if _outcome(reader, request.without(index)) == whole:
            raise ScenarioError(
                f"adds nothing to what {request.without(index).files} says; leave it out, or name the "
                "file that was meant",
                file=str(path),
            )


def _outcome(reader: Reader, request: Request) -> object:
    try:
        facts = reader.read(request)
    except ScenarioError as error:
        return error.message
    shape = (facts.model | {"name": None, "source": None}, facts.num_gpus, facts.gpus_per_node)
    return shape, [settings.values() for settings in request.made]
