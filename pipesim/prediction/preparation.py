"""A schedule and what it costs in a scenario, before anything is timed: weight versions, copies, shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from pipesim.costs import CostTable, build_costs
from pipesim.costs.copies import for_schedule
from pipesim.device_memory import fits_headroom, fits_memory, peak_memory_by_rank
from pipesim.errors import ScenarioError, ScheduleError
from pipesim.ir.actions import Schedule
from pipesim.ir.shape import stage_holders
from pipesim.prediction.programs import Laid, Programs
from pipesim.prediction.result import Asynchrony
from pipesim.prediction.schedule_source import read_schedule, shape_of
from pipesim.scenario import ResolvedScenario, need_scenario
from pipesim.schedules import Family, Shape, family
from pipesim.timing.longest_path import StepProgram


class PeakMemory(NamedTuple):
    """Bytes of the fullest device, and whether every rank's fit: None as in `pipesim.metrics.StepMetrics`."""

    most_bytes: float | None
    fits: bool | None
    fits_headroom: bool | None


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """All that a prediction is made of but the times.

    Parameters
    ----------
    scenario : ResolvedScenario
        What was asked.
    laid : Laid
        The schedule.
    costs : CostTable
        For the schedule: with every version of the weights and both copies of the model.
    shape : Shape, optional
        What the schedule was generated for; None of a CSV.
    asynchrony : Asynchrony, optional
        None where all microbatches see the same weights.
    notes : tuple of str
        Frameworks that would refuse the schedule at this shape.
    choices : Mapping of str to str
        What the schedule chose where the shape leaves it open, by key of the scenario.
    """

    scenario: ResolvedScenario
    laid: Laid
    costs: CostTable
    shape: Shape | None
    asynchrony: Asynchrony | None
    notes: tuple[str, ...]
    choices: Mapping[str, str] = field(default_factory=dict)

    @property
    def schedule(self) -> Schedule:
        """The schedule, compute only."""
        return self.laid.schedule

    @property
    def program(self) -> StepProgram:
        """All of a step that the schedule's order decides, for the compiled evaluator."""
        return self.laid.program(tied_embedding=self.costs.tied_embedding is not None)

    @property
    def peak_memory(self) -> PeakMemory:
        """What the fullest device takes, by the order alone."""
        by_rank, costs = peak_memory_by_rank(self.schedule, self.costs), self.costs
        most = None if by_rank is None else max(by_rank)
        return PeakMemory(most, fits_memory(by_rank, costs), fits_headroom(by_rank, costs))


def prepare(
    scenario: ResolvedScenario,
    name: str | None = None,
    *,
    num_chunks: int | None = None,
    options: Mapping[str, Any] | None = None,
    programs: Programs | None = None,
) -> Prepared:
    """Put a schedule and a scenario together; the parameters are those of `pipesim.prediction.predict`.

    Raises
    ------
    PipesimError
        If the schedule does not go with the scenario's sizes, or cannot run.
    """
    need_scenario(scenario)
    programs = programs or Programs()
    if name is None and scenario.schedule.csv is not None:
        if num_chunks is not None or options:
            message = "a CSV has its own chunks and no options; name a schedule of the registry"
            raise ScenarioError(message, file=scenario.file, key="schedule.csv")
        schedule = read_schedule(scenario, scenario.schedule.csv)
        num_chunks = schedule.num_stages // schedule.num_ranks
        costs = build_costs(scenario, num_chunks=num_chunks, holders=schedule.holders)
        schedule = replace(schedule, skips=costs.skip_ends)
        return Prepared(scenario, Laid(schedule), _costs_of(scenario, schedule, costs, None), None, None, ())
    if name is None:
        name, options = scenario.schedule.name or "", {**scenario.schedule.options, **(options or {})}
    chosen = family(name)
    shape = shape_of(scenario, chosen, num_chunks=num_chunks, options=options)
    chosen.check(shape)
    holders = chosen.placement and stage_holders(chosen.placement, shape.num_ranks, shape.num_chunks)
    costs = build_costs(scenario, num_chunks=shape.num_chunks, holders=holders)
    laid = programs.of_shape(chosen.name, shape, costs)
    asynchrony = None if chosen.synchronous else _asynchrony(chosen, shape, costs)
    notes = tuple(f"{r.framework}: {r.words}" for r in chosen.refusals if r.refuses(shape))
    costs = _costs_of(scenario, laid.schedule, costs, asynchrony)
    choices = {} if chosen.choices is None else chosen.choices(shape)
    return Prepared(scenario, laid, costs, shape, asynchrony, notes, choices)


def _asynchrony(chosen: Family, shape: Shape, costs: CostTable) -> Asynchrony:
    ranks = range(shape.num_ranks)
    versions, late, period = chosen.weight_versions, chosen.staleness, chosen.steady_period_s
    return Asynchrony(
        weight_versions=tuple(versions(shape, rank) if versions else 1 for rank in ranks),
        staleness=tuple(late(shape, rank) if late else 0 for rank in ranks),
        steady_period_s=period(shape, costs) if period else None,
    )


def _costs_of(
    scenario: ResolvedScenario, schedule: Schedule, costs: CostTable, asynchrony: Asynchrony | None
) -> CostTable:
    if schedule.num_slices > 1 and scenario.torch_model is not None and costs.tokens_per_step is None:
        raise ScheduleError(
            f"{schedule.name} cuts the sequence into slices, and {scenario.torch_model.name} has none"
        )
    if schedule.num_slices > 1 and schedule.skips:
        raise ScheduleError(
            f"{schedule.name} cuts the sequence into slices; with skip connections that is not modelled"
        )
    if asynchrony is not None:
        # One stage a rank; every version is a copy of the weights.
        costs = replace(costs, weight_bytes=costs.weight_bytes * np.array(asynchrony.weight_versions))
    return for_schedule(costs, schedule)
