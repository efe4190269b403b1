"""Megatron-LM's command-line arguments, from shell scripts, test YAML, or plain text; nothing is run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipesim.errors import ScenarioError
from pipesim.importers.shell import Script, new_script, read_script
from pipesim.reading import read_text
from pipesim.scenario.counts import as_count, clean, shown
from pipesim.scenario.loading import parse_yaml
from pipesim.scenario.settings import Unknown

_TRAINING = (
    "--num-layers",
    "--hidden-size",
    "--tensor-model-parallel-size",
    "--pipeline-model-parallel-size",
    "--global-batch-size",
)
NODES = ("nnodes", "nodes", "num-nodes")
PER_NODE = ("nproc-per-node", "gpus-per-node", "num-gpus", "gres", "gpus-per-task", "ntasks-per-node")
"""Ways to state the GPUs of a node, the surest first: a task may stand for one GPU or for a launcher."""
_NODE_VARIABLES = ("NNODES", "NUM_NODES", "SLURM_NNODES", "NODES")
_PER_NODE_VARIABLES = ("GPUS_PER_NODE", "NPROC_PER_NODE")
_BATCH_OPTION = re.compile(r"^#SBATCH[ \t]+(.*?)(?:[ \t]#.*)?$", re.MULTILINE)
_SHORT = {"-N": "--nodes", "-n": "--ntasks", "-G": "--gpus"}
_NUMBER = re.compile(r"(?:gpu:(?:[A-Za-z][\w.-]*:)?)?([0-9]{1,12})(?:-[0-9]+)?")
_DEFAULT_IN_TEXT = re.compile(r"\$\{([A-Za-z_]\w*):-?([^{}$]*)\}")
_FLAG = re.compile(r"--[A-Za-z][\w.-]*")


@dataclass(slots=True)
class Arguments:
    """Arguments by name without dashes, and what the launcher says of nodes.

    Parameters
    ----------
    files : str
        Where they come from.
    values : dict
        Each a text, a list of texts, or True for a flag without a value.
    num_nodes, gpus_per_node : int, optional
        As given to torchrun, deepspeed, srun or sbatch, or in the usual variables.
    documents : list of str
        Here-documents of the scripts.
    notes : dict
        What was taken for granted.
    rest : dict
        What else the YAML files hold, by path, and the launcher's options of batch scripts.
    """

    files: str
    values: dict[str, Any] = field(default_factory=dict)
    rest: dict[str, Any] = field(default_factory=dict)
    num_nodes: int | None = None
    gpus_per_node: int | None = None
    documents: list[str] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)


def read_arguments(paths: Sequence[str | Path], define: Mapping[str, str]) -> Arguments:
    """Read files in order; scripts share their variables, later files win.

    Parameters
    ----------
    paths : sequence of path
        ``.yaml`` and ``.yml`` are read as YAML, everything else as a shell script or as plain arguments.
    define : Mapping
        Values of variables that the scripts take from outside, or that are to replace what they assign.

    Returns
    -------
    Arguments
        What the training command is given.

    Raises
    ------
    ScenarioError
        Unreadable files, no training arguments, or two training commands that differ.
    """
    files = ", ".join(Path(path).name for path in paths)
    arguments = Arguments(files)
    script = new_script(files, define)
    for path in paths:
        text = read_text(path)
        if Path(path).suffix.lower() in (".yaml", ".yml"):
            _merge(arguments, _from_yaml(parse_yaml(text, file=str(path)), str(path), define, arguments.rest))
        elif text.lstrip().startswith("{"):
            raise ScenarioError("holds JSON, not arguments of Megatron-LM", file=str(path))
        else:
            options = [word for line in _BATCH_OPTION.findall(text) for word in line.split()]
            script.commands += [["sbatch", *_spelled_out(options)]] if options else []
            arguments.rest |= flags_of(_spelled_out(options))
            read_script(text, script)
    _merge(arguments, _training_arguments(script))
    arguments.documents = script.documents
    arguments.notes |= script.notes
    for name, value in define.items():
        arguments.notes[f"${name}"] = f"{value} (given)"
    arguments.num_nodes = _launched(script, NODES, _NODE_VARIABLES, arguments)
    arguments.gpus_per_node = _launched(script, PER_NODE, _PER_NODE_VARIABLES, arguments)
    for option in (*NODES, *PER_NODE):
        arguments.rest.pop(option, None)
    return arguments


def flags_of(words: Iterable[str]) -> dict[str, Any]:
    """Sort the words of a command: a name and what follows it up to the next name; the last one counts."""
    result: dict[str, Any] = {}
    name = None
    for word in words:
        if _FLAG.match(word):
            name, equals, value = word[2:].partition("=")
            name = name.replace("_", "-")
            result[name] = value if equals else True
            name = None if equals else name
        elif name is not None:
            before = result[name]
            if isinstance(before, list):
                before.append(word)
            else:
                result[name] = word if before is True else [before, word]
    return result


def _spelled_out(words: Iterable[str]) -> list[str]:
    return [_SHORT.get(word, word) for word in words]


def _training_arguments(script: Script) -> dict[str, Any]:
    """Take the words of the training command, or, where there is none, of the variables made for it.

    Words that stand without a command, as in a file of plain arguments, come last.
    """
    plain = [words for words in script.commands if words[0].startswith("--")]
    commands = [
        words
        for words in script.commands
        if words not in plain and any(word.partition("=")[0] in _TRAINING for word in words)
    ]
    if not commands and not plain:
        texts = [
            value if isinstance(value, list) else value.split() for value in script.variables.values.values()
        ]
        commands = [words for words in texts if any(word.partition("=")[0] in _TRAINING for word in words)]
    result: dict[str, Any] = {}
    for words in commands:
        for name, value in flags_of(_without_unset(words, script)).items():
            other = result.get(name, value)
            if f"--{name}" in _TRAINING and other != value:
                found = f"{_known(value, script)} or {_known(other, script)}"
                value = script.variables.unknown(f"{found}: there is more than one training command")
            result[name] = value
    for name, value in flags_of(word for words in plain for word in words).items():
        if f"--{name}" in _TRAINING and result.get(name, value) != value:
            script.notes[f"--{name}"] = f"{shown(value)} (replaces what the training command is given)"
        result[name] = value
    return {name: _or_unknown(value, script) for name, value in result.items()}


def _without_unset(words: Sequence[str], script: Script) -> list[str]:
    """Leave out words of unset variables alone, as a shell does, unless a flag waits for its value."""
    return [
        word
        for before, word in zip(["--", *words], words, strict=False)
        if before.startswith("--") or script.variables.as_set(word) != ""
    ]


def _launched(
    script: Script, flags: Sequence[str], variables: Sequence[str], arguments: Arguments
) -> int | None:
    """Find a number that the launcher is given, or that a variable of the usual name holds."""
    given = [flags_of(_spelled_out(words)) for words in script.commands]
    for flag in flags:
        for options in given:
            value = options.get(flag)
            if isinstance(value, list):
                value = value[0]
            number = _NUMBER.fullmatch(value) if isinstance(value, str) else None
            if number is not None:
                return as_count(int(number[1]), file=arguments.files, key=f"--{flag}")
    for name in variables:
        value = script.variables.get(name)
        if isinstance(value, str) and value.isdecimal():
            arguments.notes[f"${name}"] = f"{value}, read as the launcher's"
            return as_count(int(value[:12]), file=arguments.files, key=f"${name}")
    return None


def _or_unknown(value: Any, script: Script) -> Any:
    for text in _listed(value):
        why = None if text is True else script.variables.doubt(text)
        if why is not None:
            return Unknown(why)
    return value


def _known(value: Any, script: Script) -> str:
    return clean(str(_or_unknown(value, script)), most=60)


def _from_yaml(document: Any, file: str, define: Mapping[str, str], rest: dict[str, Any]) -> dict[str, Any]:
    """Find the mapping of arguments, at the top, under MODEL_ARGS or deeper; all else goes to the rest."""
    best: dict[str, Any] = {}
    prefix = ""
    waiting = [("", document)]
    leaves: dict[str, Any] = {}
    while waiting:
        path, here = waiting.pop()
        below = here and (isinstance(here, dict) or any(isinstance(item, dict) for item in _listed(here)))
        if below:
            items = here.items() if isinstance(here, dict) else enumerate(here)
            waiting += [(f"{path}.{key}" if path else str(key), value) for key, value in items]
        else:
            leaves[path] = here
        if not isinstance(here, dict):
            continue
        found = {
            str(key).lstrip("-").replace("_", "-"): value
            for key, value in here.items()
            if not isinstance(value, dict)
        }
        if sum(f"--{name}" in _TRAINING for name in found) > sum(f"--{name}" in _TRAINING for name in best):
            best, prefix = found, f"{path}." if path else ""
    of_best = {f"{prefix}{name}" for name in best}
    for path, value in leaves.items():
        parent, _, name = path.removeprefix(prefix).rpartition(".")
        plain = prefix + name.lstrip("-").replace("_", "-")
        if not path.startswith(prefix) or parent or plain not in of_best:
            rest[path] = value
    if not best:
        raise ScenarioError(
            "holds no arguments of Megatron-LM (a mapping such as MODEL_ARGS: {--num-layers: 12, ...})",
            file=file,
        )
    return {name: _argument(value, define) for name, value in best.items()}


def _argument(value: Any, define: Mapping[str, str]) -> Any:
    if isinstance(value, list):
        return [_argument(item, define) for item in value]
    if value is None or isinstance(value, bool):
        return value
    text = _DEFAULT_IN_TEXT.sub(lambda match: define.get(match[1], match[2]), str(value))
    missing = re.search(r"\$\{?([A-Za-z_]\w*)", text)
    if missing and missing[1] in define:
        return re.sub(r"\$\{?([A-Za-z_]\w*)\}?", lambda match: define.get(match[1], match[0]), text)
    return Unknown(f"${missing[1]}, which is not assigned") if missing else text


def _merge(arguments: Arguments, more: Mapping[str, Any]) -> None:
    for name, value in more.items():
        before = arguments.values.get(name)
        if before is not None and before != value and f"--{name}" in _TRAINING:
            arguments.notes[f"--{name}"] = f"{shown(value)} (replaces {shown(before)} of an earlier file)"
        arguments.values[name] = value


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
