"""Orders in which each backward is split or not, for stages whose I and W together take longer than B.

Two searches, of orders that split every backward and of orders that split none; then, over the best of both,
a greedy choice for each backward of each stage and local search with what was chosen, in turns. The result is
never slower than that of either search.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipesim.search.local_search import Found, Search
from pipesim.search.lower_bound import lower_bound_s
from pipesim.search.problem import Flags, Floats, Problem, Word

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
        self.pipeline = plain._replace(lasts=plain.lasts.copy(), work=plain.work.copy())
        self._lasts = self.pipeline.lasts.reshape(3, problem.num_stages, m)
        self.scratch = new_scratch(self.pipeline)
        self._set(np.ones_like(whole), whole)
        self.makespan, self.value = np.inf, np.inf
        self._time()

    def _set(self, where: Flags, whole: Flags) -> None:
        """Write durations of some backwards, and each rank's sum of them all."""
        stages, microbatches = np.nonzero(where)
        taken = whole[stages, microbatches].astype(np.intp)
        self._lasts[1:, stages, microbatches] = self._either[taken, :, stages, microbatches].T
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
        groups = [self._of_stage(stage) for stage in range(num_stages)]
        singles = [self._single(stage, k) for stage in range(num_stages) for k in range(m)]
        for _ in range(SWEEPS):
            before, before_whole = self.value, self.whole.copy()
            for group in groups + singles:
                if num_timings <= 0:
                    return
                num_timings -= 1
                self._turn(group)
            if self.value >= before and (self.whole == before_whole).all():
                return

    def _of_stage(self, stage: int) -> Flags:
        where = np.zeros_like(self.whole)
        where[stage] = True
        return where

    def _single(self, stage: int, k: int) -> Flags:
        where = np.zeros_like(self.whole)
        where[stage, k] = True
        return where

    def _turn(self, where: Flags) -> None:
        """Split what is whole of some backwards, and the other way round, unless that makes it worse."""
        turned = np.where(where, ~self.whole, self.whole)
        value, to_split = self.value, bool(self.whole[where].any())
        if to_split and not self._fits(turned):
            return
        self._set(where, turned)
        better = self._time()
        if better and to_split and self.value >= value * (1 - 1e-12):
            better = False  # a split must gain something
        if better:
            self.whole = turned
        else:
            self.value = value
            self._set(where, self.whole)

    def _fits(self, whole: Flags) -> bool:
        """Whether no rank holds more than its limit; a whole backward leaves nothing behind."""
        limits, memory = self.pipeline.limit, self.problem.memory
        if not np.isfinite(limits).any():
            return True
        deferred = memory.until_weights[:, None]
        amounts = np.broadcast_to(memory.amounts[:, None], whole.shape)
        back = np.where(whole, -amounts, deferred - amounts)
        change: Floats = np.concatenate([amounts, back, np.where(whole, 0.0, -deferred)])
        for rank, symbols in enumerate(self.word.reshape(len(limits), -1)):
            turn = np.zeros(len(symbols), np.intp)
            for symbol in np.unique(symbols):
                turn[symbols == symbol] = np.arange(self.problem.num_microbatches)
            if np.cumsum(change[symbols, turn]).max() > limits[rank]:
                return False
        return True

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
