"""Measured steps against the timeline model, on the emulated device: transfers and scheduling are real.

Another job on the machine shows in the run itself (`Run.disturbed`): such steps do not count, and a run with
too few others is repeated, then skipped; the tolerances stay what they are.
"""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("torch")

from executor_pool import shared_pool

from pipesim.actions import Schedule
from pipesim.costs import CostTable
from pipesim.costs.direct import direct_costs
from pipesim.engine import simulate
from pipesim.evaluate import evaluate
from pipesim.executor import RankPool, Run, emulated_workload, execute
from pipesim.graph import dependencies, lower
from pipesim.metrics import StepMetrics, measure
from pipesim.scenario.resolved import DirectCosts
from pipesim.schedules import Shape, generate

RANKS, MICROBATCHES, STEPS, ENOUGH = 4, 8, 5, 3
FORWARD_S, BACKWARD_S, MESSAGE_BYTES = 0.010, 0.020, 512 * 1024


@pytest.fixture(scope="module")
def pool() -> RankPool:
    return shared_pool()


def costs_of(num_chunks: int, latency_s: float) -> CostTable:
    """10 ms forward and 20 ms backward (two halves where it is split) a stage."""
    num_stages = RANKS * num_chunks
    stated = DirectCosts(
        forward_s=(FORWARD_S,) * num_stages,
        backward_s=(BACKWARD_S,) * num_stages,
        input_gradient_s=None,
        weight_gradient_s=None,
        p2p_latency_s=latency_s,
        p2p_bytes_per_s=None,
        boundary_bytes=MESSAGE_BYTES,
        overlapped_pair_s=None,
        gradient_sync_s=0,
        optimizer_s=0,
        activation_bytes=0,
    )
    return direct_costs(stated, num_ranks=RANKS, num_chunks=num_chunks)


def undisturbed(schedule: Schedule, num_chunks: int, pool: RankPool) -> tuple[Run, list[int]]:
    for _ in range(3):
        workload = emulated_workload(schedule, costs_of(num_chunks, 0.0))
        run = execute(schedule, workload, device="emulated", num_steps=STEPS, warmup=1, pool=pool)
        assert run is not None
        if len(run.undisturbed_steps) >= ENOUGH:
            return run, run.undisturbed_steps
    pytest.skip(f"other work disturbed {run.disturbed.sum()} of {STEPS} steps, three times")


def measured(run: Run, steps: list[int], costs: CostTable) -> list[StepMetrics]:
    compute = run.schedule.compute_only()
    return [measure(run.step(step), compute, costs) for step in steps]


def predicted(schedule: Schedule, num_chunks: int, latency_s: float) -> StepMetrics:
    costs = costs_of(num_chunks, latency_s)
    return measure(simulate(schedule, costs), schedule.compute_only(), costs)


@pytest.fixture(scope="module")
def latency_s(pool: RankPool) -> float:
    """Calibrated on GPipe alone: what one message takes makes its measured makespan the predicted one."""
    schedule = lower(generate("gpipe", Shape(RANKS, 1, MICROBATCHES)))
    run, steps = undisturbed(schedule, 1, pool)
    seen = np.median([step.makespan_s for step in measured(run, steps, costs_of(1, 0.0))])
    free, with_1_ms = (predicted(schedule, 1, latency).makespan_s for latency in (0.0, 1e-3))
    return float((seen - free) / (with_1_ms - free) * 1e-3)


def test_other_schedules_are_predicted_from_gpipe(pool: RankPool, latency_s: float) -> None:
    assert 0 < latency_s < 5e-3
    errors, points, replay = [], [], []
    for name, num_chunks in (("1f1b", 1), ("zb-h1", 1), ("interleaved-1f1b", 2), ("zb-v", 2)):
        schedule = lower(generate(name, Shape(RANKS, num_chunks, MICROBATCHES)))
        run, steps = undisturbed(schedule, num_chunks, pool)
        expected = predicted(schedule, num_chunks, latency_s)
        seen = measured(run, steps, costs_of(num_chunks, latency_s))
        makespan_s = np.median([step.makespan_s for step in seen])
        errors.append(abs(expected.makespan_s - makespan_s) / makespan_s)
        points.append(abs(expected.bubble_ratio - np.median([step.bubble_ratio for step in seen])))
        replay.append(abs(np.median([replay_error(run, step, latency_s) for step in steps])))
        assert replay[-1] < (0.01 if num_chunks == 1 else 0.03), name
    assert np.median(errors) < 0.015, errors
    assert np.median(points) < 0.01, points


def replay_error(run: Run, step: int, latency_s: float) -> float:
    """The timeline model alone: that very step's durations against its makespan."""
    timeline, schedule = run.step(step), run.schedule.compute_only()
    rows = timeline.compute
    durations = (timeline.end_s - timeline.start_s)[rows]
    delays = np.where(dependencies(schedule).crosses, latency_s, 0.0)
    seen = timeline.end_s[rows].max() - timeline.start_s[rows].min()
    return (evaluate(schedule, durations, delays).makespan - seen) / seen


def test_a_step_next_to_another_job_is_recognised(pool: RankPool) -> None:
    """On cores that others hold, the ranks are late."""
    schedule = lower(generate("1f1b", Shape(RANKS, 1, 4)))
    hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(8)]
    try:
        workload = emulated_workload(schedule, costs_of(1, 0.0))
        run = execute(schedule, workload, device="emulated", num_steps=STEPS, warmup=1, pool=pool)
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
    assert run is not None
    assert run.disturbed.sum() > STEPS // 2


def test_an_overlapped_pair_takes_the_pairs_time(pool: RankPool) -> None:
    schedule = lower(generate("dualpipe-v", Shape(2, 2, 4)))
    first = np.flatnonzero(schedule.joined)
    assert first.size
    costs = costs_of(1, 0.0)
    workload = emulated_workload(schedule, costs)
    run = execute(schedule, workload, device="emulated", num_steps=1, pool=pool)
    assert run is not None
    spans = (run.timeline.end_s - run.timeline.start_s)[first]
    assert np.allclose(spans, FORWARD_S + BACKWARD_S, atol=1e-6)
    assert np.array_equal(run.timeline.start_s[first], run.timeline.start_s[first + 1])


def test_replicas_reduce_and_the_optimizer_waits_for_all(pool: RankPool) -> None:
    schedule = lower(generate("1f1b", Shape(2, 1, 2)))
    workload = emulated_workload(schedule, costs_of(1, 0.0))
    reduced = (8 << 20, 1 << 20, 0, 0)[: schedule.num_stages]
    workload = type(workload)(workload.row_s, workload.boundary_bytes[:2], reduced)
    run = execute(schedule, workload, device="emulated", num_steps=3, num_replicas=2, pool=pool)
    assert run is not None
    timeline = run.timeline
    is_reduction, is_optimizer = timeline.op == 10, timeline.op == 11
    assert sorted(set(timeline.nbytes[is_reduction])) == [1 << 20, 8 << 20]
    for step in range(3):
        mine = timeline.step == step
        ends = timeline.end_s[mine & is_reduction]
        assert timeline.start_s[mine & is_optimizer].min() >= ends.max()
        lasted = timeline.end_s - timeline.start_s
        large, small = (lasted[mine & (timeline.nbytes == nbytes)] for nbytes in (8 << 20, 1 << 20))
        assert large.max() > small.min()
