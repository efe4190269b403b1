"""1F1B (PipeDream-flush, DAPPLE): a rank alternates forward and backward as soon as a backward can run."""

from collections.abc import Iterator
from typing import Any

from pipesim.ir.actions import Action, backward, forward
from pipesim.schedules.registry import Orders, Refusal, Shape, schedule


def bubble(shape: Shape, forward_s: Any, backward_s: Any) -> Any:
    """(p - 1)(F + B), as GPipe: 1F1B saves memory, not time."""
    return (shape.num_ranks - 1) * (forward_s + backward_s)


def peak_in_flight(shape: Shape, rank: int) -> int:
    """min(m, p - r)."""
    return min(shape.num_microbatches, shape.num_ranks - rank)


@schedule(
    "1f1b",
    source="arXiv 2104.04473 section 2.2.1; Megatron-LM forward_backward_pipelining_without_interleaving",
    chunks=1,
    known_as={
        "torch": "1F1B",
        "Megatron": "the schedule without virtual stages",
        "DeepSpeed": "TrainSchedule",
    },
    refusals=(Refusal("torch", "needs m >= p", lambda s: s.num_microbatches < s.num_ranks),),
    bubble=bubble,
    peak_in_flight=peak_in_flight,
)
def one_f_one_b(shape: Shape) -> Orders:
    """One forward, one backward: at most p microbatches in flight; GPipe's time if p2p is free."""
    for rank in range(shape.num_ranks):
        yield _rank_order(shape, rank)


def _rank_order(shape: Shape, rank: int) -> Iterator[Action]:
    m = shape.num_microbatches
    num_warmup = min(m, shape.num_ranks - rank - 1)
    for k in range(num_warmup):
        yield forward(rank, k)
    for k in range(m - num_warmup):
        yield forward(rank, num_warmup + k)
        yield backward(rank, k)
    for k in range(m - num_warmup, m):
        yield backward(rank, k)
