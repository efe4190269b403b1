"""The emulated device: transfers and scheduling are real; another job on the machine shows in the run.

What its predictions reach is in `test_validate.py`.
"""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from executor_pool import shared_pool

from pipesim.costs import CostTable
from pipesim.costs.direct import direct_costs
from pipesim.executor import FactoryWorkload, RankPool, emulated_workload, execute
from pipesim.executor.expected import expected_run_s, in_words
from pipesim.ir import lower
from pipesim.ir.actions import Op
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
    is_reduction, is_optimizer = timeline.op == Op.REDUCE_GRAD, timeline.op == Op.OPTIMIZER
    assert sorted(set(timeline.nbytes[is_reduction])) == [1 << 20, 8 << 20]
    for step in range(3):
        mine = timeline.step == step
        ends = timeline.end_s[mine & is_reduction]
        assert timeline.start_s[mine & is_optimizer].min() >= ends.max()
        lasted = timeline.end_s - timeline.start_s
        large, small = (lasted[mine & (timeline.nbytes == nbytes)] for nbytes in (8 << 20, 1 << 20))
        assert large.max() > small.min()


def test_emulated_gradients_take_one_small_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen stages of 11 GB do not fit the machines that emulate them."""
    import torch

    from pipesim.executor.collectives import PIECE_BYTES, ProcessCollectives

    sent: list[Any] = []
    told: list[int] = []
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda tensor, group: sent.append(tensor))
    nbytes = (11 * 10**9, 1000, 0)
    groups = dict.fromkeys(range(3), "a group")
    collectives = ProcessCollectives(
        groups, None, torch.device("cpu"), nbytes, on_piece=lambda: told.append(1)
    )
    for stage, expected in enumerate(nbytes):
        sent.clear()
        collectives.reduce(stage, torch.nn.Module())
        assert sum(tensor.nbytes for tensor in sent) == pytest.approx(expected, abs=4)
        assert len({tensor.untyped_storage().data_ptr() for tensor in sent}) == 1
        assert max(tensor.untyped_storage().nbytes() for tensor in sent) <= PIECE_BYTES
    assert len(told) == -(-nbytes[0] // PIECE_BYTES) + 2


def test_how_long_a_run_takes_is_known_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    schedule = lower(generate("1f1b", Shape(RANKS, 1, 8)))
    workload = emulated_workload(schedule, costs_of(1))
    step_s = (8 + RANKS - 1) * (FORWARD_S + BACKWARD_S)
    assert expected_run_s(schedule, workload, num_replicas=2, num_steps=5) == pytest.approx(5 * step_s)
    large = replace(workload, gradient_bytes=(3 * 10**9,) * RANKS)
    reduced = expected_run_s(schedule, large, num_replicas=2, num_steps=1)
    assert reduced == pytest.approx(step_s + 2 * RANKS)
    assert expected_run_s(schedule, large, num_replicas=1, num_steps=1) == pytest.approx(step_s)
    assert expected_run_s(schedule, FactoryWorkload("a:b"), num_replicas=1, num_steps=1) is None
    assert (in_words(None), in_words(0.1), in_words(100.0), in_words(600.0)) == (
        "",
        ", about 1 s",
        ", about 100 s",
        ", about 10 min",
    )


def test_a_call_that_sends_much_may_stand_longer() -> None:
    """While it stands, gloo moves another message of that size."""
    from pipesim.executor.device import EmulatedDevice

    send: Any = SimpleNamespace(row=0, peer=1, microbatch=0)
    for message_bytes, disturbed in ((0, True), (4 << 10, True), (1 << 30, False)):
        device = EmulatedDevice([0.0], message_bytes)
        device.begin_step()
        device.before(send)
        time.sleep(0.005)
        device.after(send)
        assert device.end_step()[1] is disturbed
