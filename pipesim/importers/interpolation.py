"""Values of a YAML file with OmegaConf's ``${...}``, and the arithmetic that NeMo's launcher registers.

The environment is never read: ``${oc.env:NAME,default}`` is what a script beside the file assigns, or its
default.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import (
    InterpolationKeyError,
    MissingMandatoryValue,
    OmegaConfBaseException,
    UnsupportedInterpolationType,
)
from omegaconf.resolvers import oc

from pipesim.errors import ScenarioError
from pipesim.scenario.counts import clean
from pipesim.scenario.loading import parse_yaml
from pipesim.scenario.settings import Unknown

MAX_DEPTH = 20
MAX_STEPS = 20_000
_REFERENCE = re.compile(r"\$\{([^${}:]*)\}")
_COMPUTED_NAME = re.compile(r"\$\{[^:{}]*\$\{")
_SHORT_DEFAULT = re.compile(r"\$\{([A-Z][A-Z0-9_]*):([^${}]*)\}")
"""``${NAME:default}``, as some launchers write defaults of the environment."""
_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "multiply": lambda *numbers: math.prod(numbers),
    "sum": lambda *numbers: sum(numbers),
    "add": lambda *numbers: sum(numbers),
    "subtract": lambda first, *numbers: first - sum(numbers),
    "divide_ceil": lambda first, *numbers: -(-first // math.prod(numbers)),
    "ceil_div": lambda first, *numbers: -(-first // math.prod(numbers)),
    "divide_floor": lambda first, *numbers: first // math.prod(numbers),
    "floor_div": lambda first, *numbers: first // math.prod(numbers),
    "divide": lambda first, *numbers: _exactly(first, math.prod(numbers)),
    "div": lambda first, *numbers: first / math.prod(numbers),
    "min": min,
    "max": max,
    "lt": lambda first, second: first < second,
    "gt": lambda first, second: first > second,
}
_CHOICES: dict[str, Callable[..., Any]] = {
    "if": lambda condition, then, otherwise: then if condition else otherwise,
    "eq": lambda first, second: first == second,
    "neq": lambda first, second: first != second,
}
"""What NeMo's launcher and MLPerf's submissions register; the latter by names that are not the former's."""


