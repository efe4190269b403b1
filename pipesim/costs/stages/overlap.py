"""Computing and communicating at the same time: what stays exposed, and what sharing the device costs."""

from __future__ import annotations

_LAST_BUCKET = 1 / 8


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


def shown_sync(
    reduced_s: float, gathered_s: float, *, forward_s: float, backward_s: float, slowdown: float
) -> float:
    """Share of a stage's gradient synchronisation that shows where it runs beside computing.

    Gradients are reduced beside the last backward of the stage, weights gathered beside its first forward;
    what is longer than these shows, as does the computing that the rest slows down and the last bucket, taken
    for an eighth, which has nothing beside it.

    Parameters
    ----------
    reduced_s, gathered_s : float
        Seconds of the collectives alone.
    forward_s, backward_s : float
        Of one microbatch through the stage.
    slowdown : float
        See `overlapped_s`.
    """
    total = reduced_s + gathered_s
    if not total:
        return 1.0
    excess = max(0.0, reduced_s - backward_s) + max(0.0, gathered_s - forward_s)
    slowed = (total - excess) * slowdown / (1 + slowdown)
    return min(1.0, (excess + slowed) / total + _LAST_BUCKET)


def exposed_s(compute_s: float, communication_s: float, slowdown: float) -> float:
    """Seconds that communication beside `compute_s` of computing adds to it."""
    return overlapped_s(compute_s, communication_s, slowdown) - compute_s
