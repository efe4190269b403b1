"""The times of one step: which of engine and evaluator gives them, and under which conditions."""

from __future__ import annotations

import math
from contextlib import suppress
from functools import partial
from typing import Any, Literal

import numpy.typing as npt

from pipesim.costs import CostTable
from pipesim.costs.documents import Packing
from pipesim.costs.network.fabric import UnlikeReplicasError
from pipesim.costs.variation import vary
from pipesim.errors import DeadlockError, ScenarioError, ScheduleError
from pipesim.ir import find_hang, has_messages, with_step_end
from pipesim.ir.actions import Lowered, Schedule
from pipesim.ir.timeline import Timeline
from pipesim.prediction.prepared import Prepared
from pipesim.prediction.result import TimedBy
from pipesim.prediction.schedule_source import read_csv_text
from pipesim.timing.engine import GiveUp, TooLongError, simulate

Timing = Literal["engine", "fast", "compiled"]
"""The engine; the compiled evaluator where it gives the engine's numbers, else the engine; the compiled
evaluator as if nothing shared a wire, refused where more than that keeps it from the engine's numbers."""

ALONE = "timed as if nothing shared a wire"


def timed_step(prepared: Prepared, timing: Timing = "engine", repeat: int = 0) -> tuple[Timeline, TimedBy]:
    """Time one step; see `pipesim.prediction.predict_prepared`."""
    timeline, timed_by = None, None
    if timing != "engine":
        timeline, timed_by = _compiled(prepared, shares_wires=timing == "fast")
    if timeline is None or timed_by is None:
        return _by_engine(prepared, repeat), "engine"
    return timeline, timed_by


def step_within(prepared: Prepared, limit_s: float) -> Timeline | float:
    """Simulate one step, or return the seconds that it takes at least, once these exceed `limit_s`."""
    try:
        return _by_engine(prepared, 0, limit_s)
    except TooLongError as known:
        return known.least_s


def least_step_s(prepared: Prepared) -> float:
    """Seconds that the engine does not go below: the step where no traffic meets, times are not drawn.

    Equal to the engine's where `needs_engine` names nothing and no wire is shared. Where gradients are
    reduced beside computations it counts none of that; blocking transfers count as free. With random jitter
    it bounds nothing, for a draw may be faster than the mean.
    """
    scenario, costs, program = prepared.scenario, prepared.costs, prepared.program
    sends_block = scenario.network.p2p == "send-blocking" and not prepared.schedule.joined.any()
    if costs.gradient_buckets is None:
        seconds = program.step_time_s(costs, sends_block=sends_block)
    else:
        spans = program.prepared.evaluate_costs(costs, sends_block=sends_block)
        seconds = float(spans.makespan) + max(program.optimizer_s(costs))
    factors = () if scenario.jitter is None else scenario.jitter.slow_ranks.values()
    return float(seconds) * min(1.0, *factors, 1.0)


def needs_engine(prepared: Prepared) -> tuple[str, str] | None:
    """Key of the scenario, and the reason, for which only the engine gives a schedule's numbers.

    Shared wires apart, which show only in the timeline.
    """
    scenario, costs = prepared.scenario, prepared.costs
    if scenario.network.p2p == "blocking":
        return "network.p2p", "blocking transfers need the engine"
    if scenario.network.p2p == "send-blocking" and prepared.schedule.joined.any():
        return "network.p2p", "sends that block beside overlapped pairs need the engine"
    if scenario.jitter is not None:
        return "jitter", "jitter needs the engine"
    if costs.gradient_buckets is not None:
        key = "parallel.overlap_gradients"
        return key, "gradients that are reduced beside computations need the engine"
    if costs.host is not None:
        return "costs.file", "time that the host takes between computations needs the engine"
    if costs.forward_s.dtype == object:
        return "costs", "exact fractions need the engine"
    return None


def _compiled(prepared: Prepared, *, shares_wires: bool) -> tuple[Timeline | None, TimedBy | None]:
    reason = needs_engine(prepared)
    if reason is not None:
        if shares_wires:
            return None, None
        raise ScenarioError(reason[1], file=prepared.scenario.file, key=reason[0])
    scenario, costs, program = prepared.scenario, prepared.costs, prepared.program
    timeline = program.timeline(costs, sends_block=scenario.network.p2p == "send-blocking")
    mode = scenario.network.mode
    if mode == "ideal" or not program.contends(timeline, costs, mode=mode):
        return timeline, "compiled"
    return (None, None) if shares_wires else (timeline, "compiled alone")


def _by_engine(prepared: Prepared, repeat: int, limit_s: float = math.inf) -> Timeline:
    """Simulate one step; where one replica cannot stand for all, all, of which the slowest is returned."""
    scenario, costs = prepared.scenario, prepared.costs
    lowered = _lowered(prepared)
    give_up = GiveUp(limit_s, prepared.program.left_s(costs)) if math.isfinite(limit_s) else None
    p2p, network = scenario.network.p2p, scenario.network.mode
    run = partial(simulate, lowered, costs, p2p=p2p, network=network, give_up=give_up)

    def varied(num_replicas: int) -> dict[str, Any]:
        if scenario.jitter is None:
            return {}
        return vary(
            lowered,
            costs,
            scenario.jitter,
            num_replicas=num_replicas,
            seed=scenario.seed,
            repeat=repeat,
            packing=Packing.of(scenario),
        )._asdict()

    num_replicas = scenario.parallel.data
    if scenario.jitter is None or not scenario.jitter.sets_replicas_apart:
        with suppress(UnlikeReplicasError):
            return run(**varied(1))
    return _slowest_replica(run(num_replicas=num_replicas, **varied(num_replicas)))


def _lowered(prepared: Prepared) -> Lowered:
    """Derive messages; those that a file states stand where it says, where that can hold anybody up."""
    scenario, schedule = prepared.scenario, prepared.schedule
    tied = prepared.costs.tied_embedding is not None
    if scenario.network.p2p != "blocking":
        return prepared.laid.lowered(receive="early", tied_embedding=tied)
    if scenario.schedule.csv is not None and prepared.shape is None:
        stated = Schedule.from_csv(read_csv_text(scenario.schedule.csv), name=schedule.name)
        if has_messages(stated):
            if schedule.skips:
                raise ScheduleError(
                    f"{scenario.schedule.csv} states its messages, among which skip connections have no "
                    "place; leave its messages out"
                )
            if (hang := find_hang(stated, "exchanged")) is not None:
                raise DeadlockError(f"{scenario.schedule.csv}: {hang}")
            return with_step_end(stated, tied_embedding=tied)
    return prepared.laid.lowered(receive="batched", tied_embedding=tied)


def _slowest_replica(timeline: Timeline) -> Timeline:
    """Rows of the replica whose computations end last."""
    computing = timeline.select(timeline.compute)
    return timeline.select(timeline.replica == computing.replica[computing.end_s.argmax()])


def replay(lowered: Lowered, costs: CostTable, durations: npt.NDArray[Any] | None = None) -> Timeline:
    """Run a lowered schedule under given costs, or with each row's own duration, as a run measured them.

    Parameters
    ----------
    lowered : Lowered
        What ran.
    costs : CostTable
        For its stages.
    durations : array, shape (rows,), optional
        Seconds of each row in place of what the costs say.
    """
    return simulate(lowered, costs, durations=durations)
