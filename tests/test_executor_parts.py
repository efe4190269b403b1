"""Pieces of the executor: the split backward, activation counts, plans, clocks, run files."""

# ruff: noqa: E402 - what follows needs torch

from __future__ import annotations

import json
import queue
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from executor_pool import shared_pool
from executor_reference import small_transformer
from helpers import costs_of
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from pipesim.errors import ExecutionError, PipesimError
from pipesim.executor import FactoryWorkload, RankPool, TransformerWorkload, clock_offset, execute, read_run
from pipesim.executor.assemble import assemble
from pipesim.executor.instructions import plan, post_receives_early
from pipesim.executor.job import Job
from pipesim.executor.lanes import run_in_lanes
from pipesim.executor.models import StageModule, build_model, build_stage
from pipesim.executor.saved_bytes import ActivationMeter
from pipesim.executor.stage import Stage
from pipesim.executor.wgrad import WeightGradients, make_deferrable
from pipesim.ir import lower
from pipesim.ir.actions import RECEIVES, Op
from pipesim.metrics import measure
from pipesim.schedules import Shape, generate

WIDE = replace(small_transformer(4), hidden_size=256, intermediate_size=1024, head_dim=64, seq_length=256)
WIDE = replace(WIDE, num_learned_positions=256)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Linear(5, 7), (2, 3, 5)),
        (nn.Linear(5, 7, bias=False), (3, 5)),
        (nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2), (2, 4, 7, 7)),
        (nn.Conv2d(4, 6, 1, bias=False, dilation=2), (2, 4, 5, 5)),
    ],
)
def test_a_split_backward_gives_the_same_bits(layer: nn.Module, shape: tuple[int, ...]) -> None:
    layer = layer.double()
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    wanted = gradients(layer, x)
    store = WeightGradients()
    make_deferrable(layer, store)
    for got, want in zip(gradients(layer, x), wanted, strict=True):
        assert torch.equal(got, want)
    with store.deferring("key"):
        x_gradient = gradients(layer, x)[0]
    assert torch.equal(x_gradient, wanted[0])
    assert all(p.grad is None for p in layer.parameters())
    assert len(store.tensors("key")) == 2
    store.apply("key")
    for parameter, want in zip(layer.parameters(), wanted[1:], strict=True):
        assert torch.equal(parameter.grad, want)
    assert store.tensors("key") == []


def gradients(layer: nn.Module, x: torch.Tensor) -> list[torch.Tensor | None]:
    layer.zero_grad()
    x = x.clone().requires_grad_()
    layer(x).square().sum().backward()
    return [x.grad, *(p.grad for p in layer.parameters())]


def middle_stage() -> Stage:
    """Two of six layers in the middle of the model: with an input gradient and without a loss."""
    workload = TransformerWorkload(replace(WIDE, num_hidden_layers=6))
    model = build_model(workload)
    stage = Stage(
        1,
        3,
        StageModule(build_stage(workload, model, 1, 3), sliced=False),
        model,
        num_slices=1,
        loss_scale=1.0,
    )
    stage._starts[0] = 0
    return stage


def test_i_and_w_together_compute_what_b_does() -> None:
    stage = middle_stage()
    x, gradient = torch.randn(2, 256, 256), torch.randn(2, 256, 256)
    flops = {}
    for ops in ((Op.B,), (Op.I, Op.W)):
        stage.run(Op.F, 0, 0, x.clone())
        for op in ops:
            with FlopCounterMode(display=False) as counter:
                stage.run(op, 0, 0, gradient.clone())
            flops[op] = counter.get_total_flops()
    assert flops[Op.I] + flops[Op.W] == flops[Op.B]
    assert flops[Op.W] == flops[Op.B] / 2  # of linear layers, which count alone


def test_what_is_held_after_f_and_after_i() -> None:
    stage = middle_stage()
    stage.meter = meter = ActivationMeter([stage.module])
    x, gradient = torch.randn(2, 256, 256), torch.randn(2, 256, 256)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        stage.run(Op.F, 0, 0, x.clone())
    allocated = sum(e.self_cpu_memory_usage for e in profiled.key_averages())
    after_f = meter.bytes
    assert after_f == pytest.approx(allocated, rel=0.01)
    stage.run(Op.I, 0, 0, gradient.clone())
    operands = meter.bytes
    # Attention's tensors and the norms' are gone; the inputs of linear layers, and their gradients, stay.
    assert 0.5 < operands / after_f < 1.2
    stage.run(Op.W, 0, 0, None)
    assert meter.bytes == 0
    assert meter.peak_bytes >= after_f


