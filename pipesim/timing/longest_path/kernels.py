"""Compiled loops of the evaluator over the rows of one schedule.

What they read and write stands in rows of few arrays, for each array takes its time to compile.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pipesim.timing.compiling import compiled

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]
NONE = -1

PRODUCER, KIND, NEXT_INPUT, ORDER = range(4)
"""What a schedule's rows are: see `new_rows`."""
JOINED, FIRST = 1, 2
"""Sum up to KIND: of the first row of an overlapped pair; of a rank."""
DURATION, DELAY = range(2)
START, END = range(2)

OFFSET, HEAD, NEXT_WAITING, STACK, FIRST_WAITING = range(5)
"""By rank: first row, next row, who else waits for the same, ranks to go on with; by row, who waits."""
DONE = -2
"""Nobody waits for a row any more."""


def new_rows(producer: Ints, joined: npt.NDArray[np.bool_], first: npt.NDArray[Any], inputs: Ints) -> Ints:
    """Lay out what the loops read of a schedule, but for the ORDER of its rows.

    Parameters
    ----------
    producer : int32, shape (rows,)
        Row that each takes a message or a result of another kind from, or NONE.
    joined : bool, shape (rows,)
        First rows of overlapped pairs.
    first : int, shape (ranks,)
        First row of each rank.
    inputs : int32, shape (rows + 1,)
        Row r takes the further inputs inputs[r] to inputs[r + 1].
    """
    rows = np.zeros((ORDER + 1, len(producer) + 1), np.int32)
    rows[PRODUCER, :-1], rows[KIND, :-1], rows[NEXT_INPUT] = producer, joined, inputs
    rows[KIND, first] += FIRST
    return rows


def write_order(rows: Ints, offsets: Ints) -> int:
    """Write ORDER: each row after its producer and its rank's earlier rows; return how many can run.

    Of an overlapped pair only the first row is listed, and both count.
    """
    scratch = np.empty((FIRST_WAITING + 1, max(rows.shape[1], len(offsets))), np.int32)
    scratch[OFFSET, : len(offsets)], scratch[FIRST_WAITING] = offsets, NONE
    return runnable_order(rows, scratch, len(offsets) - 1)


@compiled
def runnable_order(rows: Ints, scratch: Ints, num_ranks: int) -> int:
    """See `write_order`."""
    for rank in range(num_ranks):
        scratch[STACK, rank] = num_ranks - 1 - rank
        scratch[HEAD, rank] = scratch[OFFSET, rank]
    height, listed, finished = num_ranks, 0, 0
    while height > 0:
        height -= 1
        rank = scratch[STACK, height]
        row, stop = scratch[HEAD, rank], scratch[OFFSET, rank + 1]
        while row < stop:
            size = 1 + (rows[KIND, row] & JOINED)
            blocker = rows[PRODUCER, row]
            if size == 2 and (blocker == NONE or scratch[FIRST_WAITING, blocker] == DONE):
                blocker = rows[PRODUCER, row + 1]
            if blocker != NONE and scratch[FIRST_WAITING, blocker] != DONE:
                scratch[NEXT_WAITING, rank] = scratch[FIRST_WAITING, blocker]
                scratch[FIRST_WAITING, blocker] = rank
                break
            rows[ORDER, listed] = row
            listed += 1
            for part in range(row, row + size):
                waiting = scratch[FIRST_WAITING, part]
                scratch[FIRST_WAITING, part] = DONE
                finished += 1
                while waiting != NONE:
                    scratch[STACK, height] = waiting
                    height += 1
                    waiting = scratch[NEXT_WAITING, waiting]
            row += size
        scratch[HEAD, rank] = row
    return finished


@compiled
def time_rows(
    rows: Ints, num_units: int, giver: Ints, skip_delays: Floats, given: Floats, found: Floats
) -> None:
    """Fill START and END of `found` from DURATION and DELAY of `given`.

    DELAY counts for every row that has a producer; `giver` and `skip_delays` are those of further inputs.
    """
    has_skips = len(giver) > 0
    for place in range(num_units):
        row = rows[ORDER, place]
        kind, begin = rows[KIND, row], 0.0
        if kind < FIRST:
            begin = found[END, row - 1]
        if has_skips:
            for number in range(rows[NEXT_INPUT, row], rows[NEXT_INPUT, row + 1 + (kind & JOINED)]):
                there = found[END, giver[number]] + skip_delays[number]
                if there > begin:
                    begin = there
        source = rows[PRODUCER, row]
        if source != NONE:
            there = found[END, source] + given[DELAY, row]
            if there > begin:
                begin = there
        if kind & JOINED != 0:
            source = rows[PRODUCER, row + 1]
            if source != NONE:
                there = found[END, source] + given[DELAY, row + 1]
                if there > begin:
                    begin = there
            found[START, row + 1] = begin
            found[END, row + 1] = begin + given[DURATION, row]
        found[START, row] = begin
        found[END, row] = begin + given[DURATION, row]


def warm_up() -> Any:
    """Compile, or load from disk, what this module holds."""
    begins, number = np.zeros(2, np.int32), np.zeros((2, 1))
    rows = new_rows(np.full(1, NONE, np.int32), np.zeros(1, np.bool_), begins[:1], begins)
    write_order(rows, np.array([0, 1], np.int32))
    time_rows(rows, 1, begins[:0], number[0, :0], number, number.copy())
