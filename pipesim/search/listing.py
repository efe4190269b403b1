"""Compiled list scheduling: words made in order of time from priorities, never into a deadlock."""

from __future__ import annotations

import numpy as np

from pipesim.search.word_timing import (
    CHANGE,
    CONSUMER,
    DURATION,
    END,
    HEAD,
    LIMIT,
    NOBODY,
    NUM_RUN,
    PLACE,
    RANK,
    SYMBOL,
    WORD,
    WORK,
    Floats,
    Ints,
    Pipeline,
    Scratch,
    arrival,
    num_ready,
)
from pipesim.timing.compiling import compiled, compiled_part

CAPS = 4
"""Row of `Scratch.ints` beside those of timing: by stage."""
FREE, HELD, LEFT, EARLIEST, PRIORITY, BEGIN = 0, 2, 3, 4, 5, 6
"""Rows of `Scratch.floats`, beside END by symbol and microbatch: by rank, when it is free, what it holds, the
work it has left, when it can start something first; by symbol and microbatch; by symbol, when it can start
next, infinite if not."""
ROUNDING = 1e-9
"""Relative room for sums of times, so that no list within the bound is given up."""


def list_word(
    pipeline: Pipeline, priority: Floats, patience: float, caps: Ints, word: Ints, bound: float = np.inf
) -> float:
    """Write a word and return its makespan; infinite as soon as this is sure to be more than `bound`.

    The rank that can start something first takes, among its actions that can start within `patience` times
    that action's duration from then, the one of least priority.

    Parameters
    ----------
    pipeline : Pipeline
        Each rank's limit has room for one microbatch on all its stages.
    priority : float64, shape (3 * S * m,)
        Of each symbol and microbatch, at ``symbol * m + microbatch``.
    patience : float
        0 never waits.
    caps : int32, shape (S,)
        Most microbatches that a stage holds, at least 1.
    word : int32, shape (3 * S * m,)
        Filled.
    """
    scratch = Scratch(np.zeros((CAPS + 1, len(word)), np.int64), np.zeros((BEGIN + 1, len(word))))
    scratch.ints[CAPS, : pipeline.num_stages], scratch.floats[PRIORITY] = caps, priority
    makespan = _list(pipeline, scratch, patience, bound * (1 + ROUNDING))
    word[:] = scratch.ints[WORD]
    return makespan


@compiled
def _list(pipeline: Pipeline, scratch: Scratch, patience: float, bound: float) -> float:
    ints, floats, num_ranks = scratch.ints, scratch.floats, pipeline.num_ranks
    num_places, makespan = 3 * pipeline.num_stages // num_ranks, 0.0
    for rank in range(num_ranks):
        ints[HEAD, rank], floats[EARLIEST, rank] = rank * pipeline.length, np.inf
        floats[LEFT, rank] = pipeline.floats[WORK, rank]
    for rank in range(num_ranks):
        _list_candidates(pipeline, scratch, rank, rank * num_places, (rank + 1) * num_places)
    for _ in range(num_ranks * pipeline.length):
        rank = _first_to_start(floats, num_ranks)
        first = rank * num_places
        symbol = _choose(pipeline, scratch, first, first + num_places, patience)
        finish = _run(pipeline, scratch, rank, symbol)
        if finish + floats[LEFT, rank] > bound:
            return np.inf
        if finish > makespan:
            makespan = finish
        _list_candidates(pipeline, scratch, rank, first, first + num_places)
        consumer = pipeline.ints[CONSUMER, symbol]
        # Of another rank nothing changes but that its next one of this symbol has what it takes.
        if consumer != NOBODY and ints[NUM_RUN, consumer] == ints[NUM_RUN, symbol] - 1:
            other, place = pipeline.ints[RANK, consumer], pipeline.ints[PLACE, consumer]
            if other != rank:
                _list_candidates(pipeline, scratch, other, place, place + 1)
    return makespan


@compiled_part
def _first_to_start(floats: Floats, num_ranks: int) -> int:
    """Rank that can start something first."""
    least = 0
    for rank in range(1, num_ranks):
        if floats[EARLIEST, rank] < floats[EARLIEST, least]:
            least = rank
    return least


