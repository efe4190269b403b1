"""Schedules in torch's own runtime, timed action by action; how true predictions of it are: benchmarks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch.distributed.pipelining.schedules")

import torch.distributed as dist
from executor_pool import shared_pool
from helpers import costs_of
from stand_in_streams import StandIn

from pipesim.errors import ExecutionError
from pipesim.evidence.calibration.from_runs import samples_of_run
from pipesim.executor import FactoryWorkload, Run, execute
from pipesim.executor.instructions import plan
from pipesim.executor.job import Job
from pipesim.executor.torch_replay import TorchRank
from pipesim.executor.workload import emulated_workload
from pipesim.ir import lower
from pipesim.ir.actions import Op
from pipesim.schedules import Shape, generate

MLP = FactoryWorkload("executor_models:mlp")
TIMES = {"forward_s": [0.004, 0.006], "input_gradient_s": [0.003, 0.005], "weight_gradient_s": [0.005, 0.007]}


def emulated(name: str, runtime: str) -> Run:
    costs = costs_of(2, number=float, backward_s=[0.008, 0.012], boundary_bytes=4096, **TIMES)
    schedule = lower(generate(name, Shape(2, 1, 4)))
    workload = emulated_workload(schedule, costs)
    run = execute(
        schedule, workload, device="emulated", num_steps=3, warmup=1, runtime=runtime, pool=shared_pool()
    )
    assert run is not None
    return run


@pytest.mark.parametrize(
    ("name", "chunks", "runtime"),
    [("zb-h1", 1, "torch"), ("1f1b", 1, "torch-named"), ("zb-v", 2, "torch-named")],
)
def test_torch_computes_the_same_losses(name: str, chunks: int, runtime: str) -> None:
    schedule = lower(generate(name, Shape(2, chunks, 4)))
    ours, torchs = (
        execute(schedule, MLP, num_steps=2, warmup=1, runtime=each, pool=shared_pool())
        for each in ("pipesim", runtime)
    )
    assert ours is not None
    assert torchs is not None
    np.testing.assert_allclose(torchs.losses, ours.losses, rtol=1e-5)
    assert np.array_equal(torchs.timeline.nbytes, ours.timeline.nbytes * (ours.timeline.op != Op.REDUCE_GRAD))
    assert torchs.environment["runtime"] == runtime


def test_the_first_stage_puts_all_of_its_backward_into_w() -> None:
    median = {
        key: np.median(found) for key, found in samples_of_run(emulated("zb-h1", "torch"), "").op_s.items()
    }
    # Sleeps never end early; how late they end is the machine's affair.
    assert median[Op.I, 0] < median[Op.W, 0] / 2
    assert median[Op.W, 0] >= 0.008
    assert 0.005 <= median[Op.I, 1] < median[Op.W, 0] + median[Op.W, 1]
    assert median[Op.W, 1] >= 0.007


def test_waits_are_those_for_messages_made_late() -> None:
    """The second rank waits for its first forward, which is made while it has nothing to do."""
    run = emulated("gpipe", "torch")
    schedule = run.schedule
    for step in range(run.num_steps):
        timeline, rows = run.step(step), run.rows(step)
        start, end = timeline.start_s, timeline.end_s
        sends = np.flatnonzero(schedule.op == Op.SEND_F)
        receives = np.flatnonzero(schedule.op == Op.RECV_F)
        makers, takers = (
            np.flatnonzero((schedule.op == Op.F) & (schedule.stage == stage)) for stage in range(2)
        )
        assert np.array_equal(start[sends], end[makers])
        assert np.array_equal(end[receives], start[takers])
        assert (start[takers] >= end[makers]).all()
        waited = (run.wait_end_s - run.wait_start_s)[rows][takers]
        assert waited[0] == 0  # before it a rank has done nothing that a wait could follow
        assert (waited[1:] >= 0).all()
    assert len(samples_of_run(run, "").message_s)


def test_what_torchs_runtime_does_not_do_is_refused() -> None:
    schedule = lower(generate("1f1b", Shape(2, 1, 4)))
    with pytest.raises(ExecutionError, match="--runtime torch runs one replica, without slices"):
        execute(schedule, MLP, num_replicas=2, runtime="torch")
    with pytest.raises(
        ExecutionError, match="found runtime 'jax'; expected one of pipesim, torch, torch-named"
    ):
        execute(schedule, MLP, runtime="jax")


def test_on_a_stream_actions_are_timed_by_its_marks() -> None:
    """As on a GPU: a stand-in whose clock has another origin and rate; two stages of one rank."""
    schedule = lower(generate("interleaved-1f1b", Shape(1, 2, 4)))
    job = Job(schedule, MLP, "cpu", runtime="torch")
    outputs: dict[int, list[Any]] = {}

    def output_of(stage: int, find: Callable[[], list[Any]] | None) -> list[Any]:
        return outputs.setdefault(stage, find() if find else [])

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        [program] = plan(schedule)
        stream = StandIn(0, rate=1.01, origin_ns=-1e15)
        rank = TorchRank(job, program, dist.group.WORLD, lambda row: None, output_of, stream)
        begin = time.perf_counter_ns()
        columns, disturbed, _, loss = rank.run_step(0)
        end = time.perf_counter_ns()
    finally:
        dist.destroy_process_group()
    computed = schedule.op <= Op.W
    start, finish = columns["start"][computed], columns["end"][computed]
    bound = rank.device.clock_bound_ns
    assert not disturbed
    assert loss > 0
    assert (start - begin >= -bound).all()
    assert (finish - end <= bound).all()
    assert (finish > start).all()
    assert (start[1:] >= finish[:-1]).all()
