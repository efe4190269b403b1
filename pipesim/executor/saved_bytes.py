"""How many bytes of activations a rank holds, counted by what autograd saves."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class ActivationMeter:
    """Counts every storage that is held for a backward once, parameters excluded, and keeps the peak.

    Parameters
    ----------
    modules : iterable of nn.Module
        Their parameters and buffers are no activations.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._excluded = {
            tensor.untyped_storage().data_ptr()
            for module in modules
            for tensor in (*module.parameters(), *module.buffers())
        }
        self._held: dict[Hashable, dict[int, int]] = {}
        self._holders: dict[int, int] = {}
        self.bytes = 0
        self.peak_bytes = 0

    @contextmanager
    def watching(self, key: Hashable) -> Iterator[None]:
        """Count what autograd saves in this block under `key`."""

        def pack(tensor: Tensor) -> Tensor:
            self.hold(key, (tensor,))
            # A saved output must not come back as itself: node and tensor would keep each other alive.
            return tensor if tensor.is_leaf else tensor.detach()

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            yield

    def hold(self, key: Hashable, tensors: Iterable[Tensor]) -> None:
        """Count the storages of tensors under `key`."""
        held = self._held.setdefault(key, {})
        for tensor in tensors:
            storage = tensor.untyped_storage()
            pointer = storage.data_ptr()
            if pointer in self._excluded or pointer in held:
                continue
            held[pointer] = storage.nbytes()
            self._holders[pointer] = self._holders.get(pointer, 0) + 1
            if self._holders[pointer] == 1:
                self.bytes += storage.nbytes()
        self.peak_bytes = max(self.peak_bytes, self.bytes)

    def release(self, key: Hashable) -> None:
        """Forget what is held under `key`."""
        for pointer, nbytes in self._held.pop(key, {}).items():
            self._holders[pointer] -= 1
            if self._holders[pointer] == 0:
                del self._holders[pointer]
                self.bytes -= nbytes
