"""A model that only hands a tensor on, to time messages between devices that compute."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pipesim.costs.traced.pipeline_model import PipelineModel


class _Relay(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


def relay(microbatch_size: int) -> PipelineModel:
    """Make two stages between which `microbatch_size` numbers of float32 travel, there and back."""

    def sample(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return torch.ones(microbatch_size), torch.ones(microbatch_size)

    return PipelineModel([_Relay, _Relay], sample, nn.functional.mse_loss)
