"""DualPipe (DeepSeek-V3, arXiv 2412.19437): two model replicas, fed from both ends at once.

Rank r holds stage r of one replica and stage p - 1 - r of the other. The first half of the microbatches
enters at rank 0, the second half at rank p - 1; seen from its nearer end, each rank runs the phases of
DualPipeV. The gradients of the two replicas of a stage must be added up over ranks r and p - 1 - r.
"""

from typing import Any

from pipesim.schedules.dualpipe_v import Lane, eight_phases, most_idle_s
from pipesim.schedules.registry import Orders, Rule, Shape, schedule


def split_bubble(shape: Shape, forward_s: Any, input_gradient_s: Any, weight_gradient_s: Any) -> Any:
    """(p / 2 - 1)(F + 2B - 3W), with B = I + W, where a pair takes F + B; only for F = I = W."""
    if not forward_s == input_gradient_s == weight_gradient_s:
        return None
    whole = input_gradient_s + weight_gradient_s
    return most_idle_s(shape.num_ranks, forward_s + whole, whole, weight_gradient_s)


def peak_in_flight(shape: Shape, rank: int) -> int:
    """Microbatches: p + 1, on every rank."""
    return shape.num_ranks + 1


@schedule(
    "dualpipe",
    source="arXiv 2412.19437 section 3.2.1; github.com/deepseek-ai/DualPipe dualpipe.py",
    chunks=1,
    rules=(
        Rule("p even", lambda s: s.num_ranks % 2 == 0),
        Rule(
            "m even and m >= 2p",
            lambda s: s.num_microbatches % 2 == 0 and s.num_microbatches >= 2 * s.num_ranks,
        ),
    ),
    split_bubble=split_bubble,
    peak_in_flight=peak_in_flight,
    placement="bidirectional",
    num_model_replicas=2,
    splits_backward=True,
)
def dualpipe(shape: Shape) -> Orders:
    """Microbatches from both ends through two replicas; a forward and a backward run together."""
    p, half = shape.num_ranks, shape.num_microbatches // 2
    down, up = range(half), range(half, 2 * half)
    for rank in range(p):
        lanes = Lane(rank, down), Lane(p - 1 - rank, up)
        near_start = rank < p // 2
        distance = rank if near_start else p - 1 - rank
        yield eight_phases(lanes if near_start else lanes[::-1], p // 2, distance, half)
