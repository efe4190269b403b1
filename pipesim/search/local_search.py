"""The search: list scheduling from random priorities, again from the best orders found, then local moves.

What the budget of a small problem leaves goes to rounds of moves, every other one from a fresh list.

Every budget counts timed actions, never seconds, and every random number comes from the seed, so the result
is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from pipesim.search import priorities
from pipesim.search.lower_bound import lower_bound_s
from pipesim.search.problem import Floats, Problem, Word

POOL_SIZE = 8
"""Orders of distinct makespan kept: diverse starts find more than long runs from one."""

LIST_SHARE, REPEAT_SHARE, HOT_SHARE, POLISH_SHARE = 0.15, 0.1, 0.45, 0.2
"""Of the first pass: lists from scratch; from good orders, twice; moves from many starts; from few."""
LIST_COST = 4
"""Timings that one list scheduling takes as long as."""
MOST_LISTS = 2000
FIRST_TIMINGS = 100_000
"""Timings of the first pass; what is left goes to rounds where it is enough for one."""
SPELL_TIMINGS, SPELLS = 20_000, 20
"""A round is so many spells of moves from the round's best word, each as hot as chance will have it."""
SPELL_COST = 35_000
"""Timings that a spell takes as long as: many moves of short words break a rule and are never timed."""
SPELL_TEMPERATURES = (0.3, 0.6, 1.2, 2.5, 5.0, 10.0)
TEMPERATURES = (0.5, 1.5, 5.0)
"""Factors on the temperature of a run of moves, which grows with the number of moves that an action gets."""


@dataclass(frozen=True, slots=True)
class Found:
    """The best word of a search."""

    makespan_s: float
    word: Word


@dataclass(slots=True)
class Pool:
    """The best words of distinct makespan, best first."""

    entries: list[tuple[float, Word]] = field(default_factory=list)

    def add(self, makespan: float, word: Word) -> None:
        """Keep a word if it is among the best; of two with the same makespan the first stays."""
        if makespan >= self.worst:
            return
        if any(abs(makespan - other) <= 1e-9 * makespan for other, _ in self.entries):
            return
        self.entries.append((makespan, word.copy()))
        self.entries.sort(key=lambda entry: entry[0])
        del self.entries[POOL_SIZE:]

    @property
    def best(self) -> float:
        """Least makespan."""
        return self.entries[0][0]

    @property
    def worst(self) -> float:
        """Makespan below which a word has to be to be kept; infinite where there is room."""
        return self.entries[-1][0] if len(self.entries) == POOL_SIZE else np.inf


