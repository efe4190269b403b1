"""Computing and communicating at the same time: what stays exposed, and what sharing the device costs."""

from __future__ import annotations


def overlapped_s(compute_s: float, communication_s: float, slowdown: float) -> float:
    """Seconds until both are done when they start together.

    While the communication lasts, computing takes ``1 + slowdown`` times as long, for a collective runs on
    the device's own processors and memory (arXiv 2507.03114 measures a mean of .189 and at most .40;
    Calculon takes .15 for NVLink, .02 for InfiniBand).

    Parameters
    ----------
    compute_s, communication_s : float
        Seconds of each alone.
    slowdown : float
        Extra share of the computing time while communication runs; 0: they do not disturb each other.
    """
    return max(communication_s, compute_s + communication_s * slowdown / (1 + slowdown))


def exposed_s(compute_s: float, communication_s: float, slowdown: float) -> float:
    """Seconds that communication beside `compute_s` of computing adds to it."""
    return overlapped_s(compute_s, communication_s, slowdown) - compute_s
