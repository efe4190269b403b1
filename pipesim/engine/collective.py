"""Collectives: nobody leaves before the last has come."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import simpy

from pipesim.engine.clock import Clock


class Collective:
    """A process that starts when its last member arrives and ends for all of them `duration_s` later."""

    def __init__(self, clock: Clock, num_members: int, duration_s: Any) -> None:
        self.duration_s = duration_s
        self.started_s: Any = None
        self._num_missing = num_members
        self._all_here = simpy.Event(clock)
        self._process = clock.process(self._run(clock))

    def join(self) -> simpy.Event:
        """Arrive as a member; the event returned happens at the end."""
        self._num_missing -= 1
        if self._num_missing == 0:
            self._all_here.succeed()
        return self._process

    def _run(self, clock: Clock) -> Generator[simpy.Event, Any, None]:
        yield self._all_here
        self.started_s = clock.now
        yield clock.timeout(self.duration_s)
