"""Candidates timed in their schedule's own order; those of one shape together, to generate it once."""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pipesim.errors import PipesimError
from pipesim.ir.actions import Schedule
from pipesim.prediction import Programs, least_step_s, prepare
from pipesim.questions.planning.bounds import DOES_NOT_FIT, Bound
from pipesim.questions.planning.space import Candidate, scenario_of
from pipesim.scenario import ResolvedScenario


@dataclass(frozen=True, slots=True)
class Timed:
    """A candidate that fits, and what its step takes at least: its time where nothing contends."""

    candidate: Candidate
    least_step_s: float
    peak_memory_bytes: float
    order: bytes = b""
    """Digest of the schedule's order: two names can be one order."""


@dataclass(frozen=True, slots=True)
class ShapeTask:
    """Candidates with equal numbers of ranks, chunks and microbatches."""

    scenario: ResolvedScenario
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


def group_by_shape(scenario: ResolvedScenario, bounds: list[Bound]) -> list[ShapeTask]:
    """Make one task a shape, the largest first."""
    groups: dict[tuple[int, int, int], list[Bound]] = {}
    for bound in bounds:
        candidate = bound.candidate
        key = (candidate.cut.pipeline, candidate.num_chunks, bound.num_microbatches)
        groups.setdefault(key, []).append(bound)
    tasks = [ShapeTask(scenario, tuple(group)) for group in groups.values()]
    return sorted(tasks, key=lambda task: -task.num_actions)


def time_shape(task: ShapeTask) -> ShapeTimes:
    """Generate each schedule of the shape once, and time and weigh every candidate in it."""
    programs = Programs()
    timed: list[Timed] = []
    rejected: dict[str, int] = {}
    with _without_collection():
        for candidate in (bound.candidate for bound in task.bounds):
            try:
                one, reason = _timed(task.scenario, candidate, programs), DOES_NOT_FIT
            except PipesimError as error:
                one, reason = None, error.headline
            if one is None:
                rejected[reason] = rejected.get(reason, 0) + 1
            else:
                timed.append(one)
    return ShapeTimes(tuple(timed), rejected)


def _timed(scenario: ResolvedScenario, candidate: Candidate, programs: Programs) -> Timed | None:
    """Time a candidate; None where it does not fit."""
    cut_so = scenario_of(
        scenario, candidate.cut, candidate.num_chunks, candidate.recompute, candidate.schedule
    )
    prepared = prepare(cut_so, programs=programs)
    peak = prepared.peak_memory
    if peak.fits_headroom is False:
        return None
    return Timed(candidate, least_step_s(prepared), peak.most_bytes or 0.0, _digest(prepared.schedule))


def _digest(schedule: Schedule) -> bytes:
    found = hashlib.blake2b(digest_size=16)
    for column in (schedule.offsets, schedule.op, schedule.stage, schedule.microbatch, schedule.slice):
        found.update(column.tobytes())
    found.update(schedule.joined.tobytes())
    return found.digest()


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
