"""Step time against memory: which schedules are worth a look."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from pipesim.plots.canvas import new_figure, save
from pipesim.plots.labels import Box, place

_FRONT, _BEATEN = "#2f6fde", "#9a9a9a"
_SIZE_INCHES = (9.5, 6.0)
_POINTS, _POINTS_AN_INCH = "figure points", 72
_FAR = 1e4
_WIDTH_OF_WORDS = 24
_LETTER_WIDTH, _LINE_HEIGHT = 3.9, 8.6
_SAME_PLACE = 2.5
"""Points that are nearer to each other than that, in printer's points, share their words."""
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
    figure.draw_without_rendering()  # settles where the points are
    corners = [(step, memory / scale) for _, step, memory in front]
    bends = [(right, above) for (_, above), (right, _) in pairwise(corners)]
    lines = list(pairwise(sorted([*corners, *bends], key=lambda corner: (corner[0], -corner[1]))))
    if limit_bytes is not None and in_bytes:
        lines.append(((axis.get_xlim()[0], limit_bytes / scale), (axis.get_xlim()[1], limit_bytes / scale)))

    def on_page(place: tuple[float, float]) -> tuple[float, float]:
        x, y = axis.transData.transform(place) * _POINTS_AN_INCH / figure.dpi
        return float(x), float(y)

    window = axis.get_window_extent().transformed(figure.dpi_scale_trans.inverted())
    left, bottom, right, top = (edge * _POINTS_AN_INCH for edge in window.extents)
    taken = [(left - _FAR, 0.0, _FAR, _FAR), (right, 0.0, _FAR, _FAR)]
    taken += [(0.0, bottom - _FAR, _FAR, _FAR), (0.0, top, _FAR, _FAR)]
    taken += [_box(on_page(one), on_page(other)) for one, other in lines]
    named = [(label, on_page((step, memory / scale))) for label, step, memory in points]
    _name_points(axis, named, on_front, taken)
    save(figure, path)


def _box(one: tuple[float, float], other: tuple[float, float]) -> Box:
    """Cover a line, upright or level, and a little beside it."""
    left, bottom = min(one[0], other[0]), min(one[1], other[1])
    return left - 1, bottom - 1, abs(one[0] - other[0]) + 2, abs(one[1] - other[1]) + 2


def _name_points(
    axis: Axes, named: Sequence[tuple[str, tuple[float, float]]], on_front: set[str], taken: list[Box]
) -> None:
    """Write each name beside its point, all in printer's points, off what is taken."""
    groups: list[tuple[list[str], float, float]] = []
    for label, (x, y) in sorted(named, key=lambda one: one[1]):
        for names, other_x, other_y in groups:
            if abs(x - other_x) <= _SAME_PLACE and abs(y - other_y) <= _SAME_PLACE:
                names.append(label)
                break
        else:
            groups.append(([label], x, y))
    taken += [(x - 3, y - 3, 6.0, 6.0) for _, x, y in groups]
    for names, x, y in groups:
        lines = textwrap.wrap(", ".join(names), _WIDTH_OF_WORDS)
        size = (max(map(len, lines)) * _LETTER_WIDTH, len(lines) * _LINE_HEIGHT)
        left, bottom, _, _ = place((x, y), size, taken, gap=5)
        axis.annotate(
            "\n".join(lines),
            (x, y),
            xycoords=_POINTS,
            xytext=(left, bottom + size[1] / 2),
            textcoords=_POINTS,
            va="center",
            fontsize=7,
            color=_FRONT if on_front & {*names} else "#404040",
            arrowprops={"arrowstyle": "-", "color": "#bdbdbd", "linewidth": 0.6, "shrinkA": 0, "shrinkB": 2},
        )
