"""The searched schedule: never worse than a named one in the same memory, within bounds, always the same."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from helpers import costs_of

from pipesim.costs import CostTable
from pipesim.costs.host import HostCost
from pipesim.errors import InfeasibleError, PipesimError, ScheduleError
from pipesim.ir import held, peak_in_flight, validate
from pipesim.ir.actions import Op, Schedule
from pipesim.schedules import Shape, families, generate
from pipesim.schedules.auto import AutoResult, lower_bound_of, search
from pipesim.timing.longest_path import PreparedSchedule

SMALL_BUDGET = 500_000


def random_case(seed: int, *, budget: int = SMALL_BUDGET) -> tuple[Shape, CostTable]:
    """Uneven stages, a head or none, some p2p time, and a memory limit from tight to loose."""
    rng = np.random.default_rng(seed)
    p, v = int(rng.choice([2, 4, 8])), int(rng.integers(1, 4))
    m = int(rng.choice([4, 8, 16, 32]))
    base = [(1, 1, 1), (1, 1.2, 0.8), (1, 1.5, 0.5), (1, 2, 1)][rng.integers(4)]
    factor = rng.uniform(0.6, 1.4, p * v) if rng.random() < 0.6 else np.ones(p * v)
    factor[-1] *= rng.choice([1.0, 1.5, 2.5])
    f, i, w = (tuple(float(x) for x in part * factor) for part in base)
    costs = costs_of(
        p * v,
        number=float,
        forward_s=f,
        backward_s=tuple(a + b for a, b in zip(i, w, strict=True)),
        input_gradient_s=i,
        weight_gradient_s=w,
        p2p_latency_s=float(rng.choice([0, 0.1, 0.3])),
    )
    options: dict[str, object] = {"budget": budget}
    if rng.random() < 0.8:
        options["max_in_flight"] = int(rng.integers(v, 2 * p * v + 1))
    return Shape(p, v, m, options), costs


def best_named(shape: Shape, costs: CostTable) -> float:
    """Least makespan of the registered schedules that hold no more than the limit, timed one by one."""
    limit = shape.options.get("max_in_flight", np.inf)
    makespans = [np.inf]
    for name, family in families().items():
        if name == "auto" or not family.synchronous or family.num_model_replicas > 1:
            continue
        try:
            plain = Shape(shape.num_ranks, shape.num_chunks, shape.num_microbatches)
            schedule = generate(name, plain, costs)
        except PipesimError:
            continue
        if schedule.num_slices == 1 and peak_in_flight(schedule).max() <= limit:
            makespans.append(PreparedSchedule.of(schedule).evaluate_costs(costs).makespan)
    return min(makespans)


def check(shape: Shape, costs: CostTable, result: AutoResult) -> Schedule:
    schedule = Schedule.from_orders("auto", result.orders)
    validate(schedule)
    makespan = PreparedSchedule.of(schedule).evaluate_costs(costs).makespan
    assert result.makespan_s == pytest.approx(makespan, rel=1e-12)
    assert peak_in_flight(schedule).max() <= shape.options.get("max_in_flight", np.inf)
    assert result.lower_bound_s <= makespan * (1 + 1e-12)
    return schedule


@pytest.mark.parametrize("seed", range(20))
def test_auto_is_never_worse_than_a_named_schedule_in_the_same_memory(seed: int) -> None:
    shape, costs = random_case(seed)
    result = search(shape, costs)
    check(shape, costs, result)
    assert result.makespan_s <= best_named(shape, costs) * (1 + 1e-12)
    if result.best_named_makespan_s is not None:
        assert result.makespan_s <= result.best_named_makespan_s


def test_auto_is_better_than_every_named_schedule_where_the_head_is_heavy() -> None:
    forward = (1.0,) * 15 + (1.5,)
    backward = tuple(2 * f for f in forward)
    costs = costs_of(16, number=float, forward_s=forward, backward_s=backward, p2p_latency_s=0.1)
    shape = Shape(8, 2, 16, {"max_in_flight": 16, "budget": 5_000_000})
    result = search(shape, costs)
    check(shape, costs, result)
    assert result.makespan_s < 0.99 * best_named(shape, costs)


def digest(seed: int) -> str:
    shape, costs = random_case(3)
    orders = search(replace(shape, options={**shape.options, "seed": seed}), costs).orders
    return hashlib.sha256(Schedule.from_orders("auto", orders).to_csv().encode()).hexdigest()


def test_the_same_seed_and_budget_give_the_same_order_in_another_process() -> None:
    here = __file__.rsplit("/", 1)[0]
    code = f"import sys; sys.path.insert(0, {here!r}); import test_auto; print(test_auto.digest(1))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == digest(1)


def test_the_registry_generates_it() -> None:
    shape, costs = random_case(0)
    schedule = generate("auto", shape, costs)
    assert schedule.name == "auto"
    assert schedule.actions_of(0) == search(shape, costs).orders[0]


@pytest.mark.parametrize(
    ("placement", "ranks"), [("loop", [0, 1, 2, 3] * 2), ("wave", [0, 1, 2, 3, 3, 2, 1, 0])]
)
def test_the_placement_can_be_chosen(placement: str, ranks: list[int]) -> None:
    shape = Shape(4, 2, 8, {"placement": placement, "budget": SMALL_BUDGET, "max_in_flight": 5})
    result = search(shape, costs_of(4, 2, number=float))
    schedule = check(shape, costs_of(4, 2, number=float), result)
    assert result.placement == placement
    forwards = schedule.op == Op.F
    assert dict(zip(schedule.stage[forwards], schedule.rank[forwards], strict=True)) == dict(enumerate(ranks))


def test_searching_the_placement_is_no_worse_than_either() -> None:
    costs = costs_of(4, 2, number=float, p2p_latency_s=0.2)
    options = {"max_in_flight": 6, "budget": 4 * SMALL_BUDGET}
    both = search(Shape(4, 2, 8, options), costs).makespan_s
    assert both <= generate_makespan(Shape(4, 2, 8), "zb-v", costs, limit=6)
    assert both <= generate_makespan(Shape(4, 2, 8), "interleaved-zb", costs, limit=6)


def generate_makespan(shape: Shape, name: str, costs: CostTable, limit: int) -> float:
    schedule = generate(name, shape, costs)
    if peak_in_flight(schedule).max() > limit:
        return np.inf
    makespan: float = PreparedSchedule.of(schedule).evaluate_costs(costs).makespan
    return makespan


def test_memory_in_bytes_is_what_the_device_leaves() -> None:
    even = np.ones(4)
    costs = replace(
        costs_of(4, number=float),
        activation_bytes=np.array([3.0, 2.0, 1.0, 4.0]),
        weight_bytes=5 * even,
        working_bytes=even,
        memory_limit_bytes=15.0,
        deferred_bytes=0.75 * np.array([3.0, 2.0, 1.0, 4.0]),
    )
    schedule = Schedule.from_orders("auto", search(Shape(4, 1, 12, {"budget": SMALL_BUDGET}), costs).orders)
    holds = held(schedule, costs.activation_bytes, costs.deferred_bytes)
    assert holds.max() <= 9 * (1 + 1e-9)
    roomy = replace(costs, memory_limit_bytes=100.0)
    shape = Shape(4, 1, 12, {"budget": SMALL_BUDGET})
    assert search(shape, roomy).makespan_s < search(shape, costs).makespan_s


def test_a_rank_without_room_for_one_microbatch_is_refused() -> None:
    words = r"rank 0 has room for 1 chunks of activations, one microbatch on all its stages holds 2"
    with pytest.raises(InfeasibleError, match=words):
        search(Shape(4, 2, 8, {"max_in_flight": 1}), costs_of(4, 2, number=float))


def test_a_rank_whose_weights_alone_do_not_fit_is_said_to_have_no_room() -> None:
    costs = replace(
        costs_of(4, number=float),
        activation_bytes=np.full(4, 1.35e9),
        weight_bytes=np.full(4, 2e9),
        memory_limit_bytes=1e9,
    )
    with pytest.raises(InfeasibleError, match=r"has room for 0 GB of activations, .* holds 1.35 GB"):
        search(Shape(4, 1, 8), costs)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"placement": "spiral"}, "placement to be any, loop or wave"),
        ({"max_in_flight": 2.5}, "max_in_flight to be a whole number"),
        ({"seed": -1}, "seed to be a whole number"),
        ({"budget": 0}, "budget to be a whole number"),
        ({"bugdet": 5}, "unknown option 'bugdet'"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(ScheduleError, match=words):
        generate("auto", Shape(4, 1, 8, options), costs_of(4, number=float))


def test_where_a_full_backward_is_cheaper_the_named_order_stands() -> None:
    costs = costs_of(
        4, number=float, backward_s=(1.0,) * 4, input_gradient_s=(1.0,) * 4, weight_gradient_s=(1.0,) * 4
    )
    result = search(Shape(4, 1, 16, {"max_in_flight": 4, "budget": SMALL_BUDGET}), costs)
    assert result.makespan_s == (16 + 3) * 2
    assert result.lower_bound_s <= result.makespan_s


def test_time_that_the_host_takes_is_searched_with() -> None:
    costs = replace(
        costs_of(4, number=float, p2p_latency_s=0.3),
        host=HostCost(per_message_s=0.05, per_action_s=0.02),
    )
    shape = Shape(4, 1, 12, {"max_in_flight": 6, "budget": SMALL_BUDGET})
    result = search(shape, costs)
    check(shape, costs, result)
    assert result.makespan_s <= best_named(shape, costs)


@pytest.mark.parametrize("name", sorted(name for name, one in families().items() if one.synchronous))
def test_no_named_schedule_beats_the_bound(name: str) -> None:
    num_chunks = families()[name].chunks or 2
    forward = tuple(float(f) for f in np.random.default_rng(5).uniform(0.5, 1.5, 4 * num_chunks))
    costs = costs_of(
        4 * num_chunks, number=float, forward_s=forward, backward_s=tuple(2 * f for f in forward)
    )
    shape = Shape(4, num_chunks, 8, {"budget": SMALL_BUDGET} if name == "auto" else {})
    schedule = generate(name, shape, costs)
    bound = lower_bound_of(schedule, costs)
    if bound is None:
        assert families()[name].num_model_replicas > 1 or schedule.num_slices > 1
    else:
        assert 0 < bound <= PreparedSchedule.of(schedule).evaluate_costs(costs).makespan * (1 + 1e-12)


def test_the_bound_is_reached_where_the_busiest_rank_never_waits() -> None:
    costs = costs_of(4, number=float, forward_s=(1.0, 1.0, 1.0, 2.0), backward_s=(2.0, 2.0, 2.0, 4.0))
    result = search(Shape(4, 1, 12, {"max_in_flight": 4, "budget": SMALL_BUDGET}), costs)
    assert result.makespan_s == result.lower_bound_s == 3 + 12 * 6


@pytest.mark.parametrize("seed", range(12))
def test_what_w_holds_may_be_more_than_what_f_left(seed: int) -> None:
    """As under recomputation; the device has room for little more than one microbatch on all its stages."""
    rng = np.random.default_rng(seed)
    p, v, m = int(rng.integers(1, 5)), int(rng.integers(1, 4)), int(rng.integers(1, 9))
    activations, deferred = rng.uniform(0.2, 1.0, p * v), rng.uniform(0.2, 6.0, p * v)
    costs = replace(
        costs_of(p, v, number=float, p2p_latency_s=0.1),
        activation_bytes=activations,
        deferred_bytes=deferred,
        memory_limit_bytes=float((v * 1.0 + 6.0) * rng.uniform(1, 1.5)),
    )
    options = {"budget": SMALL_BUDGET}
    schedule = Schedule.from_orders("auto", search(Shape(p, v, m, options), costs).orders)
    validate(schedule)
    assert held(schedule, activations, deferred).max() <= costs.memory_limit_bytes * (1 + 1e-9)
    if v == 1:
        assert held(generate("zb-auto", Shape(p, 1, m), costs), activations, deferred).max() <= (
            costs.memory_limit_bytes * (1 + 1e-9)
        )
