"""Streams without a GPU: what is called runs at once, and each stream knows what it has waited for."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch


@dataclass(frozen=True)
class Mark:
    """When it was reached by the device's clock, and by then how far every stream was known to be."""

    at_ns: float
    known: dict[int, int]


@dataclass
class StandIn:
    """A stream whose clock has its own origin and rate, and that takes `slow_s` for each mark to finish.

    `known` counts, for every stream, how many of its marks are reached before what is queued here next.
    """

    number: int
    rate: float = 1.0
    origin_ns: float = 0.0
    slow_s: float = 0.0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    known: dict[int, int] = field(default_factory=dict)
    is_active: bool = False
    num_queued: int = 0

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        self.is_active = True
        yield
        self.is_active = False

    def mark(self) -> Mark:
        self.known[self.number] = self.known.get(self.number, 0) + 1
        self.num_queued += 1
        return Mark(self.origin_ns + self.rate * time.perf_counter_ns(), dict(self.known))

    def wait_for(self, mark: Mark) -> None:
        for number, count in mark.known.items():
            self.known[number] = max(count, self.known.get(number, 0))

    def keep(self, tensor: torch.Tensor) -> None:
        pass

    def finish(self) -> None:
        time.sleep(self.slow_s * self.num_queued)
        self.num_queued = 0

    def elapsed_ns(self, first: Mark, second: Mark) -> float:
        return second.at_ns - first.at_ns
