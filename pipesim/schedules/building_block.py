"""Schedules repeated from a building block (Pipeline Parallelism with Controllable Memory, arXiv 2405.15362).

Two chunks a rank, placed there and back. The block says at which slot a rank runs the two forwards and two
backwards of microbatch 0; microbatch k follows `PERIOD` slots later each. The longer a block spans, the
more is in flight: memory follows from the block alone. W has no slot: it fills what is left.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from pipesim.ir.actions import Action, forward, input_gradient, weight_gradient

PERIOD = 6
"""Slots a rank works for one microbatch: F, I and W of two chunks."""


class Block(NamedTuple):
    """Slots of one rank for microbatch 0, on its first chunk (there) and its second (back)."""

    forward_there: int
    forward_back: int
    backward_back: int
    backward_there: int


class Turn(NamedTuple):
    """A forward or backward of one stage and microbatch, at its slot in the repeated block."""

    slot: int
    is_forward: bool
    stage: int
    microbatch: int


def turns(block: Block, rank: int, num_ranks: int, num_microbatches: int) -> list[Turn]:
    """Order the forwards and backwards of one rank by their slots."""
    there, back = rank, 2 * num_ranks - 1 - rank
    first = (
        Turn(block.forward_there, True, there, 0),
        Turn(block.forward_back, True, back, 0),
        Turn(block.backward_back, False, back, 0),
        Turn(block.backward_there, False, there, 0),
    )
    return sorted(
        turn._replace(slot=turn.slot + PERIOD * k, microbatch=k)
        for turn in first
        for k in range(num_microbatches)
    )


def squeeze(blocks: list[Block], num_microbatches: int, peak: int, reach: int) -> list[list[Action]]:
    """Repeat the block, start each action as early as it can, and put W wherever a rank would wait.

    In slots of one F, I or W, a rank runs the first of its next `reach` turns whose input is there (a forward
    only below the peak), else the oldest W, else nothing. Only the order is kept.

    Parameters
    ----------
    blocks : list of Block
        One a rank.
    num_microbatches : int
        m.
    peak : int
        Most chunks in flight on a rank, until W.
    reach : int
        Turns that a rank looks ahead, 1 for none.
    """
    num_ranks = len(blocks)
    progress = _SlotsDone(2 * num_ranks, num_microbatches)
    workers = [_Worker(turns(block, rank, num_ranks, num_microbatches)) for rank, block in enumerate(blocks)]
    slot = 0
    unfinished = workers
    while unfinished:
        for worker in unfinished:
            worker.work(slot, progress, peak, reach)
        unfinished = [worker for worker in unfinished if worker.turns or worker.weights]
        slot += 1
    return [worker.order for worker in workers]


class _SlotsDone:
    """Slot after which each stage's forward and backward of a microbatch is done."""

    def __init__(self, num_stages: int, num_microbatches: int) -> None:
        self.last = num_stages - 1
        never = [num_stages * num_microbatches * 2 * PERIOD] * num_microbatches
        self.forward = [list(never) for _ in range(num_stages)]
        self.backward = [list(never) for _ in range(num_stages)]

    def allows(self, turn: Turn, slot: int) -> bool:
        stage, k = turn.stage, turn.microbatch
        if turn.is_forward:
            return stage == 0 or self.forward[stage - 1][k] <= slot
        if stage == self.last:
            return self.forward[stage][k] <= slot
        return self.backward[stage + 1][k] <= slot

    def record(self, turn: Turn, slot: int) -> None:
        done = self.forward if turn.is_forward else self.backward
        done[turn.stage][turn.microbatch] = slot + 1


@dataclass(slots=True)
class _Worker:
    turns: list[Turn]
    order: list[Action] = field(default_factory=list)
    weights: deque[Action] = field(default_factory=deque)
    num_in_flight: int = 0

    def __post_init__(self) -> None:
        self.turns.reverse()

    def work(self, slot: int, progress: _SlotsDone, peak: int, reach: int) -> None:
        for ahead in range(1, min(reach, len(self.turns)) + 1):
            turn = self.turns[-ahead]
            if progress.allows(turn, slot) and not (turn.is_forward and self.num_in_flight == peak):
                del self.turns[-ahead]
                progress.record(turn, slot)
                self._append(turn)
                return
        if self.weights:
            self.order.append(self.weights.popleft())
            self.num_in_flight -= 1

    def _append(self, turn: Turn) -> None:
        if turn.is_forward:
            self.order.append(forward(turn.stage, turn.microbatch))
            self.num_in_flight += 1
        else:
            self.order.append(input_gradient(turn.stage, turn.microbatch))
            self.weights.append(weight_gradient(turn.stage, turn.microbatch))
