"""1F1B-V (arXiv 2405.15362): two chunks there and back without splitting the backward.

Built from a block as V-Min is, with backwards of two slots. So that these never meet a forward in one slot,
the chain of backwards pauses for three slots after every third stage. Where the pipeline fills and drains,
each action then moves to the first free slot that its input and the block's own peak allow.
"""

import numpy as np

from pipesim.ir.actions import Action, backward, forward
from pipesim.schedules.building_block import Block, Turn, turns
from pipesim.schedules.registry import Orders, Shape, schedule

FORWARD_SLOTS, BACKWARD_SLOTS = 1, 2


def peak_in_flight(shape: Shape, rank: int) -> int:
    """2 * floor((2p + 3) / 3) chunks at most; every rank reaches it for m >= 2p."""
    return 2 * ((2 * shape.num_ranks + 3) // 3)


@schedule(
    "1f1b-v",
    source="arXiv 2405.15362; github.com/sail-sg/zero-bubble-pipeline-parallelism v1f1b.py",
    chunks=2,
    peak_in_flight=peak_in_flight,
    placement="v",
)
def one_f_one_b_v(shape: Shape) -> Orders:
    """1F1B over two chunks there and back: two thirds of its activations and a smaller bubble."""
    p, m = shape.num_ranks, shape.num_microbatches
    repeated = [turns(block, rank, p, m) for rank, block in enumerate(_blocks(p))]
    tracks = [_Track(order) for order in repeated]
    peak = max(track.peak for track in tracks)
    # Slot after which each stage's forward and backward of a microbatch is done.
    done = {True: [[0] * m for _ in range(2 * p)], False: [[0] * m for _ in range(2 * p)]}
    by_slot = sorted((turn, rank) for rank, order in enumerate(repeated) for turn in order)
    for turn, rank in by_slot:
        ready = _ready(turn, done)
        slot = tracks[rank].move(turn, ready, peak)
        done[turn.is_forward][turn.stage][turn.microbatch] = slot + _num_slots(turn)
    for track in tracks:
        yield track.order()


def _blocks(p: int) -> list[Block]:
    first = 2 * p + (3 if p % 3 == 0 else 0)
    phase = -(p + 2) % 3

    def backward_slot(nth: int) -> int:
        return first + BACKWARD_SLOTS * nth + 3 * ((nth + phase) // 3)

    return [
        Block(
            forward_there=rank,
            forward_back=2 * p - 1 - rank,
            backward_back=backward_slot(rank),
            backward_there=backward_slot(2 * p - 1 - rank),
        )
        for rank in range(p)
    ]


def _num_slots(turn: Turn) -> int:
    return FORWARD_SLOTS if turn.is_forward else BACKWARD_SLOTS


def _ready(turn: Turn, done: dict[bool, list[list[int]]]) -> int:
    stage, k, own = turn.stage, turn.microbatch, done[turn.is_forward]
    before = own[stage][k - 1] if k else 0
    if turn.is_forward:
        return max(before, own[stage - 1][k]) if stage else before
    last = stage == len(own) - 1
    return max(before, done[True][stage][k] if last else own[stage + 1][k])


class _Track:
    """Slots of one rank: which are free, and how much is in flight after each."""

    def __init__(self, order: list[Turn]) -> None:
        num_slots = order[-1].slot + BACKWARD_SLOTS
        self.free = bytearray(b"\1" * num_slots)
        self.in_flight = np.zeros(num_slots, np.int32)
        self.moved: list[tuple[int, Turn]] = []
        for turn in order:
            self._take(turn.slot, turn)
            if turn.is_forward:
                self.in_flight[turn.slot] += 1
            else:
                self.in_flight[turn.slot + 1] -= 1
        self.in_flight = np.cumsum(self.in_flight, dtype=np.int32)
        self.peak = int(self.in_flight.max())

    def move(self, turn: Turn, ready: int, peak: int) -> int:
        """Move a turn to the first free slot from `ready` on; a forward only across slots below the peak."""
        self._give_back(turn)
        if turn.is_forward:
            full = np.flatnonzero(self.in_flight[ready : turn.slot] >= peak)
            ready += int(full[-1]) + 1 if len(full) else 0
            slot = self.free.find(b"\1", ready)
            self.in_flight[slot : turn.slot] += 1
        else:
            slot = self.free.find(b"\1\1", ready)
            self.in_flight[slot + 1 : turn.slot + 1] -= 1
        self._take(slot, turn)
        self.moved.append((slot, turn))
        return slot

    def order(self) -> list[Action]:
        """List the actions in their new order."""
        return [
            (forward if turn.is_forward else backward)(turn.stage, turn.microbatch)
            for _, turn in sorted(self.moved)
        ]

    def _take(self, slot: int, turn: Turn) -> None:
        self.free[slot : slot + _num_slots(turn)] = bytes(_num_slots(turn))

    def _give_back(self, turn: Turn) -> None:
        self.free[turn.slot : turn.slot + _num_slots(turn)] = b"\1" * _num_slots(turn)
