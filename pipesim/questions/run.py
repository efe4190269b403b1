"""One scenario down the whole road: costs, schedule, engine, metrics."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pipesim.costs import CostTable, build_costs
from pipesim.costs.copies import for_schedule
from pipesim.costs.network.fabric import UnlikeReplicasError
from pipesim.costs.variation import vary
from pipesim.errors import DeadlockError, ScenarioError, ScheduleError
from pipesim.files import printable_stem
from pipesim.ir import check_messages, find_hang, has_messages, lower, validate, with_step_end
from pipesim.ir.actions import Schedule
from pipesim.ir.shape import stage_holders
from pipesim.ir.timeline import Timeline
from pipesim.metrics import StepMetrics, measure
from pipesim.questions.step_breakdown import step_breakdown
from pipesim.scenario import ResolvedScenario
from pipesim.schedules import Family, Shape, family, generate
from pipesim.schedules.frameworks import FRAMEWORKS, check_schedule, verdict
from pipesim.timing.engine import simulate

GROUP_SIZE = "microbatch_group_size"


@dataclass(frozen=True, slots=True)
class Asynchrony:
    """What an asynchronous schedule trades: each rank's weight versions, and updates a gradient is late.

    `steady_period_s` is the time of m microbatches in the middle of a long run; the result's makespan is that
    of a first and only step, pipeline empty to pipeline empty.
    """

    weight_versions: tuple[int, ...]
    staleness: tuple[int, ...]
    steady_period_s: Any


@dataclass(frozen=True, slots=True)
class Result:
    """What one run leaves: everything plots, traces and tables are made of.

    Parameters
    ----------
    scenario : ResolvedScenario
        What was asked.
    schedule : Schedule
        Compute only.
    costs : CostTable
        For the schedule's number of stages.
    timeline : Timeline
        One replica; alike replicas run alike.
    metrics : StepMetrics
        Numbers of the timeline.
    asynchrony : Asynchrony, optional
        None where all microbatches see the same weights.
    notes : tuple of str
        Frameworks that would refuse the schedule at this shape.
    shape : Shape, optional
        What the schedule was generated for; None of a CSV.
    """

    scenario: ResolvedScenario
    schedule: Schedule
    costs: CostTable
    timeline: Timeline
    metrics: StepMetrics
    asynchrony: Asynchrony | None
    notes: tuple[str, ...]
    shape: Shape | None = None

    @property
    def frameworks(self) -> tuple[str, ...]:
        """Frameworks that run the schedule when asked for it by name; of a CSV, those that run that order."""
        if self.shape is None:
            return tuple(name for name in FRAMEWORKS if not check_schedule(self.schedule, name))
        return tuple(n for n in FRAMEWORKS if verdict(self.schedule.name, self.shape, n).accepts)

    @property
    def synchronous(self) -> bool:
        """All microbatches see the same weights."""
        return self.asynchrony is None

    @property
    def label(self) -> str:
        """Name of the schedule, with its chunks where it has more than one."""
        chunks = self.metrics.num_chunks
        return self.schedule.name if chunks == 1 else f"{self.schedule.name} v{chunks}"

    @property
    def breakdown(self) -> dict[str, Any]:
        """Parts of the step time, and what of a measured one they leave; see `step_breakdown`."""
        return step_breakdown(self.metrics, self.schedule, self.costs, self.scenario)

    @property
    def step_time_band_s(self) -> tuple[float, float] | None:
        """Least and greatest step time within the error band of the efficiency; None without one."""
        efficiency = self.scenario.efficiency
        if efficiency is None or efficiency.error_band is None:
            return None
        step_time_s = float(self.metrics.step_time_s)
        return step_time_s / (1 + efficiency.error_band), step_time_s * (1 + efficiency.error_band)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: the metrics, and what was inferred on the way."""
        return {
            **_plain(asdict(self.metrics)),
            "step_time_band_s": _plain(self.step_time_band_s),
            "step_breakdown": _plain(self.breakdown),
            "synchronous": self.synchronous,
            "asynchrony": None if self.asynchrony is None else _plain(asdict(self.asynchrony)),
            "frameworks": list(self.frameworks),
            "notes": list(self.notes),
            "inferred": {**self.scenario.echo, **self.costs.provenance},
            "warnings": list(self.scenario.warnings),
        }


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if value is None or isinstance(value, str | bool | int):
        return value
    return float(value)


