"""Curves over the number of microbatches."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from itertools import chain

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator

from pipesim.show.figures.canvas import add_legend, cross_out, entitle, new_figure
from pipesim.show.figures.labels import spread

_COLOURS = ("#2f6fde", "#f28e2b", "#59a14f", "#e15759", "#7a6fb0", "#9c755f", "#3fb8af", "#d37295")
_OTHERS = "#8c8c8c"
_LINE_INCHES = 0.145
_WIDTH_OF_WORDS = 34
_CLOSED_FORM = "closed form: equal stages, messages that take no time"
_SAME = 0.005
"""Curves that differ less than that, relatively, are drawn as one."""

Points = Sequence[tuple[int, float]]


def plot_bubble(
    title: str,
    curves: Mapping[str, Points],
    *,
    mark: int | None = None,
    closed_forms: Mapping[str, Points] | None = None,
    too_large: Mapping[str, Points] | None = None,
) -> Figure:
    """Draw bubble ratios against the number of microbatches, each curve named at its end.

    Curves that lie on each other are one; the lowest have colours, the others are grey. A closed form is a
    ring around where its curve would be.

    Parameters
    ----------
    title : str
        Over the picture.
    curves : Mapping
        Schedule to (number of microbatches, bubble ratio) pairs.
    mark : int, optional
        Number of microbatches to mark, the scenario's own.
    closed_forms : Mapping, optional
        The same pairs by formula, of some of the schedules.
    too_large : Mapping, optional
        Points of the curves that do not fit in memory.
    """
    drawn = sorted(_together(curves), key=lambda one: one[1][-1][1])
    words = [textwrap.wrap(", ".join(names), _WIDTH_OF_WORDS) for names, _ in drawn]
    inches = [_LINE_INCHES * (len(lines) + 0.35) for lines in words]
    height = max(4.8, sum(inches) + 1.0)
    colours = [*_COLOURS, *[_OTHERS] * len(drawn)][: len(drawn)]
    figure, (axis,) = new_figure(9.5, height)
    for position, (_, points) in enumerate(drawn):
        axis.plot(*zip(*points, strict=True), "o-", color=colours[position], markersize=3, linewidth=1.3)
    stated = closed_forms or {}
    for position, (names, _) in enumerate(drawn):
        points = next((stated[name] for name in names if name in stated), ())
        if points:
            axis.plot(
                *zip(*points, strict=True), "o", color=colours[position], markersize=7, fillstyle="none"
            )
    if stated:
        axis.plot([], [], "o", color="#404040", markersize=7, fillstyle="none", label=_CLOSED_FORM)
    misfits = list(chain.from_iterable((too_large or {}).values()))
    cross_out(axis, [count for count, _ in misfits], [ratio for _, ratio in misfits])
    add_legend(figure, "outside lower center", ncols=2)
    if mark is not None:
        axis.axvline(mark, color="#9a9a9a", linewidth=0.8, linestyle=":")
    _scale(axis, [*curves.values(), *stated.values()])
    axis.grid(alpha=0.3)
    axis.set_xlabel("microbatches m")
    axis.set_ylabel("bubble ratio: idle / (p x makespan)")
    entitle(axis, title)
    ends = [points[-1] for _, points in drawn]
    up = (axis.transData - axis.transAxes).transform(ends)[:, 1] * (height - 1.0)
    middles = spread(up.tolist(), inches, top=height - 1.0)
    line = {"arrowstyle": "-", "color": "#bdbdbd", "linewidth": 0.6, "shrinkA": 2, "shrinkB": 3}
    for end, lines, middle, colour in zip(ends, words, middles, colours, strict=True):
        axis.annotate(
            "\n".join(lines),
            end,
            xytext=(1.05, middle / (height - 1.0)),
            textcoords="axes fraction",
            va="center",
            fontsize=7,
            color="#404040" if colour == _OTHERS else colour,
            annotation_clip=False,
            arrowprops=line | {"relpos": (0, 0.5)},
            parse_math=False,
        )
    return figure


def _scale(axis: Axes, curves: Sequence[Points]) -> None:
    """Make both axes logarithmic, the upright one unless a ratio is zero."""
    axis.set_xscale("log", base=2)
    counts, ratios = zip(*chain.from_iterable(curves), strict=True)
    ticks = sorted(set(counts))
    axis.set_xticks(ticks, [str(tick) for tick in ticks])
    if min(ratios) > 0:
        axis.set_yscale("log")
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    else:
        axis.set_ylim(bottom=0)
    axis.minorticks_off()
    axis.yaxis.set_major_formatter(FuncFormatter(lambda ratio, _: f"{100 * ratio:.4g} %"))


def _together(curves: Mapping[str, Points]) -> list[tuple[list[str], Points]]:
    """Give curves that lie on each other one entry with all their names."""
    groups: list[tuple[list[str], Points]] = []
    for name, points in curves.items():
        for names, others in groups:
            if len(points) == len(others) and all(
                count == other and math.isclose(ratio, same, rel_tol=_SAME)
                for (count, ratio), (other, same) in zip(points, others, strict=True)
            ):
                names.append(name)
                break
        else:
            groups.append(([name], points))
    return groups
