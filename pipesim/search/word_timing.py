"""Compiled timing of words: schedules in which the k-th F (I, W) of a stage is that of microbatch k.

A word lists, rank after rank, symbols ``operation * S + stage`` with F, I, W = 0, 1, 2; every rank has the
same number of rows. Microbatches are alike, so numbering them by turn loses nothing, and a search over words
has no microbatch to choose.

What numba takes longest over is each array that a function is given. So what the compiled functions read and
write stands in rows of two arrays of whole numbers and two of floats; the rows are named here.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pipesim.ir.dependencies import NONE
from pipesim.timing.compiling import compiled, compiled_part

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]
Table = npt.NDArray[np.int64]
"""Rows of whole numbers, as wide as what loops count by: with two widths each part is compiled twice."""

NOBODY = NONE

PRODUCER, CONSUMER, RANK, PLACE, SYMBOL = range(5)
"""Rows of `Pipeline.ints`: by symbol; and the symbol of each place."""
DURATION, LASTS, DELAY, CHANGE, LIMIT, WORK = range(6)
"""Rows of `Pipeline.floats`."""

WORD, NUM_RUN, ROW_OF, HEAD, WAITING, STACK, TURN, PATH, TOUCHED, KEPT, BEST = range(11)
"""Rows of `Scratch.ints`: the word; by symbol, how often it ran; by symbol and microbatch, its row; by rank,
its next row; by symbol, the rank that waits for it; ranks to go on with. The others are those of moves."""
START, END, IDLE = range(3)
"""Rows of `Scratch.floats`: by row of the word, twice; by rank, time that it waited."""


class Pipeline(NamedTuple):
    """What a search is for: a placement, times and memory.

    Parameters
    ----------
    num_microbatches : int
        m.
    num_stages : int
        S.
    num_ranks : int
        p.
    length : int
        Rows of each rank in a word, 3 * S * m / p.
    ints : int64, shape (rows, 3 * S)
        By PRODUCER and CONSUMER, see the properties of those names; RANK; PLACE of each symbol where the
        symbols of a rank stand side by side, chunk by chunk; and SYMBOL of each place.
    floats : float64, shape (rows, 3 * S * m)
        By DURATION, LASTS, DELAY, CHANGE, LIMIT and WORK; likewise.
    """

    num_microbatches: int
    num_stages: int
    num_ranks: int
    length: int
    ints: Table
    floats: Floats

    @classmethod
    def of(
        cls,
        rank_of: Ints,
        stages: Ints,
        num_microbatches: int,
        *,
        producer: Ints,
        duration: Floats,
        delay: Floats,
        change: Floats,
        limit: Floats,
    ) -> Pipeline:
        """Lay out what the properties of these names tell."""
        num_stages, num_ranks, m = len(rank_of), len(limit), num_microbatches
        ints = np.full((5, 3 * num_stages), NOBODY, np.int64)
        floats = np.zeros((6, 3 * num_stages * m))
        whole = cls(m, num_stages, num_ranks, 3 * num_stages * m // num_ranks, ints, floats)
        ints[SYMBOL] = np.ravel(stages[:, :, None] + num_stages * np.arange(3))
        ints[PLACE, ints[SYMBOL]] = np.arange(3 * num_stages)
        whole.producer[:] = producer
        whole.consumer[producer[producer != NOBODY]] = np.flatnonzero(producer != NOBODY)
        ints[RANK] = np.tile(rank_of, 3)
        whole.duration[:], whole.delay[:], whole.change[:], whole.limit[:] = duration, delay, change, limit
        whole.lasts[:] = np.repeat(duration, m)
        return whole

    def copy(self) -> Pipeline:
        """Give one whose times can be changed without changing this one's."""
        return self._replace(floats=self.floats.copy())

    def backwards(self) -> Pipeline:
        """Give the same with time running backwards: the last microbatch first, who took now gives."""
        turned = self._replace(ints=self.ints.copy(), floats=self.floats.copy())
        turned.producer[:], turned.consumer[:] = self.consumer, self.producer
        turned.delay[:] = np.where(self.consumer == NOBODY, 0.0, self.delay[self.consumer])
        by_symbol = self.lasts.reshape(-1, self.num_microbatches)
        turned.lasts[:] = np.ravel(by_symbol[:, ::-1])
        return turned

    @property
    def producer(self) -> Table:
        """Symbol whose output a symbol takes, of the same microbatch; NOBODY for the first F and for W."""
        return self._ints(PRODUCER)

    @property
    def consumer(self) -> Table:
        """The other way round, shape (3 * S,)."""
        return self._ints(CONSUMER)

    @property
    def stages(self) -> Table:
        """Stages of each rank, ascending, shape (p, v)."""
        return self._ints(SYMBOL)[::3].reshape(self.num_ranks, -1)

    @property
    def duration(self) -> Floats:
        """Of each symbol, by which orders are listed, shape (3 * S,)."""
        return self._floats(DURATION, 3 * self.num_stages)

    @property
    def lasts(self) -> Floats:
        """Of each symbol and microbatch, at ``symbol * m + microbatch``.

        A backward that is not split lasts as long as B where its I stands, and no time where its W does.
        """
        return self._floats(LASTS, 3 * self.num_stages * self.num_microbatches)

    @property
    def delay(self) -> Floats:
        """From the end of a symbol's producer on the neighbouring stage to the arrival of its message."""
        return self._floats(DELAY, 3 * self.num_stages)

    @property
    def change(self) -> Floats:
        """What a symbol adds to the memory that its rank holds, shape (3 * S,)."""
        return self._floats(CHANGE, 3 * self.num_stages)

    @property
    def limit(self) -> Floats:
        """Most that a rank may hold after any of its actions, shape (p,)."""
        return self._floats(LIMIT, self.num_ranks)

    @property
    def work(self) -> Floats:
        """Duration of all actions of each rank, shape (p,)."""
        return self._floats(WORK, self.num_ranks)

    def _ints(self, row: int) -> Table:
        whole: Table = self.ints[row]
        return whole

    def _floats(self, row: int, number: int) -> Floats:
        part: Floats = self.floats[row, :number]
        return part


