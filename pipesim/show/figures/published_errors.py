"""Predicted against measured, one point a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

from pipesim.show.figures.canvas import add_legend, entitle, form_of, new_figure


def plot_accuracy(title: str, points: Mapping[str, Sequence[tuple[float, float]]], *, unit: str) -> Figure:
    """Draw predicted against measured on logarithmic axes, and the errors below.

    Parameters
    ----------
    title : str
        Over the picture.
    points : Mapping
        Name of a set to (measured, predicted) pairs, both positive and in one unit.
    unit : str
        Of the axes.
    """
    figure, (above, below) = new_figure(8.5, 7.5, 2)
    smallest = min(min(pair) for pairs in points.values() for pair in pairs)
    largest = max(max(pair) for pairs in points.values() for pair in pairs)
    above.plot([smallest, largest], [smallest, largest], color="#9a9a9a", linewidth=0.8)
    below.axhline(0, color="#9a9a9a", linewidth=0.8)
    for number, (name, pairs) in enumerate(points.items()):
        form = {**form_of(number), "linestyle": "none", "alpha": 0.8}
        measured, predicted = zip(*pairs, strict=True)
        above.plot(measured, predicted, **form, label=name)
        below.plot(measured, [100 * (p / m - 1) for m, p in pairs], **form)
    above.set_xscale("log")
    above.set_yscale("log")
    for axis in (above.xaxis, above.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    above.set_ylabel(f"predicted [{unit}]")
    below.set_ylabel("error [%]")
    below.set_xlabel(f"measured [{unit}]")
    above.grid(alpha=0.3)
    below.grid(alpha=0.3)
    entitle(above, title)
    add_legend(figure)
    return figure
