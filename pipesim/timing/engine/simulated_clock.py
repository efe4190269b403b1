"""SimPy's environment, able to set an event for a point in time and to put it off."""

from __future__ import annotations

from heapq import heappop, heappush
from math import inf
from typing import Any

import simpy
from simpy.events import NORMAL


class Clock(simpy.Environment):
    """An environment where a time that was computed once is the time an event happens.

    SimPy takes delays only. The delay to a known time is a difference that the clock adds again, and each
    of the two steps would round.
    """

    def set_for(self, event: simpy.Event, time_s: Any) -> simpy.Event:
        """Let an event that nobody has triggered happen at `time_s`, now or later."""
        event._ok = True
        event._value = None
        heappush(self._queue, (time_s, NORMAL, next(self._eid), event))
        return event

    def put_off(self, event: simpy.Event) -> simpy.Event:
        """Return a fresh event that all who wait for `event` wait for instead.

        What was set for a time stays in the queue and does nothing then. Only for events that a process
        yields at once and that nobody interrupts.
        """
        fresh = simpy.Event(self)
        fresh.callbacks, event.callbacks = event.callbacks, []
        return fresh

    def run_to_the_end(self) -> None:
        """Let happen all that is set."""
        self.run_before(inf)

    def run_before(self, time_s: float) -> None:
        """Let happen what is set for before a time: SimPy's `run`, less a call and two guards an event."""
        queue = self._queue
        while queue and queue[0][0] < time_s:
            self._now, _, _, event = heappop(queue)
            callbacks, event.callbacks = event.callbacks, None  # type: ignore[assignment]
            for callback in callbacks:
                callback(event)
            if not event._ok and not hasattr(event, "_defused"):
                raise event._value
