"""Watches tensor operations that compute nothing: what each would multiply, read and write on a device."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as functional
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from pipesim.costs.traced.layer_trace import Kind, OpCost, Pass

_aten = torch.ops.aten
_PRODUCTS_OF_ACTIVATIONS = {_aten.bmm, _aten.baddbmm}
_NAMESPACES = ("aten", "prims")
_LOOKUPS = {_aten.embedding, _aten.index, _aten.index_select, _aten.gather}
"""Read as many values as they give, not the whole table."""
_ALLOCATIONS = {
    _aten.empty,
    _aten.empty_like,
    _aten.empty_strided,
    _aten.new_empty,
    _aten.new_empty_strided,
}
_ATTENTION = {_aten._scaled_dot_product_flash_attention_for_cpu}
_ATTENTION_BACKWARD = {_aten._scaled_dot_product_flash_attention_for_cpu_backward}


class Storage(NamedTuple):
    """Memory of a tensor, which this does not keep; its address is given to no other while this exists."""

    ref: StorageWeakRef
    nbytes: int

    @classmethod
    def of(cls, tensor: Tensor) -> Storage:
        """Take the memory that a tensor is a view of."""
        storage = tensor.untyped_storage()
        return cls(StorageWeakRef(storage), storage.nbytes())


class Recorder(TorchDispatchMode):
    """Records every operation in its block as a kernel of its own.

    Views and bare allocations launch none.

    Parameters
    ----------
    left_out : iterable of Tensor
        Parameters, inputs and outputs, whose bytes are counted elsewhere.
    held : iterable of Storage
        What exists before and counts.
    """

    def __init__(self, left_out: Iterable[Tensor] = (), held: Iterable[Storage] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._left_out = {storage_id(tensor) for tensor in left_out}
        self._ops: list[OpCost] = []
        self._live = {storage.ref.cdata: storage for storage in held}
        self._born: dict[int, int] = {}
        self._unknown: set[str] = set()
        self._held_bytes: list[int] = []
        """After each operation."""
        self._note()

    def result(self, *, but: Tensor | None = None) -> Pass:
        """Give what was recorded; the peak leaves out a tensor made here, which is counted elsewhere."""
        held = np.array(self._held_bytes)
        born = None if but is None else self._born.get(storage_id(but))
        if but is not None and born is not None:
            held[born:] -= but.untyped_storage().nbytes()
        return Pass(tuple(self._ops), int(held.max()), frozenset(self._unknown))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Let the operation take place on tensors without values, and note its cost."""
        kwargs = kwargs or {}
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        out = func(*args, **kwargs)
        outputs = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        if outputs:
            self._hold(outputs)
            if not _launches_nothing(func, inputs, outputs):
                self._ops.append(_cost(func, args, kwargs, out, inputs, outputs))
                if func.namespace not in _NAMESPACES and func.overloadpacket not in flop_registry:
                    self._unknown.add(func.name())
        return out

    def _hold(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            place = storage_id(tensor)
            if place not in self._left_out and place not in self._live:
                self._live[place] = Storage.of(tensor)
                self._born[place] = len(self._held_bytes)
        self._note()

    def _note(self) -> None:
        self._live = {place: one for place, one in self._live.items() if not one.ref.expired()}
        self._held_bytes.append(sum(one.nbytes for one in self._live.values()))


class FusedAttention(TorchFunctionMode):
    """Leaves dropout out of attention, which GPUs' fused kernels do inside and CPUs' do not."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function, attention without its dropout."""
        kwargs = dict(kwargs or {})
        if func is functional.scaled_dot_product_attention:
            kwargs.pop("dropout_p", None)
            args = args[:4] + ((0.0,) if len(args) > 4 else ()) + args[5:]
        return func(*args, **kwargs)


def storage_id(tensor: Tensor) -> int:
    """Identity of what a tensor is a view of, while that exists."""
    return int(tensor.untyped_storage()._cdata)


def _launches_nothing(func: Any, inputs: list[Tensor], outputs: list[Tensor]) -> bool:
    if func.overloadpacket in _ALLOCATIONS:
        return True
    if func._schema.is_mutable:
        return False
    given = {storage_id(tensor) for tensor in inputs}
    return all(storage_id(tensor) in given for tensor in outputs)


def _cost(
    func: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    out: Any,
    inputs: list[Tensor],
    outputs: list[Tensor],
) -> OpCost:
    packet = func.overloadpacket
    written = sum(map(_nbytes, outputs))
    if packet in _LOOKUPS:
        nbytes = 2 * written + sum(map(_nbytes, inputs[1:]))
    else:
        nbytes = written + sum(map(_nbytes, {id(tensor): tensor for tensor in inputs}.values()))
    wide = outputs[0].element_size() >= 4
    if packet in _ATTENTION:
        return OpCost("attention", *_attention_flops(args[:3], args, kwargs), nbytes, wide)
    if packet in _ATTENTION_BACKWARD:
        return OpCost("attention", *_attention_flops(args[1:4], args, kwargs, backward=True), nbytes, wide)
    if packet is _aten.convolution:
        count = _convolution_flops(args[0], args[1], out, transposed=args[6])
        return OpCost("convolution", count, count, nbytes, wide)
    if packet is _aten.convolution_backward:
        each = _convolution_flops(args[1], args[2], args[0], transposed=args[7])
        count = each * sum(args[10][:2])
        return OpCost("convolution", count, count, nbytes, wide)
    formula: Callable[..., int] | None = flop_registry.get(packet)
    if formula is None:
        return OpCost("memory_bound", 0.0, 0.0, nbytes, wide)
    count = float(formula(*args, **kwargs, out_val=out))
    kind: Kind = "attention" if packet in _PRODUCTS_OF_ACTIVATIONS else "gemm"
    return OpCost(kind, count, count, nbytes, wide)


def _convolution_flops(x: Tensor, weight: Tensor, out: Tensor, *, transposed: bool) -> float:
    """FLOPs of a convolution, of groups too, and of either gradient of it.

    torch's own formula of the weight's gradient counts all pairs of groups.
    """
    positions = x if transposed else out
    return 2.0 * positions.numel() * weight.numel() / weight.shape[0]


def _attention_flops(
    tensors: tuple[Tensor, ...], args: tuple[Any, ...], kwargs: dict[str, Any], *, backward: bool = False
) -> tuple[float, float]:
    """FLOPs that a fused kernel runs (the causal half), and those of full attention that the model asks for.

    The backward multiplies five times, once of it the scores anew.
    """
    query, key, value = tensors
    batch, heads, length, width = query.shape
    each = 2.0 * batch * heads * length * key.shape[2]
    run = each * (3 * width + 2 * value.shape[3] if backward else width + value.shape[3])
    asked = (2 if backward else 1) * each * (width + value.shape[3])
    causal = kwargs.get("is_causal", any(arg is True for arg in args))
    return run / (2 if causal else 1), asked


def _nbytes(tensor: Tensor) -> int:
    """Bytes that a tensor touches; an expanded one repeats those of its storage."""
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())
