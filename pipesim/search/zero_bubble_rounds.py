"""Compiled zero-bubble heuristic of one chunk a rank: rounds of one I and one F, W where it costs least."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pipesim.search.word_timing import NOBODY, Floats, Ints, Pipeline, arrival, num_ready
from pipesim.timing.compiling import compiled, compiled_part


class _Progress(NamedTuple):
    """Runs and ends of symbols; F and I of one microbatch alone; and by rank: F to warm up with, time, ..."""

    num_run: Ints
    end: Floats
    alone: Floats
    warmup: Ints
    now: Floats
    idle: Floats
    held: Floats
    row: Ints


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
    progress = _Progress(
        num_run=np.zeros(3 * p, np.int32),
        end=np.zeros(3 * p * m),
        alone=np.zeros(2 * p),
        warmup=np.zeros(p, np.int32),
        now=np.zeros(p),
        idle=np.zeros(p),
        held=np.zeros(p),
        row=(3 * m * np.arange(p)).astype(np.int32),
    )
    _run_all(pipeline, extra_forward, forward_first, eager_weights, word, progress)
    if (progress.num_run < m).any():
        return np.inf
    return float((progress.now - progress.alone[:p]).max())


@compiled
def _run_all(
    pipeline: Pipeline, extra_forward: bool, forward_first: bool, eager: bool, word: Ints, progress: _Progress
) -> None:
    p, count = len(pipeline.limit), progress.num_run
    _plan_warm_up(pipeline, extra_forward, progress)
    for rank in range(p):
        for _ in range(progress.warmup[rank]):
            if count[rank] < num_ready(pipeline, rank, count):
                _run(rank, pipeline, word, progress)
    going = True
    while going:
        going = False
        for rank in range(p - 1, -1, -1):
            going |= _round(rank, pipeline, word, progress, forward_first, eager)
    for rank in range(p):
        _fill(rank, np.inf, pipeline, word, progress, eager)


@compiled_part
def _plan_warm_up(pipeline: Pipeline, extra_forward: bool, progress: _Progress) -> None:
    """Count the F that each rank runs before its first I."""
    m, p = pipeline.num_microbatches, len(pipeline.limit)
    duration, change = pipeline.duration, pipeline.change
    alone, warmup = progress.alone, progress.warmup
    symbol = pipeline.consumer[0]
    while symbol != NOBODY:
        producer = pipeline.producer[symbol]
        alone[symbol] = alone[producer] + duration[producer] + pipeline.delay[symbol]
        symbol = pipeline.consumer[symbol]
    for rank in range(p - 1, -1, -1):
        fitting = m + 0.0
        if duration[rank] > 0:
            fitting = (alone[p + rank] - alone[rank]) / duration[rank] + 1e-9
        number = int(min(fitting, m)) + (1 if extra_forward and rank < p - 1 else 0)
        if rank < p - 1:
            number = max(number, warmup[rank + 1] + 1)
        # An I that leaves more than it found must always find room for that.
        left = pipeline.limit[rank] - max(0.0, change[p + rank])
        room = int(left / change[rank]) if change[rank] > 0 else m
        # Room for the ranks before it to stay one F ahead.
        warmup[rank] = max(1, min(number, room - rank, m))


@compiled_part
def _round(
    rank: int, pipeline: Pipeline, word: Ints, progress: _Progress, forward_first: bool, eager: bool
) -> bool:
    """Run a rank's next I and next F as far as they can; whether there was one."""
    backward, count = len(pipeline.limit) + rank, progress.num_run
    ready = count[backward] < num_ready(pipeline, backward, count)
    forward_done = False
    if ready:
        there = arrival(pipeline, backward, count[backward], progress.end)
        if forward_first and there > progress.now[rank] + 1e-9:
            forward_done = _forward(rank, pipeline, word, progress, eager)
        _fill(rank, there, pipeline, word, progress, eager)
        _make_room(rank, pipeline.change[backward], pipeline, word, progress)
        _run(backward, pipeline, word, progress)
    if not forward_done:
        forward_done = _forward(rank, pipeline, word, progress, eager)
    return ready or forward_done


@compiled_part
def _run(symbol: int, pipeline: Pipeline, word: Ints, progress: _Progress) -> None:
    """Append a symbol to its rank and time it."""
    count, now, idle, row = progress.num_run, progress.now, progress.idle, progress.row
    m, rank, k = pipeline.num_microbatches, symbol % len(pipeline.limit), count[symbol]
    begin = max(now[rank], arrival(pipeline, symbol, k, progress.end))
    if row[rank] > rank * 3 * m:
        idle[rank] += begin - now[rank]
    now[rank] = begin + pipeline.duration[symbol]
    progress.end[symbol * m + k] = now[rank]
    count[symbol] += 1
    progress.held[rank] += pipeline.change[symbol]
    word[row[rank]] = symbol
    row[rank] += 1


@compiled_part
def _fill(rank: int, until: float, pipeline: Pipeline, word: Ints, progress: _Progress, eager: bool) -> None:
    """Run W in the gap before `until`."""
    count, now, idle = progress.num_run, progress.now, progress.idle
    weight = 2 * len(pipeline.limit) + rank
    while count[weight] < num_ready(pipeline, weight, count):
        gap = until - now[rank]
        if gap < 1e-9:
            return
        short = gap < pipeline.duration[weight] * (1 - 1e-9)
        if short and not (eager and _idles_most(rank, gap, idle)):
            return
        _run(weight, pipeline, word, progress)


@compiled_part
def _idles_most(rank: int, gap: float, idle: Floats) -> bool:
    """Whether a rank that waits for so long more would have idled more than every other."""
    for other in range(len(idle)):  # noqa: SIM110 - a generator is nothing that numba compiles
        if idle[rank] + gap <= idle[other]:
            return False
    return True


@compiled_part
def _make_room(rank: int, amount: float, pipeline: Pipeline, word: Ints, progress: _Progress) -> bool:
    """Run W until `amount` more fits; whether it then does."""
    count, held = progress.num_run, progress.held
    weight = 2 * len(pipeline.limit) + rank
    while held[rank] + amount > pipeline.limit[rank]:
        if count[weight] == num_ready(pipeline, weight, count):
            return False
        _run(weight, pipeline, word, progress)
    return True


@compiled_part
def _forward(rank: int, pipeline: Pipeline, word: Ints, progress: _Progress, eager: bool) -> bool:
    """Run the next F, and before it the W that make room or fill the gap; whether there was one."""
    count, p = progress.num_run, len(pipeline.limit)
    k = count[rank]
    if k == num_ready(pipeline, rank, count):
        return False
    amount, more = pipeline.change[rank], max(0.0, pipeline.change[p + rank])
    # What no W can free.
    if (k + 1 - count[p + rank]) * amount + more > pipeline.limit[rank]:
        return False
    if not _make_room(rank, amount, pipeline, word, progress):
        return False
    _fill(rank, arrival(pipeline, rank, k, progress.end), pipeline, word, progress, eager)
    _run(rank, pipeline, word, progress)
    return True
