"""All that a plan timed: step time against memory, with its front; cost on a second axis."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipesim.show.figures.canvas import new_figure, save
from pipesim.show.figures.labels import name_points
from pipesim.show.figures.pareto import Point, pareto_front

_ALL, _FRONT, _CHOSEN = "#c9c9c9", "#2f6fde", "#e15759"


def plot_plan(
    title: str,
    timed: Sequence[Point],
    chosen: Sequence[Point],
    path: str | Path,
    *,
    limit_bytes: float | None,
    usd_per_s: float | None = None,
) -> None:
    """Draw one point a configuration.

    Parameters
    ----------
    title : str
        Over the picture.
    timed : sequence of Point
        Label, step time in seconds and peak memory in bytes of all that was timed.
    chosen : sequence of Point
        The choices, which are named.
    path : str or Path
        PNG or SVG.
    limit_bytes : float, optional
        Memory of the device.
    usd_per_s : float, optional
        Rent of the cluster: the cost of a step is drawn above.
    """
    figure, (axis,) = new_figure(9.5, 5.4)
    front = pareto_front(timed)
    axis.plot(
        [p[1] for p in timed], [p[2] / 1e9 for p in timed], ".", color=_ALL, markersize=4, label="timed"
    )
    axis.plot(
        [p[1] for p in front],
        [p[2] / 1e9 for p in front],
        color=_FRONT,
        linewidth=1.2,
        marker=".",
        drawstyle="steps-post",
        label="not beaten by any other",
    )
    for number, (label, step, memory) in enumerate(chosen, start=1):
        axis.plot(step, memory / 1e9, "o", color=_CHOSEN, markersize=5, label=f"{number}  {label}")
    if limit_bytes is not None:
        axis.axhline(limit_bytes / 1e9, color="#9c755f", linestyle="--", label="device memory")
    if usd_per_s is not None:
        rate: Any = usd_per_s
        above = axis.secondary_xaxis("top", functions=(lambda s: s * rate, lambda usd: usd / rate))
        above.set_xlabel("cost of a step (USD)")
    axis.set_xlabel("step time (s)")
    axis.set_ylabel("peak memory of a device (GB)")
    axis.set_ylim(bottom=0)
    fastest = min(p[1] for p in timed)
    axis.set_xlim(0.95 * fastest, max(2.5 * fastest, 1.05 * max(p[1] for p in chosen)))
    axis.grid(alpha=0.3)
    axis.set_title(title, loc="left", fontsize=9)
    figure.legend(loc="outside lower center", fontsize=7, frameon=False, ncols=2)
    numbers = [(str(n), (p[1], p[2] / 1e9), _CHOSEN) for n, p in enumerate(chosen, start=1)]
    name_points(axis, numbers, [])
    save(figure, path)
