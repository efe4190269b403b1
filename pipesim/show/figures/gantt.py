"""Who computed what, when: one row a rank, several schedules under each other on one time axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from pipesim.ir.actions import REDUCTIONS, Op
from pipesim.ir.timeline import Timeline
from pipesim.show.amounts import SECONDS, TimeUnit, percent, seconds, time_unit
from pipesim.show.figures.canvas import (
    COLOURS,
    IDLE,
    MISFIT_COLOUR,
    MISFIT_HATCH,
    MISFIT_WORDS,
    OPTIMIZER,
    SYNC,
    add_legend,
    entitle,
    letters_on,
    new_figure,
    shade,
)
from pipesim.show.glossary import OPERATIONS
from pipesim.show.protocols import TimedRun

WIDTH_INCHES = 14.0
ROW_INCHES, SMALL_ROW_INCHES = 0.24, 0.13
"""Height of a rank; the smaller one where many schedules share a picture."""
MANY = 6
READABLE_INCHES = 0.13
"""Narrower boxes carry no microbatch number."""
MOST_NUMBERS = 4000


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """Part of the longest step that is drawn, as shares of it."""

    begin: float = 0.0
    end: float = 1.0


WHOLE = TimeWindow()


@dataclass(frozen=True, slots=True)
class GanttLane:
    """One replica's timeline under a title; hatched where it does not fit in memory."""

    title: str
    timeline: Timeline
    fits: bool = True


def plot_gantt(*runs: TimedRun | Sequence[TimedRun], window: TimeWindow = WHOLE) -> Figure:
    """Draw runs of one scenario under each other; those that run alike, given together, once.

    Times are in units of F where the scenario states one for all ranks.

    Parameters
    ----------
    *runs : TimedRun or sequence of TimedRun
        From top to bottom.
    window : TimeWindow
        Of the longest run.
    """
    groups = [run if isinstance(run, Sequence) else [run] for run in runs]
    lanes = []
    for group in groups:
        metrics = group[0].metrics
        names, fits = ", ".join(run.label for run in group), metrics.fits_memory is not False
        words = f"{names}: step {seconds(metrics.step_time_s)}, bubble ratio {percent(metrics.bubble_ratio)}"
        lanes.append(GanttLane(words if fits else f"{words}, {MISFIT_WORDS}", group[0].events, fits))
    scenario = groups[0][0].scenario
    if len(lanes) == 1:
        lanes = [replace(lanes[0], title=f"{scenario.name}: {lanes[0].title}")]
    return plot_lanes(lanes, unit=time_unit(scenario), window=window)


def plot_lanes(lanes: Sequence[GanttLane], *, unit: TimeUnit = SECONDS, window: TimeWindow = WHOLE) -> Figure:
    """Draw timelines under each other.

    F blue, full B orange, I teal, W green, idle near white; later chunks of a rank are lighter; the
    microbatch stands in the box while it is readable. An overlapped pair is drawn as two halves.

    Parameters
    ----------
    lanes : sequence of GanttLane
        At least one.
    unit : TimeUnit
        Of the time axis.
    window : TimeWindow
        Of the longest lane.
    """
    num_rows = [int(lane.timeline.rank.max()) + 1 for lane in lanes]
    row_inches = ROW_INCHES if len(lanes) <= MANY else SMALL_ROW_INCHES
    height = sum(num_rows) * row_inches + 0.45 * len(lanes) + 1.0
    figure, axes = new_figure(WIDTH_INCHES, height, len(lanes))
    timelines = [_in_units(lane.timeline, unit) for lane in lanes]
    longest = max(timeline.end_s.max() for timeline in timelines)
    for axis, lane, timeline, rows in zip(axes, lanes, timelines, num_rows, strict=True):
        _draw(axis, timeline, window.begin * longest, window.end * longest)
        entitle(axis, lane.title, y=1.0)  # else all labels are measured to find its place
        axis.set_ylim(rows - 0.5, -0.5)
        if not lane.fits:
            axis.patch.set(hatch=MISFIT_HATCH, edgecolor=MISFIT_COLOUR)
    axes[-1].set_xlabel(unit.words)
    patches = _legend(timelines)
    add_legend(figure, "outside lower center", handles=patches, ncols=len(patches))
    return figure


def _in_units(timeline: Timeline, unit: TimeUnit) -> Timeline:
    start, end = (times.astype(float) / unit.seconds for times in (timeline.start_s, timeline.end_s))
    return replace(timeline, start_s=start, end_s=end)


def _legend(timelines: Sequence[Timeline]) -> list[Patch]:
    """Name what is drawn, and the shades where a rank has several chunks."""
    used = {op for timeline in timelines for op in np.unique(timeline.op).tolist()}
    patches = [Patch(color=COLOURS[op], label=OPERATIONS[op]) for op in COLOURS if op in used]
    if any(_chunks(timeline.select(timeline.compute))[1] > 1 for timeline in timelines):
        last = shade(COLOURS[Op.F], 1, 2)
        patches.append(Patch(color=last, label="the lighter, the later chunk of a rank"))
    return patches + [
        Patch(color=colour, label=words)
        for ops, colour, words in (
            (REDUCTIONS, SYNC, OPERATIONS[Op.REDUCE_GRAD]),
            ((Op.OPTIMIZER,), OPTIMIZER, OPERATIONS[Op.OPTIMIZER]),
        )
        if any(_lasting(timeline, ops).any() for timeline in timelines)
    ]


