"""Step time against memory: which schedules are worth a look."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from pipesim.errors import ScenarioError
from pipesim.show.amounts import SECONDS, TimeUnit, time_unit
from pipesim.show.figures.canvas import add_legend, cross_out, draw_limit, entitle, new_figure
from pipesim.show.figures.labels import Place, name_points
from pipesim.show.held import held_at_most
from pipesim.show.protocols import TimedRun

FRONT_COLOUR = "#2f6fde"
_BEATEN, _BEATEN_WORDS = "#9a9a9a", "#404040"
_SIZE_INCHES = (9.5, 6.0)
MEMORY_WORDS = "peak memory of a device (GB)"


class Point(NamedTuple):
    """One configuration: its step time in seconds, its memory in gigabytes (or in microbatches held)."""

    label: str
    step_time_s: float
    memory: float
    fits: bool = True


def pareto_front(points: Sequence[Point]) -> list[Point]:
    """Keep the points that no other beats in one number without losing in the other; fastest first."""
    front: list[Point] = []
    for point in sorted(points, key=lambda p: (p.step_time_s, p.memory)):
        if not front or point.memory < front[-1].memory:
            front.append(point)
    return front


def plot_pareto(runs: Sequence[TimedRun]) -> Figure:
    """Draw the synchronous ones of some runs of one scenario; see `plot_points`.

    Raises
    ------
    ScenarioError
        If there is none.
    """
    alike = [run for run in runs if run.synchronous]
    if not alike:
        raise ScenarioError("nothing to draw: no synchronous schedule was run", file=runs[0].scenario.file)
    first = alike[0]
    in_bytes, limit_bytes = first.metrics.peak_memory_bytes is not None, first.costs.memory_limit_bytes
    scale = 1e9 if in_bytes else 1.0
    points = [
        Point(
            run.label,
            float(run.metrics.step_time_s),
            held_at_most(run) / scale,
            run.metrics.fits_memory is not False,
        )
        for run in alike
    ]
    return plot_points(
        first.scenario.name,
        points,
        limit=limit_bytes / scale if in_bytes and limit_bytes is not None else None,
        memory_words=MEMORY_WORDS if in_bytes else "most microbatches held by a rank",
        unit=time_unit(first.scenario),
    )


def plot_points(
    title: str,
    points: Sequence[Point],
    *,
    limit: float | None = None,
    memory_words: str = MEMORY_WORDS,
    unit: TimeUnit = SECONDS,
) -> Figure:
    """Draw one point a schedule with its name, the front as a line, and the device's memory.

    Parameters
    ----------
    title : str
        Over the picture.
    points : sequence of Point
        At least one.
    limit : float, optional
        Memory of the device.
    memory_words : str
        What the second number is.
    unit : TimeUnit
        Of the time axis.
    """
    figure, (axis,) = new_figure(*_SIZE_INCHES)
    front = pareto_front(points)
    draw_front(axis, front, unit)
    for point in points:
        colour, height = (FRONT_COLOUR, 4) if point in front else (_BEATEN, 3)
        axis.plot(*_place(point, unit), "o", color=colour, markersize=4, zorder=height)
    too_large = [_place(point, unit) for point in points if not point.fits]
    cross_out(axis, [x for x, _ in too_large], [y for _, y in too_large])
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.margins(x=0.12, y=0.1)
    for ticks in (axis.xaxis, axis.yaxis):
        ticks.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))
        ticks.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.minorticks_off()
    if limit is not None:
        draw_limit(axis, limit)
    axis.set_xlabel(f"step time in {unit.words}")
    axis.set_ylabel(memory_words)
    axis.grid(alpha=0.3)
    entitle(axis, title)
    add_legend(figure, "outside lower center", ncols=3)
    named = [
        (point.label, _place(point, unit), FRONT_COLOUR if point in front else _BEATEN_WORDS)
        for point in points
    ]
    name_points(axis, named, front_lines(axis, [_place(point, unit) for point in front], limit))
    return figure


def draw_front(axis: Axes, front: Sequence[Point], unit: TimeUnit = SECONDS) -> None:
    """Draw what no other configuration beats, as steps."""
    axis.plot(
        *zip(*(_place(point, unit) for point in front), strict=True),
        color=FRONT_COLOUR,
        linewidth=1.0,
        drawstyle="steps-post",
        label="not beaten by any other",
    )


def _place(point: Point, unit: TimeUnit) -> Place:
    return point.step_time_s / unit.seconds, point.memory


def front_lines(axis: Axes, corners: Sequence[Place], limit: float | None) -> list[tuple[Place, Place]]:
    """List the lines that names should not cover: the steps of the front, and the limit."""
    bends = [(right, above) for (_, above), (right, _) in pairwise(corners)]
    lines = list(pairwise(sorted([*corners, *bends], key=lambda corner: (corner[0], -corner[1]))))
    if limit is not None:
        left, right = axis.get_xlim()
        lines.append(((left, limit), (right, limit)))
    return lines
