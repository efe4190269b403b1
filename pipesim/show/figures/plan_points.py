"""All that a plan timed: step time against memory, with its front; cost on a second axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from pipesim.show.figures.canvas import add_legend, draw_limit, entitle, new_figure
from pipesim.show.figures.labels import name_points
from pipesim.show.figures.pareto import MEMORY_WORDS, Point, draw_front, front_lines, pareto_front

_ALL, _CHOSEN = "#c9c9c9", "#e15759"


def plot_plan(
    title: str,
    timed: Sequence[Point],
    chosen: Sequence[Point],
    *,
    limit_gb: float | None,
    usd_per_s: float | None = None,
) -> Figure:
    """Draw one point a configuration.

    Parameters
    ----------
    title : str
        Over the picture.
    timed : sequence of Point
        All that was timed.
    chosen : sequence of Point
        The choices, which are named.
    limit_gb : float, optional
        Memory of the device.
    usd_per_s : float, optional
        Rent of the cluster: the cost of a step is drawn above.
    """
    figure, (axis,) = new_figure(9.5, 5.4)
    axis.plot(
        [p.step_time_s for p in timed],
        [p.memory for p in timed],
        ".",
        color=_ALL,
        markersize=4,
        label="timed",
    )
    front = pareto_front(timed)
    draw_front(axis, front)
    for number, point in enumerate(chosen, start=1):
        label = f"{number}  {point.label}"
        axis.plot(point.step_time_s, point.memory, "o", color=_CHOSEN, markersize=5, label=label)
    axis.set_ylim(bottom=0)
    if limit_gb is not None:
        draw_limit(axis, limit_gb)
    if usd_per_s is not None:
        rate: Any = usd_per_s
        above = axis.secondary_xaxis("top", functions=(lambda s: s * rate, lambda usd: usd / rate))
        above.set_xlabel("cost of a step (USD)")
    axis.set_xlabel("step time in seconds")
    axis.set_ylabel(MEMORY_WORDS)
    fastest = min(point.step_time_s for point in timed)
    axis.set_xlim(0.95 * fastest, max(2.5 * fastest, 1.05 * max(point.step_time_s for point in chosen)))
    axis.grid(alpha=0.3)
    entitle(axis, title)
    add_legend(figure, "outside lower center", fontsize=7, ncols=2)
    places = [(str(n), (p.step_time_s, p.memory), _CHOSEN) for n, p in enumerate(chosen, start=1)]
    corners = [(point.step_time_s, point.memory) for point in front]
    name_points(axis, places, front_lines(axis, corners, limit_gb))
    return figure