def test_peak_memory_counts_microbatches_in_flight() -> None:
    workload = TransformerWorkload(small_transformer(4))

    def peaks(name: str, num_microbatches: int) -> list[int]:
        job = Job(lower(generate(name, Shape(2, 1, num_microbatches))), workload, "cpu", warmup=1)
        return [result.peak_activation_bytes for result in run_in_lanes(job)]

    few, many = peaks("gpipe", 2), peaks("gpipe", 6)
    assert many == pytest.approx([3 * peak for peak in few], rel=0.02)
    assert peaks("1f1b", 6) == peaks("1f1b", 4)
    assert peaks("1f1b", 6)[1] == pytest.approx(few[1] / 2, rel=0.02)


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "interleaved-1f1b"])
def test_receives_move_up_and_nothing_else(name: str) -> None:
    schedule = lower(generate(name, Shape(4, 2 if name.startswith("inter") else 1, 8)))
    for program in plan(schedule):
        moved = post_receives_early(program, 2)
        assert set(moved.units) == set(program.units)
        assert len(moved.units) == len(program.units)
        others = [[u for u in p.units if u[0].op not in RECEIVES] for p in (program, moved)]
        assert others[0] == others[1]
        computed = 0
        posted: dict[int, int] = {}
        for unit in moved.units:
            if unit[0].op in RECEIVES:
                posted[unit[0].message] = computed
            elif unit[0].op <= Op.W:
                for part in unit:
                    if part.waits:
                        assert posted.pop(part.message) <= max(0, computed - 2)
                computed += 1
        assert not posted


@pytest.fixture(scope="module")
def pool() -> RankPool:
    return shared_pool()


def test_a_run_is_read_back_as_it_was(pool: RankPool, tmp_path: Path) -> None:
    schedule = lower(generate("zb-v", Shape(2, 2, 3)))
    workload = FactoryWorkload("executor_models:mlp")
    run = execute(schedule, workload, num_replicas=2, num_steps=3, warmup=1, pool=pool)
    run.write(tmp_path / "run.json")
    again = read_run(tmp_path / "run.json")
    assert again.schedule.schedule.to_csv() == schedule.schedule.to_csv()
    for name in ("rank", "replica", "op", "stage", "microbatch", "slice", "step", "nbytes"):
        assert np.array_equal(getattr(again.timeline, name), getattr(run.timeline, name))
    for name in ("start_s", "end_s"):
        assert np.allclose(getattr(again.timeline, name), getattr(run.timeline, name), rtol=0, atol=1e-9)
    for name in ("own_s", "wait_start_s", "wait_end_s", "cpu_s"):
        assert np.allclose(getattr(again, name), getattr(run, name), rtol=0, atol=1e-9, equal_nan=True)
    for name in ("step_s", "losses", "disturbed", "peak_activation_bytes", "deferred_share", "clock_bound_s"):
        assert np.array_equal(getattr(again, name), getattr(run, name))
    assert (again.workload, again.environment) == (run.workload, run.environment)
    assert again.environment["torch"] == torch.__version__


def test_a_measured_step_is_consistent(pool: RankPool) -> None:
    schedule = lower(generate("dualpipe-v", Shape(2, 2, 5)))
    run = execute(schedule, FactoryWorkload("executor_models:mlp"), num_steps=2, warmup=1, pool=pool)
    compute = schedule.schedule
    for step in range(2):
        timeline = run.step(step)
        assert np.array_equal(timeline.op, schedule.op)
        assert (timeline.end_s >= timeline.start_s).all()
        for rank in range(2):
            mine = timeline.select((timeline.rank == rank) & timeline.compute)
            second = np.flatnonzero(schedule.joined[schedule.op <= Op.W][compute.rows_of(rank)]) + 1
            starts, ends = np.delete(mine.start_s, second), np.delete(mine.end_s, second)
            assert (starts[1:] >= ends[:-1]).all()
            assert np.array_equal(mine.start_s[second], mine.start_s[second - 1])
        sends, receives = np.isin(timeline.op, (4, 6)), np.isin(timeline.op, (5, 7))
        assert sorted(timeline.end_s[sends]) == sorted(timeline.end_s[receives])
        assert (timeline.nbytes[sends] == 3 * 6 * 4).all()
        rows = run.rows(step)
        waits = run.wait_end_s[rows] - run.wait_start_s[rows]
        assert (waits[~np.isnan(waits)] >= 0).all()
        assert (run.own_s[rows][schedule.op <= Op.W] > 0).all()


