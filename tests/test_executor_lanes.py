"""Ranks as lanes of one process; and the comparison with the unsplit model sees what goes wrong."""

# ruff: noqa: E402 - what follows needs torch

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from executor_reference import reference, small_transformer, worst

from pipesim.errors import ExecutionError
from pipesim.executor import FactoryWorkload, TransformerWorkload, lanes
from pipesim.executor.instructions import Instruction, RankProgram, Unit, plan
from pipesim.executor.job import Job
from pipesim.executor.models import PipelineModel
from pipesim.ir import lower
from pipesim.ir.actions import Op
from pipesim.schedules import Shape, generate

MLP = FactoryWorkload("executor_models:mlp", dtype="float64")
TRANSFORMER = TransformerWorkload(small_transformer(), dtype="float64")


def job_of(name: str, num_ranks: int, num_chunks: int, num_microbatches: int, workload: object = MLP) -> Job:
    schedule = lower(generate(name, Shape(num_ranks, num_chunks, num_microbatches)))
    return Job(schedule, workload, "cpu", num_steps=3, keep_state=True)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize(
    ("name", "shape"),
    [("1f1b", (4, 1, 5)), ("zb-v", (2, 2, 4)), ("dualpipe", (2, 1, 4)), ("chimera", (4, 1, 4))],
)
def test_lanes_compute_what_the_unsplit_model_does(name: str, shape: tuple[int, int, int]) -> None:
    job = job_of(name, *shape, TRANSFORMER)
    assert worst(lanes.run_in_lanes(job), reference(job)) == (0, True)


def changed(job: Job, change: Callable[[Instruction], Instruction | None]) -> list[RankProgram]:
    """Programs of a job with instructions changed or left out."""

    def unit(parts: Unit) -> Unit:
        return tuple(new for part in parts if (new := change(part)) is not None)

    return [
        RankProgram(p.rank, p.stages, tuple(u for u in map(unit, p.units) if u)) for p in plan(job.schedule)
    ]


def error_of(job: Job, programs: Sequence[RankProgram]) -> float:
    return worst(lanes.run_in_lanes(job, programs=programs), reference(job))[0]


def test_a_dropped_w_is_seen() -> None:
    job = job_of("zb-h1", 2, 1, 4)
    lost = {"stage": 1, "microbatch": 2}

    def drop(part: Instruction) -> Instruction | None:
        is_lost = part.op is Op.W and {"stage": part.stage, "microbatch": part.microbatch} == lost
        return None if is_lost else part

    programs = changed(job, drop)
    # Rows keep their numbers, so room for the lost one must stay.
    padded = [RankProgram(p.rank, p.stages, p.units) for p in programs]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RankProgram, "num_rows", property(lambda p: 1 + max(u[-1].row for u in p.units)))
        assert error_of(job, padded) > 0.1


def test_messages_paired_wrongly_are_seen() -> None:
    job = job_of("1f1b", 2, 1, 4)
    takers = {
        part.microbatch: part.message
        for program in plan(job.schedule)
        for unit in program.units
        for part in unit
        if part.op is Op.F and part.waits
    }
    swapped = {takers[0]: takers[1], takers[1]: takers[0]}

    def swap(part: Instruction) -> Instruction:
        """Let stage 1 take microbatch 1's output for microbatch 0, and the other way round."""
        if part.op is Op.F and part.stage == 1:
            return replace(part, message=swapped.get(part.message, part.message))
        return part

    assert error_of(job, changed(job, swap)) > 0.1
    assert error_of(job, changed(job, lambda part: part)) == 0


def test_swapped_targets_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_of("1f1b", 2, 1, 4)
    expected = reference(job)
    whole = lanes.sample

    def shifted(workload: object, model: PipelineModel, step: int, replica: int, microbatch: int) -> object:
        other = microbatch ^ 1
        return whole(workload, model, step, replica, microbatch)[0], whole(
            workload, model, step, replica, other
        )[1]

    monkeypatch.setattr("pipesim.executor.steps.sample", shifted)
    assert worst(lanes.run_in_lanes(job), expected)[0] > 0.1


def test_lanes_that_wait_for_each_other_are_named() -> None:
    job = job_of("1f1b", 2, 1, 2)
    with pytest.raises(ExecutionError, match=r"nothing can run next; waiting: rank 0 at 0B0, rank 1 at 1F0$"):
        lanes.run_in_lanes(job, programs=changed(job, lambda p: None if p.op is Op.SEND_F else p))


def test_lanes_take_one_replica() -> None:
    with pytest.raises(ExecutionError, match="one replica of a model"):
        lanes.run_in_lanes(replace(job_of("1f1b", 2, 1, 2), num_replicas=2))
