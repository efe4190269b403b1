"""Where computations run and which clock they are timed on: a CPU, a GPU, or an emulated device."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from pipesim.executor.instructions import Instruction, Unit
from pipesim.ir import NONE

Nanoseconds = npt.NDArray[np.int64]
COLUMNS = ("start", "end", "own", "wait_start", "wait_end", "cpu")
"""Of every row: its span, what itself took, the wait for its input, CPU time of the rank's thread."""

UNDISTURBED_CPU_SHARE = 0.97
"""Least share of a step's compute time that the rank's thread must have had a core for."""
UNDISTURBED_LATENESS_SHARE = 0.1
"""Most that the emulated device may wake up too late, in its shortest computations, or a call that sends may
be kept from its core."""
LEAST_LATENESS_NS = 300_000
"""What a system that does nothing else wakes up too late."""
STANDING_NS_PER_BYTE = 1
"""A call that sends may stand this much longer for each byte of a message: it waits while gloo's own thread
moves one on the same connection."""
ARRIVED_BEFORE_NS = 200_000
"""A wait shorter than this found its message there: gloo takes 10 to 170 us to hand it over."""


class Device(Protocol):
    """Runs and times the instructions of a rank; columns are in nanoseconds of `time.perf_counter_ns`."""

    torch_device: torch.device

    def begin_step(self) -> None:
        """Clear the record."""

    def before_wait(self, instruction: Instruction) -> None:
        """Note that the rank begins to wait for its input."""

    def after_wait(self, instruction: Instruction) -> None:
        """Note that the input is there."""

    def begin_unit(self, unit: Unit) -> None:
        """Note that all input of a computation (or an overlapped pair) is there."""

    def before(self, instruction: Instruction) -> None:
        """Note the start of a row."""

    def after(self, instruction: Instruction) -> None:
        """Note the end of a row; on the emulated device a computation's time passes here."""

    def end_unit(self, unit: Unit) -> None:
        """Note the end of a computation (or an overlapped pair)."""

    def end_step(self) -> tuple[dict[str, Nanoseconds], bool]:
        """Give the record of the step, and whether something else on the machine disturbed it."""


class UntimedDevice:
    """A CPU without a record."""

    def __init__(self, num_rows: int) -> None:
        self.torch_device = torch.device("cpu")
        self._num_rows = num_rows

    def begin_step(self) -> None:
        """Do nothing; so do all others but the last."""

    def before_wait(self, instruction: Instruction) -> None: ...  # noqa: D102
    def after_wait(self, instruction: Instruction) -> None: ...  # noqa: D102
    def begin_unit(self, unit: Unit) -> None: ...  # noqa: D102
    def before(self, instruction: Instruction) -> None: ...  # noqa: D102
    def after(self, instruction: Instruction) -> None: ...  # noqa: D102
    def end_unit(self, unit: Unit) -> None: ...  # noqa: D102

    def end_step(self) -> tuple[dict[str, Nanoseconds], bool]:
        """Give columns of zeros."""
        return {name: np.zeros(self._num_rows, np.int64) for name in COLUMNS}, False


class CpuDevice:
    """A CPU, timed by its monotonic clock.

    Parameters
    ----------
    num_rows : int
        Rows of the rank's program.
    """

    def __init__(self, num_rows: int) -> None:
        self.torch_device = torch.device("cpu")
        self._num_rows = num_rows
        self.begin_step()

    def begin_step(self) -> None:
        """Clear the record."""
        zeros = [0] * self._num_rows
        self._record = {name: zeros.copy() for name in COLUMNS}
        self._start, self._end, self._own = (self._record[name] for name in ("start", "end", "own"))
        self._cpu = self._record["cpu"]
        self._wait_start, self._wait_end = self._record["wait_start"], self._record["wait_end"]
        self._is_compute = [False] * self._num_rows

    def before_wait(self, instruction: Instruction) -> None:
        """Note the time."""
        self._wait_start[instruction.row] = time.perf_counter_ns()

    def after_wait(self, instruction: Instruction) -> None:
        """Note the time."""
        self._wait_end[instruction.row] = time.perf_counter_ns()

    def begin_unit(self, unit: Unit) -> None:
        """Nothing to note: the row's own start says it."""

    def before(self, instruction: Instruction) -> None:
        """Note time and CPU time."""
        self._cpu[instruction.row] = -time.thread_time_ns()
        self._start[instruction.row] = time.perf_counter_ns()

    def after(self, instruction: Instruction) -> None:
        """Note time and CPU time."""
        row = instruction.row
        now = self._end[row] = time.perf_counter_ns()
        self._cpu[row] += time.thread_time_ns()
        self._own[row] = now - self._start[row]

    def end_unit(self, unit: Unit) -> None:
        """Give both parts of an overlapped pair the pair's span."""
        for part in unit:
            self._is_compute[part.row] = True
        if len(unit) == 2:
            first, second = unit[0].row, unit[1].row
            self._start[second], self._end[first] = self._start[first], self._end[second]

    def end_step(self) -> tuple[dict[str, Nanoseconds], bool]:
        """Give the record; disturbed if the thread was kept from its core."""
        columns = {name: np.array(values, np.int64) for name, values in self._record.items()}
        compute = np.array(self._is_compute)
        share = columns["cpu"][compute].sum() / max(1, columns["own"][compute].sum())
        return columns, bool(share < UNDISTURBED_CPU_SHARE)


