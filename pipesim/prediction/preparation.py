"""A schedule and what it costs in a scenario, before anything is timed: weight versions, copies, shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from pipesim.costs import CostTable, build_costs
from pipesim.costs.copies import for_schedule
from pipesim.errors import ScenarioError, ScheduleError
from pipesim.ir.actions import Schedule
from pipesim.ir.shape import stage_holders
from pipesim.prediction.prepared import Prepared
from pipesim.prediction.programs import Laid, Programs
from pipesim.prediction.result import Asynchrony
from pipesim.prediction.rivals import soonest
from pipesim.prediction.schedule_source import read_schedule, shape_of
from pipesim.scenario import ResolvedScenario, need_scenario
from pipesim.schedules import Family, Shape, family


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
    choices = {} if chosen.choices is None else chosen.choices(shape)
    own_costs = _costs_of(scenario, laid.schedule, costs, asynchrony)
    prepared = Prepared(scenario, laid, own_costs, shape, asynchrony, notes, choices)
    if chosen.rivals is None:
        return prepared
    rivals = chosen.rivals
    return soonest(prepared, lambda: (_with_schedule(prepared, one, costs) for one in rivals(shape, costs)))


def _with_schedule(prepared: Prepared, schedule: Schedule, costs: CostTable) -> Prepared:
    own_costs = _costs_of(prepared.scenario, schedule, costs, prepared.asynchrony)
    return replace(prepared, laid=Laid(schedule), costs=own_costs)


def prepare_order(scenario: ResolvedScenario, order: Schedule, costs: CostTable) -> Prepared:
    """Put an order and costs together that do not come from the scenario, such as measured ones.

    Parameters
    ----------
    scenario : ResolvedScenario
        For all else.
    order : Schedule
        Compute only, of the scenario's ranks and microbatches.
    costs : CostTable
        Of the order's stages.
    """
    order = replace(order, skips=costs.skip_ends)
    return Prepared(scenario, Laid(order), _costs_of(scenario, order, costs, None), None, None, ())


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
