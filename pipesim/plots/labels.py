"""Words beside what they name, without one upon another."""

from __future__ import annotations

from collections.abc import Sequence

Box = tuple[float, float, float, float]
"""Left, bottom, width, height."""


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


def place(point: tuple[float, float], size: tuple[float, float], taken: list[Box], *, gap: float) -> Box:
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
