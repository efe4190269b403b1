"""What ranks do together: sum the gradients of a stage, and come to the optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

PIECE_BYTES = 32 << 20
"""Emulated gradients are reduced in pieces of this size through one buffer: many ranks share a machine's
memory, and gloo moves hardly more bytes a second in larger ones."""


class Collectives(Protocol):
    """Joined by all ranks that hold a stage, or by all there are."""

    def reduce(self, stage: int, module: nn.Module) -> None:
        """Sum the gradients of a stage over every copy of it."""

    def meet(self) -> None:
        """Wait for all ranks of all replicas, as an optimizer does that needs the norm of every gradient."""


class ProcessCollectives:
    """Over process groups.

    Parameters
    ----------
    groups : mapping of int to process group
        Those who hold a copy of each stage; None where there is no other.
    everybody : process group, optional
        All ranks of all replicas; None for one rank alone.
    device : torch.device
        Where gradients are.
    gradient_bytes : sequence of int, optional
        On the emulated device, bytes to reduce for each stage in place of gradients.
    on_piece : Callable, optional
        Told of every piece of them that is reduced.
    """

    def __init__(
        self,
        groups: Mapping[int, Any],
        everybody: Any,
        device: torch.device,
        gradient_bytes: tuple[int, ...] | None = None,
        on_piece: Callable[[], None] = lambda: None,
    ) -> None:
        self._groups = groups
        self._everybody = everybody
        self._token = torch.zeros(1, device=device)
        self._gradient_bytes = gradient_bytes
        self._on_piece = on_piece
        if gradient_bytes is not None:
            shared = [gradient_bytes[stage] for stage, group in groups.items() if group is not None]
            self._piece = torch.zeros(min(max(shared, default=0), PIECE_BYTES) // 4)

    def warm_up(self) -> None:
        """Let every group form its communicator, which the first call does, before anything is timed."""
        self.meet()
        for stage in sorted(self._groups):
            if self._groups[stage] is not None:
                dist.all_reduce(self._token, group=self._groups[stage])

    def reduce(self, stage: int, module: nn.Module) -> None:
        """Sum over the stage's group: all gradients in one message, emulated ones in pieces."""
        group = self._groups[stage]
        if group is None:
            return
        if self._gradient_bytes is not None:
            for left in range(max(1, self._gradient_bytes[stage]), 0, -PIECE_BYTES):
                dist.all_reduce(self._piece[: left // 4], group=group)
                self._on_piece()
            return
        gradients = gradients_of(module.parameters())
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        dist.all_reduce(flat, group=group)
        scatter(flat, gradients)

    def meet(self) -> None:
        """Sum one number over all ranks."""
        if self._everybody is not None:
            dist.all_reduce(self._token, group=self._everybody)


def gradients_of(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    """Gradients of parameters; zeros are put where no microbatch left one."""
    gradients = []
    for parameter in parameters:
        if not parameter.requires_grad:
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        gradients.append(parameter.grad)
    return gradients


def scatter(flat: Tensor, targets: list[Tensor]) -> None:
    """Copy consecutive parts of a flat tensor into tensors."""
    start = 0
    for target in targets:
        target.copy_(flat[start : start + target.numel()].view_as(target))
        start += target.numel()
