"""How fast a GPU computes while collectives run beside it."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import simpy

from engine_of_before.clock import Clock


class Pace:
    """Computing on one GPU, which takes ``1 + slowdown`` times as long while a collective runs on it too."""

    def __init__(self, clock: Clock, slowdown: Any) -> None:
        self._clock = clock
        self._slowdown = slowdown
        self._num_collectives = 0
        self._changed = simpy.Event(clock)

    def slow_down(self) -> None:
        """Take note that a collective starts."""
        self._num_collectives += 1
        if self._num_collectives == 1:
            self._change()

    def speed_up(self) -> None:
        """Take note that a collective has ended."""
        self._num_collectives -= 1
        if self._num_collectives == 0:
            self._change()

    def _change(self) -> None:
        changed, self._changed = self._changed, simpy.Event(self._clock)
        changed.succeed()

    def compute(self, duration_s: Any) -> Generator[simpy.Event, Any, None]:
        """Compute what takes `duration_s` on an undisturbed GPU."""
        clock, left_s = self._clock, duration_s
        while True:
            factor = 1 + self._slowdown if self._num_collectives else 1
            began_s, needed_s = clock.now, left_s * factor
            done = clock.timeout(needed_s)
            yield done | self._changed
            if clock.now - began_s >= needed_s or done.processed:
                return
            left_s -= (clock.now - began_s) / factor
