"""Interleaved zero bubble: interleaved 1F1B whose weight gradients lag, as in ZB-H1, into the gaps."""

from collections.abc import Iterator
from typing import Any

from pipesim.ir.actions import Action, forward, input_gradient, weight_gradient
from pipesim.schedules.registry import Orders, Rule, Shape, schedule


def group_size(shape: Shape) -> int:
    """Microbatches N that pass one chunk before the next chunk's turn: m / max(1, m // p)."""
    return shape.num_microbatches // _num_rounds(shape)


def split_bubble(shape: Shape, forward_s: Any, input_gradient_s: Any, weight_gradient_s: Any) -> Any:
    """(p - 1)(F + I - min(F, I, W)) / v for m >= p."""
    if shape.num_microbatches < shape.num_ranks:
        return None
    filled = min(forward_s, input_gradient_s, weight_gradient_s)
    return (shape.num_ranks - 1) * (forward_s + input_gradient_s - filled) / shape.num_chunks


def peak_in_flight(shape: Shape, rank: int) -> int:
    """min(m v, (v - 1) N + p), until W; p v where p divides m."""
    most = (shape.num_chunks - 1) * group_size(shape) + shape.num_ranks
    return min(shape.num_microbatches * shape.num_chunks, most)


def _num_rounds(shape: Shape) -> int:
    return max(1, shape.num_microbatches // shape.num_ranks)


@schedule(
    "interleaved-zb",
    source="arXiv 2401.10241; order as torch.distributed.pipelining.ScheduleInterleavedZeroBubble",
    rules=(Rule("m divisible by max(1, m // p)", lambda s: s.num_microbatches % _num_rounds(s) == 0),),
    known_as={"torch": "InterleavedZeroBubble"},
    split_bubble=split_bubble,
    peak_in_flight=peak_in_flight,
    placement="loop",
    splits_backward=True,
)
def interleaved_zero_bubble(shape: Shape) -> Orders:
    """Interleaved 1F1B with weight gradients in the gaps: a v-th of ZB-H1's bubble."""
    for rank in range(shape.num_ranks):
        yield _rank_order(shape, rank)


def _rank_order(shape: Shape, rank: int) -> Iterator[Action]:
    p, v = shape.num_ranks, shape.num_chunks
    turns = list(_turns(shape))
    backward_turns = [((v - 1 - chunk) * p + rank, k) for chunk, k in turns]
    forwards = [forward(chunk * p + rank, k) for chunk, k in turns]
    num_warmup = min(len(turns), (v - 1) * group_size(shape) + p - 1 - rank)
    yield from forwards[:num_warmup]
    for turn, (stage, k) in enumerate(backward_turns):
        if num_warmup + turn < len(turns):
            yield forwards[num_warmup + turn]
        yield input_gradient(stage, k)
        if turn >= rank:
            yield weight_gradient(*backward_turns[turn - rank])
    for stage, k in backward_turns[max(0, len(turns) - rank) :]:
        yield weight_gradient(stage, k)


def _turns(shape: Shape) -> Iterator[tuple[int, int]]:
    """Chunk and microbatch of each forward in turn."""
    group = group_size(shape)
    for first in range(0, shape.num_microbatches, group):
        for chunk in range(shape.num_chunks):
            for k in range(first, first + group):
                yield chunk, k
