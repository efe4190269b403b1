"""Predicted against measured, one point a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pipesim.show.figures.canvas import new_figure, save

_MARKERS = "osD^vP*X<>"


def plot_accuracy(
    title: str,
    points: Mapping[str, Sequence[tuple[float, float]]],
    path: str | Path,
    *,
    unit: str,
) -> None:
    """Draw predicted against measured on logarithmic axes, and the errors below.

    Parameters
    ----------
    title : str
        Over the picture.
    points : Mapping
        Name of a set to (measured, predicted) pairs, both positive and in one unit.
    path : str or Path
        PNG or SVG.
    unit : str
        Of the axes.
    """
    figure, (above, below) = new_figure(8.5, 7.5, 2)
    smallest = min(min(pair) for pairs in points.values() for pair in pairs)
    largest = max(max(pair) for pairs in points.values() for pair in pairs)
    above.plot([smallest, largest], [smallest, largest], color="#9a9a9a", linewidth=0.8)
    below.axhline(0, color="#9a9a9a", linewidth=0.8)
    for position, (name, pairs) in enumerate(points.items()):
        form = f"C{position % 10}{_MARKERS[position % len(_MARKERS)]}"
        measured, predicted = zip(*pairs, strict=True)
        errors = [100 * (p / m - 1) for m, p in pairs]
        above.plot(measured, predicted, form, markersize=4, alpha=0.8, label=name)
        below.plot(measured, errors, form, markersize=4, alpha=0.8)
    above.set_xscale("log")
    above.set_yscale("log")
    above.set_ylabel(f"predicted [{unit}]")
    below.set_ylabel("error [%]")
    below.set_xlabel(f"measured [{unit}]")
    above.grid(alpha=0.3)
    below.grid(alpha=0.3)
    above.set_title(title, loc="left", fontsize=9)
    figure.legend(loc="outside right center", fontsize=8, frameon=False)
    save(figure, path)
