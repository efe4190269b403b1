"""Collectives: nobody leaves before the last has come."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import simpy

from pipesim.engine.clock import Clock
from pipesim.engine.network import Network, Stream


@dataclass(frozen=True, slots=True)
class Transfer:
    """What a collective puts on shared wires, after a latency that occupies nothing."""

    network: Network
    stream: Stream
    latency_s: Any
    nbytes: Any


class Collective:
    """A process that starts when its last member arrives and ends for all of them at one time.

    That is `duration_s` later, and after the transfers, which follow each other.
    """

    def __init__(
        self, clock: Clock, num_members: int, duration_s: Any, transfers: Sequence[Transfer] = ()
    ) -> None:
        self.duration_s = duration_s
        self.transfers = transfers
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
        for transfer in self.transfers:
            yield clock.timeout(transfer.latency_s)
            yield transfer.network.transfer(transfer.stream, transfer.nbytes)