def undisturbed_lateness_ns(row_ns: Sequence[int]) -> int:
    """Most that a process may wake up too late of a step whose rows sleep so long."""
    shortest = min((lasts for lasts in row_ns if lasts), default=0)
    return max(LEAST_LATENESS_NS, round(UNDISTURBED_LATENESS_SHARE * shortest))


class EmulatedDevice(CpuDevice):
    """Sleeps in place of computing, by a clock of its own.

    As on a GPU whose host runs ahead, a computation starts where the one before it ended if its input was
    there by then, else when the input came; the process sleeps to the absolute end.

    Parameters
    ----------
    row_s : sequence of float
        Seconds of each row of the rank's program; both rows of an overlapped pair hold the pair's.
    message_bytes : int
        Largest message of the run.
    """

    def __init__(self, row_s: Sequence[float], message_bytes: int = 0) -> None:
        self._row_ns = [round(seconds * 1e9) for seconds in row_s]
        self._may_be_late_ns = undisturbed_lateness_ns(self._row_ns)
        self._may_stand_ns = self._may_be_late_ns + STANDING_NS_PER_BYTE * message_bytes
        super().__init__(len(row_s))

    def begin_step(self) -> None:
        """Clear the record; the device is free."""
        super().begin_step()
        self._free_at = 0
        self._latest_wake = 0
        self._is_transfer = np.zeros(self._num_rows, np.bool_)

    def begin_unit(self, unit: Unit) -> None:
        """Fix when the computation starts."""
        waited = max(self._wait_end[part.row] - self._wait_start[part.row] for part in unit)
        if not self._free_at or waited > ARRIVED_BEFORE_NS:
            self._free_at = time.perf_counter_ns()

    def before(self, instruction: Instruction) -> None:
        """Note the time of a transfer or collective; a computation has the device's."""
        super().before(instruction)

    def end_unit(self, unit: Unit) -> None:
        """Let the computation's time pass."""
        start, duration = self._free_at, self._row_ns[unit[0].row]
        self._free_at = end = start + duration
        self._sleep_until(end)
        for part in unit:
            self._start[part.row], self._end[part.row], self._own[part.row] = start, end, duration

    def after(self, instruction: Instruction) -> None:
        """Note the end; an optimizer takes its time here, after the others have come."""
        row = instruction.row
        self._is_transfer[row] = instruction.peer != NONE
        if instruction.microbatch < 0 and self._row_ns[row]:
            self._sleep_until(self._start[row] + self._row_ns[row])
        super().after(instruction)

    def _sleep_until(self, deadline: int) -> None:
        remaining = deadline - time.perf_counter_ns()
        if remaining > 0:
            time.sleep(remaining * 1e-9)
        self._latest_wake = max(self._latest_wake, time.perf_counter_ns() - deadline)

    def end_step(self) -> tuple[dict[str, Nanoseconds], bool]:
        """Give the record; disturbed if the process woke up late, or stood still in a transfer's call."""
        columns = {name: np.array(values, np.int64) for name, values in self._record.items()}
        standing = (columns["own"] - columns["cpu"])[self._is_transfer].max(initial=0)
        return columns, bool(self._latest_wake > self._may_be_late_ns or standing > self._may_stand_ns)


class SleepingDevice(CpuDevice):
    """Sleeps until each computation has taken its time, from when the host came to it.

    Parameters
    ----------
    row_s : sequence of float
        Seconds of each row of the rank's program.
    """

    def __init__(self, row_s: Sequence[float]) -> None:
        self._row_ns = [round(seconds * 1e9) for seconds in row_s]
        self._may_be_late_ns = undisturbed_lateness_ns(self._row_ns)
        super().__init__(len(row_s))

    def begin_step(self) -> None:
        """Clear the record."""
        super().begin_step()
        self._latest_wake = 0

    def after(self, instruction: Instruction) -> None:
        """Let the rest of the row's time pass and note the end."""
        deadline = self._start[instruction.row] + self._row_ns[instruction.row]
        remaining = deadline - time.perf_counter_ns()
        if remaining > 0:
            time.sleep(remaining * 1e-9)
        if self._row_ns[instruction.row]:
            self._latest_wake = max(self._latest_wake, time.perf_counter_ns() - deadline)
        super().after(instruction)

    def end_step(self) -> tuple[dict[str, Nanoseconds], bool]:
        """Give the record; disturbed if the process woke up late."""
        columns = {name: np.array(values, np.int64) for name, values in self._record.items()}
        return columns, bool(self._latest_wake > self._may_be_late_ns)
