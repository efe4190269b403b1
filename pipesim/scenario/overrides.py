"""Dotted paths into a scenario's mapping: ``--set KEY=VALUE``, and changes that a program makes."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pipesim.errors import ScenarioError
from pipesim.scenario.loading import parse_yaml

_NAMED = {
    "model": "preset",
    "efficiency": "preset",
    "cluster.accelerator": "preset",
    "cluster.intra_node": "preset",
    "cluster.inter_node": "preset",
    "schedule": "name",
    "precision": "compute",
}
"""Where a text stands for a mapping with one key, so that an override may reach below it."""


def apply_overrides(mapping: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Set values in a copy of a scenario's mapping.

    Parameters
    ----------
    mapping : Mapping
        The scenario before validation; left as it is.
    overrides : iterable of str
        Each ``KEY=VALUE``: KEY a dotted path such as ``cluster.num_nodes``, VALUE read as YAML. Mappings on
        the way that are missing are made; a preset's name on the way becomes that preset with overrides.

    Returns
    -------
    dict
        The changed copy.

    Raises
    ------
    ScenarioError
        No ``=``, an empty part in the path, a value that is not YAML, or a path through a plain value.
    """
    result = copy.deepcopy(dict(mapping))
    for override in overrides:
        key, value = parse_override(override)
        _put(result, key, value, label=_label(override))
    return result


def apply_changes(mapping: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Set values in a copy of a scenario's mapping, as a program states them.

    Parameters
    ----------
    mapping : Mapping
        The scenario before validation; left as it is.
    changes : Mapping
        By dotted path. A mapping is laid over the section that is there, unless it names what it stands for
        (a preset, a file, a schedule): then it takes the section's place. None takes a key away.

    Raises
    ------
    ScenarioError
        A path through a plain value.
    """
    result = copy.deepcopy(dict(mapping))
    for key, value in changes.items():
        for path, leaf in _leaves(key, value):
            _put(result, path, copy.deepcopy(leaf), label=f"change of {path}")
    return {key: _without_nothing(value) for key, value in result.items() if value is not None}


def _without_nothing(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: _without_nothing(below) for key, below in value.items() if below is not None}


_NAMING = ("preset", "name", "hf", "torch", "csv", "file", "machine")


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, Mapping) or not value or any(name in value for name in _NAMING):
        yield path, value
        return
    for key, below in value.items():
        yield from _leaves(f"{path}.{key}", below)


def _put(result: dict[str, Any], key: str, value: Any, *, label: str) -> None:
    *parents, last = key.split(".")
    here = result
    for depth, part in enumerate(parents):
        path = ".".join(parents[: depth + 1])
        below = here.get(part)
        if isinstance(below, str) and path in _NAMED:
            below = {_NAMED[path]: below}
        elif below is None:
            below = {}
        if not isinstance(below, dict):
            raise ScenarioError(
                f"{path} is {below!r}, a single value, so nothing can be set below it", file=label
            )
        here[part] = below
        here = below
    here[last] = value


def parse_override(override: str) -> tuple[str, Any]:
    """Split ``KEY=VALUE`` into the dotted path and the value read as YAML; refuse what is malformed."""
    key, equals, text = override.partition("=")
    key = key.strip()
    if not equals or not all(part.strip() == part != "" for part in key.split(".")):
        raise ScenarioError(
            "must have the form KEY=VALUE with a dotted KEY, such as cluster.num_nodes=4",
            file=_label(override),
        )
    return key, parse_yaml(text, file=_label(override))


def blame_override(
    error: ScenarioError, mapping: Mapping[str, Any], overrides: Iterable[str]
) -> ScenarioError:
    """Name the override in place of the file where the value or the section at fault came from one."""
    for override in overrides:
        made = _first_made(mapping, parse_override(override)[0])
        if error.key and (error.key == made or error.key.startswith((f"{made}.", f"{made}["))):
            return ScenarioError(error.message, file=_label(override), key=error.key)
    return error


def _first_made(mapping: Mapping[str, Any], key: str) -> str:
    """Give the path of the outermost section that setting `key` makes, or `key` where there is none."""
    parts = key.split(".")
    here: Any = mapping
    for depth, part in enumerate(parts):
        if not isinstance(here, Mapping) or part not in here:
            return ".".join(parts[: depth + 1])
        here = here[part]
    return key


def _label(override: str) -> str:
    return f"--set {override}"
