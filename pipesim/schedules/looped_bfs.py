"""Looped breadth-first (Lamy-Poirier, arXiv 2211.05953): chunk after chunk, all microbatches at once.

A stage's microbatches run without a break, so sharded weights are gathered once a stage, forward and
backward.
"""

from typing import Any

from pipesim.ir.actions import backward, forward
from pipesim.schedules.registry import Orders, Shape, schedule


def bubble(shape: Shape, forward_s: Any, backward_s: Any) -> Any:
    """(p - 1)(F + B) / v, and (v - 1)(p - m)(F + B) / v more where m < p."""
    p, v, m = shape.num_ranks, shape.num_chunks, shape.num_microbatches
    return (p - 1 + (v - 1) * max(0, p - m)) * (forward_s + backward_s) / v


def peak_in_flight(shape: Shape, rank: int) -> int:
    """All m v: the first backward follows the last forward."""
    return shape.num_microbatches * shape.num_chunks


@schedule(
    "looped-bfs",
    source="arXiv 2211.05953; order as torch.distributed.pipelining.ScheduleLoopedBFS",
    known_as={"torch": "LoopedBFS"},
    placement="loop",
    bubble=bubble,
    peak_in_flight=peak_in_flight,
)
def looped_bfs(shape: Shape) -> Orders:
    """All microbatches through chunk after chunk, and back the other way round."""
    microbatches = range(shape.num_microbatches)
    for rank in range(shape.num_ranks):
        stages = range(rank, shape.num_stages, shape.num_ranks)
        yield [forward(stage, k) for stage in stages for k in microbatches] + [
            backward(stage, k) for stage in reversed(stages) for k in reversed(microbatches)
        ]