def test_the_metrics_take_a_measured_step(pool: RankPool) -> None:
    schedule = lower(generate("1f1b", Shape(4, 1, 4)))
    run = execute(schedule, FactoryWorkload("executor_models:mlp"), num_steps=1, pool=pool)
    metrics = measure(run.step(0), schedule.schedule, costs_of(4, number=float))
    for rank in metrics.ranks:
        b = rank.breakdown
        total = b.busy_s + b.warmup_s + b.dependency_s + b.p2p_s + b.collective_s + b.cooldown_s
        assert total == pytest.approx(metrics.makespan_s)
    assert 0 < metrics.bubble_ratio < 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.pop("columns_ns"), "lacks the key 'columns_ns'"),
        (lambda d: d["row_bytes"].__setitem__(0, 10**30), "a number beyond 64 bits"),
        (lambda d: d["columns_ns"]["start"].pop(), "columns_ns.start has"),
        (lambda d: d.update(version=9), "has version 9, this pipesim reads 1"),
        (lambda d: d.update(format="x"), "is not a run"),
        (lambda d: d["schedule"].update(csv="0F0,zzz"), "'zzz' is not an action"),
    ],
)
def test_a_broken_run_file_is_named(change: object, words: str, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    if not RUN:
        schedule = lower(generate("1f1b", Shape(1, 1, 1)))
        results = run_in_lanes(Job(schedule, FactoryWorkload("executor_models:mlp"), "cpu"))
        assemble(Job(schedule, FactoryWorkload("executor_models:mlp"), "cpu"), results).write(path)
        RUN.append(path.read_text())
    document = json.loads(RUN[0])
    change(document)
    path.write_text(json.dumps(document))
    with pytest.raises(ExecutionError) as caught:
        read_run(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert words in str(caught.value)


RUN: list[str] = []


def test_no_run_file(tmp_path: Path) -> None:
    with pytest.raises(PipesimError, match="cannot be read: no such file"):
        read_run(tmp_path / "none.json")
    (tmp_path / "text").write_text("{")
    with pytest.raises(PipesimError, match="is not JSON"):
        read_run(tmp_path / "text")


def test_the_clock_estimate_lies_within_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads stand for two processes; the second's clock is ahead by a known offset."""
    ahead_ns = 123_456_789
    mail = {0: queue.Queue(), 1: queue.Queue()}
    me = threading.local()

    def send(tensor: torch.Tensor, to: int, group: object) -> None:
        mail[to].put(tensor.clone())

    def receive(tensor: torch.Tensor, source: int, group: object) -> None:
        tensor.copy_(mail[me.process].get(timeout=10))

    monkeypatch.setattr(clock_offset, "dist", SimpleNamespace(send=send, recv=receive))
    monkeypatch.setattr(
        clock_offset,
        "time",
        SimpleNamespace(perf_counter_ns=lambda: time.perf_counter_ns() + me.process * ahead_ns),
    )

    def answer() -> None:
        me.process = 0
        clock_offset.read_clock(0, 2, None)

    thread = threading.Thread(target=answer)
    thread.start()
    me.process = 1
    reading = clock_offset.read_clock(1, 2, None)
    thread.join()
    assert abs(reading.offset_ns - ahead_ns) <= reading.bound_ns
    assert 0 < reading.bound_ns < 10_000_000


def test_clock_offsets_are_taken_off() -> None:
    schedule = lower(generate("1f1b", Shape(2, 1, 2)))
    job = Job(schedule, FactoryWorkload("executor_models:mlp"), "cpu", num_steps=4)
    results = run_in_lanes(job)
    drifting = replace(results[1], clock_offset_ns=(1_000_000_000, 1_000_004_000))
    plain, corrected = (assemble(job, [results[0], other]) for other in (results[1], drifting))
    late = (plain.timeline.rank == 1) & plain.timeline.compute
    moved = (plain.timeline.start_s - corrected.timeline.start_s)[late].reshape(4, -1)
    first = corrected.timeline.start_s[corrected.timeline.rank == 1].min()
    assert np.nanmin(corrected.timeline.start_s) == pytest.approx(first)
    # Rank 1's clock is now the earliest, so all times count from its first start: only the drift shows there.
    shift = moved - moved[0]
    assert np.allclose(shift * 1e9, np.arange(4)[:, None] * 1000, atol=10)
