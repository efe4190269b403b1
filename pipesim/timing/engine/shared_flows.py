"""Wires that several kinds of traffic share: every flow gets its max-min fair share of them."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from heapq import heappop, heappush
from math import inf
from typing import Any, Literal, Protocol

import simpy

from pipesim.costs.network.fabric import Flow
from pipesim.timing.engine.sharing import fair_rates, is_full_rate
from pipesim.timing.engine.simulated_clock import Clock

NetworkMode = Literal["fair", "fifo", "ideal"]
_MOST_RATES_KEPT = 4096


class Receiver(Protocol):
    """Who is told when transfers are through, each of which has a tag."""

    def promise(self, tag: Any, time_s: Any) -> None:
        """Take note of an end that may still be taken back."""

    def take_back(self, tag: Any) -> Any:
        """Forget the end that was promised; returns the tag to deliver under."""

    def deliver(self, tag: Any, time_s: Any) -> None:
        """Take note of an end, now or later, that is certain."""


class Stream:
    """All transfers that load the same wires alike; those under way at one time get equal rates.

    How many there are changes no more than the share of each, so an overload costs nothing extra: the network
    works with streams, and a stream keeps its transfers in the order in which they will be through.

    Parameters
    ----------
    flow : Flow
        What each transfer asks of the wires.
    promises : bool
        Whether a transfer alone on its wires has its own rate to the last digit, whatever else starts.
    """

    __slots__ = (
        "alarm_s",
        "bytes_per_s",
        "ends_s",
        "flow",
        "joins_s",
        "nbytes",
        "num_served",
        "promises",
        "rate",
        "receiver",
        "served",
        "served_at_s",
        "tag",
        "through",
        "wires",
    )

    def __init__(self, flow: Flow, *, promises: bool) -> None:
        self.flow = flow
        self.bytes_per_s = flow.bytes_per_s
        self.wires = tuple(wire for wire, _ in flow.loads)
        self.promises = promises
        self.joins_s: Any = None
        """When its promised transfer is under way, None if the server had it; with size, receiver and tag."""
        self.ends_s: Any = None
        """When its promised transfer, or else the first that the server has, is through."""
        self.nbytes: Any = None
        self.receiver: Any = None
        self.tag: Any = None
        self.num_served = 0
        """Transfers that the server has, under way or with their latency still to pass."""
        self.rate: Any = 0
        """Bytes per second of each transfer under way."""
        self.served: Any = 0
        """Bytes that a transfer got that was there since the stream last fell idle."""
        self.served_at_s: Any = 0
        self.through: list[tuple[Any, int, Receiver, Any]] = []
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
    """Shared wires, and a process that serves the flows which meet on them.

    A transfer first waits out its latency, which occupies nothing. Then its flow is under way until its
    bytes are through: in ``fair`` mode at its max-min fair rate, worked out anew whenever a flow starts or
    ends, and only for the flows that share wires with it, directly or by way of others; in ``fifo`` mode at
    its full rate, once no flow that came earlier occupies one of its wires.

    Most transfers meet no other. In ``fair`` mode one that finds its wires free is promised its end and costs
    no event. If another one starts on these wires before that end, the promise is taken back and the server
    has both. That is exact: until then it was alone, and its fair rate its own.

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
        self._free_at_s: list[Any] = [0] * len(bytes_per_s)
        """For each wire, when what was promised on it ends, or infinity while the server has it. In ``fifo``
        mode, when what came so far ends."""
        self._promised: list[Any] = [None] * len(bytes_per_s)
        """For each wire, the stream that was last promised on it."""
        self._num_served = [0] * len(bytes_per_s)
        """For each wire, the streams of which the server has transfers."""
        self._active: list[dict[Stream, None]] = [{} for _ in bytes_per_s]
        self._events: list[tuple[Any, int, Stream, Any, Any, Any]] = []
        """Heap of what comes next: a transfer's latency has passed (it has bytes), or a stream may have one
        through (it has none)."""
        self._rates: dict[tuple[object, ...], list[Any]] = {}
        self._count = 0
        self._one_event = _OneEvent(clock)
        self._alarm = simpy.Event(clock)
        self._alarm_s: Any = None
        clock.process(self._serve())

    def stream(self, flow: Flow) -> Stream:
        """Open a stream on these wires."""
        return Stream(flow, promises=self._fair and is_full_rate(flow, self.bytes_per_s))

    def start(
        self, stream: Stream, nbytes: Any, now_s: Any, receiver: Receiver, tag: Any, latency_s: Any
    ) -> None:
        """Take a transfer now that is under way once `latency_s` has passed."""
        joins_s = now_s + latency_s
        if not nbytes:
            receiver.deliver(tag, joins_s)
            return
        if stream.promises:
            free_at_s = self._free_at_s
            for wire in stream.wires:
                if free_at_s[wire] > now_s:
                    break
            else:
                stream.joins_s, stream.nbytes, stream.receiver, stream.tag = joins_s, nbytes, receiver, tag
                stream.ends_s = ends_s = joins_s + nbytes / stream.bytes_per_s
                for wire in stream.wires:
                    free_at_s[wire] = ends_s
                    self._promised[wire] = stream
                receiver.promise(tag, ends_s)
                return
        if self._fair:
            for wire in stream.wires:
                if now_s < self._free_at_s[wire] != inf:
                    self._take_back(self._promised[wire], now_s)
            self._hold_wires(stream)
        self._push(joins_s, stream, nbytes, receiver, tag)
        self._set_alarm_for_next()

    def transfer(self, stream: Stream, nbytes: Any, latency_s: Any) -> simpy.Event:
        """Start a transfer now; the event returned happens at its end and is to be yielded at once."""
        event = simpy.Event(self.clock)
        self.start(stream, nbytes, self.clock.now, self._one_event, event, latency_s)
        return event

    def _take_back(self, stream: Stream, now_s: Any) -> None:
        """Give the server a transfer that was promised its end, as if it had had it all along."""
        receiver, tag = stream.receiver, stream.receiver.take_back(stream.tag)
        self._hold_wires(stream)
        if stream.joins_s is not None:
            if stream.joins_s > now_s:
                self._push(stream.joins_s, stream, stream.nbytes, receiver, tag)
                return
            stream.served, stream.served_at_s, stream.rate = 0, stream.joins_s, stream.bytes_per_s
        self._activate(stream)
        self._count += 1
        stream.through.append((stream.nbytes, self._count, receiver, tag))
        self._set_alarm(stream)

    def _promise_again(self, stream: Stream) -> None:
        """Promise the server's last transfer on some wires its end."""
        stream.nbytes, _, stream.receiver, stream.tag = stream.through.pop()
        stream.joins_s = stream.alarm_s = None
        stream.num_served = 0
        for wire in stream.wires:
            del self._active[wire][stream]
            self._num_served[wire] = 0
            self._free_at_s[wire] = stream.ends_s
            self._promised[wire] = stream
        stream.receiver.promise(stream.tag, stream.ends_s)

    def _activate(self, stream: Stream) -> None:
        for wire in stream.wires:
            self._active[wire][stream] = None

    def _hold_wires(self, stream: Stream) -> None:
        stream.num_served += 1
        if stream.num_served == 1:
            for wire in stream.wires:
                self._num_served[wire] += 1
                self._free_at_s[wire] = inf

    def _release_wires(self, stream: Stream, now_s: Any) -> None:
        stream.num_served -= 1
        if stream.num_served == 0:
            for wire in stream.wires:
                self._num_served[wire] -= 1
                if not self._num_served[wire]:
                    self._free_at_s[wire] = now_s

    def _push(self, time_s: Any, stream: Stream, nbytes: Any, receiver: Any, tag: Any) -> None:
        self._count += 1
        heappush(self._events, (time_s, self._count, stream, nbytes, receiver, tag))

    def _set_alarm_for_next(self) -> None:
        """Wake the server for the first of its events, behind all else that happens at that time so far."""
        first_s = self._events[0][0]
        if self._alarm_s is None or first_s < self._alarm_s:
            if self._alarm_s is not None:
                self._alarm = self.clock.put_off(self._alarm)
            self._alarm_s = first_s
            self.clock.set_for(self._alarm, first_s)

    def _serve(self) -> Generator[simpy.Event, Any, None]:
        clock, events = self.clock, self._events
        while True:
            yield self._alarm
            now_s = clock.now
            changed: dict[Stream, None] = {}
            while events and events[0][0] <= now_s:
                _, _, stream, nbytes, receiver, tag = heappop(events)
                if receiver is None:
                    self._end(stream, now_s, changed)
                elif self._fair:
                    self._join(stream, nbytes, now_s, receiver, tag)
                    changed[stream] = None
                else:
                    self._queue(stream, nbytes, now_s, receiver, tag)
            if changed:
                self._share(changed, now_s)
            self._alarm = simpy.Event(clock)
            self._alarm_s = None
            if events:
                self._set_alarm_for_next()

    def _join(self, stream: Stream, nbytes: Any, now_s: Any, receiver: Receiver, tag: Any) -> None:
        if stream.through:
            stream.advance(now_s)
        else:
            stream.served, stream.served_at_s, stream.rate = 0, now_s, 0
            self._activate(stream)
        self._count += 1
        heappush(stream.through, (stream.served + nbytes, self._count, receiver, tag))

    def _end(self, stream: Stream, now_s: Any, changed: dict[Stream, None]) -> None:
        """Deliver what is through; an alarm may come early, or for a stream that has none any more."""
        if stream.alarm_s != now_s:
            return
        stream.alarm_s = None
        if stream.ends_s > now_s:
            self._set_alarm(stream)
            return
        # Free of the rounding that sharing brings: at least the one the alarm was set for is through.
        stream.served, stream.served_at_s = stream.through[0][0], now_s
        while stream.through and stream.through[0][0] <= stream.served:
            _, _, receiver, tag = heappop(stream.through)
            self._release_wires(stream, now_s)
            receiver.deliver(tag, now_s)
        changed[stream] = None
        if not stream.through:
            for wire in stream.wires:
                del self._active[wire][stream]

    def _set_alarm(self, stream: Stream) -> None:
        """Have the stream looked at when its first transfer will be through."""
        stream.alarm_s = stream.ends_s
        self._push(stream.ends_s, stream, None, None, None)

    def _share(self, changed: Mapping[Stream, None], now_s: Any) -> None:
        concerned = self._connected(changed)
        if not concerned:
            return
        self.num_solves += 1
        for stream, rate in zip(concerned, self._rates_of(concerned), strict=True):
            if rate != stream.rate:
                stream.advance(now_s)
                stream.rate = rate
            elif stream not in changed:
                continue
            stream.ends_s = ends_s = stream.next_end_s()
            if stream.num_served == 1 == max(map(self._num_served.__getitem__, stream.wires)):
                self._promise_again(stream)
            elif stream.alarm_s is None or ends_s < stream.alarm_s:
                self._set_alarm(stream)

    def _rates_of(self, streams: Sequence[Stream]) -> list[Any]:
        """Fair rates, which are the same for the same streams under way as often in the same order."""
        if len(streams) == 1 and len(streams[0].through) == 1:
            return [streams[0].bytes_per_s]
        key = (*streams, *[len(stream.through) for stream in streams])
        rates = self._rates.get(key)
        if rates is None:
            if len(self._rates) == _MOST_RATES_KEPT:
                self._rates.clear()
            flows = [(stream.flow, len(stream.through)) for stream in streams]
            self._rates[key] = rates = fair_rates(flows, self.bytes_per_s)
        return rates

    def _connected(self, changed: Iterable[Stream]) -> list[Stream]:
        """Streams under way that share wires with the changed ones, directly or by way of others."""
        seen_wires: set[int] = set()
        found: dict[Stream, None] = {}
        todo = list(changed)
        while todo:
            stream = todo.pop()
            if stream.through:
                found[stream] = None
            for wire in stream.wires:
                if wire not in seen_wires:
                    seen_wires.add(wire)
                    active = self._active[wire]
                    # Of its own wires, most streams have most for themselves.
                    if active and (len(active) > 1 or not stream.through):
                        todo += [other for other in active if other not in found]
        return list(found)

    def _queue(self, stream: Stream, nbytes: Any, now_s: Any, receiver: Receiver, tag: Any) -> None:
        """Fix the end of a transfer that waits until all its wires are free."""
        free_at_s = self._free_at_s
        end_s = max(now_s, *(free_at_s[wire] for wire in stream.wires)) + nbytes / stream.bytes_per_s
        for wire in stream.wires:
            free_at_s[wire] = end_s
        receiver.deliver(tag, end_s)


class _OneEvent:
    """Receives transfers as events, which are their tags."""

    __slots__ = ("_clock",)

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def promise(self, tag: simpy.Event, time_s: Any) -> None:
        self._clock.set_for(tag, time_s)

    def take_back(self, tag: simpy.Event) -> simpy.Event:
        return self._clock.put_off(tag)

    def deliver(self, tag: simpy.Event, time_s: Any) -> None:
        self._clock.set_for(tag, time_s)
