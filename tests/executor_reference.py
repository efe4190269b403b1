"""The unsplit model in plain torch; gradients are summed in the order in which a schedule makes them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from pipesim.executor.job import Job, RankResult
from pipesim.executor.models import build_model, build_stage, sample
from pipesim.ir.actions import Op, Schedule
from pipesim.scenario.resolved import Transformer

DEFERRED = (nn.Linear, nn.Conv2d)


def small_transformer(num_layers: int = 8, *, llama: bool = False) -> Transformer:
    return Transformer(
        name="small",
        num_hidden_layers=num_layers,
        hidden_size=16,
        num_attention_heads=4,
        num_key_value_heads=2 if llama else 4,
        head_dim=4,
        intermediate_size=24,
        vocab_size=13,
        seq_length=8,
        gated_mlp=llama,
        tie_word_embeddings=False,
        biases=not llama,
        num_learned_positions=0 if llama else 8,
        source="test",
    )


@dataclass(frozen=True)
class Reference:
    gradients: dict[str, np.ndarray]
    weights: dict[str, np.ndarray]
    losses: list[float]


def reference(job: Job) -> Reference:
    schedule, num_stages = job.schedule, job.schedule.num_stages
    model = build_model(job.workload)
    layers = [build_stage(job.workload, model, stage, num_stages) for stage in range(num_stages)]
    whole = nn.Sequential(*(layer for stage in layers for layer in stage))
    named = {
        f"{stage}.{at}.{name}": parameter
        for stage, members in enumerate(layers)
        for at, layer in enumerate(members)
        for name, parameter in layer.named_parameters()
    }
    deferred = {
        id(parameter)
        for module in whole.modules()
        if isinstance(module, DEFERRED)
        for parameter in module.parameters(recurse=False)
    }
    optimizer = model.optimizer(named.values())
    scale = 1 / (schedule.num_microbatches * job.num_replicas)
    first_gradients: dict[str, np.ndarray] = {}
    losses = []
    for step in range(job.warmup + job.num_steps):
        found, loss_of = {}, {}
        for replica in range(job.num_replicas):
            for microbatch in range(schedule.num_microbatches):
                inputs, targets = sample(job.workload, model, step, replica, microbatch)
                outputs = []
                for at, layer in enumerate(whole):
                    given = [outputs[source] for source, target in model.skips if target == at]
                    outputs.append(layer(outputs[-1] if outputs else inputs, *given))
                loss = model.loss(outputs[-1], targets) * scale
                gradients = torch.autograd.grad(loss, list(named.values()))
                found[replica, microbatch] = dict(zip(named, gradients, strict=True))
                loss_of[replica, microbatch] = loss.item()
        for name, parameter in named.items():
            stage = int(name.split(".")[0])
            total = None
            for replica in range(job.num_replicas):
                for order in orders(schedule, stage, deferred=id(parameter) in deferred):
                    part = None
                    for microbatch in order:
                        gradient = found[replica, microbatch][name]
                        part = gradient.clone() if part is None else part + gradient
                    total = part if total is None else total + part
            parameter.grad = total
        losses.append(
            sum(
                sum(loss_of[replica, k] for k in order)
                for replica in range(job.num_replicas)
                for order in orders(schedule, num_stages - 1, op=Op.F)
            )
        )
        if step == 0:
            first_gradients = {name: p.grad.numpy().copy() for name, p in named.items()}
        optimizer.step()
    weights = {name: p.detach().numpy().copy() for name, p in named.items()}
    return Reference(first_gradients, weights, losses[job.warmup :])


def orders(
    schedule: Schedule, stage: int, *, deferred: bool = False, op: Op | None = None
) -> list[list[int]]:
    """Microbatches in the order of their contribution to a stage's gradient, for each rank that holds it."""
    found = []
    for rank in range(schedule.num_ranks):
        order = []
        for row in range(schedule.rows_of(rank).start, schedule.rows_of(rank).stop):
            kind = Op(int(schedule.op[row]))
            makes = kind is op if op is not None else kind in (Op.B, Op.W if deferred else Op.I)
            if makes and schedule.stage[row] == stage and schedule.slice[row] == 0:
                order.append(int(schedule.microbatch[row]))
        if order:
            found.append(order)
    return found


def gathered(results: list[RankResult], what: str) -> list[dict[str, np.ndarray]]:
    return [getattr(result, what) for result in results]


def worst(results: list[RankResult], expected: Reference) -> tuple[float, bool]:
    """Largest relative difference of gradients, weights and losses, and whether all are bitwise equal."""
    error, equal = 0.0, True
    for what in ("gradients", "weights"):
        wanted = getattr(expected, what)
        seen = set()
        for result in results:
            for name, value in getattr(result, what).items():
                seen.add(name)
                error = max(error, relative(value, wanted[name]))
                equal &= np.array_equal(value, wanted[name])
        assert seen == set(wanted), seen ^ set(wanted)
    losses = np.nansum([result.losses for result in results], axis=0)
    error = max(error, relative(losses, np.array(expected.losses)))
    return error, equal


def relative(value: np.ndarray, wanted: np.ndarray) -> float:
    assert value.shape == wanted.shape
    if not np.isfinite(value).all():
        return np.inf
    scale = np.abs(wanted).max()
    return float(np.abs(value - wanted).max() / (scale if scale > 0 else 1.0))
