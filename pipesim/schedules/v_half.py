"""V-Half (arXiv 2405.15362): half of 1F1B's activations at about half of its bubble."""

from pipesim.schedules.building_block import Block, squeeze
from pipesim.schedules.registry import Orders, Shape, schedule


def peak_in_flight(shape: Shape, rank: int) -> int:
    """2 * floor((p + 2) / 2) chunks at most, until W; some rank reaches it for m >= p."""
    return _peak(shape)


def _peak(shape: Shape) -> int:
    return 2 * ((shape.num_ranks + 2) // 2)


@schedule(
    "v-half",
    source="arXiv 2405.15362 tables 1 and 9; sail-sg/zero-bubble-pipeline-parallelism zbv_greedy.py",
    chunks=2,
    peak_in_flight=peak_in_flight,
    placement="v",
    splits_backward=True,
)
def v_half(shape: Shape) -> Orders:
    """Two chunks there and back with half of 1F1B's activations, at about half of its bubble."""
    p = shape.num_ranks
    # An even p would put two actions into one slot; three slots more keep them apart, one turn out of place.
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
    return squeeze(blocks, shape.num_microbatches, _peak(shape), reach=2 if shift else 1)
