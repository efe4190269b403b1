"""Step time against memory: which schedules are worth a look."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipesim.plots.canvas import new_figure, save

_FRONT, _BEATEN = "#2f6fde", "#9a9a9a"
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
    """Draw one point a schedule, the front as a line, and the device's memory.

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
    figure, (axis,) = new_figure(9.0, 5.4)
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
    numbered = list(enumerate(sorted(points, key=lambda point: point[1:]), start=1))
    for number, (label, step, memory) in numbered:
        colour = _FRONT if label in on_front else _BEATEN
        axis.plot(step, memory / scale, "o", color=colour, markersize=4, label=f"{number}  {label}")
    for numbers, step, memory in _together(numbered):
        place = (step, memory / scale)
        axis.annotate(numbers, place, xytext=(4, 3), textcoords="offset points", fontsize=7)
    if limit_bytes is not None and in_bytes:
        axis.axhline(limit_bytes / scale, color="#e15759", linestyle="--", label="device memory")
    axis.set_xlabel("step time (s)")
    axis.set_ylabel("peak memory of a device (GB)" if in_bytes else "peak chunks in flight on a rank")
    axis.set_ylim(bottom=0)
    axis.margins(x=0.12)
    axis.grid(alpha=0.3)
    axis.set_title(title, loc="left", fontsize=9)
    figure.legend(loc="outside right center", fontsize=7, frameon=False)
    save(figure, path)


def _together(numbered: Sequence[tuple[int, Point]]) -> list[tuple[str, float, float]]:
    """Merge the numbers of points that lie on top of each other."""
    widest = max(point[1] for _, point in numbered) - min(point[1] for _, point in numbered)
    highest = max(point[2] for _, point in numbered)
    groups: list[tuple[list[int], float, float]] = []
    for number, (_, step, memory) in numbered:
        for numbers, group_step, group_memory in groups:
            if abs(step - group_step) <= 0.02 * widest and abs(memory - group_memory) <= 0.02 * highest:
                numbers.append(number)
                break
        else:
            groups.append(([number], step, memory))
    return [(", ".join(map(str, numbers)), step, memory) for numbers, step, memory in groups]
