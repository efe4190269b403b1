"""Compiled zero-bubble heuristic of one chunk a rank: rounds of one I and one F, W where it costs least."""

from __future__ import annotations

import numpy as np

from pipesim.search.word_timing import (
    CHANGE,
    DURATION,
    END,
    HEAD,
    LIMIT,
    NOBODY,
    NUM_RUN,
    WORD,
    Ints,
    Pipeline,
    Scratch,
    arrival,
    num_ready,
)
from pipesim.timing.compiling import compiled, compiled_part

WARM_UP = 4
"""Row of `Scratch.ints` beside those of timing: by rank, F to run before the first I."""
NOW, WAITED, HELD = 0, 2, 3
"""Rows of `Scratch.floats`, beside END by symbol and microbatch: by rank, time, time waited, memory held."""


def zero_bubble_word(
    pipeline: Pipeline,
    extra_forward: bool,
    forward_first: bool,
    eager_weights: bool,
    word: Ints,
) -> float:
    """Write a word for stage s on rank s; return the longest time from a rank's first start to its last end.

    Rounds go from the last rank to the first, so that a rank knows when its next I arrives. Infinite if the
    heuristic gets stuck, as it can with less memory than one microbatch a rank.

    Parameters
    ----------
    pipeline : Pipeline
        One stage a rank.
    extra_forward : bool
        Before its first I, a rank runs one more F than fits in the time until then.
    forward_first : bool
        A rank whose next I is not there yet runs its F before it.
    eager_weights : bool
        A gap shorter than a W takes one if the rank would become the one with most idle time.
    word : int32, shape (3 * p * m,)
        Filled.
    """
    p = pipeline.num_ranks
    scratch = Scratch(np.zeros((WARM_UP + 1, len(word)), np.int64), np.zeros((HELD + 1, len(word))))
    ints, floats = scratch
    alone = _starts_alone(pipeline)
    ints[WARM_UP, :p] = _warm_up(pipeline, alone, extra_forward)
    ints[HEAD, :p] = pipeline.length * np.arange(p)
    _run_all(pipeline, scratch, forward_first, eager_weights)
    word[:] = ints[WORD]
    if (ints[NUM_RUN, : 3 * p] < pipeline.num_microbatches).any():
        return np.inf
    return float((floats[NOW, :p] - alone[:p]).max())


def _starts_alone(pipeline: Pipeline) -> list[float]:
    """When F and I of one microbatch alone start on each rank, 2 * p of them."""
    rows = (pipeline.consumer, pipeline.duration, pipeline.delay)
    consumer, duration, delay = (row.tolist() for row in rows)
    starts, producer = [0.0] * (2 * pipeline.num_ranks), 0
    while (symbol := consumer[producer]) != NOBODY:
        starts[symbol] = starts[producer] + duration[producer] + delay[symbol]
        producer = symbol
    return starts


def _warm_up(pipeline: Pipeline, alone: list[float], extra_forward: bool) -> list[int]:
    """Count the F that each rank runs before its first I."""
    m, p = pipeline.num_microbatches, pipeline.num_ranks
    durations, limits = pipeline.duration[:p].tolist(), pipeline.limit.tolist()
    change = pipeline.change.tolist()
    warmup = [0] * p
    for rank in reversed(range(p)):
        fitting = float(m)
        if durations[rank] > 0:
            fitting = (alone[p + rank] - alone[rank]) / durations[rank] + 1e-9
        number = int(min(fitting, m)) + (1 if extra_forward and rank < p - 1 else 0)
        if rank < p - 1:
            number = max(number, warmup[rank + 1] + 1)
        # An I that leaves more than it found must always find room for that.
        left = limits[rank] - max(0.0, change[p + rank])
        room = int(min(left / change[rank], m + p)) if change[rank] > 0 else m
        # Room for the ranks before it to stay one F ahead.
        warmup[rank] = max(1, min(number, room - rank, m))
    return warmup


@compiled
def _run_all(pipeline: Pipeline, scratch: Scratch, forward_first: bool, eager: bool) -> None:
    ints, p = scratch.ints, pipeline.num_ranks
    for rank in range(p):
        for _ in range(ints[WARM_UP, rank]):
            if ints[NUM_RUN, rank] < num_ready(pipeline, rank, ints):
                _run(rank, pipeline, scratch)
    going = True
    while going:
        going = False
        for rank in range(p - 1, -1, -1):
            if _round(rank, pipeline, scratch, forward_first, eager):
                going = True
    for rank in range(p):
        _fill(rank, np.inf, pipeline, scratch, eager)


