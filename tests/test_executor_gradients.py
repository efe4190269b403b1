"""Whatever the schedule, a real pipeline computes what the unsplit model computes."""

# ruff: noqa: E402 - what follows needs torch

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from executor_pool import shared_pool
from executor_reference import reference, small_transformer, worst
from helpers import costs_of

from pipesim.costs.traced.pipeline_model import stage_skips
from pipesim.errors import ExecutionError, ScheduleError
from pipesim.executor import CnnWorkload, FactoryWorkload, RankPool, TransformerWorkload
from pipesim.executor.job import Job
from pipesim.executor.models import build_model
from pipesim.ir import lower
from pipesim.ir.actions import SKIP_TRANSFERS, Schedule
from pipesim.schedules import Shape, families, generate

MLP = FactoryWorkload("executor_models:mlp", dtype="float64")
WORKLOAD = TransformerWorkload(small_transformer(), dtype="float64", microbatch_size=2)
SYNCHRONOUS = [name for name, family in families().items() if family.synchronous]
QUICK_SEARCH = {"auto": {"budget": 20_000}}


@pytest.fixture(scope="module")
def pool() -> RankPool:
    torch.set_num_threads(1)
    return shared_pool()


def legal(name: str, num_ranks: int, num_chunks: int, candidates: tuple[int, ...]) -> Schedule | None:
    for num_microbatches in candidates:
        try:
            shape = Shape(num_ranks, num_chunks, num_microbatches, QUICK_SEARCH.get(name, {}))
            costs = costs_of(num_ranks, num_chunks, number=float) if families()[name].needs_costs else None
            return lower(generate(name, shape, costs))
        except ScheduleError:
            continue
    return None


def cases(name: str, ranks: tuple[int, ...], chunks: tuple[int, ...]) -> Iterator[tuple[Schedule, int]]:
    """Even and odd m without replicas, and one of them with two."""
    fixed = families()[name].chunks
    for num_ranks in ranks:
        for num_chunks in (fixed,) if fixed else chunks:
            even = legal(name, num_ranks, num_chunks, (max(2, num_ranks), 4, 8))
            odd = legal(name, num_ranks, num_chunks, (num_ranks + 1 | 1, 7, 9))
            yield from ((schedule, 1) for schedule in (even, odd) if schedule is not None)
            if (twice := odd or even) is not None:
                yield twice, 2


@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_gradients_losses_and_three_optimizer_steps_equal_the_unsplit_model(
    name: str, pool: RankPool
) -> None:
    """On two and four ranks; benchmarks take one rank, and one chunk of those that may have two, as well."""
    check(name, pool, ranks=(2, 4), chunks=(2,))


def check(name: str, pool: RankPool, *, ranks: tuple[int, ...], chunks: tuple[int, ...]) -> None:
    num_cases = 0
    for schedule, num_replicas in cases(name, ranks, chunks):
        # The small model keeps the grid quick; attention is needed where slices look back.
        attends = schedule.num_ranks == 2 or schedule.num_slices > 1
        shape = small_transformer(max(4, schedule.num_stages))
        workload = replace(WORKLOAD, shape=shape) if attends else MLP
        job = Job(schedule, workload, "cpu", num_replicas=num_replicas, num_steps=3, keep_state=True)
        error, equal = worst(pool.run(job), reference(job))
        where = (
            f"p={schedule.num_ranks} S={schedule.num_stages} m={schedule.num_microbatches} x{num_replicas}"
        )
        assert error < 1e-12, where
        # Slices change the shape of sums inside attention, replicas the order of the outermost one.
        if schedule.num_slices == 1 and num_replicas == 1:
            assert equal, where
        num_cases += 1
    assert num_cases >= 2