class Engine:
    """Where schedules come from and what times them: the registry, and the simulated GPUs.

    Whatever else has these two methods can take its place; see `pipesim.questions.fast`.

    Parameters
    ----------
    repeat : int
        Which of many steps, where the scenario has jitter; the same number draws the same step.
    """

    def __init__(self, repeat: int = 0) -> None:
        self.repeat = repeat

    def schedule(self, name: str, shape: Shape, costs: CostTable) -> Schedule:
        """Generate a schedule of the registry."""
        return generate(name, shape, costs)

    def timeline(self, scenario: ResolvedScenario, schedule: Schedule, costs: CostTable) -> Timeline:
        """Simulate one step of a compute-only schedule.

        Where one replica cannot stand for all of them, all are simulated and the slowest is returned.
        """
        lowered = _lowered(scenario, schedule, tied_embedding=costs.tied_embedding is not None)
        run = partial(simulate, lowered, costs, p2p=scenario.p2p_mode, network=scenario.network_mode)
        jitter, num_replicas = scenario.jitter, scenario.parallel.data
        if jitter is None or not jitter.random:
            with suppress(UnlikeReplicasError):
                return run(**self._varied(scenario, lowered, costs, 1))
        return slowest_replica(
            run(num_replicas=num_replicas, **self._varied(scenario, lowered, costs, num_replicas))
        )

    def _varied(
        self, scenario: ResolvedScenario, lowered: Schedule, costs: CostTable, num_replicas: int
    ) -> dict[str, Any]:
        if scenario.jitter is None:
            return {}
        drawn = {"seed": scenario.seed, "repeat": self.repeat}
        return vary(lowered, costs, scenario.jitter, num_replicas=num_replicas, **drawn)._asdict()


def _lowered(scenario: ResolvedScenario, schedule: Schedule, *, tied_embedding: bool) -> Schedule:
    """Derive messages; those that a file states stand where it says, where that can hold anybody up."""
    if scenario.p2p_mode != "blocking":
        return lower(schedule, tied_embedding=tied_embedding)
    if scenario.schedule.csv is not None:
        stated = Schedule.from_csv(read_csv_text(scenario.schedule.csv), name=schedule.name)
        if has_messages(stated) and stated.compute_only().to_csv() == schedule.to_csv():
            if (hang := find_hang(stated, "exchanged")) is not None:
                raise DeadlockError(f"{scenario.schedule.csv}: {hang}")
            return with_step_end(stated, tied_embedding=tied_embedding)
    return lower(schedule, receive="batched", tied_embedding=tied_embedding)


def slowest_replica(timeline: Timeline) -> Timeline:
    """Rows of the replica whose computations end last."""
    computing = timeline.select(timeline.compute)
    return timeline.select(timeline.replica == computing.replica[computing.end_s.argmax()])


def simulate_scenario(scenario: ResolvedScenario, *, engine: Engine | None = None) -> Result:
    """Simulate the schedule that a scenario names.

    Parameters
    ----------
    scenario : ResolvedScenario
        What to run.
    engine : Engine, optional
        Another source of schedules and timelines.

    Raises
    ------
    PipesimError
        If the schedule does not go with the scenario's sizes, or cannot run.
    """
    if scenario.schedule.csv is not None:
        schedule = read_schedule(scenario, scenario.schedule.csv)
        num_chunks = schedule.num_stages // schedule.num_ranks
        costs = build_costs(scenario, num_chunks=num_chunks, holders=schedule.holders)
        return _run(scenario, schedule, costs, engine or Engine(), asynchrony=None, notes=())
    name = scenario.schedule.name or ""
    return simulate_named(scenario, name, num_chunks=None, options=scenario.schedule.options, engine=engine)


def simulate_named(
    scenario: ResolvedScenario,
    name: str,
    *,
    num_chunks: int | None,
    options: dict[str, Any] | None = None,
    engine: Engine | None = None,
) -> Result:
    """Simulate a schedule of the registry in a scenario.

    Parameters
    ----------
    scenario : ResolvedScenario
        Sizes and costs; the schedule it names is not looked at.
    name : str
        A schedule of the registry.
    num_chunks : int, optional
        Chunks a rank; by default the schedule's own number, else the scenario's.
    options : dict, optional
        Settings of the schedule. A stated microbatch group size goes to every schedule that takes one.
    engine : Engine, optional
        Another source of schedules and timelines.

    Raises
    ------
    PipesimError
        If the schedule does not go with the scenario's sizes, or cannot run.
    """
    chosen = family(name)
    shape = shape_of(scenario, chosen, num_chunks=num_chunks, options=options)
    chosen.check(shape)
    holders = chosen.placement and stage_holders(chosen.placement, shape.num_ranks, shape.num_chunks)
    costs = build_costs(scenario, num_chunks=shape.num_chunks, holders=holders)
    engine = engine or Engine()
    if chosen.choices is not None:
        scenario = replace(scenario, echo={**scenario.echo, **chosen.choices(shape)})
    schedule = engine.schedule(chosen.name, shape, costs)
    notes = tuple(f"{r.framework}: {r.words}" for r in chosen.refusals if r.refuses(shape))
    asynchrony = None if chosen.synchronous else _asynchrony(chosen, shape, costs)
    result = _run(scenario, schedule, costs, engine, asynchrony=asynchrony, notes=notes)
    return replace(result, shape=shape)


