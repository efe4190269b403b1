"""Files that are laid over a first one: YAML, and launch scripts with ``a.b=value``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pipesim.importers.request import Request
from pipesim.importers.shell import Script, new_script, read_script
from pipesim.reading import read_text
from pipesim.scenario.counts import shown
from pipesim.scenario.loading import parse_yaml, read_yaml_mapping
from pipesim.scenario.settings import Unknown

YAML = (".yaml", ".yml")


def scripts_of(request: Request) -> Script:
    """Read what is neither YAML, Python nor a table among a request's files, as scripts in sourcing order."""
    script = new_script(request.files, request.define)
    for path in request.paths:
        if path.suffix.lower() not in (*YAML, ".py", ".csv"):
            read_script(read_text(path), script)
    return script


def with_overrides(
    values: dict[str, Any], request: Request, inferred: dict[str, str], script: Script | None = None
) -> dict[str, Any]:
    """Lay the second and further files over the first: YAML, or scripts and texts with ``a.b=value``.

    Parameters
    ----------
    values : dict
        The first file's, nested; left as it is.
    request : Request
        Its further files are read.
    inferred : dict
        Receives what replaced what.
    script : Script, optional
        What the request's scripts come to; YAML files are then taken as laid over already.

    Returns
    -------
    dict
        Nested as before.

    Raises
    ------
    ScenarioError
        Unreadable files.
    """
    result = dict(values) if script is not None else overlaid(values, request.paths[1:])
    script = script or scripts_of(request)
    for words in script.commands:
        for word in words:
            name, equals, text = word.lstrip("+").partition("=")
            group, at, package = name.partition("@")
            parts = (f"{package}.name" if at else group).split(".")
            if parts[0] in ("training", "cfg"):
                parts = parts[1:]
            if not equals or name.startswith("-") or not all(part.isidentifier() for part in parts):
                continue
            why = script.variables.doubt(text)
            _set(result, parts, Unknown(why) if why else parse_yaml(text, file=request.files), inferred)
    inferred |= script.notes
    return result


def overlaid(values: Mapping[str, Any], paths: Iterable[Path]) -> dict[str, Any]:
    """Lay YAML files over what is there; one in a folder ``optim`` is the group of that name of Hydra.

    Parameters
    ----------
    values : Mapping
        Nested; left as it is.
    paths : iterable of Path
        Others than YAML are passed over.

    Returns
    -------
    dict
        Nested.

    Raises
    ------
    ScenarioError
        Unreadable files.
    """
    result = dict(values)
    for path in paths:
        if path.suffix.lower() in YAML:
            more = read_yaml_mapping(path)
            if path.absolute().parent.name == "optim" and "model" not in more:
                more = {"model": {"optim": more}}
            result = _merged(result, more)
    return result


def _merged(values: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    both = {key for key, item in more.items() if isinstance(item, dict) and isinstance(values.get(key), dict)}
    return {**values, **more, **{key: _merged(values[key], more[key]) for key in both}}


def _set(result: dict[str, Any], parts: list[str], value: Any, inferred: dict[str, str]) -> None:
    here = result
    for part in parts[:-1]:
        below = here.get(part)
        here[part] = dict(below) if isinstance(below, dict) else {}
        here = here[part]
    before = here.get(parts[-1])
    if before is not None and before != value:
        inferred[".".join(parts)] = f"{shown(value)} (an override; the file says {shown(before)})"
    here[parts[-1]] = value
