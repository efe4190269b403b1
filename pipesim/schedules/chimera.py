"""Chimera (arXiv 2107.06925): two model replicas, two 1F1B pipelines that run towards each other.

In slots of one F or one B, microbatch j of the pipe that runs down starts stage s at slot s + 2j and its
backward at slot 2p - 1 - s + 2j. The pipe that runs up is the mirror image, and with p even the two never
ask for the same slot within a unit of p microbatches, half of them each way. Units follow at a distance of
2p slots, which again leaves every slot to one of them ("direct concatenation").
"""

from collections.abc import Iterator
from typing import Any

from pipesim.ir.actions import Action, backward, forward
from pipesim.schedules.registry import Orders, Rule, Shape, schedule


def bubble(shape: Shape, forward_s: Any, backward_s: Any) -> Any:
    """(p - 2) F for F = B, (m / p + 1)(p - 2) F for B = 2F; for whole units of p microbatches."""
    p, m = shape.num_ranks, shape.num_microbatches
    if m % p == 0 and forward_s == backward_s:
        return (p - 2) * forward_s
    if m % p == 0 and 2 * forward_s == backward_s:
        return (m // p + 1) * (p - 2) * forward_s
    return None


def peak_in_flight(shape: Shape, rank: int) -> int | None:
    """min(r, p - 1 - r) + p / 2 + 1, from p / 2 + 1 at the ends to p in the middle; for whole units."""
    p = shape.num_ranks
    return None if shape.num_microbatches % p else min(rank, p - 1 - rank) + p // 2 + 1


@schedule(
    "chimera",
    source="arXiv 2107.06925 section 3.2; github.com/Shigangli/Chimera chimera_pipeline_rank.py",
    chunks=1,
    rules=(Rule("p even", lambda s: s.num_ranks % 2 == 0),),
    bubble=bubble,
    peak_in_flight=peak_in_flight,
    placement="bidirectional",
    num_model_replicas=2,
)
def chimera(shape: Shape) -> Orders:
    """Two replicas, fed from both ends: half of 1F1B's bubble if B = F and p2p is free; twice the weights."""
    for rank in range(shape.num_ranks):
        yield [action for _, action in sorted(_slots(shape, rank))]


def _slots(shape: Shape, rank: int) -> Iterator[tuple[int, Action]]:
    p = shape.num_ranks
    for k in range(shape.num_microbatches):
        unit, place = divmod(k, p)
        # Within a unit: even places run down, odd ones up, so that an incomplete unit is shared out too.
        turn, upwards = divmod(place, 2)
        stage = p - 1 - rank if upwards else rank
        start = 2 * p * unit + 2 * turn
        yield start + stage, forward(stage, k)
        yield start + 2 * p - 1 - stage, backward(stage, k)