def resolved(
    document: Mapping[str, Any], *, file: str, mounted: str = "", environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Put values in place of references.

    Parameters
    ----------
    document : Mapping
        The file.
    file : str
        For messages.
    mounted : str
        Where the file hangs in the whole configuration, such as ``training``: references may start there.
    environment : Mapping, optional
        What ``${oc.env:NAME}`` stands for: variables of scripts that were named beside the file.

    Returns
    -------
    dict
        Nested as before; what refers outside the file, or is left to be stated (``???``), is `Unknown`.

    Raises
    ------
    ScenarioError
        References in a circle or without end, or arithmetic on what is not a whole number.
    """
    plain = _readable(document, file, ())
    whole = {mounted: plain, **plain} if mounted and mounted not in plain else plain
    _refuse_without_end(whole, file)
    with _own_resolvers(environment or {}):
        return _mapping(OmegaConf.create(whole), document, file, ())


def _readable(value: Any, file: str, path: tuple[str, ...]) -> Any:
    """Write defaults as OmegaConf does, and leave out texts that it cannot read.

    Raises
    ------
    ScenarioError
        A resolver whose arguments cannot be read.
    """
    if isinstance(value, Mapping):
        return {key: _readable(item, file, (*path, key)) for key, item in value.items()}
    if isinstance(value, list):
        return [_readable(item, file, path) for item in value]
    if not isinstance(value, str) or "${" not in value:
        return value
    text = _SHORT_DEFAULT.sub(r"${oc.env:\1,\2}", value)
    try:
        OmegaConf.create({"text": text})
    except OmegaConfBaseException as error:
        if ":" in text:
            raise ScenarioError(
                f"{clean(value, most=80)}: {_line(error)}", file=file, key=".".join(path)
            ) from None
        return "???"
    return text


@contextmanager
def _own_resolvers(environment: Mapping[str, str]) -> Iterator[None]:
    """Register the launcher's arithmetic and a stated environment, and put back what was there."""

    def variable(name: str, *default: Any) -> Any:
        if name in environment:
            return environment[name]
        if not default:
            raise KeyError(name)
        return default[0]

    functions = {name: _counted(function) for name, function in _ARITHMETIC.items()} | _CHOICES
    added = [name for name in functions if not OmegaConf.has_resolver(name)]
    OmegaConf.register_resolver("oc.env", variable, replace=True)
    OmegaConf.register_resolver("oc.decode", _decoded, replace=True)
    for name in added:
        OmegaConf.register_resolver(name, functions[name])
    try:
        yield
    finally:
        OmegaConf.register_resolver("oc.env", oc.env, replace=True)
        OmegaConf.register_resolver("oc.decode", oc.decode, replace=True)
        for name in added:
            OmegaConf.clear_resolver(name)


def _decoded(value: Any) -> Any:
    """Read a text as YAML would; defaults are read already."""
    return parse_yaml(value) if isinstance(value, str) else value


def _counted(function: Callable[..., Any]) -> Callable[..., Any]:
    def compute(*numbers: Any) -> Any:
        if len(numbers) < 2 or any(type(number) not in (int, float) for number in numbers):
            raise ValueError("two or more numbers are needed")
        if not all(abs(number) <= 10**18 for number in numbers):
            raise ValueError("a number is too large")
        result = function(*numbers)
        if not abs(result) <= 10**18:
            raise ValueError("the result is too large")
        return result

    return compute


def _exactly(dividend: int, divisor: int) -> int:
    quotient, rest = divmod(dividend, divisor)
    if rest:
        raise ValueError("the result is not a whole number")
    return quotient


def _mapping(config: Any, values: Mapping[str, Any], file: str, path: tuple[str, ...]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            result[key] = _mapping(config[key], value, file, (*path, key))
        elif isinstance(value, (str, list)):
            result[key] = _value(config, key, value, file, (*path, key))
        else:
            result[key] = value
    return result


def _value(config: Any, key: str, raw: str | list[Any], file: str, path: tuple[str, ...]) -> Any:
    if isinstance(raw, str) and _COMPUTED_NAME.search(raw):
        return Unknown(clean(raw, most=80))
    try:
        value = config[key]
    except MissingMandatoryValue:
        return Unknown("???, which is left to be stated")
    except InterpolationKeyError as error:
        return Unknown(f"{clean(str(raw), most=80)}, which is not in the file: {_line(error)}")
    except UnsupportedInterpolationType:
        return Unknown(clean(str(raw), most=80))
    except OmegaConfBaseException as error:
        if "parent node" in str(error):
            return Unknown(f"{clean(str(raw), most=80)}, which is not a single value")
        if "KeyError raised" in str(error):
            return Unknown(f"{clean(str(raw), most=80)} of the environment")
        raise ScenarioError(
            f"{clean(str(raw), most=80)}: {_line(error)}", file=file, key=".".join(path)
        ) from None
    if isinstance(value, (DictConfig, ListConfig)):
        if isinstance(raw, list):
            return OmegaConf.to_container(value, resolve=False)
        return Unknown(f"{clean(raw, most=80)}, which is not a single value")
    return value


def _refuse_without_end(document: Mapping[str, Any], file: str) -> None:
    """Count what resolving each text takes: texts that refer twice to texts that refer twice grow fast."""
    texts = dict(_texts(document, ()))
    steps: dict[tuple[str, ...], int] = {}

    def cost(path: tuple[str, ...], above: tuple[tuple[str, ...], ...]) -> int:
        if path in above or len(above) > MAX_DEPTH:
            raise ScenarioError(
                "its references run in a circle, or are nested too deeply", file=file, key=".".join(above[0])
            )
        if path not in steps:
            total = 1
            for name in _REFERENCE.findall(texts.get(path, "")):
                dots = len(name) - len(name.lstrip("."))
                start = path[: len(path) - dots] if dots else ()
                total += cost((*start, *name[dots:].strip().split(".")), (*above, path))
            if total > MAX_STEPS:
                raise ScenarioError("its references are without end", file=file, key=".".join(path))
            steps[path] = total
        return steps[path]

    for path in texts:
        cost(path, ())


def _texts(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _texts(item, (*path, key))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _texts(item, (*path, str(number)))
    elif isinstance(value, str) and "${" in value:
        yield path, value


def _line(error: Exception) -> str:
    return clean(str(error).splitlines()[0] if str(error) else type(error).__name__, most=160)
