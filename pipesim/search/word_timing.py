"""Compiled timing of words: schedules in which the k-th F (I, W) of a stage is that of microbatch k.

A word lists, rank after rank, symbols ``operation * S + stage`` with F, I, W = 0, 1, 2; every rank has the
same number of rows. Microbatches are alike, so numbering them by turn loses nothing, and a search over words
has no microbatch to choose.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pipesim.ir.dependencies import NONE
from pipesim.timing.compiling import compiled, compiled_part

Ints = npt.NDArray[np.int32]
Indices = npt.NDArray[np.intp]
Floats = npt.NDArray[np.float64]

NOBODY = NONE


class Pipeline(NamedTuple):
    """What a search is for: a placement, times and memory, as arrays.

    Parameters
    ----------
    num_microbatches : int
        m.
    stages : int32, shape (p, v)
        Stages of each rank, ascending.
    rank_of : intp, shape (S,)
        Rank of each stage.
    producer : intp, shape (3 * S,)
        Symbol whose output a symbol takes, of the same microbatch; NOBODY for the first F and for W.
    consumer : intp, shape (3 * S,)
        The other way round.
    duration : float64, shape (3 * S,)
        Of each symbol, by which orders are listed.
    lasts : float64, shape (3 * S * m,)
        Of each symbol and microbatch, at ``symbol * m + microbatch``: a backward that is not split lasts as
        long as B where its I stands, and no time where its W does.
    delay : float64, shape (3 * S,)
        From the end of a symbol's producer on the neighbouring stage to the arrival of its message.
    change : float64, shape (3 * S,)
        What a symbol adds to the memory that its rank holds.
    limit : float64, shape (p,)
        Most that a rank may hold after any of its actions.
    work : float64, shape (p,)
        Duration of all actions of each rank.
    """

    num_microbatches: int
    stages: Ints
    rank_of: Indices
    producer: Indices
    consumer: Indices
    duration: Floats
    lasts: Floats
    delay: Floats
    change: Floats
    limit: Floats
    work: Floats


class Scratch(NamedTuple):
    """What timing fills: times by row; row by symbol and microbatch; rows in the order they were timed."""

    start: Floats
    end: Floats
    row_of: Ints
    sequence: Ints
    num_run: Ints
    head: Ints
    waiting: Ints
    stack: Ints
    idle: Floats


def new_scratch(pipeline: Pipeline) -> Scratch:
    """Room for `time_word`; to be used again."""
    num_symbols = len(pipeline.duration)
    num_rows = num_symbols * pipeline.num_microbatches
    num_ranks = len(pipeline.limit)
    return Scratch(
        start=np.zeros(num_rows),
        end=np.zeros(num_rows),
        row_of=np.zeros(num_rows, np.int32),
        sequence=np.zeros(num_rows, np.int32),
        num_run=np.zeros(num_symbols, np.int32),
        head=np.zeros(num_ranks, np.int32),
        waiting=np.zeros(num_symbols, np.int32),
        stack=np.zeros(num_ranks, np.int32),
        idle=np.zeros(num_ranks),
    )


@compiled_part
def num_ready(pipeline: Pipeline, symbol: int, count: Ints) -> int:
    """How many of a symbol can have run, where `count` of each have: W needs its I, others a producer."""
    num_stages = len(pipeline.rank_of)
    if symbol >= 2 * num_stages:
        return int(count[symbol - num_stages])
    producer = pipeline.producer[symbol]
    return pipeline.num_microbatches if producer == NOBODY else int(count[producer])


@compiled_part
def arrival(pipeline: Pipeline, symbol: int, k: int, end: Floats) -> float:
    """When the message for the k-th of a symbol is there; `end` at ``symbol * m + microbatch``."""
    producer = pipeline.producer[symbol]
    if producer == NOBODY:
        return 0.0
    return float(end[producer * pipeline.num_microbatches + k] + pipeline.delay[symbol])


@compiled_part
def copy_into(target: Ints, source: Ints, number: int) -> None:
    """Copy entries; assigning an array would compile numba's error texts, for seconds."""
    for place in range(number):
        target[place] = source[place]


