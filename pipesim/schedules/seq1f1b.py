"""Seq1F1B (arXiv 2406.03488): 1F1B over slices of the sequence, for long sequences and few microbatches.

A slice attends to the slices before it, so forwards go through a microbatch's slices in order and backwards
in reverse. Slices of equal length do not take equal time: the later ones attend to more. The paper's remedy
is lengths that take equal time ("computation-wise partition"): ``slice_lengths: balanced``, or a list.
"""

from collections.abc import Iterator
from typing import Any

from pipesim.ir.actions import Action, backward, forward
from pipesim.schedules._slice_lengths import SLICE_LENGTHS, lengths_are_legal
from pipesim.schedules.registry import Orders, Rule, Shape, schedule

DEFAULT_NUM_SLICES = 4
_LENGTHS = Rule(
    "slice_lengths to be even, balanced, or a positive number for each slice",
    lambda shape: lengths_are_legal(shape.options.get(SLICE_LENGTHS, "even"), num_slices(shape)),
)


def num_slices(shape: Shape) -> Any:
    """Slices k of a microbatch's sequence."""
    return shape.options.get("num_slices", DEFAULT_NUM_SLICES)


def bubble(shape: Shape, forward_s: Any, backward_s: Any) -> Any:
    """(p - 1)(F + B) / k where all slices take the same time."""
    return (shape.num_ranks - 1) * (forward_s + backward_s) / num_slices(shape)


def peak_in_flight(shape: Shape, rank: int) -> int:
    """min(m k, p - 1 - r + k) slices."""
    slices: int = num_slices(shape)
    return min(shape.num_microbatches * slices, shape.num_ranks - 1 - rank + slices)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


@schedule(
    "seq1f1b",
    source="arXiv 2406.03488; github.com/sail-sg/zero-bubble-pipeline-parallelism seq1f1b.py",
    chunks=1,
    rules=(
        Rule("num_slices to be a whole number of at least 1", lambda s: _is_whole(num_slices(s))),
        _LENGTHS,
    ),
    options=("num_slices", SLICE_LENGTHS),
    num_slices=num_slices,
    bubble=bubble,
    peak_in_flight=peak_in_flight,
)
def seq1f1b(shape: Shape) -> Orders:
    """1F1B over k slices of each sequence: a k-th of the bubble if slices are equal and p2p is free."""
    for rank in range(shape.num_ranks):
        yield _rank_order(shape, rank)


def _rank_order(shape: Shape, rank: int) -> Iterator[Action]:
    m, slices = shape.num_microbatches, num_slices(shape)
    forwards = [forward(rank, k, part) for k in range(m) for part in range(slices)]
    backwards = [backward(rank, k, part) for k in range(m) for part in reversed(range(slices))]
    num_warmup = min(len(forwards), shape.num_ranks - 2 - rank + slices)
    yield from forwards[:num_warmup]
    for ahead, behind in zip(forwards[num_warmup:], backwards, strict=False):
        yield ahead
        yield behind
    yield from backwards[len(forwards) - num_warmup :]
