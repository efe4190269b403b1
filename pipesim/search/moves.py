"""Compiled local search over words: move actions on the critical path, keep what is no worse.

An action moves alone or with what must follow it: a run of neighbours, its W, the same microbatch's actions
on the ranks before or after. Where memory is tight no single action can move, and where ranks wait for one
another only all of them together get better.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pipesim.search.word_timing import NOBODY, Ints, Pipeline, Scratch, copy_into, time_word
from pipesim.timing.compiling import compiled, compiled_part

State = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]
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


class _Room(NamedTuple):
    """Microbatch of each row, runs of each symbol, rows of a path, ranks that a move changed, two words."""

    turn: Ints
    num_run: Ints
    path: Ints
    touched: Flags
    kept: Ints
    best: Ints


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
    num_rows = len(word)
    room = _Room(
        turn=np.empty(num_rows, np.int32),
        num_run=np.empty(len(pipeline.duration), np.int32),
        path=np.empty(num_rows, np.int32),
        touched=np.ones(len(pipeline.limit), np.bool_),
        kept=word.copy(),
        best=word.copy(),
    )
    makespan, mean = time_word(pipeline, word, scratch, np.inf)
    return _improve(
        pipeline, word, scratch, state, num_timings, temperature, good_enough, room, makespan, mean
    )


@compiled
def _improve(
    pipeline: Pipeline,
    word: Ints,
    scratch: Scratch,
    state: State,
    num_timings: int,
    temperature: float,
    good_enough: float,
    room: _Room,
    makespan: float,
    mean: float,
) -> float:
    # What is called in one place only is compiled in one place only.
    num_rows = len(word)
    turn, count, path, touched, kept, best_word = room
    current = makespan + TIE * mean
    best, best_makespan = current, makespan
    accepted, path_length, timings = True, 0, 0
    for _ in range(4 * num_timings):
        if timings == num_timings or best_makespan <= good_enough:
            break
        if accepted:
            _number(word, turn, count, touched)
            path_length = _critical_path(pipeline, word, turn, scratch, path)
        on_path = uniform(state) < CRITICAL
        row = path[int(uniform(state) * path_length)] if on_path else int(uniform(state) * num_rows)
        _move(pipeline, word, turn, state, row, touched)
        value, slack = np.inf, 0.0
        if _allowed(pipeline, word, count, touched):
            timings += 1
            cooling = 1 - timings / num_timings
            slack = temperature * cooling * cooling * uniform(state) ** 3
            makespan, mean = time_word(pipeline, word, scratch, (current + slack) * (1 + 1e-9))
            value = makespan + TIE * mean
        accepted = value <= current + slack
        source, target = (word, kept) if accepted else (kept, word)
        _copy_touched(target, source, touched)
        if accepted:
            current = value
            if value < best - 1e-12 * best:
                best, best_makespan = value, makespan
                copy_into(best_word, word, num_rows)
    copy_into(word, best_word, num_rows)
    return best_makespan


@compiled_part
def _copy_touched(target: Ints, source: Ints, touched: Flags) -> None:
    """Copy the rows of the ranks that a move changed."""
    length = len(target) // len(touched)
    for rank in range(len(touched)):
        if touched[rank]:
            for row in range(rank * length, (rank + 1) * length):
                target[row] = source[row]


@compiled_part
def _number(word: Ints, turn: Ints, count: Ints, touched: Flags) -> None:
    """Write the microbatch of each row of the ranks that a move changed."""
    length = len(word) // len(touched)
    for rank in range(len(touched)):
        if touched[rank]:
            count[:] = 0
            for row in range(rank * length, (rank + 1) * length):
                turn[row] = count[word[row]]
                count[word[row]] += 1


@compiled_part
def _allowed(pipeline: Pipeline, word: Ints, count: Ints, touched: Flags) -> bool:
    """Whether some rank was touched and all these hold within their limits and run each W after its I."""
    num_stages, length = len(pipeline.rank_of), len(word) // len(pipeline.limit)
    some = False
    for rank in range(len(touched)):
        if not touched[rank]:
            continue
        some, held = True, 0.0
        count[:] = 0
        for row in range(rank * length, (rank + 1) * length):
            symbol = word[row]
            held += pipeline.change[symbol]
            if held > pipeline.limit[rank]:
                return False
            if symbol >= 2 * num_stages and count[symbol] == count[symbol - num_stages]:
                return False
            count[symbol] += 1
    return some


@compiled_part
def _move(pipeline: Pipeline, word: Ints, turn: Ints, state: State, row: int, touched: Flags) -> None:
    """Draw a move of an action near a row; mark the ranks that it changes, none where it leads nowhere."""
    length = len(word) // len(pipeline.limit)
    rank = row // length
    first, last = rank * length, (rank + 1) * length - 1
    touched[:] = False
    row = min(max(row + int(uniform(state) * 3) - 1, first), last)
    distance = 1
    while distance < length and uniform(state) < FARTHER:
        distance += 1
    goal = row + distance if uniform(state) < 0.5 else row - distance
    goal = min(max(goal, first), last)
    if goal == row:
        return
    kind = uniform(state)
    if kind < BLOCKS:
        step, size = (1 if goal < row else -1), 2 + int(uniform(state) * 3)
        if first <= row + step * (size - 1) <= last:
            touched[rank] = True
            for place in range(size):
                _shift(word, row + step * place, goal + step * place)
    elif word[row] != word[goal]:
        if kind < EXCHANGES:
            _exchange_along(pipeline, word, turn, state, row, goal, touched)
        elif kind < EXCHANGES + SINGLES:
            target = _reachable(pipeline, word, turn, row, goal)
            touched[rank] = target != row
            _shift(word, row, target)
        else:
            _shift_along(pipeline, word, turn, state, row, goal, touched)


@compiled_part
def _reachable(pipeline: Pipeline, word: Ints, turn: Ints, row: int, goal: int) -> int:
    """Row nearest to `goal` to which an action can move: within memory, in order with its own kind."""
    num_stages, length = len(pipeline.rank_of), len(word) // len(pipeline.limit)
    symbol, k, limit = word[row], turn[row], pipeline.limit[row // length]
    change, step = pipeline.change[symbol], 1 if goal > row else -1
    held = 0.0
    for before in range(row // length * length, row + 1 if goal > row else row):
        held += pipeline.change[word[before]]
    target = row
    while target != goal:
        other = word[target + step]
        if other == symbol or (other == symbol + step * num_stages and turn[target + step] == k):
            break
        if step > 0:
            held += pipeline.change[other]
        if held - step * change > limit:
            break
        if step < 0:
            held -= pipeline.change[other]
        target += step
    return target


@compiled_part
def _shift_along(
    pipeline: Pipeline, word: Ints, turn: Ints, state: State, row: int, goal: int, touched: Flags
) -> None:
    """Shift an action, and those of its microbatch on the following or preceding ranks as far."""
    num_stages, length = len(pipeline.rank_of), len(word) // len(pipeline.limit)
    symbol, k, by = word[row], turn[row], goal - row
    onward, with_weights = uniform(state) < 0.5, uniform(state) < WITH_W
    way = pipeline.consumer if onward else pipeline.producer
    while symbol != NOBODY:
        rank = pipeline.rank_of[symbol % num_stages]
        touched[rank] = True
        first, last = rank * length, (rank + 1) * length - 1
        row = _row_of(word, symbol, k, first)
        goal = min(max(row + by, first), last)
        if with_weights and num_stages <= symbol < 2 * num_stages:
            weights = _row_of(word, symbol + num_stages, k, first)
            weights_goal = min(max(weights + by, first), last)
            if by > 0:
                _shift(word, weights, weights_goal)
                _shift(word, row, goal)
            else:
                _shift(word, row, goal)
                _shift(word, weights, weights_goal)
        else:
            _shift(word, row, goal)
        symbol = way[symbol] if uniform(state) < ALONG else NOBODY


@compiled_part
def _exchange_along(
    pipeline: Pipeline, word: Ints, turn: Ints, state: State, row: int, other: int, touched: Flags
) -> None:
    """Exchange two actions, and their microbatches' actions on the next ranks where both go the same way."""
    num_stages, rank_of = len(pipeline.rank_of), pipeline.rank_of
    length = len(word) // len(pipeline.limit)
    symbol, k, partner, j = word[row], turn[row], word[other], turn[other]
    onward, back = pipeline.consumer, pipeline.producer
    way, other_way = (onward, back) if uniform(state) < 0.5 else (back, onward)
    while True:
        touched[row // length] = True
        word[row], word[other] = partner, symbol
        symbol = way[symbol] if uniform(state) < ALONG else NOBODY
        if symbol == NOBODY:
            return
        rank = rank_of[symbol % num_stages]
        follower = way[partner]
        if follower == NOBODY or rank_of[follower % num_stages] != rank:
            follower = other_way[partner]
        partner = follower
        if partner in (NOBODY, symbol) or rank_of[partner % num_stages] != rank:
            return
        row, other = _row_of(word, symbol, k, rank * length), _row_of(word, partner, j, rank * length)


@compiled_part
def _row_of(word: Ints, symbol: int, k: int, first: int) -> int:
    """Row of the k-th of a symbol on the rank whose first row is given."""
    row = first - 1
    for _ in range(k + 1):
        row += 1
        while word[row] != symbol:
            row += 1
    return row


@compiled_part
def _shift(word: Ints, source: int, target: int) -> None:
    symbol = word[source]
    step = 1 if target > source else -1
    for row in range(source, target, step):
        word[row] = word[row + step]
    word[target] = symbol


@compiled_part
def _critical_path(pipeline: Pipeline, word: Ints, turn: Ints, scratch: Scratch, path: Ints) -> int:
    """List rows on one longest path, last first; return how many."""
    m = pipeline.num_microbatches
    length = len(word) // len(pipeline.limit)
    row = length - 1
    for rank in range(1, len(pipeline.limit)):
        if scratch.end[(rank + 1) * length - 1] > scratch.end[row]:
            row = (rank + 1) * length - 1
    found = 0
    while True:
        path[found] = row
        found += 1
        if row % length != 0 and scratch.end[row - 1] == scratch.start[row]:
            row -= 1
            continue
        producer = pipeline.producer[word[row]]
        if producer == NOBODY:
            return found
        row = scratch.row_of[producer * m + turn[row]]
