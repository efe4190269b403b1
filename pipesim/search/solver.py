"""The optimum of small problems, proven by a constraint solver (the extra ``exact``)."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import lcm
from typing import Any

import numpy as np

from pipesim.search.problem import Problem, Word

LARGEST_DENOMINATOR = 1000


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

    Parameters
    ----------
    problem : Problem
        Small, with times that are multiples of some 1/n s, n <= 1000; activations released at W.
    budget : float
        Work limit of the solver, in its own deterministic seconds.
    hint : Word
        An order to start from; returned where the solver finds none as good.

    Raises
    ------
    ImportError
        If OR-Tools is not installed.
    ValueError
        If the times or amounts are none that whole numbers can stand for.
    """
    from ortools.sat.python import cp_model

    if (problem.memory.until_weights != problem.memory.amounts).any():
        raise ValueError("the solver takes activations that stay the same until W, found others after I")
    scale = _common_denominator(problem)
    durations = np.rint(problem.durations_s * scale).astype(int)
    delays = np.rint(problem.delays_s * scale).astype(int)
    num_stages, m = problem.num_stages, problem.num_microbatches
    horizon = int(m * durations.sum() + delays.sum() * m)
    model: Any = cp_model.CpModel()
    start = {
        (t, s, k): model.new_int_var(0, horizon, f"{'FIW'[t]}{s}.{k}")
        for t in range(3)
        for s in range(num_stages)
        for k in range(m)
    }

    def end(t: int, s: int, k: int) -> Any:
        return start[t, s, k] + int(durations[t, s])

    makespan = model.new_int_var(0, horizon, "makespan")
    for s in range(num_stages):
        for k in range(m):
            if s:
                model.add(start[0, s, k] >= end(0, s - 1, k) + int(delays[0, s]))
            if s < num_stages - 1:
                model.add(start[1, s, k] >= end(1, s + 1, k) + int(delays[1, s]))
            model.add(start[1, s, k] >= end(0, s, k))
            model.add(start[2, s, k] >= end(1, s, k))
            model.add(makespan >= end(2, s, k))
            if k:
                for t in range(3):
                    model.add(start[t, s, k] >= end(t, s, k - 1))
    for rank, stages in enumerate(problem.stages):
        mine = [(s, k) for s in stages.tolist() for k in range(m)]
        model.add_no_overlap(
            model.new_fixed_size_interval_var(start[t, s, k], int(durations[t, s]), "")
            for t in range(3)
            for s, k in mine
        )
        limit = problem.memory.limits[rank]
        if np.isfinite(limit) and limit < m * problem.memory.amounts[stages].sum():
            holds = []
            for s, k in mine:
                length = model.new_int_var(0, horizon, "")
                holds.append(model.new_interval_var(start[0, s, k], length, end(2, s, k), ""))
            amounts = [_whole(problem.memory.amounts[s]) for s, _ in mine]
            model.add_cumulative(holds, amounts, int(limit * (1 + 1e-9)))
    model.minimize(makespan)
    _hint(problem, hint, model, start, scale)
    solver: Any = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_deterministic_time = budget
    if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Optimum(float("inf"), solver.best_objective_bound / scale, hint)
    times = {key: solver.value(variable) for key, variable in start.items()}
    return Optimum(
        makespan_s=solver.objective_value / scale,
        lower_bound_s=solver.best_objective_bound / scale,
        word=_word(problem, times),
    )


def _word(problem: Problem, times: dict[tuple[int, int, int], int]) -> Word:
    """Symbols of each rank by start; where something takes no time, by what needs what."""
    num_stages = problem.num_stages
    symbols = []
    for rank in range(problem.num_ranks):
        mine = [key for key in times if problem.rank_of[key[1]] == rank]
        # On one rank and at one time: F in the order of stages, I against it, then W.
        mine.sort(key=lambda key: (times[key], key[2], key[0], -key[1] if key[0] == 1 else key[1]))
        symbols += [t * num_stages + s for t, s, _ in mine]
    return np.array(symbols, np.int32)


def _common_denominator(problem: Problem) -> int:
    times = [*np.ravel(problem.durations_s).tolist(), *np.ravel(problem.delays_s).tolist()]
    fractions = [Fraction(time).limit_denominator(LARGEST_DENOMINATOR) for time in times]
    scale = lcm(*(fraction.denominator for fraction in fractions))
    if scale > LARGEST_DENOMINATOR or any(
        abs(float(f) - t) > 1e-12 * max(t, 1.0) for f, t in zip(fractions, times, strict=True)
    ):
        raise ValueError(
            f"the solver takes times that are multiples of one 1/n s, n <= {LARGEST_DENOMINATOR}"
        )
    return scale


def _whole(amount: float) -> int:
    if amount != int(amount):
        raise ValueError(f"the solver takes whole amounts of memory, found {amount:g}")
    return int(amount)


def _hint(
    problem: Problem, word: Word, model: Any, start: dict[tuple[int, int, int], Any], scale: int
) -> None:
    from pipesim.search.word_timing import new_scratch, time_word

    pipeline, factor = problem.pipeline()
    scratch = new_scratch(pipeline)
    time_word(pipeline, word, scratch, np.inf)
    starts = scratch.start[scratch.row_of] * factor * scale
    m = problem.num_microbatches
    for (t, s, k), variable in start.items():
        model.add_hint(variable, round(starts[(t * problem.num_stages + s) * m + k]))
