"""Compiled local search over words: move actions on the critical path, keep what is no worse.

An action moves alone or with what must follow it: a run of neighbours, its W, the same microbatch's actions
on the ranks before or after. Where memory is tight no single action can move, and where ranks wait for one
another only all of them together get better.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pipesim.search.word_timing import (
    BEST,
    CHANGE,
    CONSUMER,
    END,
    KEPT,
    LIMIT,
    NOBODY,
    NUM_RUN,
    PATH,
    PRODUCER,
    RANK,
    ROW_OF,
    START,
    TOUCHED,
    TURN,
    WORD,
    Ints,
    Pipeline,
    Scratch,
    Table,
    time_rows,
    time_word,
)
from pipesim.timing.compiling import compiled, compiled_part

State = npt.NDArray[np.uint64]
TIE = 1e-4
"""Weight of the ranks' mean end beside the makespan: most moves leave the makespan alone, some still help."""
CRITICAL = 0.85
"""Share of moves of actions on the critical path."""
FARTHER = 0.75
"""Chance that an action goes one row farther."""
BLOCKS, EXCHANGES = 0.1, 0.4
"""Shares of moves: of a run of neighbours; exchanges of two actions. The others shift one action."""
SINGLES = 0.2
"""Share of shifts of one action alone, as far as memory and order let it go."""
ALONG = 0.8
"""Chance that a move is made on the next rank of the microbatch too."""
WITH_W = 0.7
"""Chance that W moves with its I."""


