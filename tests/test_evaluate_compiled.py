"""The compiled evaluator against the exact one and against the engine, on schedules no generator writes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from pipesim.costs import CostTable
from pipesim.costs.direct import direct_costs
from pipesim.costs.network.alpha_beta import LinkCost, PointToPoint
from pipesim.costs.rows import row_delays, row_durations
from pipesim.errors import DeadlockError
from pipesim.ir import dependencies, linear_extension, lower, validate
from pipesim.ir.actions import Action, Op, Schedule, backward, forward
from pipesim.scenario.resolved import DirectCosts
from pipesim.schedules import Shape, families, generate
from pipesim.timing.engine import simulate
from pipesim.timing.longest_path import PreparedSchedule, evaluate


def random_schedule(rng: np.random.Generator, *, max_ranks: int = 5, max_microbatches: int = 6) -> Schedule:
    """Run actions in a random possible order; some backwards split, some pairs joined, any placement."""
    p, v = int(rng.integers(1, max_ranks + 1)), int(rng.integers(1, 4))
    m, num_slices = int(rng.integers(1, max_microbatches + 1)), int(rng.choice([1, 1, 1, 2, 3]))
    placement = rng.choice(["loop", "wave", "bidirectional"])
    if placement == "bidirectional":
        v = 1
    num_stages = p * v
    split_share = rng.choice([0.0, 0.5, 1.0])
    split = rng.random((num_stages, m, num_slices)) < split_share

    def rank_of(stage: int, microbatch: int) -> int:
        lap, place = divmod(stage, p)
        back = (placement == "wave" and lap % 2) or (placement == "bidirectional" and microbatch % 2)
        return p - 1 - place if back else place

    everything = [
        Action(op, stage, k, part)
        for stage in range(num_stages)
        for k in range(m)
        for part in range(num_slices)
        for op in ((Op.F, Op.I, Op.W) if split[stage, k, part] else (Op.F, Op.B))
    ]
    waits = {action: set(_needs(action, num_stages, num_slices, split)) for action in everything}
    orders: list[list[Action]] = [[] for _ in range(p)]
    while waits:
        ready = sorted(action for action, before in waits.items() if not before)
        # Sticking to one end of the list makes deep and shallow schedules, not only well mixed ones.
        action = ready[min(int(rng.exponential(3)), len(ready) - 1)]
        orders[rank_of(action.stage, action.microbatch)].append(action)
        del waits[action]
        for before in waits.values():
            before.discard(action)
    return _join_some(Schedule.from_orders("random", orders), rng)


def _needs(action: Action, num_stages: int, num_slices: int, split: np.ndarray) -> Iterator[Action]:
    op, stage, k, part, _ = action
    if op is Op.F:
        if stage:
            yield Action(Op.F, stage - 1, k, part)
        if part:
            yield Action(Op.F, stage, k, part - 1)
    elif op is Op.W:
        yield Action(Op.I, stage, k, part)
    else:
        yield Action(Op.F, stage, k, part)
        for other, later in ((stage + 1, part), (stage, part + 1)):
            if other < num_stages and later < num_slices:
                yield Action(Op.I if split[other, k, later] else Op.B, other, k, later)


def _join_some(schedule: Schedule, rng: np.random.Generator) -> Schedule:
    rank = schedule.rank
    pairs = (schedule.op[:-1] == Op.F) & (schedule.op[1:] == Op.B) & (rank[:-1] == rank[1:])
    for row in np.flatnonzero(pairs):
        if schedule.joined[row - 1] or rng.random() < 0.5:
            continue
        joined = schedule.joined.copy()
        joined[row] = True
        candidate = replace(schedule, joined=joined)
        needs = dependencies(candidate)
        if needs.producer[row + 1] == row:
            continue
        try:
            linear_extension(candidate, needs)
        except DeadlockError:
            continue
        schedule = candidate
    return schedule


def random_costs(rng: np.random.Generator, num_ranks: int, num_stages: int) -> CostTable:
    def times() -> tuple[float, ...]:
        return tuple(rng.uniform(0.1, 2.0, num_stages))

    stated = DirectCosts(
        forward_s=times(),
        backward_s=times(),
        input_gradient_s=times(),
        weight_gradient_s=times(),
        p2p_latency_s=0.0,
        p2p_bytes_per_s=None,
        boundary_bytes=0.0,
        overlapped_pair_s=times() if rng.random() < 0.5 else None,
        gradient_sync_s=0.0,
        optimizer_s=0.0,
        activation_bytes=0.0,
    )
    table = direct_costs(stated, num_ranks=num_stages, num_chunks=1)
    near, far = LinkCost(float(rng.uniform(0, 0.2)), None), LinkCost(float(rng.uniform(0, 1)), None)
    return replace(table, point_to_point=PointToPoint(near, far, gpus_per_rank=1, gpus_per_node=2))


NUM_SEEDS = 40
"""Random schedules here; benchmarks take many more."""


@pytest.mark.parametrize("seed", range(NUM_SEEDS))
def test_the_compiled_evaluator_equals_the_exact_one_and_the_engine(seed: int) -> None:
    rng = np.random.default_rng(seed)
    schedule = random_schedule(rng)
    validate(schedule)
    costs = random_costs(rng, schedule.num_ranks, schedule.num_stages)
    prepared = PreparedSchedule.of(schedule)
    fast = prepared.evaluate_costs(costs)

    slow = evaluate(
        schedule,
        row_durations(schedule, costs).tolist(),
        row_delays(schedule, prepared.needs, costs).tolist(),
    )
    np.testing.assert_allclose(fast.start, slow.start, rtol=1e-12, atol=0)
    np.testing.assert_allclose(fast.end, slow.end, rtol=1e-12, atol=0)

    timeline = simulate(lower(schedule), costs)
    compute = timeline.select(timeline.compute)
    np.testing.assert_allclose(fast.start, compute.start_s, rtol=1e-12, atol=0)
    np.testing.assert_allclose(fast.end, compute.end_s, rtol=1e-12, atol=0)
    assert fast.makespan == pytest.approx(float(compute.end_s.max()), rel=1e-12)
    for rank in range(schedule.num_ranks):
        rows = schedule.rows_of(rank)
        busy = (fast.end[rows] - fast.start[rows]).sum()
        assert busy == pytest.approx((compute.end_s[rows] - compute.start_s[rows]).sum(), rel=1e-12)


def test_random_schedules_cover_what_schedules_can_hold() -> None:
    drawn = [random_schedule(np.random.default_rng(seed)) for seed in range(NUM_SEEDS)]
    assert sum(s.joined.any() for s in drawn) > NUM_SEEDS / 10
    assert sum(s.num_slices > 1 for s in drawn) > NUM_SEEDS / 10
    assert sum((s.op == Op.W).any() and (s.op == Op.B).any() for s in drawn) > NUM_SEEDS / 10
    assert len({s.num_ranks for s in drawn}) == 5


@pytest.mark.parametrize("name", sorted(families()))
def test_every_family_is_timed_as_exact_fractions_are(name: str) -> None:
    family = families()[name]
    num_chunks = family.chunks or 2
    shape = Shape(4, num_chunks, 8)
    unit = Fraction(1)
    exact = direct_costs(
        DirectCosts(
            forward_s=unit,
            backward_s=Fraction(19, 10),
            input_gradient_s=Fraction(11, 10),
            weight_gradient_s=Fraction(8, 10),
            p2p_latency_s=Fraction(1, 7),
            p2p_bytes_per_s=None,
            boundary_bytes=0,
            overlapped_pair_s=None,
            gradient_sync_s=0,
            optimizer_s=0,
            activation_bytes=0,
        ),
        num_ranks=4,
        num_chunks=num_chunks,
    )
    schedule = generate(name, shape, exact)
    prepared = PreparedSchedule.of(schedule)
    slow = evaluate(schedule, row_durations(schedule, exact), row_delays(schedule, prepared.needs, exact))
    assert isinstance(slow.makespan, Fraction)
    fast = prepared.evaluate_costs(exact)
    np.testing.assert_allclose(fast.end, np.array(slow.end, float), rtol=1e-12)
    assert fast.makespan == pytest.approx(float(slow.makespan), rel=1e-12)


def test_a_deadlock_is_refused_with_the_words_of_the_graph() -> None:
    orders = [[forward(0, 0), backward(0, 0), forward(0, 1), backward(0, 1)]]
    orders.append([forward(1, 1), backward(1, 1), forward(1, 0), backward(1, 0)])
    with pytest.raises(DeadlockError, match="rank 0: at 0B0, waits for 1B0 on rank 1"):
        PreparedSchedule.of(Schedule.from_orders("crossed", orders))


def test_durations_of_another_schedule_are_refused() -> None:
    prepared = PreparedSchedule.of(generate("1f1b", Shape(2, 1, 4)))
    with pytest.raises(ValueError, match="3 durations for 16 rows"):
        prepared.evaluate([1.0, 1.0, 1.0])


def test_without_delays_messages_take_no_time() -> None:
    schedule = generate("1f1b", Shape(4, 1, 8))
    durations = np.where(schedule.op == Op.F, 1.0, 2.0)
    assert PreparedSchedule.of(schedule).evaluate(durations).makespan == 11 * 3


def test_nothing_compiled_is_loaded_before_it_is_asked_for() -> None:
    code = (
        "import sys, pipesim.timing.longest_path, pipesim.schedules; pipesim.schedules.families(); "
        "assert not {'numba', 'torch', 'simpy', 'pandas'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
