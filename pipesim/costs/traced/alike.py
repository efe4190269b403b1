"""Whether two layers are built alike, so that tracing one is enough."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from torch import Tensor, nn

_TENSORS_AND_PARTS = ("_parameters", "_buffers", "_modules")
_VALUES = (int, float, complex, str, bytes, bool, type(None))


def signature(module: nn.Module) -> Hashable:
    """Give what a layer's work can depend on: classes, settings, shapes and sharing of its parts' tensors.

    Settings that are neither plain values nor collections of them are told apart by what they are equal to,
    for most objects only themselves; layers that hold such are then not taken to be alike.
    """
    places: dict[int, int] = {}
    return tuple(
        (
            name,
            type(part),
            tuple((key, _value(value)) for key, value in vars(part).items() if key not in _TENSORS_AND_PARTS),
            tuple(_tensors(part, places)),
        )
        for name, part in module.named_modules(remove_duplicate=False)
    )


def shape_of(tensor: Tensor) -> Hashable:
    """Give what the cost of an operation can depend on: size, strides, dtype, and whether it is trained."""
    return tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.requires_grad


def _tensors(part: nn.Module, places: dict[int, int]) -> list[Hashable]:
    own = [*part._parameters.items(), *part._buffers.items()]
    return [
        (name, None if tensor is None else (shape_of(tensor), places.setdefault(id(tensor), len(places))))
        for name, tensor in own
    ]


def _value(value: Any) -> Hashable:
    if isinstance(value, _VALUES):
        return type(value), value
    if isinstance(value, list | tuple):
        return type(value), tuple(map(_value, value))
    if isinstance(value, dict):
        return dict, tuple((_value(key), _value(item)) for key, item in value.items())
    if isinstance(value, set | frozenset):
        return set, frozenset(map(_value, value))
    try:
        hash(value)
    except TypeError:
        return id(value)
    return type(value), value
