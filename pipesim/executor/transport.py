"""How a tensor gets from one rank to another."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from pipesim.executor.stage import Boundary
from pipesim.executor.streams import DeviceQueue


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
    group : process group
        Of all ranks of all replicas; None for one rank alone.
    """

    matches_by_number = True

    def __init__(self, first_process: int, group: Any) -> None:
        self._first = first_process
        self._group = group
        self._expected: dict[int, tuple[Any, Tensor]] = {}
        self._sent: list[tuple[Any, Tensor]] = []

    def receive(self, message: int, peer: int, boundary: Boundary) -> None:
        """Post the receive."""
        tensor = torch.empty(boundary.shape, dtype=boundary.dtype)
        self._expected[message] = dist.irecv(tensor, self._first + peer, self._group, tag=message), tensor

    def wait(self, message: int) -> Tensor:
        """Block until the message is there."""
        work, tensor = self._expected.pop(message)
        work.wait()
        return tensor

    def send(self, message: int, peer: int, tensor: Tensor) -> None:
        """Start the send and keep the tensor."""
        tensor = tensor.contiguous()
        work = dist.isend(tensor, self._first + peer, self._group, tag=message)
        self._sent.append((work, tensor))

    def flush(self) -> None:
        """Wait for all sends of the step."""
        for work, _ in self._sent:
            work.wait()
        self._sent.clear()


class OrderedTransport:
    """Matches messages by their order, as NCCL must, which has no tags; between GPUs, or CPUs for comparison.

    Torch gives each pair of ranks in a group a communicator and a stream of its own, as long as calls are not
    batched and the group was not made for one device. Transfers there wait for each other, so messages to
    higher ranks and to lower ranks go by two groups: each queue then holds what one rank sends to one other.
    The lowered schedule lists a receive where its peer stands when it sends, so both ends of a queue list the
    same messages in the same order, that of their producers, and none waits for one that is made later.
    Receives are posted from a stream of their own, or they would wait for computations queued before them.

    Parameters
    ----------
    first_process : int
        Process of rank 0 of this replica; rank r is process `first_process` + r.
    rank : int
        This one.
    device : torch.device
        Where tensors are.
    groups : tuple of process groups
        Of all ranks of all replicas: for messages to a higher rank, and to a lower one.
    """

    matches_by_number = False

    def __init__(self, first_process: int, rank: int, device: torch.device, groups: tuple[Any, Any]) -> None:
        self._first = first_process
        self._rank = rank
        self._groups = groups
        self._device = device
        self._side: Any = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._expected: dict[int, tuple[Any, Tensor]] = {}
        self._sent: deque[tuple[Any, Tensor]] = deque()

    def _group(self, sender: int, receiver: int) -> Any:
        return self._groups[sender > receiver]

    def warm_up(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Let each pair of ranks form its communicators, before anything is timed.

        All ranks go through all pairs in one order: forming a communicator holds both of them up.
        """
        for sender, receiver in sorted(pairs, key=lambda pair: (sorted(pair), pair)):
            token = torch.zeros(1, device=self._device)
            if self._rank == sender:
                dist.send(token, self._first + receiver, group=self._group(sender, receiver))
            elif self._rank == receiver:
                dist.recv(token, self._first + sender, group=self._group(sender, receiver))
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def receive(self, message: int, peer: int, boundary: Boundary) -> None:
        """Queue the receive."""
        with torch.cuda.stream(self._side) if self._side is not None else nullcontext():
            tensor = torch.empty(boundary.shape, dtype=boundary.dtype, device=self._device)
            work = dist.irecv(tensor, self._first + peer, group=self._group(peer, self._rank))
        if self._side is not None:
            tensor.record_stream(torch.cuda.current_stream(self._device))
        self._expected[message] = work, tensor

    def wait(self, message: int) -> Tensor:
        """Let the compute stream (on a CPU: the rank) wait for the message."""
        work, tensor = self._expected.pop(message)
        work.wait()
        return tensor

    def send(self, message: int, peer: int, tensor: Tensor) -> None:
        """Queue the send behind the computation that made the tensor, and let go of those that are gone."""
        while self._sent and self._sent[0][0].is_completed():
            self._sent.popleft()
        tensor = tensor.contiguous()
        work = dist.isend(tensor, self._first + peer, group=self._group(self._rank, peer))
        self._sent.append((work, tensor))

    def flush(self) -> None:
        """Let the compute stream wait for all sends of the step, then let their tensors go."""
        while self._sent:
            self._sent.popleft()[0].wait()


class LocalTransport:
    """Between lanes of one process, which share this object: the wire is a copy.

    Where lanes are streams the copy runs on the sender's, and the receiver's waits for a mark behind it.
    """

    matches_by_number = True

    def __init__(self) -> None:
        self.stream: DeviceQueue | None = None
        """Of the lane whose turn it is; None on a CPU."""
        self._there: dict[int, tuple[Tensor, Any]] = {}

    def receive(self, message: int, peer: int, boundary: Boundary) -> None:
        """Nothing to prepare."""

    def has(self, message: int) -> bool:
        """Whether the message was sent."""
        return message in self._there

    def wait(self, message: int) -> Tensor:
        """Give the message."""
        tensor, mark = self._there.pop(message)
        if self.stream is not None:
            self.stream.wait_for(mark)
            self.stream.keep(tensor)
        return tensor

    def send(self, message: int, peer: int, tensor: Tensor) -> None:
        """Copy the tensor."""
        copy = tensor.clone()
        self._there[message] = copy, None if self.stream is None else self.stream.mark()

    def flush(self) -> None:
        """Nothing is under way."""
