"""`auto` splits a backward only where that gains something: I and W may take longer together than B."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import pytest
from helpers import costs_of, texts
from mixed_costs import mixed_case

from pipesim.costs import CostTable
from pipesim.ir import peak_in_flight, validate
from pipesim.ir.actions import Op, Schedule
from pipesim.schedules import Shape
from pipesim.schedules.auto import search
from pipesim.search.problem import MemoryLimit, Problem
from pipesim.search.whole_backwards import search_mixtures
from pipesim.timing.longest_path import PreparedSchedule

BUDGET = 200_000
NUM_MICROBATCHES = 3
Key: TypeAlias = tuple[Op, int, int]


def test_one_microbatch_is_split_where_somebody_waits_for_it_and_nowhere_else() -> None:
    """F 1, B 2, I 1.2, W 1.6: in one 6.0, all split 1 + 1 + 1.2 + 1.2 + 1.6; best is 1 + 1 + 1.2 + 2."""
    costs = costs_of(2, number=float, input_gradient_s=1.2, weight_gradient_s=1.6)
    result = search(Shape(2, 1, 1, {"budget": BUDGET}), costs)
    assert texts(Schedule.from_orders("auto", result.orders)) == ["0F0 0B0", "1F0 1I0 1W0"]
    assert result.makespan_s == pytest.approx(5.2, rel=1e-12)


def orders(stage: int, backward: tuple[Op, ...], ran: tuple[int, ...]) -> Iterator[list[Key]]:
    """Continue an order in which `ran` of each kind have run, in all ways; each kind takes turns."""
    kinds = (Op.F, *backward)
    if all(count == NUM_MICROBATCHES for count in ran):
        yield []
    for kind, count in enumerate(ran):
        if count < (ran[kind - 1] if kind else NUM_MICROBATCHES):
            after = (*ran[:kind], count + 1, *ran[kind + 1 :])
            for rest in orders(stage, backward, after):
                yield [(kinds[kind], stage, count), *rest]


def makespan(queues: list[list[Key]], costs: CostTable, back: Op) -> float:
    """Run two stages on two ranks; infinite where they wait for each other for ever."""
    delay = float(costs.p2p(0, 1).latency_s)
    seconds = {(op, s): float(costs.duration(op, s)) for op in (Op.F, Op.B, Op.I, Op.W) for s in (0, 1)}
    end: dict[Key, float] = {}
    at, free = [0, 0], [0.0, 0.0]
    while any(place < len(queue) for place, queue in zip(at, queues, strict=True)):
        before = sum(at)
        for rank, queue in enumerate(queues):
            while at[rank] < len(queue):
                op, stage, k = action = queue[at[rank]]
                needed = {(Op.F, 1): (Op.F, 0, k), (back, 0): (back, 1, k)}.get((op, stage))
                if needed is not None and needed not in end:
                    break
                arrival = 0.0 if needed is None else end[needed] + delay
                free[rank] = end[action] = max(free[rank], arrival) + seconds[op, stage]
                at[rank] += 1
        if sum(at) == before:
            return np.inf
    return max(free)


def least_makespan(costs: CostTable, backward: tuple[Op, ...]) -> float:
    """Try every order of two stages on two ranks."""
    start = (0,) * (1 + len(backward))
    both = [list(orders(stage, backward, start)) for stage in (0, 1)]
    return min(makespan(list(pair), costs, backward[0]) for pair in itertools.product(*both))


@pytest.mark.parametrize("seed", range(5))
def test_never_slower_than_any_order_that_splits_all_or_none(seed: int) -> None:
    shape, costs = mixed_case(seed, budget=BUDGET, small=True)
    found = search(shape, costs).makespan_s
    assert found <= min(least_makespan(costs, backward) for backward in ((Op.B,), (Op.I, Op.W))) * (1 + 1e-12)


@pytest.mark.parametrize("seed", range(8))
def test_mixed_orders_are_legal_and_within_memory_and_bounds(seed: int) -> None:
    shape, costs = mixed_case(seed, budget=BUDGET)
    result = search(shape, costs)
    schedule = Schedule.from_orders("auto", result.orders)
    validate(schedule)
    makespan = float(PreparedSchedule.of(schedule).evaluate_costs(costs).makespan)
    assert result.makespan_s == pytest.approx(makespan, rel=1e-12)
    assert result.lower_bound_s <= makespan * (1 + 1e-12)
    assert peak_in_flight(schedule).max() <= shape.options.get("max_in_flight", np.inf)


def test_what_waits_for_its_weight_gradient_counts_as_held() -> None:
    """Bytes held from I to W are more than before I: only orders with every backward in one fit."""
    costs = costs_of(2, number=float, forward_s=1.0, input_gradient_s=1.0, weight_gradient_s=1.1)
    memory = MemoryLimit(np.ones(2), np.array([2.0, 1.0]), np.array([1.0, 1.0]))
    problem = Problem.of([0, 1], 4, costs, memory)
    mixture = search_mixtures(problem, BUDGET, np.random.default_rng(0))
    schedule = Schedule.from_orders("mixture", problem.orders(mixture.word, mixture.whole))
    assert (peak_in_flight(schedule) <= [2, 1]).all()
    assert float(PreparedSchedule.of(schedule).evaluate_costs(costs).makespan) == pytest.approx(
        mixture.makespan_s
    )
