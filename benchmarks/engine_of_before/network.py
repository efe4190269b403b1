"""Wires that several kinds of traffic share: every flow gets its max-min fair share of them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from heapq import heappop, heappush
from typing import Any, Literal

import simpy

from engine_of_before.clock import Clock
from engine_of_before.fabrics.fabric import Flow
from engine_of_before.sharing import fair_rates

NetworkMode = Literal["fair", "fifo", "ideal"]
Arrival = Callable[[Any], object]
"""Called with the time, once the last byte is there."""


class Stream:
    """All transfers that load the same wires alike; those under way at one time get equal rates.

    How many there are changes no more than the share of each, so an overload costs nothing extra: the network
    works with streams, and a stream keeps its transfers in the order in which they will be through.
    """

    __slots__ = ("alarm_s", "flow", "rate", "served", "served_at_s", "through")

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.rate: Any = 0
        """Bytes per second of each transfer under way."""
        self.served: Any = 0
        """Bytes that a transfer got that was there since the stream last fell idle."""
        self.served_at_s: Any = 0
        self.through: list[tuple[Any, int, Arrival]] = []
        """Heap: the value of `served` at which each transfer is through."""
        self.alarm_s: Any = None

    def advance(self, now_s: Any) -> None:
        """Bring `served` up to now."""
        self.served += self.rate * (now_s - self.served_at_s)
        self.served_at_s = now_s

    def next_end_s(self) -> Any:
        """When the first of its transfers will be through at the present rate."""
        return self.served_at_s + max(0, self.through[0][0] - self.served) / self.rate


class Network:
    """A process that serves flows over shared wires.

    A transfer first waits out its latency, which occupies nothing. Then its flow is under way until its
    bytes are through: in ``fair`` mode at its max-min fair rate, worked out anew whenever a flow starts or
    ends, and only for the flows that share wires with it, directly or by way of others; in ``fifo`` mode at
    its full rate, once no flow that came earlier occupies one of its wires.

    Parameters
    ----------
    clock : Clock
        The simulation's.
    bytes_per_s : sequence
        Capacity of each wire.
    mode : {"fair", "fifo"}
        How wires are shared.
    """

    def __init__(self, clock: Clock, bytes_per_s: Sequence[Any], mode: Literal["fair", "fifo"]) -> None:
        self.clock = clock
        self.bytes_per_s = bytes_per_s
        self.num_solves = 0
        """How often rates were worked out; for benchmarks."""
        self._fair = mode == "fair"
        self._active: list[dict[Stream, None]] = [{} for _ in bytes_per_s]
        self._free_at_s: list[Any] = [0] * len(bytes_per_s)
        self._events: list[tuple[Any, int, Stream, Any, Arrival | None]] = []
        """Heap of what comes next: a transfer's latency has passed (it has bytes), or a stream may have one
        through (it has none)."""
        self._count = 0
        self._alarm = simpy.Event(clock)
        self._alarm_s: Any = None
        self._server = clock.process(self._serve())

    def start(self, stream: Stream, nbytes: Any, now_s: Any, arrival: Arrival) -> None:
        """Take a transfer now; a stream belongs to one network only."""
        self._push(now_s + stream.flow.latency_s, stream, nbytes, arrival)
        first_s = self._events[0][0]
        if self._alarm_s is None:
            self._alarm_s = first_s
            self.clock.set_for(self._alarm, first_s)
        elif first_s < self._alarm_s:
            # To the end of the queue of that time: transfers that start together are shared out together.
            self._alarm_s = first_s
            self._server.interrupt()

    def transfer(self, stream: Stream, nbytes: Any) -> simpy.Event:
        """Start a transfer now; the event returned happens at its end."""
        event = simpy.Event(self.clock)
        self.start(stream, nbytes, self.clock.now, lambda time_s: self.clock.set_for(event, time_s))
        return event

    def _push(self, time_s: Any, stream: Stream, nbytes: Any, arrival: Arrival | None) -> None:
        self._count += 1
        heappush(self._events, (time_s, self._count, stream, nbytes, arrival))

    def _serve(self) -> Generator[simpy.Event, Any, None]:
        clock, events = self.clock, self._events
        while True:
            try:
                yield self._alarm
            except simpy.Interrupt:
                pass
            else:
                now_s = clock.now
                changed: dict[Stream, None] = {}
                while events and events[0][0] <= now_s:
                    _, _, stream, nbytes, arrival = heappop(events)
                    if arrival is None:
                        self._end(stream, now_s, changed)
                    elif not nbytes:
                        arrival(now_s)
                    elif self._fair:
                        self._join(stream, nbytes, now_s, arrival)
                        changed[stream] = None
                    else:
                        self._queue(stream, nbytes, now_s, arrival)
                if changed:
                    self._share(changed, now_s)
            self._alarm = simpy.Event(clock)
            self._alarm_s = None
            if events:
                self._alarm_s = events[0][0]
                clock.set_for(self._alarm, self._alarm_s)

    def _join(self, stream: Stream, nbytes: Any, now_s: Any, arrival: Arrival) -> None:
        if stream.through:
            stream.advance(now_s)
        else:
            stream.served, stream.served_at_s, stream.rate = 0, now_s, 0
            for wire, _ in stream.flow.loads:
                self._active[wire][stream] = None
        self._count += 1
        heappush(stream.through, (stream.served + nbytes, self._count, arrival))

    def _end(self, stream: Stream, now_s: Any, changed: dict[Stream, None]) -> None:
        """Deliver what is through; an alarm may come early, or for a stream that has none any more."""
        if not stream.through or stream.alarm_s != now_s:
            return
        stream.alarm_s = None
        if stream.next_end_s() > now_s:
            self._set_alarm(stream)
            return
        # Free of the rounding that sharing brings: at least the one the alarm was set for is through.
        stream.served, stream.served_at_s = stream.through[0][0], now_s
        while stream.through and stream.through[0][0] <= stream.served:
            heappop(stream.through)[2](now_s)
        changed[stream] = None
        if not stream.through:
            for wire, _ in stream.flow.loads:
                del self._active[wire][stream]

    def _set_alarm(self, stream: Stream) -> None:
        """Have the stream looked at when its first transfer may be through."""
        end_s = stream.next_end_s()
        if stream.alarm_s is None or end_s < stream.alarm_s:
            stream.alarm_s = end_s
            self._push(end_s, stream, None, None)

    def _share(self, changed: Iterable[Stream], now_s: Any) -> None:
        self.num_solves += 1
        concerned = self._connected(changed)
        flows = [(stream.flow, len(stream.through)) for stream in concerned]
        for stream, rate in zip(concerned, fair_rates(flows, self.bytes_per_s), strict=True):
            if rate != stream.rate:
                stream.advance(now_s)
                stream.rate = rate
            self._set_alarm(stream)

    def _connected(self, changed: Iterable[Stream]) -> list[Stream]:
        """Streams under way that share wires with the changed ones, directly or by way of others."""
        seen_wires: set[int] = set()
        found: dict[Stream, None] = {}
        todo = list(changed)
        while todo:
            stream = todo.pop()
            if stream.through:
                found[stream] = None
            for wire, _ in stream.flow.loads:
                if wire not in seen_wires:
                    seen_wires.add(wire)
                    todo += [other for other in self._active[wire] if other not in found]
        return list(found)

    def _queue(self, stream: Stream, nbytes: Any, now_s: Any, arrival: Arrival) -> None:
        """Fix the end of a transfer that waits until all its wires are free."""
        wires = [wire for wire, _ in stream.flow.loads]
        end_s = max(now_s, *(self._free_at_s[wire] for wire in wires)) + nbytes / stream.flow.bytes_per_s
        for wire in wires:
            self._free_at_s[wire] = end_s
        arrival(end_s)
