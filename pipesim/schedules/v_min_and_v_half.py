"""V-Min and V-Half (arXiv 2405.15362): a third or half of 1F1B's activations, about 2/3 or 1/2 of its bubble.

Each repeats a block of its own, as `building_block` does. For some p two actions of a block would fall into
one slot: its backwards then start later by the fewest slots that keep all apart, and a rank may run one turn
out of place.
"""

from pipesim.schedules.building_block import Block, squeeze
from pipesim.schedules.registry import Orders, Shape, schedule


def v_min_peak(shape: Shape, rank: int) -> int:
    """2 * floor((p + 4) / 3) chunks at most, until W; some rank reaches it for m >= p."""
    return 2 * ((shape.num_ranks + 4) // 3)


def v_half_peak(shape: Shape, rank: int) -> int:
    """2 * floor((p + 2) / 2) chunks at most, until W; some rank reaches it for m >= p."""
    return 2 * ((shape.num_ranks + 2) // 2)


@schedule(
    "v-min",
    source="arXiv 2405.15362 tables 1 and 8; sail-sg/zero-bubble-pipeline-parallelism zbv_greedy.py",
    chunks=2,
    peak_in_flight=v_min_peak,
    placement="v",
    splits_backward=True,
)
def v_min(shape: Shape) -> Orders:
    """Two chunks there and back with a third of 1F1B's activations; wants equal F, I and W."""
    p = shape.num_ranks
    shift = 2 if p % 3 == 0 else 0
    blocks = [
        Block(
            forward_there=rank,
            forward_back=2 * p - rank - 1,
            backward_back=2 * p + shift + rank,
            backward_there=4 * p + shift - rank - 1,
        )
        for rank in range(p)
    ]
    return squeeze(blocks, shape.num_microbatches, v_min_peak(shape, 0), reach=2 if shift else 1)


@schedule(
    "v-half",
    source="arXiv 2405.15362 tables 1 and 9; sail-sg/zero-bubble-pipeline-parallelism zbv_greedy.py",
    chunks=2,
    peak_in_flight=v_half_peak,
    placement="v",
    splits_backward=True,
)
def v_half(shape: Shape) -> Orders:
    """Two chunks there and back with half of 1F1B's activations, at about half of its bubble."""
    p = shape.num_ranks
    shift = 3 if p % 2 == 0 else 0
    blocks = [
        Block(
            forward_there=2 * rank,
            forward_back=3 * p - rank - 2,
            backward_back=3 * p + shift + 2 * rank - 1,
            backward_there=6 * p + shift - rank - 2,
        )
        for rank in range(p)
    ]
    return squeeze(blocks, shape.num_microbatches, v_half_peak(shape, 0), reach=2 if shift else 1)
