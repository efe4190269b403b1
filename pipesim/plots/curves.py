"""Curves over the number of microbatches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pipesim.plots.canvas import new_figure, save

_MARKERS = "osD^vP*X<>"


def plot_bubble(
    title: str,
    curves: Mapping[str, Sequence[tuple[int, float]]],
    path: str | Path,
    *,
    mark: int | None = None,
) -> None:
    """Draw bubble ratios against the number of microbatches.

    Parameters
    ----------
    title : str
        Over the picture.
    curves : Mapping
        Schedule to (number of microbatches, bubble ratio) pairs.
    path : str or Path
        PNG or SVG.
    mark : int, optional
        Number of microbatches to mark, the scenario's own.
    """
    figure, (axis,) = new_figure(8.5, 4.8)
    for position, (name, points) in enumerate(curves.items()):
        counts, ratios = zip(*points, strict=True)
        axis.plot(
            counts,
            ratios,
            marker=_MARKERS[position % len(_MARKERS)],
            markersize=4,
            linewidth=1.2,
            linestyle=("-", "--", ":")[position // 10 % 3],
            label=name,
        )
    if mark is not None:
        axis.axvline(mark, color="#9a9a9a", linewidth=0.8, linestyle=":")
    axis.set_xscale("log", base=2)
    ticks = sorted({count for points in curves.values() for count, _ in points})
    axis.set_xticks(ticks, [str(tick) for tick in ticks])
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.3)
    axis.set_xlabel("microbatches m")
    axis.set_ylabel("bubble ratio: idle / (p x makespan)")
    axis.set_title(title, loc="left", fontsize=9)
    figure.legend(loc="outside right center", fontsize=8, frameon=False)
    save(figure, path)
