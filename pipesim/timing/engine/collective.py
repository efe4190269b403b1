"""Collectives: nobody leaves before the last has come."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import simpy

from pipesim.timing.engine.pace import Pace
from pipesim.timing.engine.shared_flows import Network, Stream
from pipesim.timing.engine.simulated_clock import Clock


@dataclass(frozen=True, slots=True)
class Transfer:
    """What a collective puts on shared wires, after a latency that occupies nothing."""

    network: Network
    stream: Stream
    latency_s: Any
    nbytes: Any


class RunningCollective:
    """A process that starts when its last member arrives and ends for all of them at one time.

    It may have several rounds, one after the other, each with arrivals of its own.

    Parameters
    ----------
    clock : Clock
        The simulation's.
    num_members : int
        How many must arrive.
    duration_s : number
        What a round takes beside its transfers, before them.
    transfers : sequence of Transfer
        They follow each other.
    num_rounds : int
        At least one.
    paces : sequence of Pace
        Of the GPUs that compute beside it.
    """

    def __init__(
        self,
        clock: Clock,
        num_members: int,
        duration_s: Any,
        transfers: Sequence[Transfer] = (),
        *,
        num_rounds: int = 1,
        paces: Sequence[Pace] = (),
    ) -> None:
        self.duration_s = duration_s
        self.transfers = transfers
        self.paces = paces
        self.spans: list[tuple[Any, Any]] = []
        """Start and end of each round that is over."""
        self.started_s: Any = None
        self.num_rounds = num_rounds
        self._num_missing = [num_members] * num_rounds
        self._awaited: int | None = None
        self._all_here = simpy.Event(clock)
        self.ended = clock.process(self._run(clock))

    @property
    def ended_s(self) -> Any:
        """When the last of its rounds had ended."""
        return self.spans[-1][1]

    def join(self, number: int = 0) -> simpy.Event:
        """Arrive as a member for one of the rounds; the event returned happens when all are over."""
        self._num_missing[number] -= 1
        if self._awaited == number and self._num_missing[number] == 0:
            self._all_here.succeed()
        return self.ended

    def _run(self, clock: Clock) -> Generator[simpy.Event, Any, None]:
        running = False
        for number, num_missing in enumerate(self._num_missing):
            if num_missing:
                if running:
                    self._stop()
                running, self._awaited, self._all_here = False, number, simpy.Event(clock)
                yield self._all_here
            began_s = clock.now
            if running:
                for pace in self.paces:
                    pace.follow_on()
            else:
                for pace in self.paces:
                    pace.slow_down()
            running = True
            if self.started_s is None:
                self.started_s = began_s
            if self.duration_s:
                yield clock.timeout(self.duration_s)
            for transfer in self.transfers:
                yield transfer.network.transfer(transfer.stream, transfer.nbytes, transfer.latency_s)
            self.spans.append((began_s, clock.now))
        self._stop()

    def _stop(self) -> None:
        for pace in self.paces:
            pace.speed_up()


class RunningExchange:
    """What a computation moves among the replicas, in parts spread evenly over it.

    On an idle network it is through before the computation is, which lasts as long as its exposed parts make
    it. It begins when the last member has.

    Parameters
    ----------
    clock : Clock
        The simulation's.
    num_members : int
        How many must arrive.
    num_parts : int
        As many parts of like size.
    duration_s : number
        What it takes beside its transfers.
    transfers : sequence of Transfer
        They follow each other.
    """

    def __init__(
        self, clock: Clock, num_members: int, num_parts: int, duration_s: Any, transfers: Sequence[Transfer]
    ) -> None:
        self.duration_s = duration_s
        self.transfers = transfers
        self._clock = clock
        self._num_missing = num_members
        self._num_parts = num_parts
        self._beside_s: Any = 0
        self._ended = simpy.Event(clock)

    def join(self, beside_s: Any) -> simpy.Event:
        """Arrive as a member that computes for `beside_s`; the event returned happens at the end."""
        self._beside_s = max(self._beside_s, beside_s)
        self._num_missing -= 1
        if self._num_missing == 0:
            self._clock.process(self._run())
        return self._ended

    def _run(self) -> Generator[simpy.Event, Any, None]:
        clock, num_parts = self._clock, self._num_parts
        began_s, alone_s = clock.now, self.duration_s / num_parts if self.duration_s else 0
        for part in range(num_parts):
            early_s = began_s + self._beside_s * part / num_parts - clock.now
            if early_s > 0 or alone_s:
                yield clock.timeout(max(0, early_s) + alone_s)
            for transfer in self.transfers:
                yield transfer.network.transfer(
                    transfer.stream, transfer.nbytes / num_parts, transfer.latency_s / num_parts
                )
        self._ended.succeed()


class RunningTokens:
    """What a computation exchanges with experts, in parts: of each, some travels beside the computing.

    What is left travels when all members have computed their part, and all go on when it is there.

    Parameters
    ----------
    clock : Clock
        The simulation's.
    num_members : int
        How many compute it.
    num_parts : int
        As many parts of like size.
    shown_s : number
        Of the computation, what is not computing.
    hidden, shown : Transfer, optional
        Of a part; without shared wires its times are the computation's own.
    """

    def __init__(
        self,
        clock: Clock,
        num_members: int,
        num_parts: int,
        shown_s: Any,
        hidden: Transfer | None,
        shown: Transfer | None,
    ) -> None:
        self.num_parts = num_parts
        self.shown_s = shown_s
        self._clock = clock
        self._transfers = hidden, shown
        self._num_to_begin = [num_members] * num_parts
        self._num_to_compute = [num_members] * num_parts
        self._hidden_ended = [simpy.Event(clock) for _ in range(num_parts)]
        self._ended = [simpy.Event(clock) for _ in range(num_parts)]

    def begin(self, part: int) -> None:
        """Begin to compute a part, as a member."""
        self._num_to_begin[part] -= 1
        if self._num_to_begin[part] == 0:
            if self._transfers[0] is None:
                self._hidden_ended[part].succeed()
            else:
                _move(self._transfers[0], self._hidden_ended[part])

    def computed(self, part: int) -> simpy.Event:
        """Have computed a part, as a member; the event returned happens when its tokens are there."""
        self._num_to_compute[part] -= 1
        if self._num_to_compute[part] == 0:
            _after(self._hidden_ended[part], partial(self._show, part))
        return self._ended[part]

    def _show(self, part: int, _: object) -> None:
        """Let travel what nothing hides."""
        ended = self._ended[part]
        if self._transfers[1] is not None:
            _move(self._transfers[1], ended)
        elif self._transfers[0] is None and self.shown_s:
            _after(self._clock.timeout(self.shown_s / self.num_parts), lambda _: ended.succeed())
        else:
            ended.succeed()


def _move(transfer: Transfer, ended: simpy.Event) -> None:
    moved = transfer.network.transfer(transfer.stream, transfer.nbytes, transfer.latency_s)
    _after(moved, lambda _: ended.succeed())


def _after(event: simpy.Event, callback: Callable[[Any], Any]) -> None:
    """Call when an event happens, at once if it has: a process would cost two events more."""
    if event.callbacks is None:
        callback(event)
    else:
        event.callbacks.append(callback)


class GradientSync:
    """Synchronisation of one stage's gradients: in buckets one after the other, then of its new weights.

    Parameters
    ----------
    buckets : RunningCollective
        A round for each.
    gather : RunningCollective, optional
        What follows the last of them.
    overlapped : bool
        The buckets are joined during the stage's last backward, not at the end of the step.
    """

    def __init__(
        self, buckets: RunningCollective, gather: RunningCollective | None, *, overlapped: bool
    ) -> None:
        self.buckets = buckets
        self.overlapped = overlapped
        self._gather = gather

    @property
    def started_s(self) -> Any:
        """When its first bucket started."""
        return self.buckets.started_s

    @property
    def ended_s(self) -> Any:
        """When all of it had ended."""
        return (self.buckets if self._gather is None else self._gather).ended_s

    def idle_before(self, time_s: Any) -> Any:
        """How long, from its start to `time_s`, none of its collectives ran: something was still to come."""
        spans = self.buckets.spans if self._gather is None else self.buckets.spans + self._gather.spans

        def lasted(start_s: Any, end_s: Any) -> Any:
            return max(0, min(end_s, time_s) - start_s)

        return lasted(self.started_s, self.ended_s) - sum(lasted(*span) for span in spans)

    def finish(self) -> Generator[simpy.Event, Any, None]:
        """Wait at the end of the step, as a member, until it is all done."""
        if not self.overlapped:
            self.buckets.join()
        yield self.buckets.ended
        if self._gather is not None:
            yield self._gather.join()


@dataclass(frozen=True, slots=True)
class StepEnd:
    """What ends a step, for all ranks of all replicas.

    Parameters
    ----------
    reductions : dict of int to GradientSync
        Gradient synchronisation of each stage.
    embedding : RunningCollective
        All-reduce of a tied embedding, of the ranks that have it.
    optimizer_barrier : RunningCollective
        The optimizer waits for the norm of every gradient.
    """

    reductions: dict[int, GradientSync]
    embedding: RunningCollective
    optimizer_barrier: RunningCollective
