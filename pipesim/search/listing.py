"""Compiled list scheduling: words made in order of time from priorities, never into a deadlock."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pipesim.search.word_timing import NOBODY, Floats, Ints, Pipeline, arrival, num_ready
from pipesim.timing.compiling import compiled, compiled_part


class _Listing(NamedTuple):
    """Runs of symbols and their ends; by rank: time, memory, next row, what it may run next and when."""

    num_run: Ints
    end: Floats
    free: Floats
    held: Floats
    row: Ints
    earliest: Floats
    candidates: Ints
    starts: Floats


def list_word(pipeline: Pipeline, priority: Floats, patience: float, caps: Ints, word: Ints) -> float:
    """Write a word and return its makespan.

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
    num_ranks, num_chunks = pipeline.stages.shape
    num_symbols, m = 3 * num_ranks * num_chunks, pipeline.num_microbatches
    listing = _Listing(
        num_run=np.zeros(num_symbols, np.int32),
        end=np.zeros(num_symbols * m),
        free=np.zeros(num_ranks),
        held=np.zeros(num_ranks),
        row=(3 * num_chunks * m * np.arange(num_ranks)).astype(np.int32),
        earliest=np.zeros(num_ranks),
        candidates=np.zeros((num_ranks, 3 * num_chunks), np.int32),
        starts=np.zeros((num_ranks, 3 * num_chunks)),
    )
    _list(pipeline, priority, patience, caps, word, listing)
    return float(listing.free.max())


@compiled
def _list(
    pipeline: Pipeline, priority: Floats, patience: float, caps: Ints, word: Ints, state: _Listing
) -> None:
    rank_of, num_stages = pipeline.rank_of, len(pipeline.rank_of)
    for rank in range(len(pipeline.limit)):
        _list_candidates(pipeline, rank, NOBODY, caps, state)
    for _ in range(len(word)):
        rank = _least(state.earliest)
        symbol = _choose(pipeline, rank, priority, patience, state)
        word[state.row[rank]] = symbol
        state.row[rank] += 1
        _list_candidates(pipeline, rank, NOBODY, caps, state)
        consumer = pipeline.consumer[symbol]
        # Of another rank nothing changes but that its next one of this symbol has what it takes.
        if consumer != NOBODY and state.num_run[consumer] == state.num_run[symbol] - 1:
            other = rank_of[consumer % num_stages]
            if other != rank:
                _list_candidates(pipeline, other, consumer, caps, state)


@compiled_part
def _least(values: Floats) -> int:
    """Place of the first of the least values."""
    least = 0
    for place in range(1, len(values)):
        if values[place] < values[least]:
            least = place
    return least


@compiled_part
def _choose(pipeline: Pipeline, rank: int, priority: Floats, patience: float, state: _Listing) -> int:
    """Run one of a rank's candidates; return its symbol."""
    m, count = pipeline.num_microbatches, state.num_run
    candidate, start = state.candidates[rank], state.starts[rank]
    first = NOBODY
    for place in range(len(candidate)):
        if candidate[place] != NOBODY and (first == NOBODY or start[place] < start[first]):
            first = place
    until = start[first] + patience * pipeline.duration[candidate[first]] + 1e-9
    chosen, least = first, np.inf
    for place in range(len(candidate)):
        if candidate[place] != NOBODY and start[place] <= until:
            value = priority[candidate[place] * m + count[candidate[place]]]
            if value < least:
                chosen, least = place, value
    symbol: int = candidate[chosen]
    finish = start[chosen] + pipeline.duration[symbol]
    state.end[symbol * m + count[symbol]] = finish
    count[symbol] += 1
    state.free[rank] = finish
    state.held[rank] += pipeline.change[symbol]
    return int(symbol)


@compiled_part
def _list_candidates(pipeline: Pipeline, rank: int, only: int, caps: Ints, state: _Listing) -> None:
    """List what a rank may run next, when each could start, and the least of these; or add one symbol."""
    num_stages, count, held = len(pipeline.rank_of), state.num_run, state.held[rank]
    stages, limit = pipeline.stages[rank], pipeline.limit[rank]
    num_chunks = len(stages)
    # Room that must stay free for the microbatch which comes next to the rank's last stage: with it that
    # microbatch can go all the way and come back, and so can, after it, every other one.
    oldest = count[stages[num_chunks - 1]]
    # An I that leaves more than it found needs room for that on top, beside what no W can free.
    reserve, ahead, more, alive = 0.0, 0.0, 0.0, 0.0
    for chunk in range(num_chunks):
        stage = stages[chunk]
        reserve += pipeline.change[stage]
        more = max(more, pipeline.change[num_stages + stage])
        alive += (count[stage] - count[num_stages + stage]) * pipeline.change[stage]
        if count[stage] > oldest + 1:
            ahead += (count[stage] - oldest - 1) * pipeline.change[stage]
    if only == NOBODY:
        state.earliest[rank] = np.inf
    for place in range(3 * num_chunks):
        stage = stages[place // 3]
        symbol = place % 3 * num_stages + stage
        if only != NOBODY and only != symbol:
            continue
        k = count[symbol]
        may_run = k < num_ready(pipeline, symbol, count)
        if may_run and symbol == stage:
            amount = pipeline.change[stage]
            may_run = (
                k - count[2 * num_stages + stage] < caps[stage]
                and held + amount <= limit
                and alive + amount + more <= limit
                and (k <= oldest or ahead + amount + reserve + more <= limit)
            )
        elif may_run and symbol == num_stages + stage:
            may_run = held + pipeline.change[symbol] <= limit
        state.candidates[rank, place] = symbol if may_run else NOBODY
        if may_run:
            begin = max(state.free[rank], arrival(pipeline, symbol, k, state.end))
            state.starts[rank, place] = begin
            state.earliest[rank] = min(state.earliest[rank], begin)
