"""Compiled zero-bubble heuristic of one chunk a rank: rounds of one I and one F, W where it costs least."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pipesim.search.words import Floats, Ints, Pipeline
from pipesim.timing.compiling import compiled


class _Progress(NamedTuple):
    """Runs of each symbol, ends of F and I; and by rank: time, idle time, memory, next row."""

    num_run: Ints
    end: Floats
    now: Floats
    idle: Floats
    held: Floats
    row: Ints


@compiled
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
    m, p = pipeline.num_microbatches, len(pipeline.limit)
    duration, delay, change = pipeline.duration, pipeline.delay, pipeline.change
    count, end, now = np.zeros(3 * p, np.int32), np.zeros((2 * p, m)), np.zeros(p)
    row = np.empty(p, np.int32)
    for rank in range(p):
        row[rank] = rank * 3 * m
    progress = _Progress(count, end, now, np.zeros(p), np.zeros(p), row)
    first_start = np.zeros(p)

    way = np.zeros(p)
    for rank in range(1, p):
        way[rank] = way[rank - 1] + duration[rank - 1] + delay[rank]
    first_backward = np.zeros(p)
    first_backward[p - 1] = way[p - 1] + duration[p - 1]
    for rank in range(p - 2, -1, -1):
        first_backward[rank] = first_backward[rank + 1] + duration[p + rank + 1] + delay[p + rank]
    warmup = np.zeros(p, np.int32)
    for rank in range(p - 1, -1, -1):
        fitting = (first_backward[rank] - way[rank]) / duration[rank] + 1e-9 if duration[rank] > 0 else m
        number = int(min(fitting, m)) + (1 if extra_forward and rank < p - 1 else 0)
        if rank < p - 1:
            number = max(number, warmup[rank + 1] + 1)
        # An I that leaves more than it found must always find room for that.
        left = pipeline.limit[rank] - max(0.0, change[p + rank])
        room = int(left / change[rank]) if change[rank] > 0 else m
        # Room for the ranks before it to stay one F ahead.
        warmup[rank] = max(1, min(number, room - rank, m))
    for rank in range(p):
        for _ in range(warmup[rank]):
            if rank == 0 or count[rank - 1] > count[rank]:
                _run(rank, pipeline, word, progress)
        first_start[rank] = way[rank]

    going = True
    while going:
        going = False
        for rank in range(p - 1, -1, -1):
            k = count[p + rank]
            ready = k < count[rank] and (rank == p - 1 or count[p + rank + 1] > k)
            arrival = now[rank]
            if ready and rank < p - 1:
                arrival = max(arrival, end[p + rank + 1, k] + delay[p + rank])
            forward_done = False
            if forward_first and ready and arrival > now[rank] + 1e-9:
                forward_done = _forward(rank, pipeline, word, progress, eager_weights)
                arrival = max(arrival, now[rank])
            if ready:
                _fill(rank, arrival, pipeline, word, progress, eager_weights)
                _make_room(rank, change[p + rank], pipeline, word, progress)
                _run(p + rank, pipeline, word, progress)
            if not forward_done:
                forward_done = _forward(rank, pipeline, word, progress, eager_weights)
            going = going or ready or forward_done
    span = 0.0
    for rank in range(p):
        while count[2 * p + rank] < count[p + rank]:
            _run(2 * p + rank, pipeline, word, progress)
        span = max(span, now[rank] - first_start[rank])
    for rank in range(p):
        if count[2 * p + rank] < m:
            return np.inf
    return span


@compiled
def _run(symbol: int, pipeline: Pipeline, word: Ints, progress: _Progress) -> None:
    """Append a symbol to its rank and time it."""
    count, end, now, idle, held, row = progress
    p = len(pipeline.limit)
    rank, k = symbol % p, count[symbol]
    begin = now[rank]
    if 0 < symbol < p:
        begin = max(begin, end[symbol - 1, k] + pipeline.delay[symbol])
    elif p <= symbol < 2 * p - 1:
        begin = max(begin, end[symbol + 1, k] + pipeline.delay[symbol])
    if row[rank] > rank * 3 * pipeline.num_microbatches:
        idle[rank] += begin - now[rank]
    now[rank] = begin + pipeline.duration[symbol]
    if symbol < 2 * p:
        end[symbol, k] = now[rank]
    count[symbol] += 1
    held[rank] += pipeline.change[symbol]
    word[row[rank]] = symbol
    row[rank] += 1


@compiled
def _fill(rank: int, until: float, pipeline: Pipeline, word: Ints, progress: _Progress, eager: bool) -> None:
    """Run W in the gap before `until`."""
    count, now, idle = progress.num_run, progress.now, progress.idle
    p = len(pipeline.limit)
    weight = 2 * p + rank
    while count[weight] < count[p + rank]:
        gap = until - now[rank]
        if gap < 1e-9:
            return
        short = gap < pipeline.duration[weight] * (1 - 1e-9)
        if short and (not eager or idle[rank] + gap <= idle.max()):
            return
        _run(weight, pipeline, word, progress)


@compiled
def _make_room(rank: int, amount: float, pipeline: Pipeline, word: Ints, progress: _Progress) -> bool:
    """Run W until `amount` more fits; whether it then does."""
    count, held = progress.num_run, progress.held
    p = len(pipeline.limit)
    weight = 2 * p + rank
    while held[rank] + amount > pipeline.limit[rank]:
        if count[weight] == count[p + rank]:
            return False
        _run(weight, pipeline, word, progress)
    return True


@compiled
def _forward(rank: int, pipeline: Pipeline, word: Ints, progress: _Progress, eager: bool) -> bool:
    """Run the next F, and before it the W that make room or fill the gap; whether there was one."""
    count = progress.num_run
    p, m = len(pipeline.limit), pipeline.num_microbatches
    k = count[rank]
    if k == m or (rank > 0 and count[rank - 1] <= k):
        return False
    amount, more = pipeline.change[rank], max(0.0, pipeline.change[p + rank])
    # What no W can free.
    if (k + 1 - count[p + rank]) * amount + more > pipeline.limit[rank]:
        return False
    if not _make_room(rank, amount, pipeline, word, progress):
        return False
    if rank > 0:
        arrival = progress.end[rank - 1, k] + pipeline.delay[rank]
        _fill(rank, arrival, pipeline, word, progress, eager)
    _run(rank, pipeline, word, progress)
    return True