class Scratch(NamedTuple):
    """What timing and searching fill, in rows of two arrays."""

    ints: Table
    floats: Floats

    @property
    def start(self) -> Floats:
        """Of each row of the word, as `time_word` found it."""
        return self._floats(START)

    @property
    def end(self) -> Floats:
        """Of each row of the word."""
        return self._floats(END)

    @property
    def row_of(self) -> Table:
        """Row of each symbol and microbatch, at ``symbol * m + microbatch``."""
        row: Table = self.ints[ROW_OF]
        return row

    def _floats(self, row: int) -> Floats:
        whole: Floats = self.floats[row]
        return whole


def new_scratch(pipeline: Pipeline) -> Scratch:
    """Room for `time_word` and moves; to be used again."""
    num_rows = pipeline.length * pipeline.num_ranks
    return Scratch(np.zeros((BEST + 1, num_rows), np.int64), np.zeros((IDLE + 1, num_rows)))


@compiled_part
def num_ready(pipeline: Pipeline, symbol: int, ints: Table) -> int:
    """How many of a symbol can have run, where NUM_RUN of each have: W needs its I, others a producer."""
    producer = pipeline.ints[PRODUCER, symbol]
    if symbol >= 2 * pipeline.num_stages:
        producer = symbol - pipeline.num_stages
    if producer == NOBODY:
        return pipeline.num_microbatches
    num_run: int = ints[NUM_RUN, producer]
    return num_run


@compiled_part
def arrival(pipeline: Pipeline, symbol: int, k: int, floats: Floats) -> float:
    """When the message for the k-th of a symbol is there; END at ``symbol * m + microbatch``."""
    producer = pipeline.ints[PRODUCER, symbol]
    if producer == NOBODY:
        return 0.0
    there: float = floats[END, producer * pipeline.num_microbatches + k] + pipeline.floats[DELAY, symbol]
    return there


