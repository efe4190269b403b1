"""Step time against memory: which schedules are worth a look."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from pipesim.show.figures.canvas import new_figure, save
from pipesim.show.figures.labels import name_points

_FRONT, _BEATEN = "#2f6fde", "#9a9a9a"
_BEATEN_WORDS = "#404040"
_SIZE_INCHES = (9.5, 6.0)
Point = tuple[str, float, float]
"""Label, step time in seconds, peak memory in bytes (or chunks in flight where bytes are unknown)."""


def pareto_front(points: Sequence[Point]) -> list[Point]:
    """Keep the points that no other beats in one number without losing in the other; fastest first."""
    front: list[Point] = []
    for point in sorted(points, key=lambda p: (p[1], p[2])):
        if not front or point[2] < front[-1][2]:
            front.append(point)
    return front


def plot_pareto(
    title: str, points: Sequence[Point], path: str | Path, *, limit_bytes: float | None, in_bytes: bool
) -> None:
    """Draw one point a schedule with its name, the front as a line, and the device's memory.

    Parameters
    ----------
    title : str
        Over the picture.
    points : sequence of Point
        At least one.
    path : str or Path
        PNG or SVG.
    limit_bytes : float, optional
        Memory of the device.
    in_bytes : bool
        Whether the second number is bytes; otherwise it is chunks in flight.
    """
    scale = 1e9 if in_bytes else 1.0
    figure, (axis,) = new_figure(*_SIZE_INCHES)
    front = pareto_front(points)
    on_front = {point[0] for point in front}
    axis.plot(
        [step for _, step, _ in front],
        [memory / scale for _, _, memory in front],
        color=_FRONT,
        linewidth=1.0,
        drawstyle="steps-post",
        label="not beaten by any other",
    )
    if limit_bytes is not None and in_bytes:
        axis.axhline(limit_bytes / scale, color="#e15759", linestyle="--", label="device memory")
    for label, step, memory in points:
        colour, height = (_FRONT, 4) if label in on_front else (_BEATEN, 3)
        axis.plot(step, memory / scale, "o", color=colour, markersize=4, zorder=height)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.margins(x=0.12, y=0.1)
    for ticks in (axis.xaxis, axis.yaxis):
        ticks.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))
        ticks.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.minorticks_off()
    axis.set_xlabel("step time (s)")
    axis.set_ylabel("peak memory of a device (GB)" if in_bytes else "peak chunks in flight on a rank")
    axis.grid(alpha=0.3)
    axis.set_title(title, loc="left", fontsize=9)
    figure.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    corners = [(step, memory / scale) for _, step, memory in front]
    bends = [(right, above) for (_, above), (right, _) in pairwise(corners)]
    lines = list(pairwise(sorted([*corners, *bends], key=lambda corner: (corner[0], -corner[1]))))
    if limit_bytes is not None and in_bytes:
        lines.append(((axis.get_xlim()[0], limit_bytes / scale), (axis.get_xlim()[1], limit_bytes / scale)))

    named = [
        (label, (step, memory / scale), _FRONT if label in on_front else _BEATEN_WORDS)
        for label, step, memory in points
    ]
    name_points(axis, named, lines)
    save(figure, path)
