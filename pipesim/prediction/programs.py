"""Schedules, and what the compiled evaluator needs of them, kept from one prediction to the next."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Literal

from pipesim.costs import CostTable
from pipesim.ir import Shape, lower
from pipesim.ir.actions import Lowered, Schedule
from pipesim.schedules import SLICE_LENGTHS, family, generate
from pipesim.timing.longest_path import StepProgram

MAX_CACHED_ROWS = 8_000_000
"""Rows of all schedules kept: some hundred megabytes."""


@dataclass(frozen=True, slots=True)
class Laid:
    """A schedule, laid out for the compiled evaluator and lowered for the engine once that is asked for."""

    schedule: Schedule
    _programs: dict[bool, StepProgram] = field(default_factory=dict)
    _lowered: dict[tuple[str, bool], Lowered] = field(default_factory=dict)

    def program(self, *, tied_embedding: bool) -> StepProgram:
        """Lay the schedule out, or find it laid out; see `StepProgram.of`."""
        if tied_embedding not in self._programs:
            self._programs[tied_embedding] = StepProgram.of(self.schedule, tied_embedding=tied_embedding)
        return self._programs[tied_embedding]

    def lowered(self, *, receive: Literal["early", "late", "batched"], tied_embedding: bool) -> Lowered:
        """Lower the schedule, or find it lowered; see `pipesim.ir.lower`."""
        key = receive, tied_embedding
        if key not in self._lowered:
            self._lowered[key] = lower(self.schedule, receive=receive, tied_embedding=tied_embedding)
        return self._lowered[key]


class Programs:
    """Schedules by name and shape, the latest used ones within a number of rows.

    A schedule that is built from the stages' times is generated anew each time.
    """

    def __init__(self, max_rows: int = MAX_CACHED_ROWS) -> None:
        self.max_rows = max_rows
        self._laid: OrderedDict[tuple[object, ...], Laid] = OrderedDict()
        self._num_rows = 0

    def of_shape(self, name: str, shape: Shape, costs: CostTable) -> Laid:
        """Generate a schedule of the registry, or find it.

        Raises
        ------
        ScheduleError
            See `pipesim.schedules.generate`.
        """
        if family(name).needs_costs or shape.options.get(SLICE_LENGTHS) == "balanced":
            return Laid(generate(name, shape, costs))
        options = repr(sorted(shape.options.items()))
        key = (name, shape.num_ranks, shape.num_chunks, shape.num_microbatches, options, costs.skip_ends)
        if key in self._laid:
            self._laid.move_to_end(key)
            return self._laid[key]
        laid = self._laid[key] = Laid(generate(name, shape, costs))
        self._num_rows += len(laid.schedule.op)
        while self._num_rows > self.max_rows and len(self._laid) > 1:
            _, dropped = self._laid.popitem(last=False)
            self._num_rows -= len(dropped.schedule.op)
        return laid
