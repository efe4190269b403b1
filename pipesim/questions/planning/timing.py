"""Candidates timed in their schedule's own order; those of one shape together, to generate it once."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from pipesim.costs.copies import for_schedule
from pipesim.ir.actions import Schedule
from pipesim.metrics import memory_by_row
from pipesim.questions.planning.bounds import DOES_NOT_FIT, Bound, costs_of_cut
from pipesim.questions.planning.space import Candidate
from pipesim.scenario import ResolvedScenario
from pipesim.schedules import Shape, family
from pipesim.timing.longest_path.step_program import StepProgram


@dataclass(frozen=True, slots=True)
class Timed:
    """A candidate that fits, and its step where nothing contends."""

    candidate: Candidate
    step_time_s: float
    peak_memory_bytes: float


@dataclass(frozen=True, slots=True)
class ShapeTask:
    """Candidates with equal numbers of ranks, chunks and microbatches."""

    scenario: ResolvedScenario
    global_size: int
    bounds: tuple[Bound, ...]

    @property
    def num_actions(self) -> int:
        """Forwards of all schedules."""
        return self.bounds[0].num_actions * len({bound.candidate.schedule for bound in self.bounds})


@dataclass(frozen=True, slots=True)
class ShapeTimes:
    """Candidates that fit, and how many do not, by reason."""

    timed: tuple[Timed, ...]
    rejected: dict[str, int]


def group_by_shape(scenario: ResolvedScenario, global_size: int, bounds: list[Bound]) -> list[ShapeTask]:
    """Make one task a shape, the largest first."""
    groups: dict[tuple[int, int, int], list[Bound]] = {}
    for bound in bounds:
        candidate = bound.candidate
        key = (candidate.cut.pipeline, candidate.num_chunks, bound.num_microbatches)
        groups.setdefault(key, []).append(bound)
    tasks = [ShapeTask(scenario, global_size, tuple(group)) for group in groups.values()]
    return sorted(tasks, key=lambda task: -task.num_actions)


def time_shape(task: ShapeTask) -> ShapeTimes:
    """Generate each schedule of the shape once, and time and weigh every candidate in it."""
    with _without_collection():
        return _time_shape(task)


@contextmanager
def _without_collection() -> Iterator[None]:
    """Spare the search for cycles: there are none among millions of actions, at which it looks again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _time_shape(task: ShapeTask) -> ShapeTimes:
    first = task.bounds[0]
    shape = Shape(first.candidate.cut.pipeline, first.candidate.num_chunks, first.num_microbatches)
    by_schedule: dict[str, list[Candidate]] = {}
    for bound in task.bounds:
        by_schedule.setdefault(bound.candidate.schedule, []).append(bound.candidate)
    costs = {
        (one.cut, one.recompute): costs_of_cut(
            task.scenario, one.cut, one.num_chunks, one.recompute, task.global_size
        )
        for one in (bound.candidate for bound in task.bounds)
    }
    tied_embedding = any(table.tied_embedding is not None for table in costs.values())
    timed: list[Timed] = []
    num_too_large = 0
    for name, candidates in by_schedule.items():
        # The shape's rules have been checked, and what the registry makes of it is valid, as tests say.
        schedule = Schedule.from_orders(name, family(name).order(shape))
        program = StepProgram.of(schedule, tied_embedding=tied_embedding)
        sends_block = task.scenario.p2p_mode == "send-blocking" and not program.schedule.joined.any()
        for candidate in candidates:
            table = for_schedule(costs[candidate.cut, candidate.recompute], program.schedule)
            peaks = np.maximum.reduceat(memory_by_row(program.schedule, table), schedule.offsets[:-1])
            peak = float(peaks.max())
            limits = [table.of_ranks.get(r, table).memory_limit_bytes or np.inf for r in range(len(peaks))]
            if (peaks > limits).any():
                num_too_large += 1
            else:
                timed.append(Timed(candidate, program.step_time_s(table, sends_block=sends_block), peak))
    return ShapeTimes(tuple(timed), {DOES_NOT_FIT: num_too_large} if num_too_large else {})
