"""Links between ranks, and the messages that share them."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import simpy

from pipesim.costs.network import LinkCost


class Link:
    """One direction of a wire between two ranks; messages on it share its bandwidth equally.

    Latency occupies nothing. A process serves the messages on the wire. It sleeps until the next one has
    passed; a message that comes in between and would be through earlier wakes it.
    """

    def __init__(self, env: simpy.Environment, cost: LinkCost, mail: Mail) -> None:
        self.env = env
        self.latency_s = cost.latency_s
        self.bytes_per_s = cost.bytes_per_s
        self._mail = mail
        self._served: Any = 0
        """Bytes that each message on the wire got since the wire last fell idle."""
        self._served_at_s: Any = 0
        self._through_at: dict[int, Any] = {}
        """Value of `_served` at which each message has passed."""
        self._alarm = simpy.Event(env)
        self._alarm_s: Any = 0
        self._joined_since_alarm = False
        if self.bytes_per_s is not None:
            self._server = env.process(self._serve())

    def carry(self, message: int, nbytes: Any) -> None:
        """Take a message now."""
        if self.bytes_per_s is None or not nbytes:
            self._mail.arrives(message, self.latency_s)
        elif not self._through_at:
            self._served, self._served_at_s = 0, self.env.now
            self._through_at[message] = nbytes
            self._set_alarm(nbytes)
        else:
            self._advance()
            self._joined_since_alarm = True
            self._through_at[message] = self._served + nbytes
            if self.env.now + self._time_until(self._served + nbytes) < self._alarm_s:
                self._alarm_s = self.env.now
                self._server.interrupt()

    def _serve(self) -> Generator[simpy.Event, Any, None]:
        while True:
            try:
                yield self._alarm
            except simpy.Interrupt:
                self._advance()
            else:
                for message in self._passed():
                    del self._through_at[message]
                    self._mail.arrives(message, self.latency_s)
            self._alarm = simpy.Event(self.env)
            if self._through_at:
                self._set_alarm(min(self._through_at.values()))

    def _passed(self) -> list[int]:
        if self._joined_since_alarm:
            self._advance()
            return [message for message, amount in self._through_at.items() if amount <= self._served]
        if len(self._through_at) == 1:
            return list(self._through_at)
        # Exactly those the alarm was set for, free of the rounding that sharing brings.
        self._served, self._served_at_s = min(self._through_at.values()), self.env.now
        return [message for message, amount in self._through_at.items() if amount == self._served]

    def _advance(self) -> None:
        elapsed = self.env.now - self._served_at_s
        self._served += elapsed * self.bytes_per_s / len(self._through_at)
        self._served_at_s = self.env.now

    def _time_until(self, amount: Any) -> Any:
        return (amount - self._served) * len(self._through_at) / self.bytes_per_s

    def _set_alarm(self, amount: Any) -> None:
        delay = self._time_until(amount)
        self._joined_since_alarm = False
        self._alarm_s = self.env.now + delay
        happen_after(self._alarm, delay)


class Mail:
    """All messages of one replica, as columns: when each was sent and has arrived."""

    def __init__(
        self, env: simpy.Environment, links: list[LinkCost], route: list[int], nbytes: list[Any]
    ) -> None:
        self.env = env
        self.links = [Link(env, cost, self) for cost in links]
        self.route = route
        self.nbytes = nbytes
        self.sent_s: list[Any] = [None] * len(route)
        self.arrived_s: list[Any] = [None] * len(route)
        """Known, and possibly still to come, once the whole message has left the wire."""
        self._arrival: dict[int, simpy.Event] = {}
        self._met: set[int] = set()

    def send(self, message: int) -> None:
        """Put a message on its link now."""
        self.sent_s[message] = self.env.now
        self.links[self.route[message]].carry(message, self.nbytes[message])

    def meet(self, message: int) -> None:
        """Reach a blocking transfer from one side; the second side to reach it sends."""
        if message in self._met:
            self.send(message)
        self._met.add(message)

    def arrival(self, message: int) -> simpy.Event:
        """Event of an arrival that is still to come."""
        event = self._arrival.get(message)
        if event is None:
            event = self._arrival[message] = simpy.Event(self.env)
            if self.arrived_s[message] is not None:
                happen_after(event, self.arrived_s[message] - self.env.now)
        return event

    def arrives(self, message: int, delay: Any) -> None:
        """Fix the arrival `delay` seconds from now; it costs no event where nobody waits yet."""
        self.arrived_s[message] = self.env.now + delay
        if message in self._arrival:
            happen_after(self._arrival[message], delay)


def happen_after(event: simpy.Event, delay: Any) -> None:
    """Do for an event that exists what `simpy.Timeout` does for a new one."""
    event._ok = True
    event._value = None
    event.env.schedule(event, delay=delay)
