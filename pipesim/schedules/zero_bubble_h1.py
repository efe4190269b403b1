"""ZB-H1 (Zero Bubble Pipeline Parallelism, arXiv 2401.10241 section 2.1): 1F1B with W moved into the gaps.

Forwards and input gradients keep 1F1B's order. Rank r starts its weight gradients r backwards late, so that
every rank holds as much as 1F1B's first one: p microbatches until their W.
"""

from collections.abc import Iterator
from typing import Any

from pipesim.ir.actions import Action, forward, input_gradient, weight_gradient
from pipesim.schedules.registry import Orders, Refusal, Shape, schedule


def split_bubble(shape: Shape, forward_s: Any, input_gradient_s: Any, weight_gradient_s: Any) -> Any:
    """(p - 1)(F + I - min(F, I, W)) for m >= p."""
    if shape.num_microbatches < shape.num_ranks:
        return None
    filled = min(forward_s, input_gradient_s, weight_gradient_s)
    return (shape.num_ranks - 1) * (forward_s + input_gradient_s - filled)


def peak_in_flight(shape: Shape, rank: int) -> int:
    """min(m, p), until W."""
    return min(shape.num_microbatches, shape.num_ranks)


def _torch_refuses(shape: Shape) -> bool:
    return shape.num_microbatches % max(1, shape.num_microbatches // shape.num_ranks) != 0


@schedule(
    "zb-h1",
    source="arXiv 2401.10241 section 2.1; order as torch's InterleavedZeroBubble with one chunk",
    chunks=1,
    known_as={"torch": "InterleavedZeroBubble with one stage a rank"},
    refusals=(Refusal("torch", "needs m divisible by max(1, m // p)", _torch_refuses),),
    split_bubble=split_bubble,
    peak_in_flight=peak_in_flight,
    splits_backward=True,
)
def zb_h1(shape: Shape) -> Orders:
    """1F1B with weight gradients in the gaps: a third of its bubble for the same peak on every rank."""
    for rank in range(shape.num_ranks):
        yield _rank_order(shape, rank)


def _rank_order(shape: Shape, rank: int) -> Iterator[Action]:
    m = shape.num_microbatches
    num_warmup = min(m, shape.num_ranks - rank - 1)
    for k in range(num_warmup):
        yield forward(rank, k)
    for k in range(m):
        if num_warmup + k < m:
            yield forward(rank, num_warmup + k)
        yield input_gradient(rank, k)
        if k >= rank:
            yield weight_gradient(rank, k - rank)
    for k in range(max(0, m - rank), m):
        yield weight_gradient(rank, k)