class Search:
    """One problem, searched within a budget.

    Parameters
    ----------
    problem : Problem
        What to search.
    budget : int
        Actions to time.
    rng : numpy.random.Generator
        Source of every random choice.
    """

    def __init__(self, problem: Problem, budget: int, rng: np.random.Generator) -> None:
        from pipesim.search.word_timing import new_scratch

        self.problem, self.rng = problem, rng
        num_timings = budget // problem.num_actions
        num_spells = max(num_timings - FIRST_TIMINGS, 0) // SPELL_COST
        # Less than a round finds less than a longer first pass.
        self.num_spells = num_spells if num_spells >= SPELLS else 0
        self.num_timings = num_timings - self.num_spells * SPELL_COST
        self.pipeline, self.scale = problem.pipeline()
        self.backwards = self.pipeline.backwards()
        self.scratch = new_scratch(self.pipeline)
        self.pool = Pool()
        self.good_enough = lower_bound_s(problem) / self.scale * (1 + 1e-12)

    def run(self, seeds: Iterable[Word] = ()) -> Found:
        """Search from those of `seeds` that fit the memory limits, and from scratch; return the best."""
        from pipesim.search.word_timing import fits

        for seed in seeds:
            if fits(self.pipeline, seed):
                self.pool.add(self._time(seed), seed)
        self._list_from_scratch(max(self._num_lists(LIST_SHARE), len(priorities.RULES)))
        self._list_from_good_ones(self._num_lists(REPEAT_SHARE))
        self._move(self.pool.entries, HOT_SHARE, TEMPERATURES)
        self._list_from_good_ones(self._num_lists(REPEAT_SHARE))
        self._move(self.pool.entries[:2], POLISH_SHARE, TEMPERATURES[:1])
        self._rounds()
        # Timed anew, so that no bookkeeping of the search can flatter the result.
        makespan, word = min(((self._time(word), word) for _, word in self.pool.entries), key=lambda e: e[0])
        return Found(makespan * self.scale, word)

    def _time(self, word: Word) -> float:
        from pipesim.search.word_timing import time_word

        return float(time_word(self.pipeline, word, self.scratch, np.inf)[0])

    def _num_lists(self, share: float) -> int:
        return min(int(self.num_timings * share / LIST_COST), MOST_LISTS)

    @property
    def _done(self) -> bool:
        return bool(self.pool.entries) and self.pool.best <= self.good_enough

    def _list(
        self, priority: Floats, patience: float, caps: priorities.Ints, bound: float
    ) -> tuple[float, Word]:
        from pipesim.search.listing import list_word

        word = np.empty(self.problem.num_actions, np.int32)
        return list_word(self.pipeline, priority, patience, caps, word, bound), word

    def _list_from_scratch(self, number: int) -> None:
        for turn in range(number):
            if self._done:
                return
            if turn < len(priorities.RULES):
                first = priorities.rule(self.pipeline, priorities.RULES[turn])
                self.pool.add(*self._list(first, 0.0, priorities.no_caps(self.pipeline), self.pool.worst))
            else:
                self.pool.add(*self._list_at_random(self.pool.worst))

    def _list_at_random(self, bound: float = np.inf) -> tuple[float, Word]:
        rng = self.rng
        if rng.random() < 0.4:
            which = priorities.RULES[int(rng.integers(len(priorities.RULES)))]
            priority = priorities.rule(self.pipeline, which)
        else:
            priority = priorities.pattern(self.pipeline, priorities.random_stretch(self.pipeline, rng))
        if rng.random() < 0.3:
            caps = priorities.no_caps(self.pipeline)
        else:
            slack, extra = 0.8 + 2.2 * rng.random() ** 2, rng.random()
            caps = priorities.residence_caps(self.pipeline, slack, extra)
        return self._list(priority, self._patience(), caps, bound)

    def _patience(self) -> float:
        return float(self.rng.choice(priorities.PATIENCE, p=priorities.PATIENCE_SHARE))

    def _list_from_good_ones(self, number: int) -> None:
        """List anew by the times of a good order, disturbed: its latest starts put every W in its place."""
        from pipesim.search.word_timing import latest_starts

        rng, m = self.rng, self.pipeline.num_microbatches
        for _ in range(number):
            if self._done:
                return
            entries = self.pool.entries
            _, word = entries[int(len(entries) * rng.random() ** 2)]
            if rng.random() < 0.7:
                times = latest_starts(self.backwards, word, self.scratch)
            else:
                self._time(word)
                times = self.scratch.start[self.scratch.row_of]
            spread = 4 * rng.random() ** 2
            by_symbol = len(times) // m
            noise = rng.random((by_symbol, 1 if rng.random() < 0.5 else m)) - 0.5
            caps = self._peaks(word) + rng.integers(-1, 2, self.problem.num_stages)
            priority = np.ravel(times.reshape(by_symbol, m) + spread * noise)
            caps = np.clip(caps, 1, m).astype(np.int32)
            self.pool.add(*self._list(priority, self._patience(), caps, self.pool.worst))

    def _peaks(self, word: Word) -> priorities.Ints:
        """Most microbatches that each stage holds under a word."""
        num_stages, symbols = self.problem.num_stages, word.reshape(self.problem.num_ranks, -1)
        peaks = np.zeros(num_stages, np.int32)
        for stages in self.problem.stages.T:
            of_ranks = stages[:, None]
            steps = (symbols == of_ranks).astype(np.int32) - (symbols == 2 * num_stages + of_ranks)
            peaks[stages] = np.cumsum(steps, axis=1).max(axis=1)
        return peaks

    def _move(self, starts: Sequence[tuple[float, Word]], share: float, factors: Sequence[float]) -> None:
        each = max(int(self.num_timings * share) // len(starts), 1)
        hotter = min(0.1 * (each / self.problem.num_actions) ** 0.5, 4.0)
        for turn, (_, word) in enumerate(list(starts)):
            if self._done:
                return
            self.pool.add(*self._improve(word, each, factors[turn % len(factors)] * hotter))

    def _rounds(self) -> None:
        """Every other round begins afresh, the others from a good word."""
        makespan, word = np.inf, self.pool.entries[0][1]
        for turn in range(self.num_spells):
            if self._done:
                return
            if turn % SPELLS == 0:
                if turn // SPELLS % 2 == 0:
                    makespan, word = self._list_at_random()
                else:
                    makespan, word = self.pool.entries[int(self.rng.integers(len(self.pool.entries)))]
            after, improved = self._improve(word, SPELL_TIMINGS, float(self.rng.choice(SPELL_TEMPERATURES)))
            if after <= makespan:
                makespan, word = after, improved
                self.pool.add(makespan, word)

    def _improve(self, start: Word, num_timings: int, temperature: float) -> tuple[float, Word]:
        from pipesim.search.moves import improve_word

        word = start.copy()
        state = self.rng.integers(1, 2**63, 1, dtype=np.uint64)
        makespan = improve_word(
            self.pipeline, word, self.scratch, state, num_timings, temperature, self.good_enough
        )
        return makespan, word
