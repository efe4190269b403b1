"""A rank at a time: where the step's time goes, and where the memory goes."""

from __future__ import annotations

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipesim.device_memory import memory_over_time
from pipesim.errors import ScenarioError
from pipesim.show.amounts import time_unit
from pipesim.show.figures.canvas import (
    MISFIT_HATCH,
    MISFIT_WORDS,
    OPTIMIZER,
    SYNC,
    add_legend,
    draw_limit,
    entitle,
    new_figure,
)
from pipesim.show.protocols import TimedRun

_MOST_TICKS = 24
_PARTS = (
    ("busy_s", "computing", "#2f6fde"),
    ("warmup_s", "warm-up", "#d9d9d9"),
    ("dependency_s", "waiting for a producer", "#bdbdbd"),
    ("p2p_s", "waiting for a message", "#e15759"),
    ("collective_s", "waiting for parameters", "#b07aa1"),
    ("cooldown_s", "cool-down", "#ececec"),
)
_MEMORY_COLOURS = {
    "weights": "#2f6fde",
    "gradients": "#7a6fb0",
    "optimizer": "#9c755f",
    "activations": "#f28e2b",
    "logits": "#e15759",
    "buffers": "#bdbdbd",
}


def plot_breakdown(run: TimedRun) -> Figure:
    """Draw each rank's step as a stacked bar: the makespan's parts, then synchronisation and optimizer."""
    metrics, unit = run.metrics, time_unit(run.scenario)
    figure, (axis,) = _figure_of_ranks(run)
    ranks = np.arange(metrics.num_ranks)
    bottom = np.zeros(len(ranks))
    layers = [
        (words, colour, np.array([float(getattr(rank.breakdown, part)) for rank in metrics.ranks]))
        for part, words, colour in _PARTS
    ]
    layers += [
        ("exposed gradient synchronisation", SYNC, np.full(len(ranks), float(metrics.exposed_sync_s))),
        ("optimizer", OPTIMIZER, np.full(len(ranks), float(metrics.optimizer_s))),
    ]
    hatch = MISFIT_HATCH if metrics.fits_memory is False else None
    for words, colour, seconds in layers:
        if seconds.any():
            heights = seconds / unit.seconds
            axis.bar(
                ranks, heights, 0.8, bottom, color=colour, label=words, hatch=hatch, edgecolor="white", lw=0
            )
            bottom += heights
    axis.set_ylabel(f"of a step, in {unit.words}")
    _name_ranks(axis, run)
    add_legend(figure)
    return figure


def plot_memory(run: TimedRun) -> Figure:
    """Draw the memory of every rank over the step against the device's limit.

    Raises
    ------
    ScenarioError
        If the costs state no bytes of activations.
    """
    _check_memory(run)
    schedule, costs, unit = run.schedule, run.costs, time_unit(run.scenario)
    figure, (axis,) = new_figure(9.0, 4.2)
    colours = colormaps["viridis"](np.linspace(0, 0.92, schedule.num_ranks))
    for rank in range(schedule.num_ranks):
        seconds, used = memory_over_time(run.events, schedule, costs, rank)
        words = f"rank {rank}" if rank % (1 + schedule.num_ranks // _MOST_TICKS) == 0 else None
        axis.step(
            seconds / unit.seconds, used / 1e9, where="post", color=colours[rank], linewidth=0.9, label=words
        )
    _draw_limits(axis, run)
    axis.set_xlabel(unit.words)
    axis.set_ylabel("memory of a device (GB)")
    entitle(axis, _title(run))
    add_legend(figure, fontsize=7)
    return figure


def plot_memory_parts(run: TimedRun) -> Figure:
    """Draw what each rank's memory is full of, where it is fullest, against the device's limit.

    Raises
    ------
    ScenarioError
        If the costs state no bytes of activations.
    """
    _check_memory(run)
    figure, (axis,) = _figure_of_ranks(run)
    ranks = np.arange(run.metrics.num_ranks)
    bottom = np.zeros(len(ranks))
    for part, colour in _MEMORY_COLOURS.items():
        gigabytes = np.array([getattr(rank.memory_bytes, part) / 1e9 for rank in run.metrics.ranks])
        if gigabytes.any():
            axis.bar(ranks, gigabytes, 0.8, bottom, color=colour, label=part, edgecolor="white", lw=0)
            bottom += gigabytes
    _draw_limits(axis, run)
    axis.set_ylabel("memory of a device at its fullest (GB)")
    _name_ranks(axis, run)
    add_legend(figure)
    return figure


def _figure_of_ranks(run: TimedRun) -> tuple[Figure, list[Axes]]:
    return new_figure(min(16.0, max(6.0, 1.2 + 0.7 * run.metrics.num_ranks)), 4.2)


def _name_ranks(axis: Axes, run: TimedRun) -> None:
    axis.set_xlabel("rank")
    ranks = np.arange(run.metrics.num_ranks)
    axis.set_xticks(ranks[:: 1 + len(ranks) // _MOST_TICKS])
    axis.margins(x=0.01)
    entitle(axis, _title(run))


def _draw_limits(axis: Axes, run: TimedRun) -> None:
    axis.set_ylim(bottom=0)
    devices = [run.costs.of_ranks.get(rank, run.costs) for rank in range(run.metrics.num_ranks)]
    limits = {device.memory_limit_bytes for device in devices}
    draw_limit(axis, *sorted(limit / 1e9 for limit in limits if limit is not None))


def _check_memory(run: TimedRun) -> None:
    if run.metrics.peak_memory_bytes is None:
        raise ScenarioError(
            "nothing to draw: the costs state no bytes of activations; state costs.activations, or a model",
            file=run.scenario.file,
            key="costs",
        )


def _title(run: TimedRun) -> str:
    misfit = f", {MISFIT_WORDS}" if run.metrics.fits_memory is False else ""
    return f"{run.scenario.name}: {run.label}{misfit}"
