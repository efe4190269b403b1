"""V-Min (arXiv 2405.15362): a third of 1F1B's activations at about two thirds of its bubble."""

from pipesim.schedules.building_block import Block, squeeze
from pipesim.schedules.registry import Orders, Shape, schedule


def peak_in_flight(shape: Shape, rank: int) -> int:
    """2 * floor((p + 4) / 3) chunks at most, until W; some rank reaches it for m >= p."""
    return _peak(shape)


def _peak(shape: Shape) -> int:
    return 2 * ((shape.num_ranks + 4) // 3)


@schedule(
    "v-min",
    source="arXiv 2405.15362 tables 1 and 8; sail-sg/zero-bubble-pipeline-parallelism zbv_greedy.py",
    chunks=2,
    peak_in_flight=peak_in_flight,
    placement="v",
    splits_backward=True,
)
def v_min(shape: Shape) -> Orders:
    """Two chunks there and back with a third of 1F1B's activations; wants equal F, I and W."""
    p = shape.num_ranks
    # A p divisible by 3 would put two actions into one slot; two more keep them apart, one turn out of place.
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
    return squeeze(blocks, shape.num_microbatches, _peak(shape), reach=2 if shift else 1)
