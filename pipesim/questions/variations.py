"""What a sweep varies: ``KEY=VALUES``, and the rows that several of them span."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipesim.errors import ScenarioError
from pipesim.scenario import parse_override, plain

MAX_ROWS = 100_000
"""Rows of one sweep: ten minutes and a gigabyte; more is a slip of the hand."""
_OPEN, _CLOSE, _QUOTES = "[{(", "]})", "\"'"


@dataclass(frozen=True, slots=True)
class Axis:
    """Keys that take their values together.

    Parameters
    ----------
    keys : tuple of str
        Dotted paths into the scenario.
    values : tuple of tuple of str
        YAML texts, one of each key.
    """

    keys: tuple[str, ...]
    values: tuple[tuple[str, ...], ...]


def parse_axis(text: str) -> Axis:
    """Read ``parallel.tensor=1,2,4`` or, for keys that change together, ``A,B=1:2,2:4``.

    Values are parted by commas outside brackets and quotes; brackets around all of them may be written.

    Raises
    ------
    ScenarioError
        If there is no ``=``, a key or value is empty, a value occurs twice, or their numbers differ.
    """
    left, equals, right = text.partition("=")
    keys = tuple(key.strip() for key in left.split(","))
    if not equals or not all(keys):
        raise _error(text, "must have the form KEY=VALUE,VALUE,... with a dotted KEY")
    listed = right.strip()
    if listed.startswith("[") and listed.endswith("]") and len(_split(listed, ",")) == 1:
        listed = listed[1:-1]
    entries = _split(listed, ",")
    groups = [tuple(_split(entry, ":")) if len(keys) > 1 else (entry,) for entry in entries]
    if not all(all(group) for group in groups):
        raise _error(text, "has an empty value; needed: KEY=VALUE,VALUE,... with at least one value")
    return _checked(Axis(keys, tuple(groups)), text)


def axis_of(keys: str | tuple[str, ...], values: Any) -> Axis:
    """Vary a key over values, or several keys together over tuples of as many.

    Raises
    ------
    ScenarioError
        If there is no value, one occurs twice, or is of no kind that a file can hold.
    """
    names = keys if isinstance(keys, tuple) else (keys,)
    single = isinstance(values, str | Mapping) or not isinstance(values, Iterable)
    listed = [values] if single else list(values)
    groups = [tuple(value) if isinstance(keys, tuple) else (value,) for value in listed]
    label = ",".join(map(str, names))
    if not groups:
        raise _error(label, "found no value; needed: at least one")
    return _checked(Axis(names, tuple(tuple(map(_yaml, group)) for group in groups)), label)


def _yaml(value: Any) -> str:
    try:
        return value if isinstance(value, str) else json.dumps(plain(value))
    except TypeError:
        needed = "numbers, text, booleans, lists and mappings"
        raise ScenarioError(f"found {value!r}; a sweep varies {needed}", key="--vary") from None


def _checked(axis: Axis, text: str) -> Axis:
    for group in axis.values:
        if len(group) != len(axis.keys):
            raise _error(text, f"{':'.join(group)!r} has {len(group)} values for {len(axis.keys)} keys")
        for key, value in zip(axis.keys, group, strict=True):
            parse_override(f"{key}={value}")
    for group, count in Counter(axis.values).items():
        if count > 1:
            raise _error(text, f"{':'.join(group)} occurs twice")
    return axis


def grid(axes: Sequence[Axis]) -> list[tuple[str, ...]]:
    """List the overrides ``KEY=VALUE`` of each row; the first axis changes slowest.

    Raises
    ------
    ScenarioError
        If nothing varies, two axes have a key in common, or there are too many rows.
    """
    if not axes:
        raise ScenarioError("needed at least once: KEY=VALUE,VALUE,...", key="--vary")
    keys = [key for axis in axes for key in axis.keys]
    for key, count in Counter(keys).items():
        if count > 1:
            raise ScenarioError(f"{key} is varied twice", key="--vary")
    num_rows = math.prod(len(axis.values) for axis in axes)
    if num_rows > MAX_ROWS:
        counts = " x ".join(str(len(axis.values)) for axis in axes)
        raise ScenarioError(f"{counts} = {num_rows:,} rows; at most {MAX_ROWS:,} can be held", key="--vary")
    return [
        tuple(
            f"{key}={value}"
            for axis, group in zip(axes, point, strict=True)
            for key, value in zip(axis.keys, group, strict=True)
        )
        for point in itertools.product(*(axis.values for axis in axes))
    ]


def _split(text: str, separator: str) -> list[str]:
    """Split outside brackets and quotes, and strip."""
    parts, start, depth, quote = [], 0, 0, ""
    for place, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in _QUOTES:
            quote = character
        elif character in _OPEN:
            depth += 1
        elif character in _CLOSE:
            depth -= 1
        elif character == separator and depth == 0:
            parts.append(text[start:place].strip())
            start = place + 1
    return [*parts, text[start:].strip()]


def _error(text: str, message: str) -> ScenarioError:
    return ScenarioError(message, key=f"--vary {text}")