def time_word(pipeline: Pipeline, word: Ints, scratch: Scratch, bound: float) -> tuple[float, float]:
    """Time a word; return its makespan and the mean end of its ranks.

    Both are infinite if it cannot run, or as soon as its makespan is sure to be more than `bound`.
    """
    scratch.ints[WORD] = word
    return time_rows(pipeline, scratch, bound)


@compiled
def time_rows(pipeline: Pipeline, scratch: Scratch, bound: float) -> tuple[float, float]:
    """Time the word that stands in WORD, like `time_word`."""
    m, num_ranks, length = pipeline.num_microbatches, pipeline.num_ranks, pipeline.length
    needs, floats, ints, times = pipeline.ints, pipeline.floats, scratch.ints, scratch.floats
    for symbol in range(3 * pipeline.num_stages):
        ints[NUM_RUN, symbol] = 0
        ints[WAITING, symbol] = NOBODY
    for rank in range(num_ranks):
        ints[HEAD, rank] = rank * length
        ints[STACK, rank] = num_ranks - 1 - rank
        times[IDLE, rank] = 0.0
    height, timed = num_ranks, 0
    while height > 0:
        height -= 1
        rank = ints[STACK, height]
        row, stop = ints[HEAD, rank], (rank + 1) * length
        free = 0.0
        if row > rank * length:
            free = times[END, row - 1]
        most_idle, idle = bound - floats[WORK, rank], times[IDLE, rank]
        while row < stop:
            symbol = ints[WORD, row]
            k = ints[NUM_RUN, symbol]
            producer = needs[PRODUCER, symbol]
            if producer != NOBODY:
                if ints[NUM_RUN, producer] <= k:
                    ints[WAITING, producer] = rank
                    break
                there = times[END, ints[ROW_OF, producer * m + k]] + floats[DELAY, symbol]
                if there > free:
                    idle += there - free
                    if idle > most_idle:
                        return np.inf, np.inf
                    free = there
            times[START, row] = free
            free += floats[LASTS, symbol * m + k]
            times[END, row] = free
            ints[ROW_OF, symbol * m + k] = row
            ints[NUM_RUN, symbol] = k + 1
            waiting = ints[WAITING, symbol]
            if waiting != NOBODY and waiting != rank:
                ints[STACK, height] = waiting
                height += 1
                ints[WAITING, symbol] = NOBODY
            row += 1
            timed += 1
        ints[HEAD, rank] = row
        times[IDLE, rank] = idle
    if timed < num_ranks * length:
        return np.inf, np.inf
    makespan, total = 0.0, 0.0
    for rank in range(num_ranks):
        last = times[END, (rank + 1) * length - 1]
        total += last
        if last > makespan:
            makespan = last
    return makespan, total / num_ranks


def latest_starts(backwards: Pipeline, word: Ints, scratch: Scratch) -> Floats:
    """How late each symbol and microbatch can start, counted back from 0, at ``symbol * m + microbatch``.

    Parameters
    ----------
    backwards : Pipeline
        `Pipeline.backwards` of what the word is for.
    word : int32, shape (3 * S * m,)
        Can run.
    scratch : Scratch
        Room.
    """
    time_word(backwards, np.ravel(word.reshape(backwards.num_ranks, -1)[:, ::-1]), scratch, np.inf)
    by_symbol = scratch.end[scratch.row_of].reshape(-1, backwards.num_microbatches)
    return 0.0 - np.ravel(by_symbol[:, ::-1])


def fits(pipeline: Pipeline, word: Ints) -> bool:
    """Whether no rank ever holds more than its limit."""
    held = np.cumsum(pipeline.change[word].reshape(pipeline.num_ranks, -1), axis=1)
    return not (held > pipeline.limit[:, None]).any()
