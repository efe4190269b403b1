"""YAML text to plain mappings, strictly: what a person would not expect is an error with its line."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import yaml

from pipesim.errors import ScenarioError

MAX_FILE_BYTES = 1 << 20
MAX_DEPTH = 40
MAX_VALUES = 200_000
"""Values after aliases are expanded: a short file of nested aliases can stand for billions."""


def read_text(path: str | Path) -> str:
    """Read a small UTF-8 text file.

    Parameters
    ----------
    path : str or Path
        The file.

    Returns
    -------
    str
        Its text, without a byte order mark.

    Raises
    ------
    ScenarioError
        Missing, a directory, unreadable, larger than 1 MiB, or not UTF-8 text.
    """
    if not isinstance(path, str | os.PathLike):
        raise ScenarioError(f"found {type(path).__name__}; needed: the name of a file")
    file = str(path)
    try:
        with Path(path).open("rb") as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise ScenarioError("no such file", file=file) from None
    except IsADirectoryError:
        raise ScenarioError("is a directory, a file is needed", file=file) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ScenarioError(f"cannot be read: {reason}", file=file) from None
    if len(content) > MAX_FILE_BYTES:
        raise ScenarioError(f"is larger than {MAX_FILE_BYTES >> 20} MiB, too large to be meant", file=file)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ScenarioError(f"is not a UTF-8 text file (byte {error.start})", file=file) from None
    if "\0" in text:
        raise ScenarioError(f"is not a text file (byte {text.index(chr(0))} is zero)", file=file)
    return text


def read_yaml_mapping(path: str | Path) -> dict[str, Any]:
    """Read a YAML file whose top level is a mapping.

    Parameters
    ----------
    path : str or Path
        The file.

    Returns
    -------
    dict
        Keys are text at every level; numbers, booleans and null follow YAML 1.2.

    Raises
    ------
    ScenarioError
        What `read_text` refuses; not YAML; duplicate keys; nested too deeply; anything but one mapping.
    """
    file = str(path)
    value = parse_yaml(read_text(path), file=file)
    if value is None:
        raise ScenarioError("is empty, a mapping of keys is needed", file=file)
    if not isinstance(value, dict):
        kind = "list" if isinstance(value, list) else "single value"
        raise ScenarioError(f"holds a {kind} at the top, a mapping of keys is needed", file=file)
    return value


def parse_yaml(text: str, *, file: str | None = None) -> Any:
    """Parse one YAML document.

    Parameters
    ----------
    text : str
        The document.
    file : str, optional
        Where it came from, for messages.

    Returns
    -------
    object
        Mappings, lists and scalars; None for an empty document.

    Raises
    ------
    ScenarioError
        Not YAML, duplicate keys, aliases that expand without bound, nested too deeply, not printable.
    """
    try:
        loader = _StrictLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _expanded_size(node, {}, file)
        return loader.construct_document(node)
    except yaml.YAMLError as error:
        raise ScenarioError(_describe(error), file=file) from None
    except (ValueError, OverflowError, RecursionError) as error:
        raise ScenarioError(f"is not readable as YAML: {str(error).splitlines()[0]}", file=file) from None


_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff]")
"""Control characters and halves of surrogate pairs: YAML's escapes can state them, files cannot hold them."""


class _StrictLoader(yaml.SafeLoader):
    """Safe loader that bounds depth, refuses duplicate and non-text keys, and resolves scalars as YAML 1.2.

    YAML 1.1 would read ``010`` as 8, ``1:30`` as 90, ``off`` as false and ``1e-3`` as text.
    """

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise yaml.MarkedYAMLError(
                problem=f"nested more than {MAX_DEPTH} levels deep", problem_mark=self.get_mark()
            )
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            if key_node.tag != "tag:yaml.org,2002:str":
                raise yaml.MarkedYAMLError(
                    problem="a key that is not text; write it in quotes", problem_mark=key_node.start_mark
                )
            if key_node.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"duplicate key {key_node.value!r}", problem_mark=key_node.start_mark
                )
            seen.add(key_node.value)
        return node


for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?(?:0|[1-9][0-9_]*)", "-+0123456789"),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+.0123456789",
    ),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("merge", r"<<", "<"),
):
    _StrictLoader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), list(_first)
    )


def _expanded_size(node: yaml.Node, sizes: dict[int, int], file: str | None) -> int:
    """Count the values under `node` as if aliases were written out; a node inside itself never ends."""
    identity = id(node)
    if identity in sizes:
        if sizes[identity] < 0:
            raise ScenarioError(_at(node.start_mark, "an alias that contains itself"), file=file)
        return sizes[identity]
    sizes[identity] = -1
    size = 1
    if isinstance(node, yaml.ScalarNode) and (odd := _UNPRINTABLE.search(node.value)):
        found = f"a character that cannot be printed, U+{ord(odd[0]):04X}"
        raise ScenarioError(_at(node.start_mark, found), file=file)
    if isinstance(node, yaml.MappingNode):
        children = [child for pair in node.value for child in pair]
    else:
        children = node.value if isinstance(node, yaml.SequenceNode) else []
    for child in children:
        size += _expanded_size(child, sizes, file)
        if size > MAX_VALUES:
            raise ScenarioError(_at(node.start_mark, f"expands to more than {MAX_VALUES} values"), file=file)
    sizes[identity] = size
    return size


def _at(mark: yaml.Mark | None, problem: str) -> str:
    return problem if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: {problem}"


def _describe(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError):
        problem = ", ".join(part for part in (error.context, error.problem) if part) or "not YAML"
        return _at(error.problem_mark or error.context_mark, problem)
    return f"is not YAML: {str(error).splitlines()[0]}"
