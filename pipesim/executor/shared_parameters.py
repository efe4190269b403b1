"""Parameters that several layers of a user's model have in common, and where a pipeline would untie them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from pipesim.errors import ExecutionError


def refuse_untied(
    layers: Sequence[nn.Module | Callable[[], nn.Module]],
    sizes: Sequence[int],
    holders: Sequence[Sequence[int]],
    *,
    num_replicas: int,
) -> None:
    """Refuse layers that share a parameter and would each train a copy of its own.

    Stages of one rank share it as the model does; two ranks, or replicas that sum gradients stage by stage,
    do not.

    Parameters
    ----------
    layers : sequence
        Of the model: modules, or what makes them. What makes one is looked into only where it already holds
        a module; others make new weights.
    sizes : sequence of int
        Layers of each stage.
    holders : sequence of sequence of int
        Ranks of each stage.
    num_replicas : int
        Data-parallel replicas.

    Raises
    ------
    ExecutionError
        Naming the parameter, the layers and where they are.
    """
    stage_of = [stage for stage, size in enumerate(sizes) for _ in range(size)]
    seen: dict[int, tuple[int, nn.Parameter]] = {}
    for at, layer in enumerate(layers):
        for name, parameter in _known_parameters(layer):
            first, _ = seen.setdefault(id(parameter), (at, parameter))
            one, other = stage_of[first], stage_of[at]
            if one == other:
                continue
            if set(holders[one]) != set(holders[other]) or len(holders[one]) > 1 or num_replicas > 1:
                raise ExecutionError(
                    f"layers {first} and {at} share the parameter {name!r} ({_shape(parameter)}), on ranks "
                    f"{_ranks(holders[one])} and {_ranks(holders[other])} of {num_replicas} replicas: each "
                    f"would train its own copy; give each layer its own, or put both on one rank of one "
                    f"replica (as zb-v does the first and the last stage)"
                )


def _known_parameters(layer: nn.Module | Callable[[], nn.Module]) -> Iterator[tuple[str, nn.Parameter]]:
    """Parameters that exist before the layer is made."""
    if isinstance(layer, nn.Module):
        yield from layer.named_parameters()
        return
    held = {id(parameter) for parameter in _held(layer)}
    if not held:
        return
    with torch.device("meta"):
        made = layer()
    for name, parameter in made.named_parameters():
        if id(parameter) in held:
            yield name, parameter


def _held(maker: Callable[[], Any]) -> Iterator[nn.Parameter]:
    values: list[Any] = []
    if isinstance(maker, partial):
        values += [*maker.args, *maker.keywords.values()]
        maker = maker.func
    if inspect.ismethod(maker):
        values.append(maker.__self__)
    if inspect.isfunction(maker):
        values += [*(maker.__defaults__ or ()), *inspect.getclosurevars(maker).nonlocals.values()]
        values += inspect.getclosurevars(maker).globals.values()
    for value in values:
        for one in value if isinstance(value, list | tuple) else (value,):
            if isinstance(one, nn.Parameter):
                yield one
            elif isinstance(one, nn.Module):
                yield from one.parameters()


def _shape(parameter: nn.Parameter) -> str:
    return "x".join(map(str, parameter.shape)) or "one number"


def _ranks(holders: Sequence[int]) -> str:
    return " and ".join(map(str, holders))
