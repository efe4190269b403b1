"""Bars by rank: where the step's time goes, and where the memory goes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pipesim.costs import CostTable
from pipesim.ir.actions import Schedule
from pipesim.ir.timeline import Timeline
from pipesim.metrics import Breakdown, StepMetrics, memory_over_time
from pipesim.show.figures.canvas import OPTIMIZER, SYNC, new_figure, save

_MOST_TICKS = 24
_PARTS = (
    ("busy_s", "computing", "#2f6fde"),
    ("warmup_s", "warm-up", "#d9d9d9"),
    ("dependency_s", "waiting for a producer", "#bdbdbd"),
    ("p2p_s", "waiting for a message", "#e15759"),
    ("collective_s", "waiting for parameters", "#b07aa1"),
    ("cooldown_s", "cool-down", "#ececec"),
)


def plot_breakdown(title: str, metrics: StepMetrics, path: str | Path) -> None:
    """Draw each rank's step as a stacked bar: the makespan's parts, then synchronisation and optimizer."""
    figure, (axis,) = new_figure(min(16.0, max(6.0, 1.2 + 0.7 * metrics.num_ranks)), 4.2)
    ranks = np.arange(metrics.num_ranks)
    bottom = np.zeros(len(ranks))
    layers = [
        (words, colour, np.array([float(getattr(rank.breakdown, part)) for rank in metrics.ranks]))
        for part, words, colour in _PARTS
        if part in Breakdown.__slots__
    ]
    layers += [
        ("exposed gradient synchronisation", SYNC, np.full(len(ranks), float(metrics.exposed_sync_s))),
        ("optimizer", OPTIMIZER, np.full(len(ranks), float(metrics.optimizer_s))),
    ]
    for words, colour, seconds in layers:
        if seconds.any():
            axis.bar(ranks, seconds, 0.8, bottom, color=colour, label=words)
            bottom += seconds
    axis.set_xlabel("rank")
    axis.set_ylabel("seconds of a step")
    axis.set_xticks(ranks[:: 1 + len(ranks) // _MOST_TICKS])
    axis.margins(x=0.01)
    axis.set_title(title, loc="left", fontsize=9)
    figure.legend(loc="outside right center", fontsize=8, frameon=False)
    save(figure, path)


def plot_memory(
    title: str, timeline: Timeline, schedule: Schedule, costs: CostTable, path: str | Path
) -> None:
    """Draw the memory of every rank over the step, its static part dotted, against the device's limit."""
    figure, (axis,) = new_figure(9.0, 4.2)
    colours = _rank_colours(schedule.num_ranks)
    for rank in range(schedule.num_ranks):
        seconds, used = memory_over_time(timeline, schedule, costs, rank)
        words = f"rank {rank}" if rank % (1 + schedule.num_ranks // _MOST_TICKS) == 0 else None
        axis.step(seconds, used / 1e9, where="post", color=colours[rank], linewidth=0.9, label=words)
    if costs.memory_limit_bytes is not None:
        axis.axhline(costs.memory_limit_bytes / 1e9, color="#e15759", linestyle="--", label="device memory")
    axis.set_xlabel("seconds")
    axis.set_ylabel("GB")
    axis.set_ylim(bottom=0)
    axis.set_title(title, loc="left", fontsize=9)
    figure.legend(loc="outside right center", fontsize=7, frameon=False)
    save(figure, path)


def _rank_colours(num_ranks: int) -> np.ndarray:
    from matplotlib import colormaps

    colours: np.ndarray = colormaps["viridis"](np.linspace(0, 0.92, num_ranks))
    return colours
