"""pydantic's findings to one ScenarioError: the most telling one, and how many more there are."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticCustomError

from pipesim.errors import ScenarioError
from pipesim.scenario.nearest import did_you_mean

_WHOLE = "a whole number is needed"
_NEEDED = {
    "int_type": _WHOLE,
    "int_from_float": _WHOLE,
    "int_parsing": _WHOLE,
    "int_parsing_size": "a smaller whole number is needed",
    "bool_type": "true or false is needed",
    "string_type": "text is needed",
    "tuple_type": "a list is needed",
    "list_type": "a list is needed",
    "model_type": "a mapping of keys is needed",
    "model_attributes_type": "a mapping of keys is needed",
    "dict_type": "a mapping of keys is needed",
}


def refused(reason: str) -> PydanticCustomError:
    """Give what a validator raises, `reason` being the whole message."""
    return PydanticCustomError("refused", "{reason}", {"reason": reason})


def as_scenario_error(error: ValidationError, schema: type[BaseModel], *, file: str | None) -> ScenarioError:
    """Turn a validation error into one message.

    An unknown key comes first, since a misspelt key also leaves one missing; a missing key comes last.

    Parameters
    ----------
    error : ValidationError
        From validating `schema`.
    schema : type of BaseModel
        The model, for the allowed keys and what a missing key means.
    file : str, optional
        Where the values came from.

    Returns
    -------
    ScenarioError
        With the dotted path of the key, what was found and what is allowed.
    """
    found = error.errors(include_url=False)
    rank = {"extra_forbidden": 0, "missing": 2}
    first = min(found, key=lambda item: rank.get(item["type"], 1))
    message = _message(first, schema)
    if len(found) > 1:
        message += f" (and {len(found) - 1} more problem{'s' if len(found) > 2 else ''})"
    return ScenarioError(message, file=file, key=dotted(first["loc"]))


def dotted(location: Iterable[str | int]) -> str:
    """Write a location as a dotted path, list entries in brackets."""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path


def _message(item: Any, schema: type[BaseModel]) -> str:
    kind, location, value, context = item["type"], item["loc"], item["input"], item.get("ctx", {})
    if kind == "extra_forbidden":
        known = _keys(_model_at(schema, location[:-1]))
        return f"unknown key{did_you_mean(str(location[-1]), known)} (allowed here: {', '.join(known)})"
    if kind == "missing":
        field = _model_at(schema, location[:-1])
        about = _description(field, str(location[-1]))
        return f"missing{f'; needed: {about}' if about else ''}"
    if kind in _NEEDED:
        return f"found {shown(value)}; {_NEEDED[kind]}"
    if kind == "greater_than_equal":
        return f"found {shown(value)}; at least {context['ge']} is needed"
    if kind == "less_than_equal":
        return f"found {shown(value)}; at most {context['le']} is allowed"
    if kind == "literal_error":
        allowed = str(context["expected"]).replace("'", "").replace(" or ", ", ").split(", ")
        return f"found {shown(value)}{did_you_mean(str(value), allowed)}; allowed: {', '.join(allowed)}"
    return str(item["msg"])


def shown(value: object) -> str:
    """Write what was found as a file would, shortened."""
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _keys(model: type[BaseModel]) -> list[str]:
    own = [field.alias or name for name, field in model.model_fields.items()]
    return [*getattr(model, "references", ()), *own]


def _description(model: type[BaseModel], key: str) -> str | None:
    for name, field in model.model_fields.items():
        if key == (field.alias or name):
            return field.description
    return None


def _model_at(model: type[BaseModel], location: Sequence[str | int]) -> type[BaseModel]:
    for part in location:
        if isinstance(part, int):
            continue
        field = next((f for name, f in model.model_fields.items() if (f.alias or name) == part), None)
        inner = None if field is None else _model_in(field.annotation)
        if inner is None:
            break
        model = inner
    return model


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in typing.get_args(annotation):
        inner = _model_in(argument)
        if inner is not None:
            return inner
    return None
