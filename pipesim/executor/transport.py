"""How a tensor gets from one rank to another."""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from pipesim.executor.stage import Boundary


class Transport(Protocol):
    """Moves numbered tensors; nothing here waits but `wait` and `flush`."""

    matches_by_number: bool
    """Receives may be posted in any order."""

    def receive(self, message: int, peer: int, boundary: Boundary) -> None:
        """Get ready to take a message."""

    def wait(self, message: int) -> Tensor:
        """Give a message once it is there (on a GPU: let the stream wait for it)."""

    def send(self, message: int, peer: int, tensor: Tensor) -> None:
        """Send without waiting."""

    def flush(self) -> None:
        """Wait until all that was sent is gone."""


class GlooTransport:
    """Between CPUs; messages carry their number as a tag.

    Gloo keeps no copy and sends only once the receiver has posted, so sent tensors are kept to the end of the
    step and no send is ever waited for before.

    Parameters
    ----------
    first_process : int
        Process of rank 0 of this replica; rank r is process `first_process` + r.
    """

    matches_by_number = True

    def __init__(self, first_process: int) -> None:
        self._first = first_process
        self._expected: dict[int, tuple[Any, Tensor]] = {}
        self._sent: list[tuple[Any, Tensor]] = []

    def receive(self, message: int, peer: int, boundary: Boundary) -> None:
        """Post the receive."""
        tensor = torch.empty(boundary.shape, dtype=boundary.dtype)
        self._expected[message] = dist.irecv(tensor, self._first + peer, tag=message), tensor

    def wait(self, message: int) -> Tensor:
        """Block until the message is there."""
        work, tensor = self._expected.pop(message)
        work.wait()
        return tensor

    def send(self, message: int, peer: int, tensor: Tensor) -> None:
        """Start the send and keep the tensor."""
        tensor = tensor.contiguous()
        self._sent.append((dist.isend(tensor, self._first + peer, tag=message), tensor))

    def flush(self) -> None:
        """Wait for all sends of the step."""
        for work, _ in self._sent:
            work.wait()
        self._sent.clear()


class NcclTransport:
    """Between GPUs, on one communicator; NCCL has no tags and matches by order.

    The lowered schedule puts a receive where its peer stands when it sends, so both sides list the transfers
    of a pair in one order, and all ranks' lists follow one order of all transfers: they cannot wait for each
    other in a ring, however large the messages are. Receives are posted from a stream of their own, or they
    would wait for the computations that were queued before them.

    Parameters
    ----------
    first_process : int
        Process of rank 0 of this replica.
    device : torch.device
        This rank's GPU.
    group : process group
        All ranks of all replicas, over NCCL.
    """

    matches_by_number = False

    def __init__(self, first_process: int, device: torch.device, group: Any) -> None:
        self._first = first_process
        self._group = group
        self._device = device
        self._compute = torch.cuda.current_stream(device)
        self._side = torch.cuda.Stream(device)
        self._expected: dict[int, tuple[list[Any], Tensor]] = {}
        self._sent: list[tuple[list[Any], Tensor]] = []

    def receive(self, message: int, peer: int, boundary: Boundary) -> None:
        """Queue the receive."""
        with torch.cuda.stream(self._side):
            tensor = torch.empty(boundary.shape, dtype=boundary.dtype, device=self._device)
            works = dist.batch_isend_irecv([dist.P2POp(dist.irecv, tensor, self._first + peer, self._group)])
        tensor.record_stream(self._compute)
        self._expected[message] = works, tensor

    def wait(self, message: int) -> Tensor:
        """Let the compute stream wait for the message."""
        works, tensor = self._expected.pop(message)
        for work in works:
            work.wait()
        return tensor

    def send(self, message: int, peer: int, tensor: Tensor) -> None:
        """Queue the send behind the computation that made the tensor."""
        tensor = tensor.contiguous()
        works = dist.batch_isend_irecv([dist.P2POp(dist.isend, tensor, self._first + peer, self._group)])
        self._sent.append((works, tensor))

    def flush(self) -> None:
        """Let the compute stream wait for all sends of the step, then let their tensors go."""
        for works, _ in self._sent:
            for work in works:
                work.wait()
        self._sent.clear()


class LocalTransport:
    """Between lanes of one process, which share this object: the wire is a copy.

    On a GPU the copy runs on the sender's stream and the receiver's stream waits for an event behind it.

    Parameters
    ----------
    on_gpu : bool
        Whether lanes are streams.
    """

    matches_by_number = True

    def __init__(self, *, on_gpu: bool = False) -> None:
        self._on_gpu = on_gpu
        self._there: dict[int, tuple[Tensor, Any]] = {}

    def receive(self, message: int, peer: int, boundary: Boundary) -> None:
        """Nothing to prepare."""

    def has(self, message: int) -> bool:
        """Whether the message was sent."""
        return message in self._there

    def wait(self, message: int) -> Tensor:
        """Give the message."""
        tensor, event = self._there.pop(message)
        if event is not None:
            torch.cuda.current_stream().wait_event(event)
            tensor.record_stream(torch.cuda.current_stream())
        return tensor

    def send(self, message: int, peer: int, tensor: Tensor) -> None:
        """Copy the tensor."""
        copy = tensor.clone()
        event = torch.cuda.current_stream().record_event() if self._on_gpu else None
        self._there[message] = copy, event

    def flush(self) -> None:
        """Nothing is under way."""
