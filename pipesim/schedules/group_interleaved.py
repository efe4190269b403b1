"""GIS, the grouped interleaved schedule of PipeOffload (arXiv 2503.01328): less in flight.

I and W stand side by side but apart, so that the stage before goes on after I; that lets the warm-up be as
short as 1F1B's. Groups of fewer than p microbatches pass a chunk before the next chunk's turn: less memory,
more bubble.
"""

from collections.abc import Iterator
from typing import Any

from pipesim.ir.actions import Action, forward, input_gradient, weight_gradient
from pipesim.schedules.registry import Orders, Rule, Shape, schedule


def group_size(shape: Shape) -> Any:
    """Microbatches g of a group; p unless stated, half of that is the paper's GIS-H."""
    return shape.options.get("group_size", shape.num_ranks)


def split_bubble(shape: Shape, forward_s: Any, input_gradient_s: Any, weight_gradient_s: Any) -> Any:
    """((p - 1)(F + I) + (v - 1)(p - g)(F + I - W)) / v for equal F, I and W and whole groups."""
    p, v, group = shape.num_ranks, shape.num_chunks, group_size(shape)
    if not forward_s == input_gradient_s == weight_gradient_s or shape.num_microbatches % group:
        return None
    both = forward_s + input_gradient_s
    return ((p - 1) * both + (v - 1) * (p - group) * (both - weight_gradient_s)) / v


def peak_in_flight(shape: Shape, rank: int) -> int | None:
    """min(m v, g (v - 1) + p - r) chunks, for whole groups."""
    group = group_size(shape)
    if shape.num_microbatches % group:
        return None
    most: int = group * (shape.num_chunks - 1) + shape.num_ranks - rank
    return min(shape.num_microbatches * shape.num_chunks, most)


def _is_in_range(shape: Shape) -> bool:
    group, p = group_size(shape), shape.num_ranks
    return isinstance(group, int) and not isinstance(group, bool) and p <= 2 * group and group <= p


@schedule(
    "gis",
    source="arXiv 2503.01328; github.com/sail-sg/zero-bubble-pipeline-parallelism group_interleaved_1f1b.py",
    rules=(Rule("group_size to be a whole number from p / 2 to p", _is_in_range),),
    options=("group_size",),
    split_bubble=split_bubble,
    peak_in_flight=peak_in_flight,
    placement="loop",
    splits_backward=True,
)
def group_interleaved(shape: Shape) -> Orders:
    """Interleaved with I and W apart and a short warm-up: p v in flight, fewer with a smaller group_size."""
    for rank in range(shape.num_ranks):
        yield [action for action in _rank_order(shape, rank) if action.microbatch < shape.num_microbatches]


def _rank_order(shape: Shape, rank: int) -> Iterator[Action]:
    """Order for whole groups: the last one is filled up, and what is too much is left out afterwards."""
    p, v, group = shape.num_ranks, shape.num_chunks, group_size(shape)
    num_groups = -(-shape.num_microbatches // group)
    turns = [
        (chunk, k)
        for first in range(0, num_groups * group, group)
        for chunk in range(v)
        for k in range(first, first + group)
    ]
    forwards = [forward(chunk * p + rank, k) for chunk, k in turns]
    num_warmup = min(len(turns), group * (v - 1) + p - 1 - rank)
    yield from forwards[:num_warmup]
    for turn, (chunk, k) in enumerate(turns):
        if num_warmup + turn < len(turns):
            yield forwards[num_warmup + turn]
        stage = (v - 1 - chunk) * p + rank
        yield input_gradient(stage, k)
        yield weight_gradient(stage, k)
