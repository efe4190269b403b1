"""How fast a GPU computes while collectives run beside it."""

from __future__ import annotations

from typing import Any

import simpy

from pipesim.timing.engine.simulated_clock import Clock


class Pace:
    """Computing on one GPU, which takes ``1 + slowdown`` times as long while a collective runs on it too."""

    def __init__(self, clock: Clock, slowdown: Any) -> None:
        self._clock = clock
        self._slowed = 1 + slowdown
        self._num_collectives = 0
        self._num_followed = 0
        """Collectives that took the place of others at the time `_followed_s`."""
        self._followed_s: Any = None
        self._done: simpy.Event | None = None
        self._left_s: Any = 0
        """What is left to compute, in seconds of an undisturbed GPU, when the pace last changed."""
        self._changed_s: Any = 0
        self._needed_s: Any = 0
        self._factor: Any = 1

    def slow_down(self) -> None:
        """Take note that a collective starts."""
        self._num_collectives += 1
        if self._num_collectives == 1:
            self._change()

    def speed_up(self) -> None:
        """Take note that a collective has ended."""
        self._num_collectives -= 1
        self._change_if_all_have_ended()

    def follow_on(self) -> None:
        """Take note that a collective has ended and the next one starts."""
        if self._followed_s != self._clock.now:
            self._followed_s, self._num_followed = self._clock.now, 0
        self._num_followed += 1
        self._change_if_all_have_ended()

    def _change_if_all_have_ended(self) -> None:
        # Between its end and the start of what follows at once, none of a collective runs.
        if self._num_collectives == (self._num_followed if self._followed_s == self._clock.now else 0):
            self._change()

    def compute(self, duration_s: Any) -> simpy.Event:
        """Compute for `duration_s` of an undisturbed GPU; the event at the end is to be yielded at once."""
        self._done = simpy.Event(self._clock)
        self._left_s = duration_s
        return self._set_end(self._done)

    def _change(self) -> None:
        done, now_s = self._done, self._clock.now
        if done is None or done.processed:
            return
        elapsed_s = now_s - self._changed_s
        self._done = done = self._clock.put_off(done)
        if elapsed_s >= self._needed_s:
            self._clock.set_for(done, now_s)
        else:
            self._left_s -= elapsed_s / self._factor
            self._set_end(done)

    def _set_end(self, done: simpy.Event) -> simpy.Event:
        self._changed_s = now_s = self._clock.now
        self._factor = self._slowed if self._num_collectives else 1
        self._needed_s = self._left_s * self._factor
        return self._clock.set_for(done, now_s + self._needed_s)
