"""Dotted paths into a scenario's mapping: ``--set KEY=VALUE``, and changes that a program makes."""

from __future__ import annotations

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
    result = _copied(mapping)
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
    result = _copied(mapping)
    for key, value in _copied(changes).items():
        for path, leaf in _leaves(key, value):
            _put(result, path, leaf, label=f"change of {path}")
    return {key: _without_nothing(value) for key, value in result.items() if value is not None}


def _copied(mapping: object) -> dict[str, Any]:
    """Copy what a caller gave, in plain types all the way down."""
    if not isinstance(mapping, Mapping):
        raise ScenarioError(f"found {type(mapping).__name__}; needed: a mapping of keys, as a file holds")
    copied: dict[str, Any] = plain(mapping)
    return copied


def plain(value: Any) -> Any:
    """Copy nested mappings and lists; numbers and arrays of numpy, pandas and torch become plain ones.

    Raises
    ------
    ScenarioError
        If a key is not text.
    """
    if isinstance(value, Mapping):
        if odd := [key for key in value if not isinstance(key, str)]:
            raise ScenarioError(f"found the key {odd[0]!r}; keys are text")
        return {key: plain(below) for key, below in value.items()}
    if hasattr(value, "tolist"):
        value = value.tolist()
    return [plain(below) for below in value] if isinstance(value, list | tuple) else value


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
    if not isinstance(override, str):
        raise ScenarioError(f"found {type(override).__name__}; needed: KEY=VALUE as text, each by itself")
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
    return blame(error, mapping, ((parse_override(text)[0], _label(text)) for text in overrides))


def blame_changes(
    error: ScenarioError, mapping: Mapping[str, Any], changes: Mapping[str, Any]
) -> ScenarioError:
    """As `blame_override`, where a program made the changes."""
    paths = [path for key, value in changes.items() for path, _ in _leaves(key, value)]
    return blame(error, mapping, ((path, "with_") for path in paths))


def blame(
    error: ScenarioError, mapping: Mapping[str, Any], labels: Iterable[tuple[str, str]]
) -> ScenarioError:
    """Name the first change, of those given by path and label, that the error's key comes from."""
    for path, label in labels:
        made = _first_made(mapping, path)
        if error.key and (error.key == made or error.key.startswith((f"{made}.", f"{made}["))):
            return ScenarioError(error.message, file=label, key=error.key)
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
