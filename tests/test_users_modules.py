"""What users' modules do that a pipeline trips over: it works, or one message explains it."""

# ruff: noqa: E402 - what follows needs torch

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import numpy as np

from pipesim.errors import ExecutionError
from pipesim.executor import FactoryWorkload
from pipesim.executor.instructions import plan
from pipesim.executor.job import Job
from pipesim.executor.lanes import Lanes, run_in_lanes
from pipesim.executor.models import build_model, build_stage, sample
from pipesim.ir import lower
from pipesim.schedules import Shape, generate


def job_of(model: str, schedule: str, chunks: int = 1, **settings: int) -> Job:
    workload = FactoryWorkload(f"users_models:{model}", dtype="float64")
    lowered = lower(generate(schedule, Shape(2, chunks, 4)))
    return Job(lowered, workload, "cpu", num_steps=2, keep_state=True, **settings)


@pytest.mark.parametrize(
    ("model", "schedule", "chunks"),
    [
        ("tied_ends", "zb-v", 2),
        ("tied_modules", "zb-v", 2),
        ("alike_but_apart", "1f1b", 1),
        ("frozen_start", "1f1b", 1),
        ("frozen_start", "zb-h1", 1),
        ("in_place_start", "zb-v", 2),
        ("hooked", "1f1b", 1),
        ("hooked", "zb-h1", 1),
        ("weight_normed", "zb-h1", 1),
        ("recomputed", "1f1b", 1),
        ("recomputed", "zb-h1", 1),
        ("batch_normed", "interleaved-1f1b", 2),
    ],
)
@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
def test_it_computes_what_the_unsplit_model_does(model: str, schedule: str, chunks: int) -> None:
    job = job_of(model, schedule, chunks)
    gradients, losses = unsplit(job)
    results = run_in_lanes(job)
    for result in results:
        for name, gradient in result.gradients.items():
            np.testing.assert_allclose(gradient, gradients.pop(name), rtol=1e-9, atol=1e-12)
    assert not gradients
    np.testing.assert_allclose(np.nansum([result.losses for result in results], axis=0), losses)


def unsplit(job: Job) -> tuple[dict[str, np.ndarray], list[float]]:
    """Gradients of the first step and losses of all, of the model in one piece."""
    model, schedule = build_model(job.workload), job.schedule
    stages = [
        build_stage(job.workload, model, stage, schedule.num_stages) for stage in range(schedule.num_stages)
    ]
    trained = {
        f"{stage}.{at}.{name}": parameter
        for stage, layers in enumerate(stages)
        for at, layer in enumerate(layers)
        for name, parameter in layer.named_parameters()
        if parameter.requires_grad
    }
    optimizer = model.optimizer(list(dict.fromkeys(trained.values())))
    gradients: dict[str, np.ndarray] = {}
    losses = []
    for step in range(job.num_steps):
        losses.append(0.0)
        for microbatch in range(schedule.num_microbatches):
            x, targets = sample(job.workload, model, step, 0, microbatch)
            for layers in stages:
                for layer in layers:
                    x = layer(x)
            loss = model.loss(x, targets) / schedule.num_microbatches
            loss.backward()
            losses[-1] += loss.item()
        gradients = gradients or {name: p.grad.numpy().copy() for name, p in trained.items()}
        optimizer.step()
        optimizer.zero_grad()
    return gradients, losses


EXPLAINED = {
    ("tied_ends", "1f1b"): r"layers 0 and 3 share the parameter 'shared.weight' \(6x6\), on ranks 0 and 1",
    ("tied_modules", "zb-h1"): r"each would train its own copy; give each layer its own, or put both on one",
    (
        "recomputed_start",
        "1f1b",
    ): "stage 0 has trainable parameters, and no gradient reaches them.*use_reentrant",
    (
        "batch_normed",
        "dualpipe",
    ): r"updates the buffer '0.1.running_mean' in its forward; this schedule keeps two",
    (
        "counting",
        "gpipe",
    ): "stage 1: a forward changes in place what the backward of an earlier microbatch needs",
}


@pytest.mark.parametrize(("model", "schedule"), EXPLAINED)
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_what_cannot_work_is_explained(model: str, schedule: str) -> None:
    with pytest.raises(ExecutionError, match=EXPLAINED[model, schedule]):
        run_in_lanes(job_of(model, schedule))


def test_replicas_that_sum_stage_by_stage_do_not_share() -> None:
    job = job_of("tied_ends", "zb-v", 2, num_replicas=2)
    with pytest.raises(ExecutionError, match="of 2 replicas"):
        Lanes(job, plan(job.schedule), None)


def test_finding_out_shapes_leaves_buffers_as_they_are() -> None:
    job = job_of("counting", "1f1b")
    lanes = Lanes(job, plan(job.schedule), None)
    counts = [b for steps in lanes.steps for stage in steps.stages.values() for b in stage.module.buffers()]
    assert len(counts) == 4
    assert not any(counts)
