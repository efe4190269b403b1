"""The emulated device: transfers and scheduling are real; what disturbs a step shows in the record.

What its predictions reach is measured in `benchmarks/test_real_runs_benchmark.py`.
"""

from __future__ import annotations

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
from pipesim.executor.device import CpuDevice, EmulatedDevice
from pipesim.executor.expected import expected_run_s, in_words
from pipesim.ir import lower
from pipesim.ir.actions import Op
from pipesim.scenario.resolved import DirectCosts
from pipesim.schedules import Shape, generate

RANKS = 4
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


def test_emulated_gradients_take_one_small_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen stages of 11 GB do not fit the machines that emulate them."""
    import torch

    from pipesim.executor.gradient_sums import PIECE_BYTES, ProcessCollectives

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


class MachineClock:
    """Stands in for `time`: whoever sleeps wakes up so much later."""

    def __init__(self, late_ns: int = 0) -> None:
        self.now_ns, self.on_core_ns, self.late_ns = 1, 0, late_ns

    def perf_counter_ns(self) -> int:
        return self.now_ns

    def thread_time_ns(self) -> int:
        return self.on_core_ns

    def sleep(self, seconds: float) -> None:
        self.now_ns += round(1e9 * seconds) + self.late_ns


def test_a_rank_that_wakes_up_late_was_disturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    for late_ms, disturbed in ((0.0, False), (0.9, False), (1.1, True)):
        monkeypatch.setattr("pipesim.executor.device.time", MachineClock(round(1e6 * late_ms)))
        device = EmulatedDevice([FORWARD_S, BACKWARD_S])
        device.begin_step()
        for row in range(2):
            unit: Any = (SimpleNamespace(row=row),)
            device.begin_unit(unit)
            device.end_unit(unit)
        record, was_disturbed = device.end_step()
        assert was_disturbed is disturbed
        # On the device's own clock nothing is late.
        assert record["end"].tolist() == [10_000_001, 30_000_001]


def test_a_rank_kept_from_its_core_was_disturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU; 3 of 100 us may be another's."""
    for on_core_ns, disturbed in ((98_000, False), (96_000, True)):
        clock = MachineClock()
        monkeypatch.setattr("pipesim.executor.device.time", clock)
        device = CpuDevice(1)
        part: Any = SimpleNamespace(row=0)
        device.before(part)
        clock.now_ns += 100_000
        clock.on_core_ns += on_core_ns
        device.after(part)
        device.end_unit((part,))
        assert device.end_step()[1] is disturbed


def test_a_call_that_sends_much_may_stand_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """While it stands, gloo moves another message of that size."""
    send: Any = SimpleNamespace(row=0, peer=1, microbatch=0)
    clock = MachineClock()
    monkeypatch.setattr("pipesim.executor.device.time", clock)
    for message_bytes, disturbed in ((0, True), (4 << 10, True), (1 << 30, False)):
        device = EmulatedDevice([0.0], message_bytes)
        device.begin_step()
        device.before(send)
        clock.sleep(0.005)
        device.after(send)
        assert device.end_step()[1] is disturbed
