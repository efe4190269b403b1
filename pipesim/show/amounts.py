"""Numbers as people read them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from pipesim.scenario import ResolvedScenario


class TimeUnit(NamedTuple):
    """What an axis of times counts in."""

    seconds: float
    words: str


SECONDS = TimeUnit(1.0, "seconds")


def time_unit(scenario: ResolvedScenario) -> TimeUnit:
    """Choose F where a scenario states one forward time for all ranks, else the second."""
    forward_s = 0 if scenario.costs is None else scenario.costs.forward_s
    if isinstance(forward_s, tuple) or not forward_s:
        return SECONDS
    return TimeUnit(float(forward_s), f"F, the forward of a rank ({seconds(forward_s)})")


def seconds(value: Any) -> str:
    """Write a time with four digits and a fitting unit."""
    value = float(value)
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(value) >= size or unit == "us":
            return f"{value / size:.4g} {unit}" if value else "0 s"
    return ""


def time_range(ends_s: tuple[float, float]) -> str:
    """Write the two ends of a band."""
    return " to ".join(map(seconds, ends_s))


def hours(value: float) -> str:
    """Write a long time with three digits, in seconds, minutes or hours."""
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return seconds(value)


def amount(value: Any) -> str:
    """Write bytes in TB, GB, MB or kB (powers of 1000)."""
    value = float(value)
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f} B"


def percent(value: Any) -> str:
    """Write a ratio in percent."""
    return f"{100 * float(value):.2f} %"


def signed_percent(value: Any) -> str:
    """Write a relative difference in percent."""
    return f"{100 * float(value):+.2f} %"


def optional(value: Any, form: Callable[[Any], str]) -> str:
    """Write a value that may be missing."""
    return "-" if value is None else form(value)
