"""Models that tests hand to ranks as ``executor_models:name``; some go wrong on purpose."""

from __future__ import annotations

import os
import signal
import time

import torch
from torch import Tensor, nn

from pipesim.executor.models import PipelineModel

WIDTH = 6


def mlp(num_layers: int = 8) -> PipelineModel:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.Tanh())

    return PipelineModel([build] * num_layers, vectors, nn.functional.mse_loss)


def vectors(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return torch.randn(3, WIDTH, generator=generator), torch.randn(3, WIDTH, generator=generator)


class Faulty(nn.Module):
    """Does something on its n-th training forward in the process that holds it."""

    def __init__(self, forwards: int, fault: object) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.left, self.fault = forwards, fault

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.left -= 1
            if self.left == 0:
                self.fault()
        return self.linear(x)


def with_fault(fault: object, forwards: int = 3) -> PipelineModel:
    layers = [lambda: nn.Linear(WIDTH, WIDTH), lambda: Faulty(forwards, fault)]
    return PipelineModel(layers, vectors, nn.functional.mse_loss)


class Joining(nn.Module):
    """Takes what comes through skip connections too, and gates itself with it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, *skips: Tensor) -> Tensor:
        return torch.tanh(self.linear(x)) * (1 + sum(skips))


def unet(num_layers: int = 8) -> PipelineModel:
    """Each layer of the second half also takes its mirror image's output, and two take that of layer 3."""
    half = num_layers // 2
    skips = [
        *((at, num_layers - 1 - at) for at in range(half - 1)),
        (half - 1, half + 1),
        (half - 1, num_layers - 1),
    ]
    return PipelineModel([Joining] * num_layers, vectors, nn.functional.mse_loss, skips=skips)


def raises() -> PipelineModel:
    def fault() -> None:
        raise ValueError("the layer broke")

    return with_fault(fault)


def killed() -> PipelineModel:
    return with_fault(lambda: os.kill(os.getpid(), signal.SIGKILL))


def exits() -> PipelineModel:
    return with_fault(lambda: os._exit(3))


def stands_still() -> PipelineModel:
    return with_fault(lambda: time.sleep(1000))


def never_built() -> PipelineModel:
    def build() -> nn.Module:
        time.sleep(1000)
        raise AssertionError

    return PipelineModel([lambda: nn.Linear(WIDTH, WIDTH), build], vectors, nn.functional.mse_loss)


def first_never_built() -> PipelineModel:
    model = never_built()
    return PipelineModel(list(reversed(model.layers)), vectors, nn.functional.mse_loss)


def mismatched() -> PipelineModel:
    layers = [lambda: nn.Linear(WIDTH, 5), lambda: nn.Linear(WIDTH, WIDTH)]
    return PipelineModel(layers, vectors, nn.functional.mse_loss)


def wrong_targets() -> PipelineModel:
    layers = [lambda: nn.Linear(WIDTH, WIDTH), lambda: nn.Linear(WIDTH, 5)]

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return (output - target).square().mean()

    return PipelineModel(layers, vectors, loss)


class Ragged(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.num_forwards = 0

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.num_forwards += 1
        return self.linear(x if self.num_forwards < 2 else x[:2])


def ragged() -> PipelineModel:
    return PipelineModel([Ragged, lambda: nn.Linear(WIDTH, WIDTH)], vectors, nn.functional.mse_loss)


def diverging() -> PipelineModel:
    def loss(output: Tensor, target: Tensor) -> Tensor:
        return (output - target).square().mean() / 0

    return PipelineModel([lambda: nn.Linear(WIDTH, WIDTH)] * 2, vectors, loss)


def three_layers() -> PipelineModel:
    return mlp(3)


def not_a_model() -> nn.Module:
    return nn.Linear(1, 1)