@compiled_part
def uniform(state: State) -> float:
    """Draw from [0, 1): xorshift64*, the same on every machine."""
    x = state[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    state[0] = x
    return float((x * np.uint64(2685821657736338717)) >> np.uint64(11)) / 9007199254740992.0


@compiled_part
def _below(state: State, number: float) -> int:
    """Draw a whole number below another, which is a float so that none is a constant to compile for."""
    return int(uniform(state) * number)


def improve_word(
    pipeline: Pipeline,
    word: Ints,
    scratch: Scratch,
    state: State,
    num_timings: int,
    temperature: float,
    good_enough: float,
) -> float:
    """Improve a word in place and return its makespan; stops after `num_timings` timings.

    Parameters
    ----------
    pipeline : Pipeline
        Every rank holds within its limit under `word`.
    word : int32, shape (3 * S * m,)
        Can run; replaced by the best word found.
    scratch : Scratch
        Room.
    state : uint64, shape (1,)
        Of the random numbers; not 0.
    num_timings : int
        Budget; four times as many draws at most.
    temperature : float
        A longer makespan is accepted up to a random part of this, which shrinks to 0.
    good_enough : float
        Stop at this makespan.
    """
    scratch.ints[TOUCHED] = 1
    scratch.ints[KEPT] = scratch.ints[BEST] = word
    makespan, mean = time_word(pipeline, word, scratch, np.inf)
    found = _improve(pipeline, scratch, state, num_timings, temperature, good_enough, makespan, mean)
    word[:] = scratch.ints[BEST]
    return found


@compiled
def _improve(
    pipeline: Pipeline,
    scratch: Scratch,
    state: State,
    num_timings: int,
    temperature: float,
    good_enough: float,
    makespan: float,
    mean: float,
) -> float:
    # What is called in one place only is compiled in one place only.
    ints, num_rows = scratch.ints, pipeline.length * pipeline.num_ranks
    current = makespan + TIE * mean
    best, best_makespan = current, makespan
    accepted, path_length, timings = True, 0, 0
    for _ in range(4 * num_timings):
        if timings == num_timings or best_makespan <= good_enough:
            break
        if accepted:
            _number(pipeline, ints)
            path_length = _critical_path(pipeline, scratch)
        if uniform(state) < CRITICAL:
            row = ints[PATH, _below(state, float(path_length))]
        else:
            row = _below(state, float(num_rows))
        _move(pipeline, ints, state, row)
        value, slack = np.inf, 0.0
        if _allowed(pipeline, ints):
            timings += 1
            cooling, draw = 1 - timings / num_timings, uniform(state)
            slack = temperature * cooling * cooling * (draw * draw * draw)
            makespan, mean = time_rows(pipeline, scratch, (current + slack) * (1 + 1e-9))
            value = makespan + TIE * mean
        accepted = value <= current + slack
        _settle(pipeline, ints, accepted)
        if accepted:
            current = value
            if value < best - 1e-12 * best:
                best, best_makespan = value, makespan
                for place in range(num_rows):
                    ints[BEST, place] = ints[WORD, place]
    return best_makespan


@compiled_part
def _settle(pipeline: Pipeline, ints: Table, accepted: bool) -> None:
    """Keep what a move changed, or take it back."""
    length, source, target = pipeline.length, KEPT, WORD
    if accepted:
        source, target = WORD, KEPT
    for rank in range(pipeline.num_ranks):
        if ints[TOUCHED, rank] != 0:
            for row in range(rank * length, (rank + 1) * length):
                ints[target, row] = ints[source, row]


@compiled_part
def _number(pipeline: Pipeline, ints: Table) -> None:
    """Write the microbatch of each row of the ranks that a move changed."""
    length = pipeline.length
    for rank in range(pipeline.num_ranks):
        if ints[TOUCHED, rank] != 0:
            for symbol in range(3 * pipeline.num_stages):
                ints[NUM_RUN, symbol] = 0
            for row in range(rank * length, (rank + 1) * length):
                symbol = ints[WORD, row]
                ints[TURN, row] = ints[NUM_RUN, symbol]
                ints[NUM_RUN, symbol] += 1


@compiled_part
def _allowed(pipeline: Pipeline, ints: Table) -> bool:
    """Whether some rank was touched and all these hold within their limits and run each W after its I."""
    num_stages, length = pipeline.num_stages, pipeline.length
    some = False
    for rank in range(pipeline.num_ranks):
        if ints[TOUCHED, rank] == 0:
            continue
        some, held, limit = True, 0.0, pipeline.floats[LIMIT, rank]
        for symbol in range(3 * num_stages):
            ints[NUM_RUN, symbol] = 0
        for row in range(rank * length, (rank + 1) * length):
            symbol = ints[WORD, row]
            held += pipeline.floats[CHANGE, symbol]
            if held > limit:
                return False
            num_run = ints[NUM_RUN, symbol]
            if symbol >= 2 * num_stages and num_run == ints[NUM_RUN, symbol - num_stages]:
                return False
            ints[NUM_RUN, symbol] = num_run + 1
    return some


@compiled_part
def _within(row: int, first: int, last: int) -> int:
    """Row, or what is nearest to it between two others."""
    if row < first:
        return first
    if row > last:
        return last
    return row


@compiled_part
def _move(pipeline: Pipeline, ints: Table, state: State, row: int) -> None:
    """Draw a move of an action near a row; mark the ranks that it changes, none where it leads nowhere."""
    length = pipeline.length
    rank = row // length
    first, last = rank * length, (rank + 1) * length - 1
    for other in range(pipeline.num_ranks):
        ints[TOUCHED, other] = 0
    row = _within(row + _below(state, 3.0) - 1, first, last)
    distance = 1
    while distance < length and uniform(state) < FARTHER:
        distance += 1
    if uniform(state) >= 0.5:
        distance = -distance
    goal = _within(row + distance, first, last)
    if goal == row:
        return
    kind = uniform(state)
    if kind < BLOCKS:
        step, size = -1, 2 + _below(state, 3.0)
        if goal < row:
            step = 1
        far = row + step * (size - 1)
        if far >= first and far <= last:
            ints[TOUCHED, rank] = 1
            for place in range(size):
                _shift(ints, row + step * place, goal + step * place)
    elif ints[WORD, row] != ints[WORD, goal]:
        if kind < EXCHANGES:
            _exchange_along(pipeline, ints, state, row, goal)
        elif kind < EXCHANGES + SINGLES:
            target = _reachable(pipeline, ints, row, goal)
            if target != row:
                ints[TOUCHED, rank] = 1
                _shift(ints, row, target)
        else:
            _shift_along(pipeline, ints, state, row, goal)


@compiled_part
def _reachable(pipeline: Pipeline, ints: Table, row: int, goal: int) -> int:
    """Row nearest to `goal` to which an action can move: within memory, in order with its own kind."""
    floats, rank = pipeline.floats, row // pipeline.length
    symbol, k = ints[WORD, row], ints[TURN, row]
    step, stop = -1, row
    if goal > row:
        step, stop = 1, row + 1
    held = 0.0
    for before in range(rank * pipeline.length, stop):
        held += floats[CHANGE, ints[WORD, before]]
    partner = symbol + step * pipeline.num_stages
    target = row
    while target != goal:
        other = ints[WORD, target + step]
        if other == symbol or (other == partner and ints[TURN, target + step] == k):
            break
        if step > 0:
            held += floats[CHANGE, other]
        if held - step * floats[CHANGE, symbol] > floats[LIMIT, rank]:
            break
        if step < 0:
            held -= floats[CHANGE, other]
        target += step
    return target


@compiled_part
def _shift_along(pipeline: Pipeline, ints: Table, state: State, row: int, goal: int) -> None:
    """Shift an action, and those of its microbatch on the following or preceding ranks as far."""
    num_stages, length = pipeline.num_stages, pipeline.length
    symbol, k, by = ints[WORD, row], ints[TURN, row], goal - row
    way = PRODUCER
    if uniform(state) < 0.5:
        way = CONSUMER
    with_weights = uniform(state) < WITH_W
    while symbol != NOBODY:
        rank = pipeline.ints[RANK, symbol]
        ints[TOUCHED, rank] = 1
        first, last = rank * length, (rank + 1) * length - 1
        row = _row_of(ints, symbol, k, first)
        goal = _within(row + by, first, last)
        if with_weights and symbol >= num_stages and symbol < 2 * num_stages:
            weights = _row_of(ints, symbol + num_stages, k, first)
            weights_goal = _within(weights + by, first, last)
            if by > 0:
                _shift(ints, weights, weights_goal)
                _shift(ints, row, goal)
            else:
                _shift(ints, row, goal)
                _shift(ints, weights, weights_goal)
        else:
            _shift(ints, row, goal)
        if uniform(state) >= ALONG:
            return
        symbol = pipeline.ints[way, symbol]


@compiled_part
def _exchange_along(pipeline: Pipeline, ints: Table, state: State, row: int, other: int) -> None:
    """Exchange two actions, and their microbatches' actions on the next ranks where both go the same way."""
    needs, length = pipeline.ints, pipeline.length
    symbol, k, partner, j = ints[WORD, row], ints[TURN, row], ints[WORD, other], ints[TURN, other]
    way, other_way = PRODUCER, CONSUMER
    if uniform(state) < 0.5:
        way, other_way = CONSUMER, PRODUCER
    while True:
        ints[TOUCHED, row // length] = 1
        ints[WORD, row], ints[WORD, other] = partner, symbol
        if uniform(state) >= ALONG:
            return
        symbol = needs[way, symbol]
        if symbol == NOBODY:
            return
        rank = needs[RANK, symbol]
        follower = needs[way, partner]
        if follower == NOBODY or needs[RANK, follower] != rank:
            follower = needs[other_way, partner]
        partner = follower
        if partner == NOBODY or needs[RANK, partner] != rank:
            return
        if partner == symbol:
            return
        row, other = _row_of(ints, symbol, k, rank * length), _row_of(ints, partner, j, rank * length)


@compiled_part
def _row_of(ints: Table, symbol: int, k: int, first: int) -> int:
    """Row of the k-th of a symbol on the rank whose first row is given."""
    row = first - 1
    for _ in range(k + 1):
        row += 1
        while ints[WORD, row] != symbol:
            row += 1
    return row


@compiled_part
def _shift(ints: Table, source: int, target: int) -> None:
    symbol = ints[WORD, source]
    step = -1
    if target > source:
        step = 1
    for row in range(source, target, step):
        ints[WORD, row] = ints[WORD, row + step]
    ints[WORD, target] = symbol


@compiled_part
def _critical_path(pipeline: Pipeline, scratch: Scratch) -> int:
    """List rows on one longest path, last first; return how many."""
    ints, times, length = scratch.ints, scratch.floats, pipeline.length
    row = length - 1
    for rank in range(1, pipeline.num_ranks):
        if times[END, (rank + 1) * length - 1] > times[END, row]:
            row = (rank + 1) * length - 1
    found = 0
    while True:
        ints[PATH, found] = row
        found += 1
        if row % length != 0 and times[END, row - 1] == times[START, row]:
            row -= 1
            continue
        producer = pipeline.ints[PRODUCER, ints[WORD, row]]
        if producer == NOBODY:
            return found
        row = ints[ROW_OF, producer * pipeline.num_microbatches + ints[TURN, row]]
