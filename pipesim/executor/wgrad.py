"""The backward in two parts: I computes what the previous stage waits for, W what only the optimizer needs.

A backward pass through a linear layer or a convolution is two independent products. While the store is
deferring, such a layer computes the gradient of its input and leaves its two operands here; W makes the
product later. So I + W does B's work once, I frees all else that the forward had saved, and no private
function of torch is involved. Other parameters (norms, embeddings) get their gradient at I.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
import torch.nn.functional as functional
from torch import Tensor, nn
from torch.nn.grad import conv2d_input, conv2d_weight

Product: TypeAlias = Callable[[nn.Module, Tensor, Tensor], list[tuple[nn.Parameter, Tensor]]]
"""From a layer, its input and its output's gradient to the gradients of its parameters."""


class WeightGradients:
    """Operands of weight gradients that a stage has put off, by microbatch and slice."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, list[tuple[Product, nn.Module, Tensor, Tensor]]] = {}
        self._open: list[tuple[Product, nn.Module, Tensor, Tensor]] | None = None

    @contextmanager
    def deferring(self, key: Hashable) -> Iterator[None]:
        """Keep the operands of every backward in this block under `key`."""
        self._open = self._kept[key] = []
        try:
            yield
        finally:
            self._open = None

    def put(self, product: Product, layer: nn.Module, x: Tensor, gradient: Tensor) -> bool:
        """Keep the operands if the store is deferring; say whether it did."""
        if self._open is None or has_hooks(layer):
            return False
        self._open.append((product, layer, x, gradient))
        return True

    def apply(self, key: Hashable) -> None:
        """Make the products that were put off under `key` and add them to the parameters' gradients."""
        with torch.no_grad():
            for product, layer, x, gradient in self._kept.pop(key):
                for parameter, value in product(layer, x, gradient):
                    if not parameter.requires_grad:
                        continue
                    if parameter.grad is None:
                        parameter.grad = value
                    else:
                        parameter.grad += value

    def tensors(self, key: Hashable) -> list[Tensor]:
        """Operands kept under `key`."""
        return [tensor for _, _, x, gradient in self._kept.get(key, ()) for tensor in (x, gradient)]


def make_deferrable(module: nn.Module, store: WeightGradients) -> None:
    """Let every `nn.Linear` and `nn.Conv2d` of a module put its weight gradient off; values stay the same."""
    for layer in module.modules():
        if layer._parameters.get("weight") is None:
            continue  # computed from other parameters, as weight_norm does
        if type(layer) is nn.Linear:
            layer.__class__ = _DeferrableLinear
        elif (
            type(layer) is nn.Conv2d and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
        ):
            layer.__class__ = _DeferrableConv2d
        else:
            continue
        object.__setattr__(layer, "store", store)


def has_hooks(layer: nn.Module) -> bool:
    """Whether something waits for gradients of a layer's own parameters, which only autograd would tell."""
    return any(p._backward_hooks or p._post_accumulate_grad_hooks for p in layer.parameters(recurse=False))


def deferred_share(module: nn.Module) -> float:
    """Share of a module's parameters whose gradient W computes."""
    total = sum(p.numel() for p in module.parameters())
    deferrable = (m for m in module.modules() if isinstance(m, _DeferrableLinear | _DeferrableConv2d))
    layers = [layer for layer in deferrable if not has_hooks(layer)]
    deferred = {id(p): p.numel() for layer in layers for p in layer.parameters(recurse=False)}
    return sum(deferred.values()) / total if total else 0.0


class _DeferrableLinear(nn.Linear):
    store: WeightGradients

    def forward(self, x: Tensor) -> Tensor:
        apply: Callable[..., Tensor] = _Linear.apply
        return apply(x, self.weight, self.bias, self)


class _DeferrableConv2d(nn.Conv2d):
    store: WeightGradients

    def forward(self, x: Tensor) -> Tensor:
        apply: Callable[..., Tensor] = _Conv2d.apply
        return apply(x, self.weight, self.bias, self)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, layer: _DeferrableLinear) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.layer = layer
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        of_input = gradient @ weight if ctx.needs_input_grad[0] else None
        if not any(ctx.needs_input_grad[1:3]) or ctx.layer.store.put(_linear_product, ctx.layer, x, gradient):
            return of_input, None, None, None
        of_weight, of_bias = _linear_gradients(x, gradient, ctx.layer.bias is not None)
        return of_input, of_weight, of_bias, None


def _linear_gradients(x: Tensor, gradient: Tensor, has_bias: bool) -> tuple[Tensor, Tensor | None]:
    rows = gradient.reshape(-1, gradient.shape[-1])
    of_weight = rows.t() @ x.reshape(-1, x.shape[-1])
    return of_weight, rows.sum(0) if has_bias else None


def _linear_product(layer: nn.Module, x: Tensor, gradient: Tensor) -> list[tuple[nn.Parameter, Tensor]]:
    assert isinstance(layer, nn.Linear)
    of_weight, of_bias = _linear_gradients(x, gradient, layer.bias is not None)
    return _with_bias(layer, of_weight, of_bias)


class _Conv2d(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, layer: _DeferrableConv2d) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.layer = layer
        return functional.conv2d(x, weight, bias, *_convolution(layer))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        of_input = None
        if ctx.needs_input_grad[0]:
            of_input = conv2d_input(x.shape, weight, gradient, *_convolution(ctx.layer))
        if not any(ctx.needs_input_grad[1:3]) or ctx.layer.store.put(_conv2d_product, ctx.layer, x, gradient):
            return of_input, None, None, None
        of_weight, of_bias = _conv2d_gradients(ctx.layer, x, gradient)
        return of_input, of_weight, of_bias, None


def _convolution(layer: nn.Conv2d) -> tuple[Any, ...]:
    return layer.stride, layer.padding, layer.dilation, layer.groups


def _conv2d_gradients(layer: nn.Conv2d, x: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor | None]:
    of_weight = conv2d_weight(x, layer.weight.shape, gradient, *_convolution(layer))
    return of_weight, gradient.sum((0, 2, 3)) if layer.bias is not None else None


def _conv2d_product(layer: nn.Module, x: Tensor, gradient: Tensor) -> list[tuple[nn.Parameter, Tensor]]:
    assert isinstance(layer, nn.Conv2d)
    return _with_bias(layer, *_conv2d_gradients(layer, x, gradient))


def _with_bias(
    layer: nn.Linear | nn.Conv2d, of_weight: Tensor, of_bias: Tensor | None
) -> list[tuple[nn.Parameter, Tensor]]:
    gradients = [of_weight] if of_bias is None else [of_weight, of_bias]
    return list(zip(layer.parameters(recurse=False), gradients, strict=True))
