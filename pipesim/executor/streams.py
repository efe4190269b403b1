"""Streams of a device that goes on by itself: work queued in order, with marks to time and to wait for."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

_NUM_BRACKETS = 20


class DeviceQueue(Protocol):
    """One queue of a device."""

    device: torch.device

    def active(self) -> AbstractContextManager[Any]:
        """Queue here what is called inside."""

    def mark(self) -> Any:
        """Queue a mark, which has a time once it is reached."""

    def wait_for(self, mark: Any) -> None:
        """Let what is queued from now on wait for a mark of another stream."""

    def keep(self, tensor: Tensor) -> None:
        """Tell the allocator that a tensor of another stream is used here."""

    def finish(self) -> None:
        """Hold the host up until all that is queued is done."""

    def elapsed_ns(self, first: Any, second: Any) -> float:
        """Nanoseconds of the device's clock between two marks that were reached."""


class CudaStream:
    """A stream of a GPU.

    Parameters
    ----------
    stream : torch.cuda.Stream
        The stream itself.
    device : torch.device
        Its GPU.
    """

    def __init__(self, stream: Any, device: torch.device) -> None:
        self.stream = stream
        self.device = device

    def active(self) -> AbstractContextManager[Any]:
        """Make it the current stream."""
        return torch.cuda.stream(self.stream)

    def mark(self) -> torch.cuda.Event:
        """Record an event."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(self.stream)
        return event

    def wait_for(self, mark: Any) -> None:
        """Wait for an event on the device."""
        self.stream.wait_event(mark)

    def keep(self, tensor: Tensor) -> None:
        """Record the use."""
        tensor.record_stream(self.stream)

    def finish(self) -> None:
        """Synchronize."""
        self.stream.synchronize()

    def elapsed_ns(self, first: Any, second: Any) -> float:
        """Take the time between two events."""
        return float(first.elapsed_time(second)) * 1e6


@dataclass(frozen=True, slots=True)
class Tie:
    """A mark of a stream and when it was reached by the host's clock, to within `bound_ns`."""

    mark: Any
    host_ns: int
    bound_ns: int


def tie(stream: DeviceQueue) -> Tie:
    """Find out when an idle stream reaches a mark: the narrowest of some brackets by the host's clock.

    The first mark of a stream may wait for the driver; it is not counted.
    """
    stream.mark()
    stream.finish()
    best: Tie | None = None
    for _ in range(_NUM_BRACKETS):
        before = time.perf_counter_ns()
        mark = stream.mark()
        stream.finish()
        after = time.perf_counter_ns()
        bound = (after - before + 1) // 2
        if best is None or bound < best.bound_ns:
            best = Tie(mark, before + bound, bound)
    assert best is not None
    return best
