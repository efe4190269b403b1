"""Named schedules as starting points of the search, and as what it has to beat."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pipesim.costs.table import CostTable
from pipesim.errors import PipesimError
from pipesim.ir import held
from pipesim.ir.actions import Op, Schedule
from pipesim.schedules.registry import Family, Shape, families, generate
from pipesim.search.problem import ROUNDING, MemoryLimit
from pipesim.timing.longest_path import PreparedSchedule


@dataclass(frozen=True, slots=True)
class NamedSchedule:
    """A named schedule that fits the memory limits, with its makespan as it stands."""

    schedule: Schedule
    rank_of: tuple[int, ...]
    makespan_s: float


def named_schedules(shape: Shape, costs: CostTable) -> Iterator[NamedSchedule]:
    """Generate every registered schedule of this shape, fitting or not.

    Left out are those that are not orders of the same work: asynchronous ones, two model replicas, cut
    sequences. Those that take a limit of microbatches in flight are given the shape's, if it has one.
    """
    for family in families().values():
        if family.name == "auto" or not family.synchronous or family.num_model_replicas > 1:
            continue
        options = _options(family, shape)
        try:
            one = Shape(shape.num_ranks, shape.num_chunks, shape.num_microbatches, options)
            schedule = generate(family.name, one, costs)
        except PipesimError:
            continue
        if schedule.num_slices == 1:
            makespan = float(PreparedSchedule.of(schedule).evaluate_costs(costs).makespan)
            yield NamedSchedule(schedule, placement_of(schedule), makespan)


def _options(family: Family, shape: Shape) -> dict[str, object]:
    stated = shape.options.get("max_in_flight")
    if stated is None or "max_in_flight" not in family.options:
        return {}
    return {"max_in_flight": stated, "weight_share": 1}


def fits(schedule: Schedule, memory: MemoryLimit) -> bool:
    """Whether no rank ever holds more than its limit."""
    holds = held(schedule, memory.amounts, memory.deferred)
    allowed = np.repeat(memory.limits * (1 + ROUNDING), np.diff(schedule.offsets))
    return bool((holds <= allowed).all())


def placement_of(schedule: Schedule) -> tuple[int, ...]:
    """Rank of each stage."""
    rank_of = np.zeros(schedule.num_stages, np.int64)
    forwards = schedule.op == Op.F
    rank_of[schedule.stage[forwards]] = schedule.rank[forwards]
    return tuple(rank_of.tolist())
