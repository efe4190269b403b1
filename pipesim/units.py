"""Quantities as people write them ("400 Gbit/s", "80 GB", "10 us") to SI floats, and back.

The letter decides: ``b`` is a bit, ``B`` a byte, and neither is ever guessed. ``k M G T P`` are powers of
1000, ``Ki Mi Gi Ti`` powers of 1024. Every parser takes the key it speaks for, so that its refusal says
where the value stood.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from fractions import Fraction
from numbers import Real
from typing import NoReturn

from pipesim.errors import ScenarioError

_QUANTITY = re.compile(r"\s*([+-]?(?:\d+(?:_\d+)*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(\S.*?)?\s*")
_RATIO = re.compile(r"\s*(\d{1,1000})/(0*[1-9]\d{0,1000})\s*(\S.*?)?\s*")

_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}

SMALLEST, LARGEST = 1e-30, 1e30
_SMALLEST_SHARE = 1e-6

_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0}
_BYTES = {prefix + "B": factor for prefix, factor in (_DECIMAL | _BINARY).items()}
_BITS = {
    prefix + name: factor / 8 for prefix, factor in (_DECIMAL | _BINARY).items() for name in ("b", "bit")
}
_RATES = {
    unit + per: factor for unit, factor in (_BYTES | _BITS).items() for per in ("/s", "ps") if unit != "B"
} | {"B/s": 1.0}
_FLOPS = {
    prefix + name: factor
    for prefix, factor in (_DECIMAL | {"E": 1e18}).items()
    for name in ("FLOP/s", "FLOPS", "FLOPs/s", "flop/s", "flops")
}


def parse_time_s(
    value: object, *, key: str | None = None, file: str | None = None, positive: bool = False
) -> float | Fraction:
    """Read a duration; a bare number is seconds.

    Parameters
    ----------
    value : str or real number
        Such as ``"10 us"`` or ``0.5``. A `fractions.Fraction` stays one, and ``"1/3 ms"`` becomes one.
    key, file : str, optional
        Where the value stood, for the message.
    positive : bool
        Refuse zero as well.

    Returns
    -------
    float or Fraction
        Seconds, finite and not negative.

    Raises
    ------
    ScenarioError
        Not a number, an unknown unit, negative, infinite or not a number (NaN).
    """
    what = "a time such as 1.5 ms (a bare number is seconds)"
    if isinstance(value, Fraction):
        seconds: float | Fraction = value
    elif ratio := _RATIO.fullmatch(value) if isinstance(value, str) else None:
        factor = _factor(ratio[3], _SECONDS, value, what, key, file) if ratio[3] else 1.0
        seconds = Fraction(int(ratio[1]), int(ratio[2])) * Fraction(repr(factor))
    else:
        number, unit = _split(value, what, key, file)
        seconds = number * (_factor(unit, _SECONDS, value, what, key, file) if unit else 1.0)
    return _in_range(seconds, value, what, key, file, positive=positive)


def parse_bytes(
    value: object, *, key: str | None = None, file: str | None = None, positive: bool = False
) -> float:
    """Read a size in bytes; bits and bare numbers other than zero are refused.

    Parameters
    ----------
    value : str or number
        Such as ``"80 GB"`` (80e9) or ``"80 GiB"`` (80 * 2**30).
    key, file, positive
        As for `parse_time_s`.

    Returns
    -------
    float
        Bytes, finite and not negative.

    Raises
    ------
    ScenarioError
        As for `parse_time_s`, and for a size in bits or without a unit.
    """
    what = "a size in bytes such as 80 GB or 80 GiB"
    number, unit = _split(value, what, key, file)
    if unit in _BITS:
        in_bytes = format_bytes(number * _BITS[unit], both=False)
        as_bytes = f"{number:g} {unit.removesuffix('bit').removesuffix('b')}B"
        found = f"{_show(value)} is in bits ({in_bytes})"
        _refuse(f"{found}; sizes are in bytes: write {as_bytes!r} or {in_bytes!r}", key, file)
    if not unit and number != 0:
        _refuse(f"found {_show(value)} without a unit; needed: {what}", key, file)
    size = number * (_factor(unit, _BYTES, value, what, key, file) if unit else 1.0)
    return float(_in_range(size, value, what, key, file, positive=positive))


def parse_bytes_per_s(value: object, *, key: str | None = None, file: str | None = None) -> float:
    """Read a rate of data, stated in bits or in bytes a second.

    Parameters
    ----------
    value : str
        Such as ``"400 Gbit/s"``, ``"400 Gbps"`` or ``"50 GB/s"``, all 50e9.
    key, file
        As for `parse_time_s`.

    Returns
    -------
    float
        Bytes a second, finite and positive.

    Raises
    ------
    ScenarioError
        As for `parse_time_s`, and for a rate without a unit.
    """
    return _parse_rate(value, _RATES, "a rate such as 50 GB/s or 400 Gbit/s", key, file)


def parse_flops_per_s(value: object, *, key: str | None = None, file: str | None = None) -> float:
    """Read a rate of floating-point operations such as ``"312 TFLOP/s"``.

    Parameters
    ----------
    value : str
        Number and unit.
    key, file
        As for `parse_time_s`.

    Returns
    -------
    float
        Operations a second, finite and positive.

    Raises
    ------
    ScenarioError
        As for `parse_time_s`, and for a rate without a unit.
    """
    return _parse_rate(value, _FLOPS, "a rate such as 312 TFLOP/s", key, file)


def parse_fraction(value: object, *, key: str | None = None, file: str | None = None) -> float:
    """Read a share of one, as a number (``0.72``) or in per cent (``"72 %"``).

    Parameters
    ----------
    value : str or number
        The share.
    key, file
        As for `parse_time_s`.

    Returns
    -------
    float
        At most 1, and far enough above 0 to divide by.

    Raises
    ------
    ScenarioError
        As for `parse_time_s`, and outside that range.
    """
    what = f"a share above 0 (at least {_SMALLEST_SHARE:g}) and at most 1 such as 0.72 or 72 %"
    number, unit = _split(value, what, key, file)
    share = number * (_factor(unit, {"%": 0.01}, value, what, key, file) if unit else 1.0)
    if not _SMALLEST_SHARE <= share <= 1:
        _refuse(f"found {_show(value)}; needed: {what}", key, file)
    return share


def format_time_s(seconds: float | Fraction) -> str:
    """Write a duration in the unit that keeps it readable: ``1.12 ms``."""
    return _scaled(float(seconds), {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0})


def format_bytes(num_bytes: float, *, both: bool = True) -> str:
    """Write a size in decimal and binary units: ``80 GB (74.5 GiB)``; without `both` the first alone."""
    decimal = _scaled(num_bytes, {p + "B": f for p, f in _DECIMAL.items() if p != "K"})
    if not both or abs(num_bytes) < 1000:
        return decimal
    return f"{decimal} ({_scaled(num_bytes, {'B': 1.0} | {p + 'B': f for p, f in _BINARY.items()}, 3)})"


def format_bytes_per_s(rate: float, *, both: bool = True) -> str:
    """Write a rate in bytes and in bits: ``50 GB/s (400 Gbit/s)``; without `both` the first alone."""
    prefixes = {p: f for p, f in _DECIMAL.items() if p != "K"}
    in_bytes = _scaled(rate, {p + "B/s": f for p, f in prefixes.items()})
    if not both:
        return in_bytes
    return f"{in_bytes} ({_scaled(rate * 8, {p + 'bit/s': f for p, f in prefixes.items()})})"


def format_flops_per_s(rate: float) -> str:
    """Write a rate of operations: ``312 TFLOP/s``."""
    return _scaled(rate, {p + "FLOP/s": f for p, f in _DECIMAL.items() if p != "K"})


def _parse_rate(
    value: object, units: Mapping[str, float], what: str, key: str | None, file: str | None
) -> float:
    number, unit = _split(value, what, key, file)
    if not unit:
        _refuse(f"found {_show(value)} without a unit; needed: {what}", key, file)
    rate = number * _factor(unit, units, value, what, key, file)
    return float(_in_range(rate, value, what, key, file, positive=True))


def _split(value: object, what: str, key: str | None, file: str | None) -> tuple[float, str]:
    if isinstance(value, Real) and not isinstance(value, bool):
        try:
            return float(value), ""
        except OverflowError:
            _refuse(f"found a number too large to compute with; needed: {what}", key, file)
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        _refuse(f"found {_show(value)}; needed: {what}", key, file)
    return float(match[1]), match[2] or ""


def _factor(
    unit: str, units: Mapping[str, float], value: object, what: str, key: str | None, file: str | None
) -> float:
    if unit in units:
        return units[unit]
    alike = [known for known in units if known.lower() == unit.lower()]
    hint = f"; did you mean {' or '.join(alike)}?" if alike else ""
    _refuse(f"found {_show(value)}: {unit!r} is not a unit that fits here{hint}; needed: {what}", key, file)


def _in_range(
    number: float | Fraction, value: object, what: str, key: str | None, file: str | None, *, positive: bool
) -> float | Fraction:
    """Refuse what no sum or quotient of quantities could hold any more."""
    if not math.isfinite(number) or number < 0 or (positive and number == 0):
        allowed = "above zero" if positive else "of at least zero"
        _refuse(f"found {_show(value)}; needed: a finite value {allowed}, {what}", key, file)
    if number and not SMALLEST <= number <= LARGEST:
        bounds = f"between {SMALLEST:g} and {LARGEST:g} in SI units"
        _refuse(f"found {_show(value)}; needed: a value {bounds}, {what}", key, file)
    return number


def _show(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    shown = text if len(text) <= 60 else text[:57] + "..."
    return repr(shown) if isinstance(value, str) else shown


def _refuse(message: str, key: str | None, file: str | None) -> NoReturn:
    raise ScenarioError(message, key=key, file=file)


def _scaled(number: float, units: Mapping[str, float], digits: int = 4) -> str:
    fitting = [(name, factor) for name, factor in units.items() if abs(number) >= factor]
    smallest = min(units.items(), key=lambda item: item[1])
    name, factor = max(fitting, key=lambda item: item[1], default=smallest)
    if number == 0:
        name, factor = next(item for item in units.items() if item[1] == 1.0)
    return f"{number / factor:.{digits}g} {name}"
