"""Hanayo (arXiv 2308.15762): stages in waves over the ranks, there and back v / 2 times.

The paper's order is produced by its runtime and was not found as a rule. This one is derived: in slots of
one F or one B, a microbatch walks through all its forwards and backwards without a pause. Rank r is met on
the way there in slots of the parity of r and on the way back in those of the other parity, so p
microbatches that enter two slots apart fill every slot of every rank, and the next p follow when the first
ones leave.
"""

from collections.abc import Iterator
from typing import Any

from pipesim.ir.actions import Action, backward, forward
from pipesim.schedules.registry import Orders, Rule, Shape, schedule


def bubble(shape: Shape, forward_s: Any, backward_s: Any) -> Any:
    """2 (p - 1) F / v for F = B, 2 (m / p + 1)(p - 1) F / v for B = 2F; for whole groups of p."""
    p, v, m = shape.num_ranks, shape.num_chunks, shape.num_microbatches
    if m % p == 0 and forward_s == backward_s:
        return 2 * (p - 1) * forward_s / v
    if m % p == 0 and 2 * forward_s == backward_s:
        return 2 * (m // p + 1) * (p - 1) * forward_s / v
    return None


def peak_in_flight(shape: Shape, rank: int) -> int | None:
    """Chunks: p (v - 1) + r + 1, for whole groups."""
    p = shape.num_ranks
    return None if shape.num_microbatches % p else p * (shape.num_chunks - 1) + rank + 1


@schedule(
    "hanayo",
    source="arXiv 2308.15762; the order is derived here",
    rules=(Rule("v even (two chunks a wave)", lambda s: s.num_chunks % 2 == 0),),
    bubble=bubble,
    peak_in_flight=peak_in_flight,
    placement="wave",
)
def hanayo(shape: Shape) -> Orders:
    """Waves of stages there and back: interleaving's bubble if B = F, p2p is free and p divides m."""
    for rank in range(shape.num_ranks):
        yield [action for _, action in sorted(_slots(shape, rank))]


def _slots(shape: Shape, rank: int) -> Iterator[tuple[int, Action]]:
    p, num_stages = shape.num_ranks, shape.num_stages
    stages = [p * chunk + (p - 1 - rank if chunk % 2 else rank) for chunk in range(shape.num_chunks)]
    for k in range(shape.num_microbatches):
        group, place = divmod(k, p)
        enters = 2 * num_stages * group + 2 * place
        for stage in stages:
            yield enters + stage, forward(stage, k)
            yield enters + 2 * num_stages - 1 - stage, backward(stage, k)