@pytest.mark.parametrize(
    "workload",
    [
        CnnWorkload(num_layers=4, channels=4, image_size=6, microbatch_size=2, dtype="float64"),
        TransformerWorkload(small_transformer(4, llama=True), dtype="float64", microbatch_size=2),
    ],
    ids=["cnn", "llama"],
)
@pytest.mark.parametrize("name", ["1f1b", "zb-h1"])
def test_other_models_too(workload: CnnWorkload | TransformerWorkload, name: str, pool: RankPool) -> None:
    job = Job(lower(generate(name, Shape(2, 1, 4))), workload, "cpu", num_steps=3, warmup=1, keep_state=True)
    error, equal = worst(pool.run(job), reference(job))
    assert equal
    assert error == 0


def test_a_schedule_from_a_csv_runs_like_one_of_the_registry(pool: RankPool) -> None:
    text = "0F0,0F1,0I0,0I1,0W1,0W0\n1F0,1F1,1B1,1I0,1W0\n"
    job = Job(lower(Schedule.from_csv(text)), WORKLOAD, "cpu", num_steps=3, keep_state=True)
    assert worst(pool.run(job), reference(job)) == (0, True)


def test_llama_slices_look_back(pool: RankPool) -> None:
    workload = replace(WORKLOAD, shape=small_transformer(4, llama=True))
    schedule = legal("seq1f1b", 2, 1, (3,))
    assert schedule is not None
    assert schedule.num_slices > 1
    job = Job(schedule, workload, "cpu", num_steps=3, keep_state=True)
    assert worst(pool.run(job), reference(job))[0] < 1e-12


def test_the_comparison_sees_another_seed(pool: RankPool) -> None:
    job = Job(lower(generate("1f1b", Shape(2, 1, 2))), WORKLOAD, "cpu", keep_state=True)
    other = replace(job, workload=replace(WORKLOAD, seed=1))
    assert worst(pool.run(job), reference(other))[0] > 0.1


def test_losses_fall(pool: RankPool) -> None:
    workload = replace(WORKLOAD, shape=small_transformer(2))
    job = Job(lower(generate("1f1b", Shape(2, 1, 4))), workload, "cpu", num_steps=30)
    losses = np.nansum([result.losses for result in pool.run(job)], axis=0)
    assert np.isfinite(losses).all()
    assert losses[-5:].mean() < losses[:5].mean()


@pytest.mark.parametrize(
    ("name", "num_ranks", "num_chunks"),
    [("1f1b", 4, 1), ("zb-h1", 4, 1), ("interleaved-1f1b", 2, 2), ("1f1b-v", 2, 2), ("dualpipe", 4, 1)],
)
def test_skip_connections_between_ranks_leave_gradients_as_they_are(
    name: str, num_ranks: int, num_chunks: int, pool: RankPool
) -> None:
    unet = FactoryWorkload("executor_models:unet", dtype="float64")
    schedule = generate(name, Shape(num_ranks, num_chunks, 2 * num_ranks))
    crossing = stage_skips(build_model(unet).skips, [8 // schedule.num_stages] * schedule.num_stages)
    lowered = lower(replace(schedule, skips=tuple((skip.source, skip.target) for skip in crossing)))
    job = Job(lowered, unet, "cpu", num_steps=2, keep_state=True)
    error, _ = worst(pool.run(job), reference(job))
    assert error < 1e-12
    assert np.isin(lowered.op, SKIP_TRANSFERS).any()


def test_a_model_s_skip_connections_must_be_the_schedule_s(pool: RankPool) -> None:
    unet = FactoryWorkload("executor_models:unet", dtype="float64")
    with pytest.raises(ExecutionError, match="skip connections"):
        pool.run(Job(lower(generate("1f1b", Shape(2, 1, 2))), unet, "cpu"))


def test_slices_of_unlike_length_leave_gradients_as_they_are(pool: RankPool) -> None:
    schedule = generate("seq1f1b", Shape(2, 1, 3, {"num_slices": 3, "slice_lengths": [5, 1, 2]}))
    job = Job(lower(schedule), WORKLOAD, "cpu", num_steps=2, keep_state=True)
    error, _ = worst(pool.run(job), reference(job))
    assert error < 1e-12
