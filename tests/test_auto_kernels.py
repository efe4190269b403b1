"""The parts of the search: words and their timing, list scheduling without deadlocks, moves, the solver."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import costs_of
from solver_oracle import solve

from pipesim.costs import CostTable
from pipesim.errors import ScheduleError
from pipesim.ir import peak_in_flight, validate
from pipesim.ir.actions import Schedule
from pipesim.schedules import Shape, families, generate
from pipesim.schedules._named import placement_of
from pipesim.search import priorities
from pipesim.search.listing import list_word
from pipesim.search.local_search import Search
from pipesim.search.lower_bound import lower_bound_s
from pipesim.search.moves import improve_word
from pipesim.search.problem import MemoryLimit, Problem
from pipesim.search.word_timing import fits, latest_starts, new_scratch, time_word
from pipesim.timing.longest_path import PreparedSchedule


def tenths_costs(rng: np.random.Generator, num_stages: int) -> CostTable:
    """Times in tenths of a second, so that a solver can take them as whole numbers."""
    base = [(10, 10, 10), (10, 12, 8), (10, 15, 5), (10, 20, 10)][rng.integers(4)]
    factor = rng.integers(6, 15, num_stages) / 10 if rng.random() < 0.5 else np.ones(num_stages)
    factor[-1] *= rng.choice([1.0, 1.5, 2.0])
    f, i, w = (np.rint(part * factor) / 10 for part in base)
    return costs_of(
        num_stages,
        number=float,
        forward_s=tuple(f),
        backward_s=tuple(i + w),
        input_gradient_s=tuple(i),
        weight_gradient_s=tuple(w),
        p2p_latency_s=float(rng.choice([0, 0.1, 0.2])),
    )


def placement(kind: str, p: int, v: int) -> list[int]:
    return [p - 1 - s % p if kind == "wave" and s // p % 2 else s % p for s in range(p * v)]


def problem_of(rng: np.random.Generator, p: int, v: int, m: int, limit: float, kind: str = "loop") -> Problem:
    memory = MemoryLimit(np.ones(p * v), np.full(p, float(limit)))
    return Problem.of(placement(kind, p, v), m, tenths_costs(rng, p * v), memory)


@pytest.mark.parametrize("kind", ["loop", "wave"])
@pytest.mark.parametrize("v", [1, 2, 3])
def test_list_scheduling_never_deadlocks_nor_breaks_the_limit(kind: str, v: int) -> None:
    rng = np.random.default_rng(v)
    for p in (1, 2, 4, 6):
        for limit in range(v, p * v + 2):
            problem = problem_of(rng, p, v, 9, limit, kind)
            pipeline, _ = problem.pipeline()
            scratch, word = new_scratch(pipeline), np.empty(problem.num_actions, np.int32)
            for _ in range(3):
                priority = rng.random(problem.num_actions)
                caps = rng.integers(1, 10, p * v).astype(np.int32)
                patience = float(rng.choice([0, 0.5, 2]))
                assert list_word(pipeline, priority, patience, caps, word, 1e-3) == np.inf
                makespan = list_word(pipeline, priority, patience, caps, word)
                assert list_word(pipeline, priority, patience, caps, word, makespan) == makespan
                assert list_word(pipeline, priority, patience, caps, word.copy(), makespan * 0.999) == np.inf
                assert fits(pipeline, word)
                assert time_word(pipeline, word, scratch, np.inf)[0] <= makespan * (1 + 1e-12)
                schedule = Schedule.from_orders("word", problem.orders(word))
                validate(schedule)
                assert peak_in_flight(schedule).max() <= limit
                assert makespan * (1 + 1e-9) >= lower_bound_s(problem) / problem.pipeline()[1]


@pytest.mark.parametrize(
    "name", sorted(n for n, one in families().items() if one.synchronous and n != "auto")
)
@pytest.mark.parametrize("m", [8, 13])
def test_splitting_and_numbering_by_turn_makes_no_schedule_later(name: str, m: int) -> None:
    family = families()[name]
    v = family.chunks or 2
    costs = tenths_costs(np.random.default_rng(m), 4 * v)
    try:
        family.check(Shape(4, v, m))
    except ScheduleError:
        pytest.skip(f"{name} has no such shape")
    schedule = generate(name, Shape(4, v, m), costs)
    if schedule.num_slices > 1 or family.num_model_replicas > 1:
        pytest.skip("not an order of whole microbatches on one replica")
    peaks = peak_in_flight(schedule)
    problem = Problem.of(placement_of(schedule), m, costs, MemoryLimit(np.ones(4 * v), peaks.astype(float)))
    word = problem.word(schedule)
    pipeline, scale = problem.pipeline()
    assert fits(pipeline, word)
    as_word = Schedule.from_orders("word", problem.orders(word))
    validate(as_word)
    makespan = time_word(pipeline, word, new_scratch(pipeline), np.inf)[0] * scale
    assert makespan == pytest.approx(PreparedSchedule.of(as_word).evaluate_costs(costs).makespan, rel=1e-12)
    assert makespan <= PreparedSchedule.of(schedule).evaluate_costs(costs).makespan * (1 + 1e-12)


def listed(problem: Problem, rng: np.random.Generator) -> np.ndarray:
    pipeline, _ = problem.pipeline()
    word = np.empty(problem.num_actions, np.int32)
    list_word(pipeline, rng.random(problem.num_actions), 0.0, priorities.no_caps(pipeline), word)
    return word


@pytest.mark.parametrize("seed", range(10))
def test_moves_improve_and_keep_every_rule(seed: int) -> None:
    rng = np.random.default_rng(seed)
    p, v = int(rng.integers(1, 5)), int(rng.integers(1, 4))
    problem = problem_of(rng, p, v, 8, int(rng.integers(v, p * v + 2)), str(rng.choice(["loop", "wave"])))
    pipeline, _ = problem.pipeline()
    word, scratch = listed(problem, rng), new_scratch(pipeline)
    before = time_word(pipeline, word, scratch, np.inf)[0]
    after = improve_word(pipeline, word, scratch, np.array([seed + 1], np.uint64), 5000, 0.5, 0.0)
    assert after <= before
    assert after == time_word(pipeline, word, scratch, np.inf)[0]
    assert fits(pipeline, word)
    validate(Schedule.from_orders("word", problem.orders(word)))


def test_a_word_that_cannot_run_takes_for_ever() -> None:
    problem = problem_of(np.random.default_rng(0), 2, 1, 2, 2)
    pipeline, _ = problem.pipeline()
    stuck = np.array([0, 2, 4, 0, 2, 4, 3, 1, 5, 1, 3, 5], np.int32)
    assert time_word(pipeline, stuck, new_scratch(pipeline), np.inf)[0] == np.inf


def test_timing_stops_as_soon_as_the_bound_is_out_of_reach() -> None:
    rng = np.random.default_rng(1)
    problem = problem_of(rng, 4, 2, 8, 8)
    pipeline, _ = problem.pipeline()
    word, scratch = listed(problem, rng), new_scratch(pipeline)
    makespan = time_word(pipeline, word, scratch, np.inf)[0]
    assert time_word(pipeline, word, scratch, makespan)[0] == makespan
    assert time_word(pipeline, word, scratch, makespan * 0.99)[0] == np.inf


def test_latest_starts_leave_every_action_its_place() -> None:
    rng = np.random.default_rng(2)
    problem = problem_of(rng, 4, 2, 8, 8)
    pipeline, _ = problem.pipeline()
    word, scratch = listed(problem, rng), new_scratch(pipeline)
    latest = latest_starts(pipeline.backwards(), word, scratch)
    makespan = time_word(pipeline, word, scratch, np.inf)[0]
    slack = makespan + latest - scratch.start[scratch.row_of]
    assert slack.min() == pytest.approx(0, abs=1e-9)
    assert (slack > -1e-9).all()


SOLVER_BUDGET, SEARCH_BUDGET = 10.0, 100_000_000
SMALL_SHAPES = [(2, 1, 8, 2, "loop"), (4, 1, 5, 5, "loop"), (2, 2, 6, 4, "wave"), (4, 2, 4, 8, "loop")]
"""Solved in a second each; benchmarks prove more."""


@pytest.mark.parametrize("shape", SMALL_SHAPES, ids=str)
def test_the_search_finds_the_proven_optimum_of_small_shapes(shape: tuple[int, int, int, int, str]) -> None:
    p, v, m, limit, kind = shape
    problem = problem_of(np.random.default_rng(p * v * m), p, v, m, limit, kind)
    found = Search(problem, SEARCH_BUDGET, np.random.default_rng(0)).run()
    optimum = solve(problem, budget=SOLVER_BUDGET, hint=found.word)
    assert lower_bound_s(problem) <= optimum.makespan_s * (1 + 1e-9)
    assert optimum.proven
    assert found.makespan_s == pytest.approx(optimum.makespan_s, rel=1e-9)
    pipeline, scale = problem.pipeline()
    assert fits(pipeline, optimum.word)
    seconds = time_word(pipeline, optimum.word, new_scratch(pipeline), np.inf)[0] * scale
    assert seconds == pytest.approx(optimum.makespan_s, rel=1e-9)
