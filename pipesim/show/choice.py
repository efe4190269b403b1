"""Which schedule to run, among results of one scenario."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic

from pipesim.metrics import RankMetrics
from pipesim.show.protocols import R, TimedRun

THIN_SHARE = 0.95
"""Above this share of a device's memory, an estimate a few per cent low decides whether a run fits."""

_SAME = 1 + 1e-9
"""Step times that differ by less are one: the rounding of sums in another order."""


@dataclass(frozen=True, slots=True)
class Chosen(Generic[R]):
    """The schedule to run.

    Parameters
    ----------
    best : TimedRun
        The fastest that fits in memory; where none does, the one that needs the least of it.
    fits : bool
        Whether it fits, as far as the scenario states memory.
    roomy : TimedRun, optional
        The fastest that leaves the asked share of the memory free, where `best` does not.
    """

    best: R
    fits: bool
    roomy: R | None


def choose(runs: Sequence[R], *, own: R | None = None, free_share: float = 0.0) -> Chosen[R]:
    """Choose the fastest schedule that fits in memory.

    Asynchronous schedules, which train differently, are chosen only where there is no other. Of equally fast
    ones, `own` is kept, else the one that needs the least memory is taken.

    Parameters
    ----------
    runs : sequence of TimedRun
        At least one.
    own : TimedRun, optional
        The one of them that is in use.
    free_share : float
        Share of a device's memory that `roomy` leaves free.
    """
    alike = [run for run in runs if run.synchronous] or list(runs)
    fitting = [run for run in alike if run.metrics.fits_memory is not False]
    if not fitting:
        return Chosen(min(alike, key=held_at_most), fits=False, roomy=None)
    best = _fastest(fitting, own)
    with_room = [run for run in fitting if _share(run) <= 1 - free_share]
    roomy = _fastest(with_room, own) if with_room and _share(best) > 1 - free_share else None
    return Chosen(best, fits=True, roomy=roomy)


def held_at_most(run: TimedRun) -> float:
    """Peak bytes of a device or, where the costs state none, the most microbatches that a rank holds."""
    peak_bytes = run.metrics.peak_memory_bytes
    return held_microbatches(run, *run.metrics.ranks) if peak_bytes is None else peak_bytes


def held_microbatches(run: TimedRun, *ranks: RankMetrics) -> float:
    """Most microbatches of which one of some ranks holds activations.

    What is in flight are stages, or slices of them: each counts by its share of the 1/p of the model that a
    rank would hold once.
    """
    most = max(rank.peak_in_flight for rank in ranks)
    return most * run.metrics.num_ranks / run.metrics.num_stages / run.schedule.num_slices


def _fastest(runs: Sequence[R], own: R | None) -> R:
    limit_s = min(run.metrics.step_time_s for run in runs) * _SAME
    ties = [run for run in runs if run.metrics.step_time_s <= limit_s]
    return min(ties, key=lambda run: (run is not own, held_at_most(run)))


def _share(run: TimedRun) -> float:
    """Share of its memory that the fullest rank's device has in use; 0 where nothing is known of it."""
    shares = [0.0]
    for rank in run.metrics.ranks:
        limit_bytes = run.costs.of_ranks.get(rank.rank, run.costs).memory_limit_bytes
        if rank.peak_memory_bytes is not None and limit_bytes is not None:
            shares.append(rank.peak_memory_bytes / limit_bytes)
    return max(shares)
