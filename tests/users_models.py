"""Models as users write them, with what a pipeline trips over; handed to ranks as ``users_models:name``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pipesim.executor.models import PipelineModel

WIDTH = 6
Maker = Callable[[], nn.Module]


def model_of(*layers: Maker | nn.Module) -> PipelineModel:
    def vectors(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return torch.randn(3, WIDTH, generator=generator), torch.randn(3, WIDTH, generator=generator)

    return PipelineModel(list(layers), vectors, nn.functional.mse_loss)


def block() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())


class Tied(nn.Module):
    """Begins or ends the model with weights that both ends have."""

    def __init__(self, shared: nn.Linear) -> None:
        super().__init__()
        self.shared = shared

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.shared(x))


def tied_ends() -> PipelineModel:
    torch.manual_seed(0)
    shared = nn.Linear(WIDTH, WIDTH)
    return model_of(lambda: Tied(shared), block, block, partial(Tied, shared))


def tied_modules() -> PipelineModel:
    torch.manual_seed(0)
    shared = nn.Linear(WIDTH, WIDTH)
    return model_of(Tied(shared), block(), block(), Tied(shared))


def alike_but_apart() -> PipelineModel:
    """Makers that hold a module which they only copy share nothing."""
    import copy

    torch.manual_seed(0)
    pattern = block()
    return model_of(*[lambda: copy.deepcopy(pattern)] * 4)


def frozen_start() -> PipelineModel:
    def frozen() -> nn.Module:
        return block().requires_grad_(False)

    return model_of(frozen, frozen, block, block)


def in_place_start() -> PipelineModel:
    def made() -> nn.Module:
        return nn.Sequential(nn.ReLU(inplace=True), nn.Linear(WIDTH, WIDTH))

    return model_of(made, made, made, made)


def hooked() -> PipelineModel:
    def made() -> nn.Module:
        layer = nn.Linear(WIDTH, WIDTH)
        layer.weight.register_hook(lambda gradient: 2 * gradient)
        return layer

    return model_of(made, made, made, made)


def weight_normed() -> PipelineModel:
    return model_of(*[lambda: nn.utils.weight_norm(nn.Linear(WIDTH, WIDTH))] * 4)


class Recomputed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = block()

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.inner, x, use_reentrant=True)


def recomputed() -> PipelineModel:
    return model_of(block, Recomputed, Recomputed, Recomputed)


def recomputed_start() -> PipelineModel:
    return model_of(Recomputed, Recomputed, block, block)


def batch_normed() -> PipelineModel:
    return model_of(*[lambda: nn.Sequential(block(), nn.BatchNorm1d(WIDTH))] * 4)


class Scaled(nn.Module):
    """Counts in place, also when it only evaluates, and computes with its count."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = block()
        self.count: Tensor
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return self.inner(x) * self.count


def counting() -> PipelineModel:
    return model_of(*[Scaled] * 4)
