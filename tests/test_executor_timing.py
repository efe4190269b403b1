"""The emulated device: transfers and scheduling are real; another job on the machine shows in the run.

What its predictions reach is in `test_validate.py`.
"""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("torch")

from executor_pool import shared_pool

from pipesim.costs import CostTable
from pipesim.costs.direct import direct_costs
from pipesim.executor import RankPool, emulated_workload, execute
from pipesim.graph import lower
from pipesim.scenario.resolved import DirectCosts
from pipesim.schedules import Shape, generate

RANKS, STEPS = 4, 5
FORWARD_S, BACKWARD_S, MESSAGE_BYTES = 0.010, 0.020, 512 * 1024


@pytest.fixture(scope="module")
def pool() -> RankPool:
    return shared_pool()


def costs_of(num_chunks: int) -> CostTable:
    """10 ms forward and 20 ms backward (two halves where it is split) a stage."""
    num_stages = RANKS * num_chunks
    stated = DirectCosts(
        forward_s=(FORWARD_S,) * num_stages,
        backward_s=(BACKWARD_S,) * num_stages,
        input_gradient_s=None,
        weight_gradient_s=None,
        p2p_latency_s=0,
        p2p_bytes_per_s=None,
        boundary_bytes=MESSAGE_BYTES,
        overlapped_pair_s=None,
        gradient_sync_s=0,
        optimizer_s=0,
        activation_bytes=0,
    )
    return direct_costs(stated, num_ranks=RANKS, num_chunks=num_chunks)


def test_a_step_next_to_another_job_is_recognised(pool: RankPool) -> None:
    """On cores that others hold, the ranks are late."""
    schedule = lower(generate("1f1b", Shape(RANKS, 1, 4)))
    hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(8)]
    try:
        workload = emulated_workload(schedule, costs_of(1))
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
    costs = costs_of(1)
    workload = emulated_workload(schedule, costs)
    run = execute(schedule, workload, device="emulated", num_steps=1, pool=pool)
    assert run is not None
    spans = (run.timeline.end_s - run.timeline.start_s)[first]
    assert np.allclose(spans, FORWARD_S + BACKWARD_S, atol=1e-6)
    assert np.array_equal(run.timeline.start_s[first], run.timeline.start_s[first + 1])


def test_replicas_reduce_and_the_optimizer_waits_for_all(pool: RankPool) -> None:
    schedule = lower(generate("1f1b", Shape(2, 1, 2)))
    workload = emulated_workload(schedule, costs_of(1))
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
