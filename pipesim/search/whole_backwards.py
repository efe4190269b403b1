"""Orders in which each backward is split or not, for stages whose I and W together take longer than B.

Two searches, of orders that split every backward and of orders that split none; then, over the best of both,
a greedy choice for each backward of each stage and local search with what was chosen, in turns. The result is
never slower than that of either search.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np

from pipesim.search.local_search import Found, Search
from pipesim.search.lower_bound import lower_bound_s
from pipesim.search.problem import Flags, Problem, Word

CHOICE_SHARE = 0.25
"""Timings of the choice and its moves, in those of one of the two searches."""
SWEEPS = 3
TIE = 1e-4
"""Weight of the ranks' mean end beside the makespan: most choices leave the makespan alone."""
TEMPERATURES = (0.3, 1.0, 3.0, 0.3)
"""Of the turns of local search after the first choice."""


@dataclass(frozen=True, slots=True)
class Mixture:
    """A word, and which of its backwards run in one, shape (S, m)."""

    makespan_s: float
    word: Word
    whole: Flags


def search_mixtures(
    problem: Problem, budget: int, rng: np.random.Generator, seeds: Sequence[Word] = ()
) -> Mixture:
    """Search for the order and for which backwards it splits; the parameters are those of `Search`.

    Where splitting costs nothing, every backward is split. Else both searches have the whole budget.
    """
    all_split = np.zeros((problem.num_stages, problem.num_microbatches), np.bool_)
    if not problem.split_costs_more:
        found = Search(problem, budget, rng).run(seeds)
        return Mixture(found.makespan_s, found.word, all_split)
    of_split, of_unsplit = rng.spawn(2)
    split = Search(problem, budget, of_split).run(seeds)
    unsplit = Search(problem.unsplit(), budget, of_unsplit).run(seeds)
    return mix(problem, split, unsplit, int(budget * CHOICE_SHARE) // problem.num_actions, rng)


def mix(
    problem: Problem, split: Found, unsplit: Found, num_timings: int, rng: np.random.Generator
) -> Mixture:
    """Choose for each backward, starting from an order that splits all and one that splits none.

    Parameters
    ----------
    problem : Problem
        What was searched.
    split, unsplit : Found
        Best words of the problem and of `Problem.unsplit`.
    num_timings : int
        Words to time, half of them for local search.
    rng : numpy.random.Generator
        Of the local search.
    """
    all_split = np.zeros((problem.num_stages, problem.num_microbatches), np.bool_)
    starts = [(split.word, all_split), (split.word, ~all_split), (unsplit.word, ~all_split)]
    chosen = [_ChosenBackwards(problem, *start) for start in starts]
    for choice in chosen:
        choice.choose(num_timings // (2 * len(chosen)))
    best = min(chosen, key=lambda choice: choice.value)
    each = num_timings // (4 * len(TEMPERATURES))
    for temperature in TEMPERATURES:
        again = best.moved(each, temperature, rng)
        again.choose(each)
        best = min(best, again, key=lambda choice: choice.value)
    return Mixture(best.makespan * best.scale, best.word, best.whole)


class _ChosenBackwards:
    """A word whose backwards are split or not, timed."""

    def __init__(self, problem: Problem, word: Word, whole: Flags) -> None:
        from pipesim.search.word_timing import new_scratch

        self.problem, self.word, self.whole = problem, word.copy(), whole.copy()
        plain, self.scale = problem.pipeline()
        m = problem.num_microbatches
        split = plain.lasts.reshape(3, problem.num_stages, m)[1:]
        full = np.repeat(problem.full_backward_s / self.scale, m).reshape(1, -1, m)
        self._either = np.stack([split, np.concatenate([full, np.zeros_like(full)])])
        self.pipeline = plain.copy()
        self._lasts = self.pipeline.lasts.reshape(3, problem.num_stages, m)
        self.scratch = new_scratch(self.pipeline)
        self._turn_of_row = _turns(problem, self.word)
        for stage in range(problem.num_stages):
            self._set(stage, slice(None), self.whole)
        self.makespan, self.value = np.inf, np.inf
        self._time()

    def _set(self, stage: int, microbatches: slice, whole: Flags) -> None:
        """Write durations of some backwards of a stage, and each rank's sum of all."""
        for taken in (False, True):
            chosen = whole[stage, microbatches] == taken
            now = self._lasts[1:, stage, microbatches]
            now[:, chosen] = self._either[int(taken), :, stage, microbatches][:, chosen]
        self.pipeline.work[:] = self._lasts.sum(axis=(0, 2))[self.problem.stages].sum(axis=1)

    def _time(self) -> bool:
        """Time the word; keep the result if it is no worse."""
        from pipesim.search.word_timing import time_word

        makespan, mean = time_word(self.pipeline, self.word, self.scratch, self.value * (1 + 1e-9))
        if makespan + TIE * mean > self.value * (1 + 1e-12):
            return False
        self.makespan, self.value = float(makespan), float(makespan + TIE * mean)
        return True

    def choose(self, num_timings: int) -> None:
        """Turn whole stages first, then single backwards, as long as that helps and timings are left."""
        num_stages, m = self.whole.shape
        for _ in range(SWEEPS):
            before, before_whole = self.value, self.whole.copy()
            turns = chain(
                ((stage, slice(None)) for stage in range(num_stages)),
                ((stage, slice(k, k + 1)) for stage in range(num_stages) for k in range(m)),
            )
            for stage, microbatches in islice(turns, max(num_timings, 0)):
                self._turn(stage, microbatches)
            num_timings -= num_stages * (1 + m)
            if num_timings <= 0 or (self.value >= before and (self.whole == before_whole).all()):
                return

    def _turn(self, stage: int, microbatches: slice) -> None:
        """Split what is whole of some backwards, and the other way round, unless that makes it worse.

        A split must gain something.
        """
        turned = self.whole.copy()
        turned[stage, microbatches] ^= True
        splits = bool(self.whole[stage, microbatches].any())
        if splits and not self._fits(stage, turned):
            return
        value, makespan = self.value, self.makespan
        self._set(stage, microbatches, turned)
        if self._time() and (not splits or self.value < value * (1 - 1e-12)):
            self.whole = turned
            return
        self.value, self.makespan = value, makespan
        self._set(stage, microbatches, self.whole)

    def _fits(self, stage: int, whole: Flags) -> bool:
        """Whether a stage's rank holds no more than its limit; a whole backward leaves nothing behind."""
        rank, memory = int(self.problem.rank_of[stage]), self.problem.memory
        limit = self.pipeline.limit[rank]
        if not np.isfinite(limit):
            return True
        symbols, turn = self.word.reshape(self.problem.num_ranks, -1)[rank], self._turn_of_row[rank]
        kind, its_stage = np.divmod(symbols, self.problem.num_stages)
        amount, deferred = memory.amounts[its_stage], memory.until_weights[its_stage]
        in_one = whole[its_stage, turn]
        back = np.where(in_one, -amount, deferred - amount)
        change = np.select([kind == 0, kind == 1], [amount, back], np.where(in_one, 0.0, -deferred))
        return bool(np.cumsum(change).max() <= limit)

    def moved(self, num_timings: int, temperature: float, rng: np.random.Generator) -> _ChosenBackwards:
        """Improve the order itself; where a W that is none stood, none stands in the way of memory."""
        from pipesim.search.moves import improve_word
        from pipesim.search.word_timing import fits

        again = _ChosenBackwards(self.problem, _side_by_side(self.problem, self.word, self.whole), self.whole)
        state = rng.integers(1, 2**63, 1, dtype=np.uint64)
        if num_timings and fits(again.pipeline, again.word):
            good_enough = lower_bound_s(self.problem) / self.scale * (1 + 1e-12)
            improve_word(
                again.pipeline, again.word, again.scratch, state, num_timings, temperature, good_enough
            )
            again.value = np.inf
            again._time()
        return again


def _turns(problem: Problem, word: Word) -> Word:
    """Microbatch of each row, shape (p, rows of a rank)."""
    by_rank = word.reshape(problem.num_ranks, -1)
    turn = np.zeros_like(by_rank)
    for rank, symbols in enumerate(by_rank):
        for symbol in np.unique(symbols):
            turn[rank, symbols == symbol] = np.arange(problem.num_microbatches)
    return turn


def _side_by_side(problem: Problem, word: Word, whole: Flags) -> Word:
    """Put every W of a backward that runs in one right behind its I."""
    num_stages = problem.num_stages
    rows = []
    for symbols in word.reshape(problem.num_ranks, -1).tolist():
        turn = dict.fromkeys(symbols, 0)
        for symbol in symbols:
            op, stage = divmod(symbol, num_stages)
            in_one = op > 0 and whole[stage, turn[symbol]]
            turn[symbol] += 1
            if not in_one:
                rows.append(symbol)
            elif op == 1:
                rows += [symbol, symbol + num_stages]
    return np.array(rows, np.int32)