@compiled_part
def _round(rank: int, pipeline: Pipeline, scratch: Scratch, forward_first: bool, eager: bool) -> bool:
    """Run a rank's next I and next F as far as they can; whether there was one."""
    ints, floats, backward = scratch.ints, scratch.floats, pipeline.num_ranks + rank
    k = ints[NUM_RUN, backward]
    ready = k < num_ready(pipeline, backward, ints)
    forward_done = False
    if ready:
        there = arrival(pipeline, backward, k, floats)
        if forward_first and there > floats[NOW, rank] + 1e-9:
            forward_done = _forward(rank, pipeline, scratch, eager)
        _fill(rank, there, pipeline, scratch, eager)
        _make_room(rank, pipeline.floats[CHANGE, backward], pipeline, scratch)
        _run(backward, pipeline, scratch)
    if not forward_done:
        forward_done = _forward(rank, pipeline, scratch, eager)
    return ready or forward_done


@compiled_part
def _run(symbol: int, pipeline: Pipeline, scratch: Scratch) -> None:
    """Append a symbol to its rank and time it."""
    ints, floats, rank = scratch.ints, scratch.floats, symbol % pipeline.num_ranks
    row, k, now = ints[HEAD, rank], ints[NUM_RUN, symbol], floats[NOW, rank]
    begin = arrival(pipeline, symbol, k, floats)
    if begin < now:
        begin = now
    if row > rank * pipeline.length:
        floats[WAITED, rank] += begin - now
    end = begin + pipeline.floats[DURATION, symbol]
    floats[NOW, rank] = floats[END, symbol * pipeline.num_microbatches + k] = end
    floats[HELD, rank] += pipeline.floats[CHANGE, symbol]
    ints[NUM_RUN, symbol] = k + 1
    ints[WORD, row] = symbol
    ints[HEAD, rank] = row + 1


@compiled_part
def _fill(rank: int, until: float, pipeline: Pipeline, scratch: Scratch, eager: bool) -> None:
    """Run W in the gap before `until`."""
    ints, floats, p = scratch.ints, scratch.floats, pipeline.num_ranks
    weight = 2 * p + rank
    while ints[NUM_RUN, weight] < ints[NUM_RUN, p + rank]:
        gap = until - floats[NOW, rank]
        if gap < 1e-9:
            return
        if gap < pipeline.floats[DURATION, weight] * (1 - 1e-9):
            # Too short, unless the rank would become the one that waited longest.
            if not eager:
                return
            for other in range(p):
                if floats[WAITED, rank] + gap <= floats[WAITED, other]:
                    return
        _run(weight, pipeline, scratch)


@compiled_part
def _make_room(rank: int, amount: float, pipeline: Pipeline, scratch: Scratch) -> bool:
    """Run W until `amount` more fits; whether it then does."""
    ints, p = scratch.ints, pipeline.num_ranks
    while scratch.floats[HELD, rank] + amount > pipeline.floats[LIMIT, rank]:
        if ints[NUM_RUN, 2 * p + rank] == ints[NUM_RUN, p + rank]:
            return False
        _run(2 * p + rank, pipeline, scratch)
    return True


@compiled_part
def _forward(rank: int, pipeline: Pipeline, scratch: Scratch, eager: bool) -> bool:
    """Run the next F, and before it the W that make room or fill the gap; whether there was one."""
    ints, change, p = scratch.ints, pipeline.floats, pipeline.num_ranks
    k = ints[NUM_RUN, rank]
    if k == num_ready(pipeline, rank, ints):
        return False
    amount, more = change[CHANGE, rank], change[CHANGE, p + rank]
    if more < 0.0:
        more = 0.0
    # What no W can free.
    if (k + 1 - ints[NUM_RUN, p + rank]) * amount + more > change[LIMIT, rank]:
        return False
    if not _make_room(rank, amount, pipeline, scratch):
        return False
    _fill(rank, arrival(pipeline, rank, k, scratch.floats), pipeline, scratch, eager)
    _run(rank, pipeline, scratch)
    return True
