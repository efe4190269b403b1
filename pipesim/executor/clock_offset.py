"""How far the clocks of two processes are apart, and how sure that is."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

_NUM_EXCHANGES = 20


@dataclass(frozen=True, slots=True)
class ClockReading:
    """Offset of this process's clock from process 0's, and the bound of its error, in nanoseconds."""

    offset_ns: int
    bound_ns: int


def read_clock(process: int, num_processes: int, group: Any) -> ClockReading:
    """Estimate the offset to process 0 from the fastest of some exchanges of the time, as NTP does.

    All processes call this together; process 0 answers one after the other. Half the round trip bounds the
    error, whatever share of it each way takes.
    """
    if process == 0:
        for other in range(1, num_processes):
            for _ in range(_NUM_EXCHANGES):
                dist.recv(torch.empty(1, dtype=torch.int64), other, group=group)
                dist.send(torch.tensor([time.perf_counter_ns()]), other, group=group)
        return ClockReading(0, 0)
    best: ClockReading | None = None
    for _ in range(_NUM_EXCHANGES):
        there = torch.empty(1, dtype=torch.int64)
        asked = time.perf_counter_ns()
        dist.send(torch.zeros(1, dtype=torch.int64), 0, group=group)
        dist.recv(there, 0, group=group)
        answered = time.perf_counter_ns()
        bound = (answered - asked + 1) // 2
        if best is None or bound < best.bound_ns:
            best = ClockReading(asked + bound - int(there), bound)
    assert best is not None
    return best


def host_name() -> str:
    """Name the running system: processes with the same name share one monotonic clock."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        import platform

        return platform.node()
