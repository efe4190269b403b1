"""The optimum of small problems, proven by a constraint solver (OR-Tools)."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pipesim.search.problem import Problem, Word
from pipesim.search.word_timing import new_scratch, time_word

SCALE = 10
"""Whole numbers of the solver in a second."""


@dataclass(frozen=True, slots=True)
class Optimum:
    """What the solver found: its best makespan, and what it proved no order can beat."""

    makespan_s: float
    lower_bound_s: float
    word: Word

    @property
    def proven(self) -> bool:
        """Whether the makespan is the least possible."""
        return self.makespan_s <= self.lower_bound_s * (1 + 1e-9)


def solve(problem: Problem, *, budget: float, hint: Word) -> Optimum:
    """Find the least makespan over all orders within the memory limits.

    `budget` is the solver's own deterministic seconds; `hint` an order to start from. Times are tenths of
    seconds, amounts of memory whole and released at W.
    """
    cp_model = pytest.importorskip("ortools.sat.python.cp_model")
    durations, delays, amounts = (
        _whole(np.ravel(values))
        for values in (problem.durations_s * SCALE, problem.delays_s * SCALE, problem.memory.amounts)
    )
    num_stages, m = problem.num_stages, problem.num_microbatches
    horizon = m * (sum(durations) + sum(delays))
    model: Any = cp_model.CpModel()
    start = {
        (symbol, k): model.new_int_var(0, horizon, f"{'FIW'[symbol // num_stages]}{symbol % num_stages}.{k}")
        for symbol in range(3 * num_stages)
        for k in range(m)
    }

    def end(symbol: int, k: int) -> Any:
        return start[symbol, k] + durations[symbol]

    makespan = model.new_int_var(0, horizon, "makespan")
    for symbol, k in start:
        if symbol:
            model.add(start[symbol, k] >= end(_producer(symbol, num_stages), k) + delays[symbol])
        model.add(makespan >= end(symbol, k))
        if k:
            model.add(start[symbol, k] >= end(symbol, k - 1))
    for rank, stages in enumerate(problem.stages):
        model.add_no_overlap(
            model.new_fixed_size_interval_var(variable, durations[symbol], "")
            for (symbol, _), variable in start.items()
            if symbol % num_stages in stages
        )
        limit = problem.memory.limits[rank]
        if np.isfinite(limit) and limit < m * problem.memory.amounts[stages].sum():
            holds = []
            for stage, k in itertools.product(stages.tolist(), range(m)):
                length = model.new_int_var(0, horizon, "")
                freed = end(2 * num_stages + stage, k)
                holds.append(model.new_interval_var(start[stage, k], length, freed, ""))
            held = [amounts[stage] for stage in stages for _ in range(m)]
            model.add_cumulative(holds, held, int(limit * (1 + 1e-9)))
    model.minimize(makespan)
    _hint(problem, hint, model, start)
    solver: Any = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_deterministic_time = budget
    if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Optimum(float("inf"), solver.best_objective_bound / SCALE, hint)
    times = {key: solver.value(variable) for key, variable in start.items()}
    return Optimum(
        makespan_s=solver.objective_value / SCALE,
        lower_bound_s=solver.best_objective_bound / SCALE,
        word=_word(problem, times),
    )


def _word(problem: Problem, times: dict[tuple[int, int], int]) -> Word:
    """Symbols of each rank by start; where something takes no time, by what needs what."""
    num_stages = problem.num_stages

    def place(key: tuple[int, int]) -> tuple[int, int, int, int]:
        kind, stage = divmod(key[0], num_stages)
        # On one rank and at one time: F in the order of stages, I against it, then W.
        return times[key], key[1], kind, -stage if kind == 1 else stage

    symbols = []
    for rank in range(problem.num_ranks):
        mine = [key for key in times if problem.rank_of[key[0] % num_stages] == rank]
        symbols += [symbol for symbol, _ in sorted(mine, key=place)]
    return np.array(symbols, np.int32)


def _producer(symbol: int, num_stages: int) -> int:
    """What a symbol needs: the rule of dependencies, written again on purpose."""
    kind, stage = divmod(symbol, num_stages)
    if kind == 1:
        return symbol + 1 if stage < num_stages - 1 else stage
    return symbol - 1 if kind == 0 else symbol - num_stages


def _whole(values: npt.NDArray[np.float64]) -> list[int]:
    whole = np.rint(values)
    np.testing.assert_allclose(values, whole, atol=1e-9)
    return whole.astype(int).tolist()


def _hint(problem: Problem, word: Word, model: Any, start: dict[tuple[int, int], Any]) -> None:
    pipeline, factor = problem.pipeline()
    scratch = new_scratch(pipeline)
    time_word(pipeline, word, scratch, np.inf)
    starts = scratch.start[scratch.row_of] * factor * SCALE
    for (symbol, k), variable in start.items():
        model.add_hint(variable, round(starts[symbol * problem.num_microbatches + k]))
