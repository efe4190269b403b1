"""Values of a YAML file with OmegaConf's ``${...}``: references and plain arithmetic, resolved when read.

Understood are ``${a.b}`` from the top, ``${.b}`` beside, ``${..b}`` one level up,
``${oc.env:NAME,default}``, ``${NAME:default}`` as an environment default, and the arithmetic that NeMo's
launcher registers: ``multiply``, ``divide_ceil``, ``divide_floor``, ``divide``, ``sum``, ``add`` and
``subtract``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from pipesim.errors import ScenarioError
from pipesim.importers.values import Unknown
from pipesim.scenario.counts import clean

MAX_DEPTH = 20
MAX_STEPS = 20_000
_INNERMOST = re.compile(r"\$\{([^${}]*)\}")
_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
_ARITHMETIC: dict[str, Callable[[list[int]], int]] = {
    "multiply": lambda numbers: math.prod(numbers),
    "sum": lambda numbers: sum(numbers),
    "add": lambda numbers: sum(numbers),
    "subtract": lambda numbers: numbers[0] - sum(numbers[1:]),
    "divide_ceil": lambda numbers: -(-numbers[0] // math.prod(numbers[1:])),
    "divide_floor": lambda numbers: numbers[0] // math.prod(numbers[1:]),
    "divide": lambda numbers: _exactly(numbers[0], math.prod(numbers[1:])),
}


def resolved(document: Mapping[str, Any], *, file: str, mounted: str = "") -> dict[str, Any]:
    """Put values in place of references.

    Parameters
    ----------
    document : Mapping
        The file.
    file : str
        For messages.
    mounted : str
        Where the file hangs in the whole configuration, such as ``training``: references may start there.

    Returns
    -------
    dict
        Nested as before; what refers outside the file is `Unknown`.

    Raises
    ------
    ScenarioError
        References in a circle or without end, or arithmetic on what is not a whole number.
    """
    return _Resolver(document, file, mounted).mapping(document, ())


class _Resolver:
    def __init__(self, document: Mapping[str, Any], file: str, mounted: str) -> None:
        self._document = document
        self._file = file
        self._mounted = mounted
        self._steps = 0

    def mapping(self, values: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
        return {
            key: self.mapping(value, (*path, key))
            if isinstance(value, Mapping)
            else self._value(value, (*path, key), 0)
            for key, value in values.items()
        }

    def _value(self, value: Any, path: tuple[str, ...], depth: int) -> Any:
        if not isinstance(value, str) or "${" not in value:
            return value
        if depth > MAX_DEPTH:
            raise self._error(path, "its references run in a circle, or are nested too deeply")
        text = value
        while (match := _INNERMOST.search(text)) is not None:
            self._steps += 1
            if self._steps > MAX_STEPS or len(text) > 100_000:
                raise self._error(path, "its references are without end")
            found = self._one(match[1], path, depth)
            if isinstance(found, Unknown) or match[0] == text:
                return found
            text = text[: match.start()] + str(found) + text[match.end() :]
        return text if "${" not in text else Unknown(clean(value, most=80))

    def _one(self, inside: str, path: tuple[str, ...], depth: int) -> Any:
        name, colon, arguments = inside.partition(":")
        name = name.strip()
        if not colon:
            return self._reference(name, path, depth)
        if name == "oc.env":
            variable, comma, default = arguments.partition(",")
            return _typed(default.strip()) if comma else Unknown(f"${variable.strip()} of the environment")
        if name in _ARITHMETIC:
            numbers = [part.strip() for part in arguments.split(",")]
            if not all(_WHOLE.fullmatch(number) for number in numbers) or len(numbers) < 2:
                raise self._error(path, f"{name} needs two or more whole numbers, found {arguments[:60]!r}")
            try:
                result = _ARITHMETIC[name]([int(number) for number in numbers])
            except (ZeroDivisionError, ValueError):
                raise self._error(path, f"{name} of {arguments[:60]!r} is not a whole number") from None
            if abs(result) > 10**18:
                raise self._error(path, f"{name} of {arguments[:60]!r} is too large")
            return result
        if re.fullmatch(r"[A-Z][A-Z0-9_]*", name):
            return _typed(arguments.strip())
        return Unknown(f"${{{inside}}}")

    def _reference(self, name: str, path: tuple[str, ...], depth: int) -> Any:
        dots = len(name) - len(name.lstrip("."))
        parts = tuple(name[dots:].split("."))
        start = path[: len(path) - dots] if dots else ()
        if not dots and self._mounted and parts[0] == self._mounted and self._mounted not in self._document:
            parts = parts[1:]
        here: Any = self._document
        for part in (*start, *parts):
            if not isinstance(here, Mapping) or part not in here:
                return Unknown(f"${{{name}}}, which is not in the file")
            here = here[part]
        if isinstance(here, (Mapping, list)):
            return Unknown(f"${{{name}}}, which is not a single value")
        return self._value(here, (*start, *parts), depth + 1)

    def _error(self, path: tuple[str, ...], problem: str) -> ScenarioError:
        return ScenarioError(problem, file=self._file, key=".".join(path))


def _typed(text: str) -> Any:
    """Read the text of a default as YAML would."""
    if _WHOLE.fullmatch(text):
        return int(text)
    return {"true": True, "false": False, "null": None, "": None}.get(text.lower(), text)


def _exactly(dividend: int, divisor: int) -> int:
    quotient, rest = divmod(dividend, divisor)
    if rest:
        raise ValueError
    return quotient
