"""Colours, figures, and turning them into files."""

from __future__ import annotations

import colorsys
import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from pipesim.files import check_picture, complete_file
from pipesim.ir.actions import Op

COLOURS = {Op.F: "#2f6fde", Op.B: "#f28e2b", Op.I: "#3fb8af", Op.W: "#59a14f"}
IDLE = "#f5f5f5"
SYNC, OPTIMIZER = "#7a6fb0", "#9c755f"
LIMIT, MISFIT_HATCH, MISFIT_COLOUR = "#e15759", "///", "#e8b9b9"
MISFIT_WORDS = "does not fit in memory"
_LETTERS_AN_INCH = 13
_DOTS_AN_INCH, _DOTS_ON_SCREEN = 150, 80
_MIDDLE_LUMINANCE = 0.1791
"""Where black, (L + 0.05) / 0.05, and white, 1.05 / (L + 0.05), have the same contrast."""
_ABOVE_LIMIT = 1.04
_MARKERS = "osD^vP*X<>"
_FILLS = ("full", "none", "bottom")
_LINES = ("-", "--", ":")


class ShownFigure(Figure):
    """A figure that a notebook shows as it is; it has no window and is in no list of open figures."""

    def _repr_png_(self) -> bytes:
        return png(self, _DOTS_ON_SCREEN)


def new_figure(width: float, height: float, num_rows: int = 1) -> tuple[Figure, list[Axes]]:
    """Make a figure of a size in inches with axes one under the other that share the x axis."""
    figure = ShownFigure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(num_rows, 1, sharex=True, squeeze=False)
    return figure, list(axes[:, 0])


def entitle(axis: Axes, words: str, **form: Any) -> None:
    """Write a title as it stands, since names of scenarios are not formulas, and no wider than the figure."""
    axis.set_title(_cut(words, axis), loc="left", fontsize=9, parse_math=False, **form)


def add_legend(figure: Figure, place: Any = "outside right center", **form: Any) -> None:
    """Name what has a label, each as it stands; no legend where nothing has one."""
    if "handles" not in form and not any(axis.get_legend_handles_labels()[1] for axis in figure.axes):
        return
    form = {"fontsize": 8, "frameon": False, **form}
    legend = figure.legend(loc=place, **form)
    for text in legend.get_texts():
        text.set_parse_math(False)
        text.set_text(_cut(text.get_text(), figure.axes[0]))


def _cut(words: str, axis: Axes) -> str:
    figure = axis.get_figure(root=True)
    assert figure is not None
    longest = int(figure.get_figwidth() * _LETTERS_AN_INCH)
    return words if len(words) <= longest or "\n" in words else f"{words[: longest - 3]}..."


def form_of(number: int) -> dict[str, Any]:
    """Give each of up to thirty sets a mark, and each of their lines a form, that no other has."""
    again = number // len(_MARKERS)
    return {
        "color": f"C{number % 10}",
        "marker": _MARKERS[number % len(_MARKERS)],
        "markersize": 4,
        "fillstyle": _FILLS[again % len(_FILLS)],
        "linewidth": 1.2,
        "linestyle": _LINES[again % len(_LINES)],
    }


def draw_limit(axis: Axes, *limits: float) -> None:
    """Draw the memory of devices over what is already drawn, and hatch what no device has."""
    for limit in limits:
        axis.axhline(limit, color=LIMIT, linestyle="--", label="device memory")
    top = axis.get_ylim()[1]
    if limits and top > max(limits):
        axis.axhspan(
            max(limits), top, facecolor="none", edgecolor=MISFIT_COLOUR, hatch=MISFIT_HATCH, zorder=0
        )
    if limits:
        axis.set_ylim(top=max(top, _ABOVE_LIMIT * max(limits)))


def cross_out(axis: Axes, x: Sequence[float], y: Sequence[float]) -> None:
    """Mark points that do not fit in memory."""
    if len(x):
        named = MISFIT_WORDS in axis.get_legend_handles_labels()[1]
        label = None if named else MISFIT_WORDS
        axis.plot(x, y, "x", color=LIMIT, markersize=8, zorder=5, label=label)


@contextmanager
def quiet_glyphs() -> Iterator[None]:
    """Draw letters of an alphabet that the font lacks as boxes, without a warning."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")
        yield


def png(figure: Figure, dots_an_inch: int = _DOTS_AN_INCH) -> bytes:
    """Draw a figure as a PNG, the same bytes every time."""
    stream = io.BytesIO()
    before = figure.dpi, figure.canvas
    try:
        figure.dpi = dots_an_inch
        canvas: Any = FigureCanvasAgg(figure)
        with quiet_glyphs():
            canvas.print_png(stream)  # `savefig` goes through all of the figure twice
    finally:
        figure.dpi, figure.canvas = before
    return stream.getvalue()


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a PNG or SVG, by the file's name, whole or not at all.

    Raises
    ------
    ScenarioError
        If the name ends in neither, or the place cannot be written to.
    """
    check_picture(path)
    with complete_file(path) as temporary:
        if temporary.suffix.lower() == ".png":
            temporary.write_bytes(png(figure))
            return
        with rc_context({"svg.hashsalt": "pipesim"}), quiet_glyphs():
            figure.savefig(temporary, dpi=_DOTS_AN_INCH, metadata={"Date": None})


def letters_on(colour: tuple[float, float, float]) -> str:
    """Choose black or white, whichever stands out more (WCAG 2's relative luminance)."""
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour)
    return "black" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > _MIDDLE_LUMINANCE else "white"


def shade(colour: str, chunk: int, num_chunks: int) -> tuple[float, float, float]:
    """Lighten a colour for later chunks of a rank."""
    hue, lightness, saturation = colorsys.rgb_to_hls(*to_rgb(colour))
    lift = 0.6 * chunk / (num_chunks - 1) if num_chunks > 1 else 0.0
    return colorsys.hls_to_rgb(hue, lightness + (0.88 - lightness) * lift, saturation)
