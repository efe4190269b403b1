"""ZB-V (arXiv 2401.10241 section 6): two chunks a rank, placed there and back, so that a rank never waits.

Rank r holds stages r and 2p - 1 - r: forwards and backwards both start and end on rank 0. Where F, I and W
take the same time and m >= 2p - 1, no rank idles between its first and its last action.
"""

from collections.abc import Iterator
from typing import Any

from pipesim.ir.actions import Action, forward, input_gradient, weight_gradient
from pipesim.schedules.registry import Orders, Shape, schedule


def split_bubble(shape: Shape, forward_s: Any, input_gradient_s: Any, weight_gradient_s: Any) -> Any:
    """(p - 1) F / 2 for F = I = W and m >= 2p - 1: the wait for the first forward and after the last W."""
    if not forward_s == input_gradient_s == weight_gradient_s or not _is_full(shape):
        return None
    return (shape.num_ranks - 1) * forward_s / 2


def peak_in_flight(shape: Shape, rank: int) -> int:
    """min(2p, 2m, m + r + 1) chunks: 2p, as much as 1F1B's first rank, from m = 2p - 1 on."""
    return min(2 * shape.num_ranks, 2 * shape.num_microbatches, shape.num_microbatches + rank + 1)


def _is_full(shape: Shape) -> bool:
    return shape.num_microbatches >= 2 * shape.num_ranks - 1


@schedule(
    "zb-v",
    source="arXiv 2401.10241 section 6; order as torch.distributed.pipelining.ScheduleZBVZeroBubble",
    chunks=2,
    known_as={"torch": "ZBVZeroBubble"},
    split_bubble=split_bubble,
    peak_in_flight=peak_in_flight,
    placement="v",
    splits_backward=True,
)
def zb_v(shape: Shape) -> Orders:
    """Two chunks there and back: no bubble inside a rank's span where F = I = W, at 1F1B's peak."""
    for rank in range(shape.num_ranks):
        order = _rank_order(shape.num_ranks, rank, max(2 * shape.num_ranks - 1, shape.num_microbatches))
        yield [action for action in order if action.microbatch < shape.num_microbatches]


def _rank_order(p: int, rank: int, m: int) -> Iterator[Action]:
    """Order for at least the 2p - 1 microbatches that fill the pipeline; too many are left out afterwards."""
    there, back = rank, 2 * p - 1 - rank
    num_there = 2 * (p - rank) - 1
    yield from (forward(there, k) for k in range(num_there))
    for k in range(rank):
        yield forward(back, k)
        yield forward(there, num_there + k)
    for k in range(p - rank):
        yield forward(back, rank + k)
        yield from _whole_backward(back, k)
    num_back = p - rank
    num_started = num_there + rank
    for k in range(m - p):
        if num_started + k < m:
            yield forward(there, num_started + k)
        yield from _whole_backward(there, k)
        yield forward(back, p + k)
        yield from _whole_backward(back, num_back + k)
    first_there, first_back = m - p, num_back + m - p
    for k in range(rank):
        yield input_gradient(there, first_there + k)
        yield input_gradient(back, first_back + k)
    for k in range(p - rank):
        yield input_gradient(there, first_there + rank + k)
        yield weight_gradient(there, first_there + k)
    yield from (weight_gradient(back, k) for k in range(first_back, m))
    yield from (weight_gradient(there, k) for k in range(first_there + p - rank, m))


def _whole_backward(stage: int, k: int) -> Iterator[Action]:
    yield input_gradient(stage, k)
    yield weight_gradient(stage, k)