def _lasting(timeline: Timeline, ops: tuple[Op, ...]) -> np.ndarray:
    lasting: np.ndarray = np.isin(timeline.op, ops) & (timeline.end_s > timeline.start_s)
    return lasting


def _draw(axis: Axes, timeline: Timeline, begin: float, end: float) -> None:
    num_ranks = int(timeline.rank.max()) + 1
    axis.set_facecolor(IDLE)
    axis.set_xlim(begin, end)
    labelled = range(0, num_ranks, max(1, num_ranks // 8))
    axis.set_yticks(labelled, [f"rank {rank}" for rank in labelled], fontsize=6)
    axis.tick_params(axis="both", length=2, labelsize=7)
    axis.tick_params(axis="y", length=0, labelsize=6)
    timeline = timeline.select((timeline.end_s > begin) & (timeline.start_s < end))
    compute = timeline.select(timeline.compute)
    inches = (compute.end_s - compute.start_s) / (end - begin) * WIDTH_INCHES * 0.93
    _boxes(axis, compute, inches)
    for ops, colour in ((REDUCTIONS, SYNC), ((Op.OPTIMIZER,), OPTIMIZER)):
        rows = timeline.select(_lasting(timeline, ops))
        if len(rows):
            corners = _corners(rows, np.zeros(len(rows)), np.ones(len(rows)))
            axis.add_collection(PolyCollection(corners, facecolors=colour), autolim=False)
    _numbers(axis, compute, inches)


def _boxes(axis: Axes, compute: Timeline, inches: np.ndarray) -> None:
    chunk, num_chunks = _chunks(compute)
    top, bottom = _halves(compute)
    corners = _corners(compute, top, bottom)
    for op, colour in COLOURS.items():
        for one in range(num_chunks):
            rows = (compute.op == op) & (chunk == one)
            if rows.any():
                axis.add_collection(
                    PolyCollection(
                        corners[rows],
                        facecolors=[shade(colour, one, num_chunks)],
                        edgecolors="white",
                        linewidths=np.clip(inches[rows], 0, READABLE_INCHES) / READABLE_INCHES * 0.4,
                    ),
                    autolim=False,
                )


def _corners(rows: Timeline, top: np.ndarray, bottom: np.ndarray) -> Any:
    """Give an array, which is drawn sooner than a list; matplotlib's types know lists alone."""
    left, right = rows.start_s, rows.end_s
    upper = rows.rank - 0.42 + 0.84 * top
    lower = rows.rank - 0.42 + 0.84 * bottom
    return np.stack(
        [np.stack([left, right, right, left], 1), np.stack([upper, upper, lower, lower], 1)], axis=2
    )


def _halves(compute: Timeline) -> tuple[np.ndarray, np.ndarray]:
    """Top and bottom of each box as shares of its row: parts of an overlapped pair take a half each."""
    top, bottom = np.zeros(len(compute)), np.ones(len(compute))
    same = (compute.start_s[1:] == compute.start_s[:-1]) & (compute.end_s[1:] == compute.end_s[:-1])
    paired = np.flatnonzero(
        same & (compute.rank[1:] == compute.rank[:-1]) & (compute.end_s[1:] > compute.start_s[1:])
    )
    bottom[paired] = 0.5
    top[paired + 1] = 0.5
    return top, bottom


def _chunks(compute: Timeline) -> tuple[np.ndarray, int]:
    """Local chunk of each row, and the most chunks of a rank."""
    chunk = np.zeros(len(compute), int)
    most = 1
    for rank in np.unique(compute.rank):
        rows = compute.rank == rank
        stages, local = np.unique(compute.stage[rows], return_inverse=True)
        chunk[rows] = local.reshape(-1)
        most = max(most, len(stages))
    return chunk, most


def _numbers(axis: Axes, compute: Timeline, inches: np.ndarray) -> None:
    top, bottom = _halves(compute)
    chunk, num_chunks = _chunks(compute)
    readable = np.flatnonzero(inches >= READABLE_INCHES)
    if len(readable) > MOST_NUMBERS:
        return
    for row in readable.tolist():
        middle = (compute.start_s[row] + compute.end_s[row]) / 2
        height = compute.rank[row] - 0.42 + 0.42 * (top[row] + bottom[row])
        text = (
            str(compute.microbatch[row])
            if not compute.slice.any()
            else (f"{compute.microbatch[row]}.{compute.slice[row]}")
        )
        size = 6.5 if bottom[row] - top[row] == 1 else 4.5
        colour = letters_on(shade(COLOURS[Op(compute.op[row])], chunk[row], num_chunks))
        axis.text(middle, height, text, ha="center", va="center", fontsize=size, color=colour, clip_on=True)
