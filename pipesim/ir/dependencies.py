"""The one dependency rule, and the order in which a schedule can run.

F of a stage needs F of the stage before, of the same microbatch; a backward needs the backward of the stage
after (on the last stage, its own F); W needs its I. In schedules that cut the sequence, F of a slice needs F
of the slice before on the same stage, and a backward that of the slice after. A rank keeps its order.

A skip connection adds inputs, not order: F of the stage that takes its tensor needs F of the stage that it
comes from, which the stages between need already, and the backwards the other way round.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipesim.errors import DeadlockError
from pipesim.ir.actions import BoolArray, IntArray, Op, Schedule, overlap

NONE = -1
BACKWARDS = (Op.B, Op.I)


@dataclass(frozen=True, slots=True)
class SkipInputs:
    """What rows take through skip connections; one entry an input, by connection, forwards first."""

    producer: IntArray
    """Row that hands it on."""
    consumer: IntArray
    """Row that takes it."""
    skip: IntArray
    """Which of the schedule's skip connections."""
    crosses: BoolArray
    """The two run on different ranks, so a message is sent."""


@dataclass(frozen=True, slots=True)
class Dependencies:
    """Rows of a compute-only schedule that hand something to other rows; `NONE` where there is none."""

    producer: IntArray
    """Row whose output this row takes from the neighbouring stage, shape (rows,)."""
    consumer: IntArray
    """The other way round: the row on the neighbouring stage that takes this row's output."""
    crosses: BoolArray
    """The producer runs on another rank, so a message is sent."""
    skips: SkipInputs
    """Further inputs."""


def dependencies(schedule: Schedule) -> Dependencies:
    """Apply the dependency rule between stages to a valid compute-only schedule."""
    table = RowTable(schedule)
    producer = np.full(len(schedule.op), NONE, np.int32)
    forwards, backwards = schedule.op == Op.F, np.isin(schedule.op, BACKWARDS)
    producer[forwards] = table.neighbour(forwards, table.forward, -1)
    producer[backwards] = table.neighbour(backwards, table.backward, +1)
    last = backwards & (schedule.stage == schedule.num_stages - 1)
    producer[last] = table.neighbour(last, table.forward, 0)

    has_producer = np.flatnonzero(producer != NONE)
    consumer = np.full(len(producer), NONE, np.int32)
    between_stages = has_producer[~last[has_producer]]
    consumer[producer[between_stages]] = between_stages
    rank = schedule.rank
    crosses = np.zeros(len(producer), np.bool_)
    crosses[has_producer] = rank[has_producer] != rank[producer[has_producer]]
    return Dependencies(producer, consumer, crosses, _skip_inputs(schedule, table))


def _skip_inputs(schedule: Schedule, table: RowTable) -> SkipInputs:
    ends = [(np.empty(0, np.int32),) * 3]
    for number, (source, target) in enumerate(schedule.skips):
        for producer, consumer in (
            (table.forward[source], table.forward[target]),
            (table.backward[target], table.backward[source]),
        ):
            ends.append((producer.ravel(), consumer.ravel(), np.full(producer.size, number, np.int32)))
    producers, consumers, skip = (np.concatenate(column) for column in zip(*ends, strict=True))
    rank = schedule.rank
    return SkipInputs(producers, consumers, skip, rank[producers] != rank[consumers])


class RowTable:
    """Row of each (stage, microbatch, slice), for forwards, backwards (B or I) and W."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.shape = (schedule.num_stages, schedule.num_microbatches, schedule.num_slices)
        self.forward = self._rows((Op.F,))
        self.backward = self._rows(BACKWARDS)
        self.weight = self._rows((Op.W,))

    def _rows(self, operations: tuple[Op, ...]) -> IntArray:
        chosen = np.flatnonzero(np.isin(self.schedule.op, operations))
        table = np.full(self.shape, NONE, np.int32)
        table[self._key(chosen)] = chosen
        return table

    def _key(self, rows: npt.NDArray[np.intp]) -> tuple[IntArray, IntArray, IntArray]:
        return self.schedule.stage[rows], self.schedule.microbatch[rows], self.schedule.slice[rows]

    def neighbour(self, rows: BoolArray, table: IntArray, step: int) -> IntArray:
        """Row in `table` of the stage `step` away, for each row of a mask; `NONE` outside the model."""
        stage, microbatch, part = self._key(np.flatnonzero(rows))
        other = stage + step
        inside = (other >= 0) & (other < self.shape[0])
        found: IntArray = np.where(
            inside, table[np.clip(other, 0, self.shape[0] - 1), microbatch, part], NONE
        )
        return found


def linear_extension(schedule: Schedule, needs: Dependencies) -> list[int]:
    """Order all rows so that each comes after its producer and after its rank's earlier rows.

    Raises
    ------
    DeadlockError
        If no such order exists: names for each rank the action at its head and what it waits for.
    """
    producer, joined = needs.producer.tolist(), schedule.joined.tolist()
    heads, ends = schedule.offsets[:-1].tolist(), schedule.offsets[1:].tolist()
    done = bytearray(len(producer))
    waiting: dict[int, list[int]] = {}
    order: list[int] = []
    runnable = list(range(schedule.num_ranks - 1, -1, -1))
    while runnable:
        rank = runnable.pop()
        row, end = heads[rank], ends[rank]
        while row < end:
            after = row + 2 if joined[row] else row + 1
            blocker = next((p for p in producer[row:after] if p != NONE and not done[p]), NONE)
            if blocker != NONE:
                waiting.setdefault(blocker, []).append(rank)
                break
            for finished in range(row, after):
                done[finished] = 1
                order.append(finished)
                runnable.extend(waiting.pop(finished, ()))
            row = after
        heads[rank] = row
    if len(order) < len(producer):
        raise DeadlockError(
            _deadlock_text(schedule, {r: p for p, ranks in waiting.items() for r in ranks}, heads)
        )
    return order


def _deadlock_text(schedule: Schedule, blockers: dict[int, int], heads: list[int]) -> str:
    rank_of = schedule.rank
    lines = ["the schedule deadlocks; each rank holds, and waits for:"]
    for rank, row in enumerate(heads):
        if rank in blockers:
            blocker = blockers[rank]
            head = schedule.action(row)
            if schedule.joined[row]:
                head = overlap(head, schedule.action(row + 1))
            lines.append(
                f"  rank {rank}: at {head}, waits for {schedule.action(blocker)} on rank {rank_of[blocker]}"
            )
        else:
            lines.append(f"  rank {rank}: done")
    return "\n".join(lines)
