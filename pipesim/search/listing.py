"""Compiled list scheduling: words made in order of time from priorities, never into a deadlock."""

from __future__ import annotations

import numpy as np

from pipesim.search.words import NOBODY, Floats, Ints, Pipeline
from pipesim.timing.compiling import compiled

F, I, W = 0, 1, 2  # noqa: E741


@compiled
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
    m, stages, rank_of = pipeline.num_microbatches, pipeline.stages, pipeline.rank_of
    num_stages, num_ranks = len(rank_of), len(pipeline.limit)
    num_chunks = stages.shape[1]
    length = 3 * num_chunks * m
    count = np.zeros(3 * num_stages, np.int32)
    end = np.zeros(3 * num_stages * m)
    free, held = np.zeros(num_ranks), np.zeros(num_ranks)
    row = np.arange(num_ranks) * length
    earliest = np.full(num_ranks, np.inf)
    candidates = np.empty((num_ranks, 3 * num_chunks), np.int32)
    starts = np.empty((num_ranks, 3 * num_chunks))
    for rank in range(num_ranks):
        earliest[rank] = _earliest(
            pipeline, rank, count, end, free, held, caps, candidates[rank], starts[rank]
        )
    for _ in range(len(word)):
        rank = 0
        for other in range(1, num_ranks):
            if earliest[other] < earliest[rank]:
                rank = other
        candidate, candidate_start = candidates[rank], starts[rank]
        first = NOBODY
        for place in range(len(candidate)):
            if candidate[place] != NOBODY and (
                first == NOBODY or candidate_start[place] < candidate_start[first]
            ):
                first = place
        until = candidate_start[first] + patience * pipeline.duration[candidate[first]] + 1e-9
        chosen, least = first, np.inf
        for place in range(len(candidate)):
            symbol = candidate[place]
            if symbol != NOBODY and candidate_start[place] <= until:
                value = priority[symbol * m + count[symbol]]
                if value < least:
                    chosen, least = place, value
        symbol = candidate[chosen]
        finish = candidate_start[chosen] + pipeline.duration[symbol]
        end[symbol * m + count[symbol]] = finish
        count[symbol] += 1
        free[rank] = finish
        held[rank] += pipeline.change[symbol]
        word[row[rank]] = symbol
        row[rank] += 1
        earliest[rank] = _earliest(
            pipeline, rank, count, end, free, held, caps, candidates[rank], starts[rank]
        )
        consumer = NOBODY
        if symbol < num_stages - 1:
            consumer = rank_of[symbol + 1]
        elif num_stages < symbol < 2 * num_stages:
            consumer = rank_of[symbol - 1 - num_stages]
        if consumer != NOBODY and consumer != rank:
            earliest[consumer] = _earliest(
                pipeline, consumer, count, end, free, held, caps, candidates[consumer], starts[consumer]
            )
    return float(free.max())


@compiled
def _earliest(
    pipeline: Pipeline,
    rank: int,
    count: Ints,
    end: Floats,
    free: Floats,
    held: Floats,
    caps: Ints,
    candidate: Ints,
    candidate_start: Floats,
) -> float:
    """List what a rank may run next and when each could start; return the least start."""
    m, num_stages = pipeline.num_microbatches, len(pipeline.rank_of)
    stages = pipeline.stages[rank]
    num_chunks = len(stages)
    earliest = np.inf
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
    for chunk in range(num_chunks):
        stage = stages[chunk]
        candidate[3 * chunk] = candidate[3 * chunk + 1] = candidate[3 * chunk + 2] = NOBODY
        k = count[stage]
        amount = pipeline.change[stage]
        if (
            k < m
            and (stage == 0 or count[stage - 1] > k)
            and k - count[2 * num_stages + stage] < caps[stage]
            and held[rank] + amount <= pipeline.limit[rank]
            and alive + amount + more <= pipeline.limit[rank]
            and (k <= oldest or ahead + amount + reserve + more <= pipeline.limit[rank])
        ):
            begin = free[rank]
            if stage > 0:
                begin = max(begin, end[(stage - 1) * m + k] + pipeline.delay[stage])
            candidate[3 * chunk], candidate_start[3 * chunk] = stage, begin
            earliest = min(earliest, begin)
        symbol = num_stages + stage
        k = count[symbol]
        if (
            k < count[stage]
            and (stage == num_stages - 1 or count[symbol + 1] > k)
            and held[rank] + pipeline.change[symbol] <= pipeline.limit[rank]
        ):
            producer = symbol + 1 if stage < num_stages - 1 else stage
            begin = max(free[rank], end[producer * m + k] + pipeline.delay[symbol])
            candidate[3 * chunk + 1], candidate_start[3 * chunk + 1] = symbol, begin
            earliest = min(earliest, begin)
        symbol = 2 * num_stages + stage
        if count[symbol] < count[num_stages + stage]:
            candidate[3 * chunk + 2], candidate_start[3 * chunk + 2] = symbol, free[rank]
            earliest = min(earliest, free[rank])
    return earliest
