"""JSON objects of other tools, strictly: no duplicate keys, one message for what is not JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pipesim.errors import ScenarioError
from pipesim.reading import read_text


def read_json_object(path: str | Path) -> dict[str, Any]:
    """Read a file that holds one JSON object.

    Raises
    ------
    ScenarioError
        Unreadable, empty, not JSON, duplicate keys, or something else than an object at the top.
    """
    text = read_text(path)
    if not text.strip():
        raise ScenarioError("is empty, a JSON object is needed", file=str(path))
    return parse_json_object(text, file=str(path))


def parse_json_object(text: str, *, file: str) -> dict[str, Any]:
    """Parse one JSON object.

    Parameters
    ----------
    text : str
        The object.
    file : str
        For messages.

    Returns
    -------
    dict
        Its values.

    Raises
    ------
    ScenarioError
        As for `read_json_object`.
    """
    try:
        value = json.loads(text, object_pairs_hook=_without_duplicates, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise ScenarioError(
            f"is not JSON: line {error.lineno}, column {error.colno}: {error.msg}", file=file
        ) from None
    except (ValueError, RecursionError) as error:
        raise ScenarioError(f"is not readable as JSON: {str(error)[:200]}", file=file) from None
    if not isinstance(value, dict):
        raise ScenarioError("holds no JSON object at the top", file=file)
    return value


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"duplicate key {key[:60]!r}")
        result[key] = value
    return result


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
