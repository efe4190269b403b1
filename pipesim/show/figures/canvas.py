"""Colours, figures, and saving them."""

from __future__ import annotations

import colorsys
import warnings
from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text

from pipesim.files import check_picture, complete_file
from pipesim.ir.actions import Op

COLOURS = {Op.F: "#2f6fde", Op.B: "#f28e2b", Op.I: "#3fb8af", Op.W: "#59a14f"}
OP_WORDS = {Op.F: "forward", Op.B: "full backward", Op.I: "input gradient", Op.W: "weight gradient"}
IDLE = "#f5f5f5"
_LETTERS_AN_INCH = 13
SYNC, OPTIMIZER = "#7a6fb0", "#9c755f"


def new_figure(width: float, height: float, num_rows: int = 1) -> tuple[Figure, list[Axes]]:
    """Make a figure of a size in inches with axes one under the other that share the x axis."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(num_rows, 1, sharex=True, squeeze=False)
    return figure, list(axes[:, 0])


def save(figure: Figure, path: str | Path) -> None:
    """Write a PNG or SVG, whole or not at all.

    Raises
    ------
    ScenarioError
        If the name ends in neither, or the place cannot be written to.
    """
    check_picture(path)
    for text in figure.findobj(Text):
        text.set_parse_math(False)  # names of scenarios are not formulas
        words, longest = text.get_text(), int(figure.get_figwidth() * _LETTERS_AN_INCH)
        if len(words) > longest and "\n" not in words:
            text.set_text(f"{words[: longest - 3]}...")
    with (
        complete_file(path) as temporary,
        rc_context({"svg.hashsalt": "pipesim"}),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", message="Glyph")  # an alphabet the font lacks is drawn as boxes
        figure.savefig(temporary, dpi=150, metadata={"Date": None} if temporary.suffix == ".svg" else None)


def shade(colour: str, chunk: int, num_chunks: int) -> tuple[float, float, float]:
    """Lighten a colour for later chunks of a rank."""
    hue, lightness, saturation = colorsys.rgb_to_hls(*to_rgb(colour))
    lift = 0.6 * chunk / (num_chunks - 1) if num_chunks > 1 else 0.0
    return colorsys.hls_to_rgb(hue, lightness + (0.88 - lightness) * lift, saturation)