@compiled
def time_word(pipeline: Pipeline, word: Ints, scratch: Scratch, bound: float) -> tuple[float, float]:
    """Time a word; return its makespan and the mean end of its ranks.

    Both are infinite if it cannot run, or as soon as its makespan is sure to be more than `bound`.
    """
    m, num_ranks = pipeline.num_microbatches, len(pipeline.limit)
    start, end, row_of, sequence, count, head, waiting, stack, idle_of = scratch
    length = len(word) // num_ranks
    _begin(scratch, length)
    height, timed = num_ranks, 0
    while height > 0:
        height -= 1
        rank = stack[height]
        row, stop = head[rank], (rank + 1) * length
        free = end[row - 1] if row > rank * length else 0.0
        most_idle, idle = bound - pipeline.work[rank], idle_of[rank]
        while row < stop:
            symbol = word[row]
            k = count[symbol]
            producer = pipeline.producer[symbol]
            if producer != NOBODY:
                if count[producer] <= k:
                    waiting[producer] = rank
                    break
                there = end[row_of[producer * m + k]] + pipeline.delay[symbol]
                if there > free:
                    idle += there - free
                    if idle > most_idle:
                        return np.inf, np.inf
                    free = there
            start[row] = free
            free += pipeline.lasts[symbol * m + k]
            end[row] = free
            row_of[symbol * m + k] = row
            sequence[timed] = row
            timed += 1
            count[symbol] = k + 1
            if waiting[symbol] != NOBODY and waiting[symbol] != rank:
                stack[height] = waiting[symbol]
                height += 1
                waiting[symbol] = NOBODY
            row += 1
        head[rank] = row
        idle_of[rank] = idle
    return _ends(end, length) if timed == len(word) else (np.inf, np.inf)


@compiled_part
def _begin(scratch: Scratch, length: int) -> None:
    """Put every rank at its first row, rank 0 to go first."""
    num_ranks = len(scratch.head)
    for symbol in range(len(scratch.num_run)):
        scratch.num_run[symbol] = 0
        scratch.waiting[symbol] = NOBODY
    for rank in range(num_ranks):
        scratch.head[rank] = rank * length
        scratch.idle[rank] = 0.0
        scratch.stack[rank] = num_ranks - 1 - rank


@compiled_part
def _ends(end: Floats, length: int) -> tuple[float, float]:
    """Last and mean end of the ranks."""
    makespan, total, num_ranks = 0.0, 0.0, len(end) // length
    for rank in range(num_ranks):
        last = end[(rank + 1) * length - 1]
        total += last
        if last > makespan:
            makespan = last
    return makespan, total / num_ranks


@compiled
def latest_starts(pipeline: Pipeline, word: Ints, scratch: Scratch, latest: Floats) -> None:
    """Write how late each symbol and microbatch can start, counted back from 0, after `time_word`.

    `latest` has one entry a symbol and microbatch, at ``symbol * m + microbatch``.
    """
    m = pipeline.num_microbatches
    length = len(word) // len(pipeline.limit)
    count, sequence = scratch.num_run, scratch.sequence
    for position in range(len(sequence) - 1, -1, -1):
        row = sequence[position]
        symbol = word[row]
        count[symbol] -= 1
        k = count[symbol]
        finish = 0.0
        if (row + 1) % length != 0:
            following = word[row + 1]
            after = count[following] if following != symbol else k + 1
            finish = latest[following * m + after]
        consumer = pipeline.consumer[symbol]
        if consumer != NOBODY and latest[consumer * m + k] - pipeline.delay[consumer] < finish:
            finish = latest[consumer * m + k] - pipeline.delay[consumer]
        latest[symbol * m + k] = finish - pipeline.lasts[symbol * m + k]
    for symbol in range(len(count)):
        count[symbol] = m


@compiled
def fits(pipeline: Pipeline, word: Ints) -> bool:
    """Whether no rank ever holds more than its limit."""
    num_ranks = len(pipeline.limit)
    length = len(word) // num_ranks
    for rank in range(num_ranks):
        held = 0.0
        for row in range(rank * length, (rank + 1) * length):
            held += pipeline.change[word[row]]
            if held > pipeline.limit[rank]:
                return False
    return True