@compiled_part
def _choose(pipeline: Pipeline, scratch: Scratch, begin: int, stop: int, patience: float) -> int:
    """Choose among the symbols of a rank, which stand from one place to another."""
    symbols, ints, floats = pipeline.ints, scratch.ints, scratch.floats
    chosen: int = symbols[SYMBOL, begin]
    start = np.inf
    for place in range(begin, stop):
        symbol = symbols[SYMBOL, place]
        if floats[BEGIN, symbol] < start:
            chosen, start = symbol, floats[BEGIN, symbol]
    until, least = start + patience * pipeline.floats[DURATION, chosen] + 1e-9, np.inf
    for place in range(begin, stop):
        symbol = symbols[SYMBOL, place]
        if floats[BEGIN, symbol] <= until:
            value = floats[PRIORITY, symbol * pipeline.num_microbatches + ints[NUM_RUN, symbol]]
            if value < least:
                chosen, least = symbol, value
    return chosen


@compiled_part
def _run(pipeline: Pipeline, scratch: Scratch, rank: int, symbol: int) -> float:
    """Append a symbol to its rank, whose candidates are then to be listed anew; return its end."""
    ints, floats = scratch.ints, scratch.floats
    row, k = ints[HEAD, rank], ints[NUM_RUN, symbol]
    finish: float = floats[BEGIN, symbol] + pipeline.floats[DURATION, symbol]
    floats[FREE, rank] = floats[END, symbol * pipeline.num_microbatches + k] = finish
    floats[LEFT, rank] -= pipeline.floats[DURATION, symbol]
    floats[HELD, rank] += pipeline.floats[CHANGE, symbol]
    floats[EARLIEST, rank] = np.inf
    ints[NUM_RUN, symbol] = k + 1
    ints[WORD, row] = symbol
    ints[HEAD, rank] = row + 1
    return finish


@compiled_part
def _list_candidates(pipeline: Pipeline, scratch: Scratch, rank: int, begin: int, stop: int) -> None:
    """Write when those of a rank's symbols from one place to another can start next, and the least of all."""
    num_stages, needs, change = pipeline.num_stages, pipeline.ints, pipeline.floats
    ints, floats = scratch.ints, scratch.floats
    held, limit, num_places = floats[HELD, rank], change[LIMIT, rank], 3 * num_stages // pipeline.num_ranks
    first, last = rank * num_places, (rank + 1) * num_places
    # Room that must stay free for the microbatch which comes next to the rank's last stage: with it that
    # microbatch can go all the way and come back, and so can, after it, every other one.
    oldest = ints[NUM_RUN, needs[SYMBOL, last - 3]]
    # An I that leaves more than it found needs room for that on top, beside what no W can free.
    reserve, ahead, more, alive = 0.0, 0.0, 0.0, 0.0
    for place in range(first, last, 3):
        stage = needs[SYMBOL, place]
        amount, left, k = change[CHANGE, stage], change[CHANGE, num_stages + stage], ints[NUM_RUN, stage]
        reserve += amount
        if left > more:
            more = left
        alive += (k - ints[NUM_RUN, num_stages + stage]) * amount
        if k > oldest + 1:
            ahead += (k - oldest - 1) * amount
    for place in range(begin, stop):
        symbol = needs[SYMBOL, place]
        stage, k = symbol % num_stages, ints[NUM_RUN, symbol]
        may_run = k < num_ready(pipeline, symbol, ints)
        if may_run and symbol < 2 * num_stages:
            amount = change[CHANGE, symbol]
            may_run = held + amount <= limit
            if may_run and symbol == stage:
                may_run = (
                    k - ints[NUM_RUN, 2 * num_stages + stage] < ints[CAPS, stage]
                    and alive + amount + more <= limit
                    and (k <= oldest or ahead + amount + reserve + more <= limit)
                )
        start = np.inf
        if may_run:
            start = arrival(pipeline, symbol, k, floats)
            if start < floats[FREE, rank]:
                start = floats[FREE, rank]
            if start < floats[EARLIEST, rank]:
                floats[EARLIEST, rank] = start
        floats[BEGIN, symbol] = start
