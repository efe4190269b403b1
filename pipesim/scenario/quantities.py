"""Field types of the schema: numbers with units, read by `pipesim.units`, refused in pydantic's way."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Annotated, Any

from pydantic import Field, PlainValidator

from pipesim import units
from pipesim.errors import ScenarioError
from pipesim.scenario.problems import refused

Number = float | Fraction
PerStage = Number | tuple[Number, ...]


def _checked(parse: Callable[..., Any], **options: bool) -> PlainValidator:
    def validate(value: object) -> Any:
        try:
            return parse(value, **options)
        except ScenarioError as error:
            raise refused(error.message) from None

    return PlainValidator(validate)


def _one_or_per_stage(parse: Callable[..., Number], **options: bool) -> PlainValidator:
    def parse_all(value: object) -> PerStage:
        if not isinstance(value, (list, tuple)):
            return parse(value, **options)
        if not value:
            raise ScenarioError("is an empty list; needed: one value, or a list with one entry a stage")
        entries = []
        for stage, entry in enumerate(value):
            try:
                entries.append(parse(entry, **options))
            except ScenarioError as error:
                raise ScenarioError(f"stage {stage}: {error.message}") from None
        return tuple(entries)

    return _checked(parse_all)


def _number(value: object, *, allow_zero: bool) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ScenarioError(f"found {value!r}; a number without a unit is needed")
    if not (0 <= value < 1e18) or (value == 0 and not allow_zero):
        bound = "of at least zero" if allow_zero else "above zero"
        raise ScenarioError(f"found {value!r}; a finite number {bound} is needed")
    return float(value)


def _float_time_s(value: object, *, positive: bool = False) -> float:
    return float(units.parse_time_s(value, positive=positive))


def _spread(value: object) -> float:
    found = _number(value, allow_zero=True)
    if found > 1:
        raise ScenarioError(f"found {value!r}; at most 1 is allowed (0.02 means 2 %)")
    return found


def _share_below_one(value: object) -> float:
    text = value.strip() if isinstance(value, str) else value
    try:
        found = 0.0 if text in ("0%", "0 %") else _share_or_zero(value)
    except ScenarioError:
        found = 1.0
    if found >= 1:
        needed = "a share of at least 0 and below 1 is needed, such as 0.05 or 5 %"
        raise ScenarioError(f"found {value!r}; {needed}")
    return found


def _share_or_zero(value: object) -> float:
    is_zero = isinstance(value, (int, float)) and not isinstance(value, bool) and value == 0
    return 0.0 if is_zero else units.parse_fraction(value)


Count = Annotated[int, Field(ge=1, le=10**9)]
Pieces = Annotated[int, Field(ge=1, le=10**6)]
"""A count that arrays are made of: a slip of the hand must not fill the memory."""
CountOrZero = Annotated[int, Field(ge=0, le=2**63 - 1)]
Seconds = Annotated[Number, _checked(units.parse_time_s)]
PositiveSeconds = Annotated[Number, _checked(units.parse_time_s, positive=True)]
FloatSeconds = Annotated[float, _checked(_float_time_s)]
PositiveFloatSeconds = Annotated[float, _checked(_float_time_s, positive=True)]
Bytes = Annotated[float, _checked(units.parse_bytes)]
PositiveBytes = Annotated[float, _checked(units.parse_bytes, positive=True)]
BytesPerS = Annotated[float, _checked(units.parse_bytes_per_s)]
FlopsPerS = Annotated[float, _checked(units.parse_flops_per_s)]
Share = Annotated[float, _checked(units.parse_fraction)]
ShareOrZero = Annotated[float, _checked(_share_or_zero)]
ShareBelowOne = Annotated[float, _checked(_share_below_one)]
PositiveNumber = Annotated[float, _checked(_number, allow_zero=False)]
NumberOrZero = Annotated[float, _checked(_number, allow_zero=True)]
Spread = Annotated[float, _checked(_spread)]
"""Sigma of a lognormal distribution; beyond 1 its mean lies where samples hardly ever do."""
PerStageSeconds = Annotated[PerStage, _one_or_per_stage(units.parse_time_s)]
PerStagePositiveSeconds = Annotated[PerStage, _one_or_per_stage(units.parse_time_s, positive=True)]
PerStageBytes = Annotated[PerStage, _one_or_per_stage(units.parse_bytes)]