def shape_of(
    scenario: ResolvedScenario,
    chosen: Family,
    *,
    num_chunks: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> Shape:
    """Shape of a schedule in a scenario; the parameters are those of `simulate_named`."""
    options = dict(options or {})
    if scenario.parallel.microbatch_group_size is not None and GROUP_SIZE in chosen.options:
        options.setdefault(GROUP_SIZE, scenario.parallel.microbatch_group_size)
    return Shape(
        num_ranks=scenario.parallel.pipeline,
        num_chunks=num_chunks or chosen.chunks or scenario.parallel.virtual_stages,
        num_microbatches=scenario.batch.num_microbatches,
        options=options,
    )


def _asynchrony(chosen: Family, shape: Shape, costs: CostTable) -> Asynchrony:
    ranks = range(shape.num_ranks)
    versions, late, period = chosen.weight_versions, chosen.staleness, chosen.steady_period_s
    return Asynchrony(
        weight_versions=tuple(versions(shape, rank) if versions else 1 for rank in ranks),
        staleness=tuple(late(shape, rank) if late else 0 for rank in ranks),
        steady_period_s=period(shape, costs) if period else None,
    )


def read_schedule(scenario: ResolvedScenario, path: str) -> Schedule:
    """Read a CSV of actions that must fit the scenario's ranks and microbatches.

    Raises
    ------
    ScenarioError
        If the file cannot be read or its sizes are others than the scenario's.
    ScheduleError
        If the schedule is malformed.
    """
    schedule = load_csv(path)
    for what, found, expected in (
        ("ranks", schedule.num_ranks, scenario.parallel.pipeline),
        ("microbatches", schedule.num_microbatches, scenario.batch.num_microbatches),
    ):
        if found != expected:
            raise ScenarioError(f"has {found} {what}, the scenario has {expected}", file=path)
    if schedule.num_stages % schedule.num_ranks:
        raise ScenarioError(
            f"has {schedule.num_stages} stages on {schedule.num_ranks} ranks; a multiple is needed, "
            "since costs are those of as many stages on every rank",
            file=path,
        )
    return schedule


def load_csv(path: str | Path) -> Schedule:
    """Read and validate a CSV of actions; communication in it is checked, and dropped.

    Raises
    ------
    ScenarioError
        If the file cannot be read.
    ScheduleError
        If the schedule is malformed.
    """
    try:
        stated = Schedule.from_csv(read_csv_text(path), name=printable_stem(path))
        schedule = stated.compute_only()
        validate(schedule)
        if has_messages(stated):
            check_messages(stated)
    except ScheduleError as error:
        raise type(error)(f"{path}: {error}") from None
    return schedule


def read_csv_text(path: str | Path) -> str:
    """Read a text file; raise `ScenarioError` where that cannot be done."""
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ScenarioError(f"cannot be read: {error.strerror}", file=str(path)) from None
    except UnicodeDecodeError:
        raise ScenarioError("is not text; expected a CSV of actions", file=str(path)) from None


def _run(
    scenario: ResolvedScenario,
    schedule: Schedule,
    costs: CostTable,
    engine: Engine,
    *,
    asynchrony: Asynchrony | None,
    notes: tuple[str, ...],
) -> Result:
    if schedule.num_slices > 1 and scenario.torch_model is not None and costs.tokens_per_step is None:
        raise ScheduleError(
            f"{schedule.name} cuts the sequence into slices, and {scenario.torch_model.name} has none"
        )
    if asynchrony is not None:
        # One stage a rank; every version is a copy of the weights.
        costs = replace(costs, weight_bytes=costs.weight_bytes * np.array(asynchrony.weight_versions))
    costs = for_schedule(costs, schedule)
    timeline = engine.timeline(scenario, schedule, costs)
    return Result(
        scenario=scenario,
        schedule=schedule,
        costs=costs,
        timeline=timeline,
        metrics=measure(timeline, schedule, costs),
        asynchrony=asynchrony,
        notes=notes,
    )
