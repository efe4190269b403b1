"""Compiled loops of the evaluator over the rows of one schedule."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pipesim.timing.compiling import compiled

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]
NONE = -1


@compiled
def runnable_order(offsets: Ints, producer: Ints, joined: npt.NDArray[np.bool_], order: Ints) -> int:
    """Write rows into `order`, each after its producer and its rank's earlier rows; return how many can run.

    Of an overlapped pair only the first row is listed, and both count.
    """
    num_ranks = len(offsets) - 1
    head = offsets[:-1].copy()
    done = np.zeros(len(producer), np.bool_)
    first_waiting = np.full(len(producer), NONE, np.int32)
    next_waiting = np.full(num_ranks, NONE, np.int32)
    stack = np.empty(num_ranks, np.int32)
    for rank in range(num_ranks):
        stack[rank] = num_ranks - 1 - rank
    height, listed, finished = num_ranks, 0, 0
    while height > 0:
        height -= 1
        rank = stack[height]
        row = head[rank]
        while row < offsets[rank + 1]:
            after = row + 2 if joined[row] else row + 1
            blocker = NONE
            for part in range(row, after):
                if producer[part] != NONE and not done[producer[part]]:
                    blocker = producer[part]
                    break
            if blocker != NONE:
                next_waiting[rank] = first_waiting[blocker]
                first_waiting[blocker] = rank
                break
            order[listed] = row
            listed += 1
            for part in range(row, after):
                done[part] = True
                finished += 1
                waiting = first_waiting[part]
                while waiting != NONE:
                    stack[height] = waiting
                    height += 1
                    waiting = next_waiting[waiting]
            row = after
        head[rank] = row
    return finished


@compiled
def time_rows(
    order: Ints,
    producer: Ints,
    joined: npt.NDArray[np.bool_],
    first_of_rank: npt.NDArray[np.bool_],
    durations: Floats,
    delays: Floats,
    next_input: Ints,
    giver: Ints,
    skip_delays: Floats,
    start: Floats,
    end: Floats,
) -> None:
    """Fill `start` and `end`; `delays` counts for every row that has a producer.

    Row r also takes the further inputs next_input[r] to next_input[r + 1], where there are any.
    """
    has_skips = len(giver) > 0
    for row in order:
        begin = 0.0 if first_of_rank[row] else end[row - 1]
        if has_skips:
            after = row + 2 if joined[row] else row + 1
            for number in range(next_input[row], next_input[after]):
                there = end[giver[number]] + skip_delays[number]
                if there > begin:
                    begin = there
        source = producer[row]
        if source != NONE:
            there = end[source] + delays[row]
            if there > begin:
                begin = there
        if joined[row]:
            source = producer[row + 1]
            if source != NONE:
                there = end[source] + delays[row + 1]
                if there > begin:
                    begin = there
            start[row + 1] = begin
            end[row + 1] = begin + durations[row]
        start[row] = begin
        end[row] = begin + durations[row]


def warm_up() -> Any:
    """Compile, or load from disk, what this module holds."""
    none, row = np.full(1, NONE, np.int32), np.zeros(1, np.int32)
    no, number = np.zeros(1, np.bool_), np.zeros(1)
    runnable_order(np.array([0, 1], np.int32), none, no, row)
    begins = np.zeros(2, np.int32)
    time_rows(row, none, no, no, number, number, begins, none[:0], number[:0], number.copy(), number.copy())
