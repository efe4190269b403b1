"""A device whose computations are queued on a stream, such as a GPU, timed by marks in that stream."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from pipesim.executor.device import COLUMNS, Nanoseconds
from pipesim.executor.instructions import Instruction, Unit
from pipesim.executor.streams import DeviceQueue, Tie, tie


class StreamDevice:
    """Computations on one stream.

    Before and after each step the stream's clock is tied to the host's, and times between are interpolated.

    Parameters
    ----------
    num_rows : int
        Rows of the rank's program.
    stream : DeviceQueue
        Where computations run.
    """

    def __init__(self, num_rows: int, stream: DeviceQueue) -> None:
        self.torch_device = stream.device
        self.stream = stream
        self.clock_bound_ns = 0
        """Most that a time of any step may be off the host's clock."""
        self._num_rows = num_rows
        self._marks: dict[str, dict[int, Any]] = {}
        self._cpu = [0] * num_rows
        self._pairs: list[tuple[int, int]] = []
        self._begin: Tie | None = None

    def begin_step(self) -> None:
        """Clear the record, and tie the clocks."""
        self._marks = {name: {} for name in ("start", "end", "wait_start", "wait_end")}
        self._cpu = [0] * self._num_rows
        self._pairs = []
        self._begin = tie(self.stream)

    def before_wait(self, instruction: Instruction) -> None:
        """Mark the stream."""
        self._marks["wait_start"][instruction.row] = self.stream.mark()

    def after_wait(self, instruction: Instruction) -> None:
        """Mark the stream, which waits for the input from here on."""
        self._marks["wait_end"][instruction.row] = self.stream.mark()

    def begin_unit(self, unit: Unit) -> None:
        """Nothing to note: the row's own start says it."""

    def before(self, instruction: Instruction) -> None:
        """Mark the stream."""
        self._cpu[instruction.row] = -time.thread_time_ns()
        self._marks["start"][instruction.row] = self.stream.mark()

    def after(self, instruction: Instruction) -> None:
        """Mark the stream."""
        self._marks["end"][instruction.row] = self.stream.mark()
        self._cpu[instruction.row] += time.thread_time_ns()

    def end_unit(self, unit: Unit) -> None:
        """Remember overlapped pairs."""
        if len(unit) == 2:
            self._pairs.append((unit[0].row, unit[1].row))

    def end_step(self) -> tuple[dict[str, Nanoseconds], bool]:
        """Wait for the stream, tie the clocks again and give the record."""
        assert self._begin is not None
        self.stream.finish()
        begin, end = self._begin, tie(self.stream)
        self.clock_bound_ns = max(self.clock_bound_ns, begin.bound_ns, end.bound_ns)
        rate = (end.host_ns - begin.host_ns) / self.stream.elapsed_ns(begin.mark, end.mark)
        columns = {name: np.zeros(self._num_rows, np.int64) for name in COLUMNS}
        for name, marks in self._marks.items():
            for row, mark in marks.items():
                since = self.stream.elapsed_ns(begin.mark, mark) * rate
                columns[name][row] = begin.host_ns + round(since)
        columns["own"] = columns["end"] - columns["start"]
        columns["cpu"] = np.array(self._cpu, np.int64)
        for first, second in self._pairs:
            columns["start"][second], columns["end"][first] = columns["start"][first], columns["end"][second]
        return columns, False
