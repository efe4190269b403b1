"""What a run holds in memory, as bytes or as microbatches."""

from __future__ import annotations

from pipesim.metrics import RankMetrics
from pipesim.show.protocols import TimedRun


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
