"""Tensors and modules that have shapes and no values, so that a model of any size takes no memory."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeCopyMode,
    FakeTensor,
    FakeTensorMode,
)

T = TypeVar("T")

NEEDS_VALUES = (DataDependentOutputException, DynamicOutputShapeException)
"""What an operation raises that asks for the values of a tensor that has none."""


class Valueless:
    """Makes what has no values.

    Parameters
    ----------
    dtype : torch.dtype
        Of all floating-point parameters and inputs.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._dtype = dtype

    def make(self, maker: Callable[[], T]) -> T:
        """Call a function so that its tensors take no memory; for real where it asks for their values."""
        try:
            with self.mode, _converting():
                return maker()
        except NEEDS_VALUES:
            return maker()

    def module(self, module: nn.Module) -> nn.Module:
        """Give a module of the dtype, without values: itself where it has none."""
        tensors = [*module.parameters(), *module.buffers()]
        if not all(isinstance(tensor, FakeTensor) for tensor in tensors):
            with FakeCopyMode(self.mode):
                module = copy.deepcopy(module)
        with self.mode, _converting():
            return module.to(self._dtype)

    def tensor(self, tensor: Tensor) -> Tensor:
        """Give a tensor of the dtype, or of its own if that is no floating-point one."""
        with self.mode:
            like = tensor if isinstance(tensor, FakeTensor) else self.mode.from_tensor(tensor)
            return like.to(self._dtype) if like.is_floating_point() else like


@contextmanager
def without_log() -> Iterator[None]:
    """Keep torch from logging what becomes one message here."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


@contextmanager
def _converting() -> Iterator[None]:
    """Let ``module.to`` convert tensors without values, which torch's own cannot be relied on to do.

    It swaps tensors, and refuses to where torch itself still refers to one.
    """
    torch_s_own = nn.Module._apply
    nn.Module._apply = _apply  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module._apply = torch_s_own  # type: ignore[method-assign]


def _apply(module: nn.Module, change: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
    """Replace parameters and buffers by changed ones; those that were one remain one."""
    done: dict[int, Tensor] = {}
    for part in module.modules() if recurse else (module,):
        for name, tensor in [*part._parameters.items(), *part._buffers.items()]:
            if tensor is None:
                continue
            if id(tensor) not in done:
                with torch.no_grad():
                    changed = change(tensor)
                if isinstance(tensor, nn.Parameter):
                    changed = nn.Parameter(changed, tensor.requires_grad)
                done[id(tensor)] = changed
            setattr(part, name, done[id(tensor)])
    return module
