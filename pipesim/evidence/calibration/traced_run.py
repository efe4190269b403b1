"""The ranks' traces of one run put together: the order that ran, on one clock, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipesim.errors import ScheduleError
from pipesim.evidence.calibration.kineto import TracedAction
from pipesim.evidence.calibration.staged_traces import StagedTrace
from pipesim.ir import NONE, dependencies, lower, validate
from pipesim.ir.actions import Lowered, Schedule
from pipesim.ir.timeline import Timeline

FloatArray = npt.NDArray[np.float64]
_SAME_CLOCK_S = 100e-6
"""Processes of one host share a clock, which profilers convert to the time of day to within so much."""


@dataclass(frozen=True, slots=True, eq=False)
class TracedRun:
    """What ran, and when.

    Parameters
    ----------
    schedule : Lowered
        The order that the traces show, with the messages that follow from it.
    start_s, end_s : array, shape (steps, computations)
        By row of ``schedule.schedule``, on the first rank's clock; a computation without any work of its own
        lasts no time.
    on_gpu : bool
        Times are those of kernels.
    words : tuple of str
        How far clocks were apart.
    """

    schedule: Lowered
    start_s: FloatArray
    end_s: FloatArray
    on_gpu: bool
    words: tuple[str, ...]

    @property
    def num_steps(self) -> int:
        """Steps in which every action of the schedule ran."""
        return len(self.start_s)

    def step(self, step: int) -> Timeline:
        """Give the computations of one step, as `pipesim.metrics.measure` takes them."""
        compute = self.schedule.schedule
        return Timeline(
            source="measured",
            rank=compute.rank,
            replica=np.zeros(len(compute.op), np.int32),
            op=compute.op,
            stage=compute.stage,
            microbatch=compute.microbatch,
            slice=compute.slice,
            step=np.full(len(compute.op), step, np.int32),
            start_s=self.start_s[step],
            end_s=self.end_s[step],
            nbytes=np.zeros(len(compute.op), np.int64),
        )


def put_together(traces: Sequence[StagedTrace], source: str) -> TracedRun | str:
    """Put the traces of all ranks of a run together; or say why that cannot be done.

    Two ranks' clocks are compared by the messages between them: none is taken before it was given, both ways.
    """
    steps = []
    for trace in traces:
        found = _steps(trace)
        if found is None:
            return f"{trace.path.name}: its steps are not alike, or not whole: ranks are not put on one clock"
        steps.append(found)
    try:
        schedule = Schedule.from_orders(source, [[t.action for t in found[0]] for found in steps])
        validate(schedule)
        lowered = lower(schedule)
    except ScheduleError as error:
        return f"the traces are not those of all ranks of one run: {error.headline}"
    num_steps = min(map(len, steps))
    times = [_times(found[-num_steps:]) for found in steps]
    start, end = (np.concatenate(columns, axis=1) for columns in zip(*times, strict=True))
    offsets, words = _offsets(schedule, traces, start, end)
    if offsets is None:
        return words[0]
    start, end = start - offsets[schedule.rank], end - offsets[schedule.rank]
    return TracedRun(lowered, start, end, traces[0].on_gpu, tuple(words))


def _steps(trace: StagedTrace) -> list[list[TracedAction]] | None:
    """Actions of each step; None where steps differ or one is cut."""
    actions = [traced for traced in trace.actions if traced.is_computation]
    if not actions:
        return None
    length = len({traced.action for traced in actions})
    if len(actions) % length:
        return None
    steps = [actions[at : at + length] for at in range(0, len(actions), length)]
    first = [traced.action for traced in steps[0]]
    return steps if all([traced.action for traced in step] == first for step in steps) else None


def _times(steps: list[list[TracedAction]]) -> tuple[FloatArray, FloatArray]:
    """Start and end of each computation, shape (steps, computations); a pair is two, of its own span.

    What has no work of its own starts and ends when it was over.
    """
    spans = [
        [
            (t.start_s, t.end_s) if t.has_work else (t.over_s, t.over_s)
            for t in step
            for _ in range(max(1, len(t.action.parts)))
        ]
        for step in steps
    ]
    start, end = np.moveaxis(np.array(spans), -1, 0)
    for row in reversed(range(start.shape[1])):
        # Of a GPU it is not known when that was: when the next one starts, or the one before ended.
        lost = ~np.isfinite(start[:, row])
        beside = start[:, row + 1] if row + 1 < start.shape[1] else end[:, row - 1]
        start[lost, row] = end[lost, row] = beside[lost]
    return start, end


def _offsets(
    schedule: Schedule, traces: Sequence[StagedTrace], start: FloatArray, end: FloatArray
) -> tuple[FloatArray | None, list[str]]:
    """Seconds that each rank's clock is ahead of the first's, or why they are not known."""
    needs = dependencies(schedule)
    takers = np.flatnonzero(needs.crosses & (needs.producer != NONE))
    givers = needs.producer[takers]
    least = (start[:, takers] - end[:, givers]).min(axis=0)
    room: dict[tuple[int, int], float] = {}
    for giver, taker, seconds in zip(
        schedule.rank[givers].tolist(), schedule.rank[takers].tolist(), least.tolist(), strict=True
    ):
        room[giver, taker] = min(seconds, room.get((giver, taker), np.inf))
    offsets = np.full(schedule.num_ranks, np.nan)
    offsets[0] = 0.0
    words = []
    reached = [0]
    for one in reached:
        for other in range(schedule.num_ranks):
            if np.isnan(offsets[other]) and (one, other) in room and (other, one) in room:
                ahead, said = _ahead(traces[one], traces[other], room[one, other], -room[other, one])
                if ahead is None:
                    return None, [said]
                offsets[other] = offsets[one] + ahead
                words.append(said)
                reached.append(other)
    if np.isnan(offsets).any():
        return None, ["not all ranks exchange messages both ways, so their clocks cannot be compared"]
    return offsets, words


def _ahead(one: StagedTrace, other: StagedTrace, most: float, least: float) -> tuple[float | None, str]:
    """Seconds that the other's clock is ahead, which messages bound from both sides."""
    pair = f"{one.path.name} and {other.path.name}"
    if least > most + 2 * _SAME_CLOCK_S:
        return None, f"{pair}: clocks drift apart within the trace: not merged"
    if one.host is not None and one.host == other.host and least - _SAME_CLOCK_S <= 0 <= most + _SAME_CLOCK_S:
        return 0.0, f"{pair}: of one host, whose processes share a clock"
    ahead, bound = (most + least) / 2, (most - least) / 2
    return ahead, f"{pair}: clocks {1e6 * ahead:.0f} us apart, known to {1e6 * max(0.0, bound):.0f} us"
