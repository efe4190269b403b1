"""Compiled local search over words: shift an action on the critical path, keep what is no worse."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pipesim.evaluate.compiling import compiled
from pipesim.evaluate.words import NOBODY, Floats, Ints, Pipeline, Scratch, time_word

State = npt.NDArray[np.uint64]
TIE = 1e-4
"""Weight of the ranks' mean end beside the makespan: most moves leave the makespan alone, some still help."""


@compiled
def uniform(state: State) -> float:
    """Draw from [0, 1): xorshift64*, the same on every machine."""
    x = state[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    state[0] = x
    return float((x * np.uint64(2685821657736338717)) >> np.uint64(11)) / 9007199254740992.0


@compiled
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
    length = num_rows // len(pipeline.limit)
    turn, held = np.empty(num_rows, np.int32), np.empty(num_rows)
    _lay_out(pipeline, word, turn, held)
    makespan, mean = time_word(pipeline, word, scratch, np.inf)
    current = makespan + TIE * mean
    best, best_makespan, best_word = current, makespan, word.copy()
    path = np.empty(num_rows, np.int32)
    path_length = _critical_path(pipeline, word, turn, scratch, path)
    timings = 0
    for _ in range(4 * num_timings):
        if timings == num_timings or best_makespan <= good_enough:
            break
        if uniform(state) < 0.85:
            row = path[int(uniform(state) * path_length)]
        else:
            row = int(uniform(state) * num_rows)
        first, last = row // length * length, row // length * length + length - 1
        row = min(max(row + int(uniform(state) * 3) - 1, first), last)
        distance = 1
        while distance < length and uniform(state) < 0.75:
            distance += 1
        goal = row + distance if uniform(state) < 0.5 else row - distance
        target = _reachable(pipeline, word, turn, held, row, min(max(goal, first), last))
        if target == row:
            continue
        _shift(word, turn, row, target)
        timings += 1
        slack = temperature * (1 - timings / num_timings) * uniform(state) ** 3
        makespan, mean = time_word(pipeline, word, scratch, (current + slack) * (1 + 1e-9))
        value = makespan + TIE * mean
        if value <= current + slack:
            current = value
            _hold(pipeline, word, held, min(row, target), max(row, target))
            path_length = _critical_path(pipeline, word, turn, scratch, path)
            if value < best - 1e-12 * best:
                best, best_makespan = value, makespan
                best_word[:] = word
        else:
            _shift(word, turn, target, row)
    word[:] = best_word
    return time_word(pipeline, word, scratch, np.inf)[0]


@compiled
def _lay_out(pipeline: Pipeline, word: Ints, turn: Ints, held: Floats) -> None:
    count = np.zeros(len(pipeline.duration), np.int32)
    for row in range(len(word)):
        turn[row] = count[word[row]]
        count[word[row]] += 1
    _hold(pipeline, word, held, 0, len(word) - 1)


@compiled
def _hold(pipeline: Pipeline, word: Ints, held: Floats, first: int, last: int) -> None:
    length = len(word) // len(pipeline.limit)
    for row in range(first, last + 1):
        before = held[row - 1] if row % length != 0 else 0.0
        held[row] = before + pipeline.change[word[row]]


@compiled
def _reachable(pipeline: Pipeline, word: Ints, turn: Ints, held: Floats, row: int, goal: int) -> int:
    """Row nearest to `goal` to which an action can move: within memory, in order with its own kind."""
    symbol, k = word[row], turn[row]
    num_stages, length = len(pipeline.rank_of), len(word) // len(pipeline.limit)
    limit, change = pipeline.limit[row // length], pipeline.change[symbol]
    target = row
    while target != goal:
        passed = target + 1 if goal > row else target - 1
        other = word[passed]
        if other == symbol:
            break
        if turn[passed] == k and (
            (other == symbol + num_stages and goal > row) or (other == symbol - num_stages and goal < row)
        ):
            break
        if goal > row:
            if held[passed] - change > limit:
                break
        elif held[passed] + change > limit:
            break
        target = passed
    # A row that moves up to just behind a boundary takes the boundary's memory, checked with its neighbour's.
    if target < row:
        before = held[target - 1] if target % length != 0 else 0.0
        if before + change > limit:
            return row
    return target


@compiled
def _shift(word: Ints, turn: Ints, source: int, target: int) -> None:
    symbol, k = word[source], turn[source]
    step = 1 if target > source else -1
    for row in range(source, target, step):
        word[row], turn[row] = word[row + step], turn[row + step]
    word[target], turn[target] = symbol, k


@compiled
def _critical_path(pipeline: Pipeline, word: Ints, turn: Ints, scratch: Scratch, path: Ints) -> int:
    """List rows on one longest path, last first; return how many."""
    m, num_stages = pipeline.num_microbatches, len(pipeline.rank_of)
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
        symbol = word[row]
        producer = NOBODY
        if 0 < symbol < num_stages:
            producer = symbol - 1
        elif num_stages <= symbol < 2 * num_stages:
            producer = symbol + 1 if symbol < 2 * num_stages - 1 else num_stages - 1
        if producer == NOBODY:
            return found
        row = scratch.row_of[producer * m + turn[row]]
