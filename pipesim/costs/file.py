"""Cost tables as YAML or JSON files: what calibration writes and ``costs: {file: ...}`` reads.

Keys are the fields of `CostTable`, so every number's unit stands in its name. A number that must stay exact
is written as text, ``"1/3"``; one such number makes the whole table exact.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from fractions import Fraction
from functools import cache, reduce
from operator import or_
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import numpy as np
import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PlainValidator,
    Strict,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    create_model,
)
from pydantic_core import to_jsonable_python

from pipesim.costs.network.alpha_beta import Number
from pipesim.costs.table import Array, CostTable
from pipesim.errors import ScenarioError
from pipesim.files import write_text
from pipesim.scenario.loading import read_yaml_mapping
from pipesim.scenario.problems import as_scenario_error, refused, shown
from pipesim.scenario.quantities import Count, CountOrZero

FORMAT = "pipesim cost table 1"

_EVIDENCE = "calibration"
_OF_THE_CLUSTER = (
    "fabric",
    "gradient_buckets",
    "memory_budget_bytes",
    "of_ranks",
    "optimizer_fixed_s",
    "second_embedding",
    "shard_exchange",
)
"""A file holds what ranks and links cost, not the cluster that they were worked out for."""
_ZERO_WHERE_LEFT_OUT = (
    "boundary_bytes",
    "gradient_bytes",
    "fixed_sync_s",
    "optimizer_s",
    "weight_bytes",
    "optimizer_bytes",
    "activation_bytes",
    "working_bytes",
)
_ALWAYS_STATED = ("gpus_per_rank", "gpus_per_node")
"""A file says where ranks lie, though the class has defaults."""


def write_cost_table(
    table: CostTable, path: str | Path, *, evidence: Mapping[str, Any] | None = None
) -> None:
    """Write a cost table; a name that ends in ``.json`` gives JSON, any other YAML.

    The file appears whole or not at all. `evidence` is plain data on how the numbers were found; it is kept
    under ``calibration``, and readers of the costs pass over it.

    Raises
    ------
    ScenarioError
        If the file cannot be written, or could not be read again.
    """
    stated = {name: getattr(table, name) for name in _schema(CostTable).model_fields}
    content = to_jsonable_python(
        {"format": FORMAT, **stated, _EVIDENCE: evidence},
        fallback=lambda value: value.tolist() if isinstance(value, np.ndarray) else str(value),
    )
    content = {name: value for name, value in content.items() if value is not None}
    if Path(path).suffix == ".json":
        text = json.dumps(content, indent=1, allow_nan=False) + "\n"
    else:
        text = yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=110)
    write_text(path, text, reader=read_cost_table)


def read_cost_table(path: str | Path) -> CostTable:
    """Read a cost table from a YAML or JSON file.

    Needed are the durations of F, B, I, W (one entry a stage) and ``point_to_point``; other arrays are zero
    and other facts unknown where they are left out.

    Raises
    ------
    ScenarioError
        If the file cannot be read or is no cost table; if a key is missing, unknown, or has an impossible
        value.
    """
    content = read_yaml_mapping(path)
    content.pop(_EVIDENCE, None)
    if content.pop("format", None) != FORMAT:
        message = f"is not a cost table; its first line must be 'format: {FORMAT}'"
        raise ScenarioError(message, file=str(path), key="format")
    schema = _schema(CostTable)
    context = {"exact": False}
    try:
        keys = schema.model_validate(content, context=context)
        if context["exact"]:
            keys = schema.model_validate(content, context=context)
    except ValidationError as error:
        raise as_scenario_error(error, schema, file=str(path)) from None
    values = dict(keys)
    for name in _ZERO_WHERE_LEFT_OUT:
        if values[name] is None:
            values[name] = 0 * values["forward_s"]
    return CostTable(**values)


def _number(value: object, info: ValidationInfo[dict[str, Any]]) -> Number:
    if isinstance(value, str):
        info.context["exact"] = True
    try:
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            raise ValueError
        exact = Fraction(value)  # refuses not-a-number and infinity as well as other text
        found = exact if info.context["exact"] else float(exact)
    except (ValueError, OverflowError, ZeroDivisionError):
        raise refused(f"found {shown(value)}; a finite number is needed") from None
    if found < 0:
        raise refused(f"found {shown(value)}; it cannot be negative")
    return found


def _above_zero(value: Number) -> Number:
    if value == 0:
        raise refused("must be above zero")
    return value


def _array(
    value: object, entries: ValidatorFunctionWrapHandler, info: ValidationInfo[dict[str, Any]]
) -> Array:
    if not isinstance(value, list) or not value:
        raise refused(f"found {shown(value)}; a list with one entry a stage is needed")
    first, num_stages = info.context.setdefault("stages", (info.field_name, len(value)))
    if len(value) != num_stages:
        found = f"found {len(value)} entries"
        raise refused(f"{found}; one entry a stage is needed, {first} has {num_stages}")
    return np.array(entries(value), dtype=object if info.context["exact"] else float)


def _three(value: object) -> object:
    if not isinstance(value, list) or len(value) != 3:
        raise refused(f"found {shown(value)}; [rank, rank, bytes per second] is needed")
    return value


_AnyNumber = Annotated[Number, PlainValidator(_number)]
_Positive = Annotated[_AnyNumber, AfterValidator(_above_zero)]
_Rank = Annotated[CountOrZero, Strict()]
_BY_TYPE: dict[Any, Any] = {
    Number: _AnyNumber,
    float: Annotated[_AnyNumber, AfterValidator(float)],
    int: Annotated[Count, Strict()],
    str: Annotated[str, BeforeValidator(str)],
    Array: Annotated[list[_AnyNumber], WrapValidator(_array)],
}
_BY_NAME: dict[str, Any] = {
    "bytes_per_s": _Positive,
    "pair_rates": tuple[Annotated[tuple[_Rank, _Rank, _Positive], BeforeValidator(_three)], ...],
}


@cache
def _schema(kind: Any) -> type[BaseModel]:
    """Give the keys that state an object of `kind`, a dataclass."""
    hints = get_type_hints(kind)
    keys: dict[str, Any] = {}
    for item in fields(kind):
        default = item.default_factory() if item.default_factory is not MISSING else item.default
        if item.name in _ZERO_WHERE_LEFT_OUT:
            default = None
        elif item.name in _ALWAYS_STATED or default is MISSING:
            default = ...
        if item.name not in _OF_THE_CLUSTER:
            keys[item.name] = (_checked(hints[item.name], item.name), default)
    config = ConfigDict(extra="forbid", protected_namespaces=())
    return create_model(kind.__name__, __config__=config, **keys)


def _checked(hint: Any, name: str) -> Any:
    origin: Any = get_origin(hint)
    inner = get_args(hint)
    if NoneType in inner:
        return _checked(reduce(or_, (part for part in inner if part is not NoneType)), name) | None
    if name in _BY_NAME:
        return _BY_NAME[name]
    if origin in (tuple, Mapping):
        return origin[tuple(_checked(part, name) for part in inner)]
    if is_dataclass(hint):
        kind: Any = hint
        return Annotated[_schema(kind), AfterValidator(lambda keys: kind(**dict(keys)))]
    return _BY_TYPE.get(hint, hint)
