"""SimPy's environment, able to set an event for a point in time."""

from __future__ import annotations

from heapq import heappush
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
