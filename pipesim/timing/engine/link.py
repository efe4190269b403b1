"""Links between ranks, and the messages that share them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol

import simpy

from pipesim.costs.network.alpha_beta import LinkCost
from pipesim.timing.engine.shared_flows import Network, Stream
from pipesim.timing.engine.simulated_clock import Clock

Waiter = tuple[simpy.Event, Any]
"""An event, and how long after an arrival it happens."""


class Carrier(Protocol):
    """What takes messages from one rank to another."""

    def carry(self, message: int, nbytes: Any, now_s: Any) -> None:
        """Take a message now."""


class RankLink:
    """One direction of a wire between two ranks; messages on it share its bandwidth equally.

    Latency occupies nothing. A process serves the messages on the wire. It sleeps until the next one has
    passed; a message that comes in between and would be through earlier wakes it.
    """

    def __init__(self, clock: Clock, cost: LinkCost, mail: Mail) -> None:
        self.clock = clock
        self.latency_s = cost.latency_s
        self.bytes_per_s = cost.bytes_per_s
        self._mail = mail
        self._through_at: dict[int, Any] = {}
        """For each message on the wire, the value of `_served` at which it has passed."""
        self._served: Any = 0
        """Bytes that each message on the wire got since the wire last fell idle."""
        self._served_at_s: Any = 0
        self._alarm = simpy.Event(clock)
        self._alarm_s: Any = 0
        self._joined_since_alarm = False
        if self.bytes_per_s is not None:
            self._server = clock.process(self._serve())

    def carry(self, message: int, nbytes: Any, now_s: Any) -> None:
        """Take a message now."""
        if self.bytes_per_s is None or not nbytes:
            self._mail.arrives(message, now_s + self.latency_s)
        elif not self._through_at:
            self._through_at[message] = nbytes
            self._served, self._served_at_s = 0, now_s
            self._joined_since_alarm = False
            self._alarm_s = now_s + nbytes / self.bytes_per_s
            self.clock.set_for(self._alarm, self._alarm_s)
        else:
            self._advance(now_s)
            self._through_at[message] = through_at = self._served + nbytes
            self._joined_since_alarm = True
            if now_s + self._time_until(through_at) < self._alarm_s:
                self._alarm_s = now_s
                self._server.interrupt()

    def _serve(self) -> Generator[simpy.Event, Any, None]:
        clock, on_wire = self.clock, self._through_at
        while True:
            try:
                yield self._alarm
            except simpy.Interrupt:
                self._advance(clock.now)
            else:
                arrival_s = clock.now + self.latency_s
                for message in self._passed():
                    del on_wire[message]
                    self._mail.arrives(message, arrival_s)
            self._alarm = simpy.Event(clock)
            if on_wire:
                self._joined_since_alarm = False
                self._alarm_s = clock.now + self._time_until(min(on_wire.values()))
                clock.set_for(self._alarm, self._alarm_s)

    def _passed(self) -> list[int]:
        if self._joined_since_alarm:
            self._advance(self.clock.now)
        elif len(self._through_at) == 1:
            return list(self._through_at)
        else:
            # Exactly those the alarm was set for, free of the rounding that sharing brings.
            self._served, self._served_at_s = min(self._through_at.values()), self.clock.now
        return [message for message, amount in self._through_at.items() if amount <= self._served]

    def _advance(self, now_s: Any) -> None:
        self._served += (now_s - self._served_at_s) * self.bytes_per_s / len(self._through_at)
        self._served_at_s = now_s

    def _time_until(self, amount: Any) -> Any:
        return (amount - self._served) * len(self._through_at) / self.bytes_per_s


class IdealLink:
    """A link that every message has to itself."""

    def __init__(self, cost: LinkCost, mail: Mail) -> None:
        self._cost = cost
        self._mail = mail

    def carry(self, message: int, nbytes: Any, now_s: Any) -> None:
        """Take a message now."""
        self._mail.arrives(message, now_s + self._cost.transfer_s(nbytes))


class SharedLink:
    """A link over wires that carry other traffic too; the arrival of a message alone there is promised."""

    def __init__(self, network: Network, stream: Stream, mail: Mail) -> None:
        self._network = network
        self._stream = stream
        self._latency_s = stream.flow.latency_s
        self._mail = mail

    def carry(self, message: int, nbytes: Any, now_s: Any) -> None:
        """Take a message now."""
        self._network.start(self._stream, nbytes, now_s, self, message, self._latency_s)

    def promise(self, tag: int, time_s: Any) -> None:
        """Take note of an arrival that may still be taken back."""
        self._mail.promise(tag, time_s)

    def take_back(self, tag: int) -> int:
        """Let all wait on that had expected the message."""
        self._mail.take_back(tag)
        return tag

    def deliver(self, tag: int, time_s: Any) -> None:
        """Take note of an arrival."""
        self._mail.arrives(tag, time_s)


class Mail:
    """All messages of one replica, as columns: when each was sent and has arrived.

    Parameters
    ----------
    clock : Clock
        The simulation's.
    links : list
        Each the cost of a link of its own, or a function that makes one for this mail.
    route : list of int
        Link of each message.
    nbytes : list
        Size of each message.
    """

    def __init__(
        self,
        clock: Clock,
        links: Sequence[LinkCost | Callable[[Mail], Carrier]],
        route: list[int],
        nbytes: list[Any],
    ) -> None:
        self.clock = clock
        self.links: list[Carrier] = [
            RankLink(clock, link, self) if isinstance(link, LinkCost) else link(self) for link in links
        ]
        self.route = route
        self.nbytes = nbytes
        self.sent_s: list[Any] = [None] * len(route)
        self.arrived_s: list[Any] = [None] * len(route)
        """Known, and possibly still to come, once the whole message has left the wire."""
        self._waiting: dict[int, list[Waiter]] = {}
        self._expecting: list[list[Waiter]] = [[] for _ in links]
        """For each link, who waits for its last message if that was promised."""
        self._promised: list[int | None] = [None] * len(links)
        self._met: set[int] = set()

    def send(self, message: int, now_s: Any) -> None:
        """Put a message on its link now."""
        self.sent_s[message] = now_s
        self.links[self.route[message]].carry(message, self.nbytes[message], now_s)

    def meet(self, message: int, now_s: Any) -> None:
        """Reach a blocking transfer from one side; the second side to reach it sends."""
        if message in self._met:
            self.send(message, now_s)
        self._met.add(message)

    def after(self, message: int, then_s: Any = 0) -> simpy.Event:
        """Event `then_s` after the arrival of a message that is still to come; to be yielded at once."""
        event = simpy.Event(self.clock)
        arrived_s = self.arrived_s[message]
        if arrived_s is None:
            self._waiting.setdefault(message, []).append((event, then_s))
            return event
        route = self.route[message]
        if self._promised[route] == message:
            self._expecting[route].append((event, then_s))
        return self.clock.set_for(event, arrived_s + then_s)

    def arrives(self, message: int, time_s: Any) -> None:
        """Fix the time of an arrival, now or later; it costs no event where nobody waits yet."""
        self.arrived_s[message] = time_s
        for event, then_s in self._waiting.pop(message, ()):
            self.clock.set_for(event, time_s + then_s)

    def promise(self, message: int, time_s: Any) -> None:
        """Do the same for the last message on a link, until the next one, with a time to be taken back."""
        route = self.route[message]
        self.arrived_s[message] = time_s
        self._promised[route] = message
        self._expecting[route] = waiters = self._waiting.pop(message, [])
        for event, then_s in waiters:
            self.clock.set_for(event, time_s + then_s)

    def take_back(self, message: int) -> None:
        """Let those wait again who wait for a message that was promised."""
        route = self.route[message]
        self.arrived_s[message] = self._promised[route] = None
        put_off = self.clock.put_off
        self._waiting[message] = [(put_off(event), then_s) for event, then_s in self._expecting[route]]
