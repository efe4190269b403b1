"""Words beside what they name, without one upon another."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from matplotlib.axes import Axes

from pipesim.show.figures.canvas import quiet_glyphs

Box = tuple[float, float, float, float]
"""Left, bottom, width, height."""
Place = tuple[float, float]

_POINTS, _POINTS_AN_INCH = "figure points", 72
_WIDTH_OF_WORDS = 24
_LETTER_WIDTH, _LINE_HEIGHT = 3.9, 8.6
_DOT = 3.0
_SAME_PLACE = 2.5
"""Dots that are nearer to each other than that, in printer's points, share their words."""
_FAR = 1e4


def spread(wanted: Sequence[float], heights: Sequence[float], *, top: float) -> list[float]:
    """Move the labels of a column as little as keeps them apart and between 0 and `top`, in the same order.

    Labels that touch are moved together, by the mean of what each would want (least squares).

    Parameters
    ----------
    wanted : sequence of float
        Middles, ascending.
    heights : sequence of float
        Of each label.
    top : float
        Where there is no room below it, labels stand above it.
    """
    stacked = [sum(heights[:position]) + height / 2 for position, height in enumerate(heights)]
    blocks: list[list[float]] = []
    for middle, place_in_stack in zip(wanted, stacked, strict=True):
        blocks.append([middle - place_in_stack])
        while len(blocks) > 1 and _mean(blocks[-2]) >= _mean(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    room = max(0.0, top - sum(heights))
    moves = [min(max(_mean(block), 0.0), room) for block in blocks for _ in block]
    return [place_in_stack + move for place_in_stack, move in zip(stacked, moves, strict=True)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def place(point: Place, size: tuple[float, float], taken: list[Box], *, gap: float) -> Box:
    """Find the place nearest to a point, of those around it, where a label covers nothing; take it.

    Parameters
    ----------
    point : tuple of float
        What the label names.
    size : tuple of float
        Width and height of the label.
    taken : list of Box
        What may not be covered; the label is added.
    gap : float
        Between point and label.
    """
    (x, y), (width, height) = point, size
    places = [
        (left, bottom, width, height)
        for far in (1, 2, 3, 4, 5)
        for left, bottom in (
            (x + gap, y - height / 2 + (far - 1) * height),
            (x - gap - width, y - height / 2 + (far - 1) * height),
            (x - width / 2, y + gap + (far - 1) * height),
            (x - width / 2, y - gap - far * height),
            (x + gap, y - height / 2 - (far - 1) * height),
            (x - gap - width, y - height / 2 - (far - 1) * height),
        )
    ]
    best = min(places, key=lambda box: sum(_shared_area(box, other) for other in taken))
    taken.append(best)
    return best


def _shared_area(one: Box, other: Box) -> float:
    width = min(one[0] + one[2], other[0] + other[2]) - max(one[0], other[0])
    height = min(one[1] + one[3], other[1] + other[3]) - max(one[1], other[1])
    return max(0.0, width) * max(0.0, height)


def name_points(
    axis: Axes, named: Sequence[tuple[str, Place, str]], lines: Sequence[tuple[Place, Place]]
) -> None:
    """Write words beside points of a finished picture, off its other points, its lines and its edges.

    Parameters
    ----------
    axis : Axes
        Nothing that is drawn later may move it.
    named : sequence of (str, Place, str)
        Words, where the point is, and the words' colour; of words that share a place, the first one's.
    lines : sequence of (Place, Place)
        From where to where each goes, upright or level.
    """
    figure = axis.get_figure(root=True)
    assert figure is not None
    with quiet_glyphs():
        figure.draw_without_rendering()  # settles where everything is

    def on_page(place: Place) -> Place:
        x, y = axis.transData.transform(place) * _POINTS_AN_INCH / figure.dpi
        return float(x), float(y)

    window = axis.get_window_extent().transformed(figure.dpi_scale_trans.inverted())
    left, bottom, right, top = (edge * _POINTS_AN_INCH for edge in window.extents)
    taken = [(left - _FAR, 0.0, _FAR, _FAR), (right, 0.0, _FAR, _FAR)]
    taken += [(0.0, bottom - _FAR, _FAR, _FAR), (0.0, top, _FAR, _FAR)]
    taken += [_box(on_page(one), on_page(other)) for one, other in lines]
    groups = _together([(words, on_page(place), colour) for words, place, colour in named])
    taken += [(x - _DOT, y - _DOT, 2 * _DOT, 2 * _DOT) for _, (x, y), _ in groups]
    for names, spot, colour in groups:
        rows = textwrap.wrap(", ".join(names), _WIDTH_OF_WORDS)
        size = (max(map(len, rows)) * _LETTER_WIDTH, len(rows) * _LINE_HEIGHT)
        left, bottom, _, height = place(spot, size, taken, gap=_DOT + 2)
        axis.annotate(
            "\n".join(rows),
            spot,
            xycoords=_POINTS,
            xytext=(left, bottom + height / 2),
            textcoords=_POINTS,
            va="center",
            fontsize=7,
            color=colour,
            parse_math=False,
            arrowprops={"arrowstyle": "-", "color": "#bdbdbd", "linewidth": 0.6, "shrinkA": 0, "shrinkB": 2},
        )


def _together(named: Sequence[tuple[str, Place, str]]) -> list[tuple[list[str], Place, str]]:
    """Give points in one place one entry with all their words."""
    groups: list[tuple[list[str], Place, str]] = []
    for words, spot, colour in named:
        for names, other, _ in groups:
            if max(abs(spot[0] - other[0]), abs(spot[1] - other[1])) <= _SAME_PLACE:
                names.append(words)
                break
        else:
            groups.append(([words], spot, colour))
    return groups


def _box(one: Place, other: Place) -> Box:
    """Cover a line and a little beside it."""
    left, bottom = min(one[0], other[0]), min(one[1], other[1])
    return left - 1, bottom - 1, abs(one[0] - other[0]) + 2, abs(one[1] - other[1]) + 2
