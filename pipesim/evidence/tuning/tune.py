"""From stage times to an order that is faster in the user's own run, or the word that there is none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pipesim.errors import ScenarioError
from pipesim.evidence.calibration.sources import calibrate_measured
from pipesim.evidence.tuning.candidates import (
    CandidateOrder,
    candidate,
    named_candidates,
    searched_candidates,
    within,
)
from pipesim.evidence.tuning.drawn_hops import step_times
from pipesim.evidence.tuning.outcome import TIE, RatedOrder, Tuning
from pipesim.evidence.tuning.paired_runs import PairedRuns, run_in_turn
from pipesim.evidence.tuning.stage_times import StageTimes, measured_times, stated_times
from pipesim.evidence.validation.runner import Runner
from pipesim.executor import RankPool, Run, execute
from pipesim.executor.running import share_one_gpu
from pipesim.ir import lower, peak_in_flight
from pipesim.ir.actions import Schedule
from pipesim.prediction import schedule_of
from pipesim.questions.execution import check_room, check_runnable, workload_of
from pipesim.scenario import ResolvedScenario, need_scenario
from pipesim.schedules import family

NUM_DRAWS = 16
SEARCH_BUDGET = 30_000_000
"""Actions that each of several searches times; see the schedule ``auto``."""
MOST_FIT_ERROR = 0.03
"""Error of the step that times were measured on, above which it is said."""
NUM_NAMED = 3
"""Named finalists beside the one in use."""
_STEPS_A_ROUND, _CALIBRATION_STEPS, _WARMUP, _RETRIES = 2, 6, 2, 2


def tune(
    scenario: ResolvedScenario,
    *measured: str | Path,
    chunks: Sequence[int] = (),
    max_in_flight: int | None = None,
    device: str | None = None,
    model: str | None = None,
    runtime: str = "torch",
    verify: int = 0,
    threads_per_rank: int = 1,
    budget: int | None = None,
    pool: RankPool | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Tuning:
    """Find the best order for a scenario's measured stage times.

    Parameters
    ----------
    scenario : ResolvedScenario
        With the schedule in use. Its costs count where nothing is measured.
    *measured : str or Path
        Runs of `pipesim execute` or profiler traces, from which costs are calibrated.
    chunks : sequence of int
        Chunks a rank to try beside those of the schedule in use. Measured files have one number.
    max_in_flight : int, optional
        Most microbatches a rank holds, where nothing says what fits; by default as with the one in use.
    device : {"cpu", "cuda", "emulated"}, optional
        Where to measure, without `measured`, and to verify.
    model : str, optional
        In place of the scenario's model: ``cnn``, or ``module:factory``.
    runtime : {"torch", "pipesim"}
        What runs the orders: torch's own runtime, or our executor.
    verify : int
        Rounds in which the order in use and the new one run in turn; 0 runs nothing.
    threads_per_rank : int
        Of a run on CPUs.
    budget : int, optional
        Of each search; by default `SEARCH_BUDGET`.
    pool, progress : RankPool, optional; Callable
        Processes to use; told what is done next.

    Raises
    ------
    PipesimError
        If scenario, measurements and device do not go together, or a run fails.
    """
    need_scenario(scenario)
    in_use = schedule_of(scenario)
    counts = list(dict.fromkeys([in_use.num_stages // in_use.num_ranks, *chunks]))
    if verify and device is None:
        raise ScenarioError("needs a device to run on: cpu, cuda or emulated", key="--verify")
    with ExitStack() as stack:
        if device is not None and pool is None:
            pool = _new_pool(scenario, device, model, runtime, threads_per_rank, stack)
        times = _times(scenario, measured, counts, device, model, runtime, pool, progress)
        found = choose(scenario, in_use, times, max_in_flight=max_in_flight, budget=budget, progress=progress)
        if not verify or found.best is found.in_use:
            return found
        paired = _verified(scenario, found, verify, str(device), model, runtime, pool, progress)
    return Tuning(found.in_use, found.choices, found.best, paired, found.notes)


def _new_pool(
    scenario: ResolvedScenario,
    device: str,
    model: str | None,
    runtime: str,
    threads_per_rank: int,
    stack: ExitStack,
) -> RankPool | None:
    """Start processes for all runs, once it is sure that they can run; none where ranks share one GPU."""
    check_runnable(scenario, device)
    check_room(scenario, device, model, num_replicas=scenario.parallel.data, num_steps=_CALIBRATION_STEPS)
    num_processes = max(2, scenario.parallel.pipeline * scenario.parallel.data)
    if share_one_gpu(device, num_processes):
        if runtime != "pipesim":
            raise ScenarioError(
                f"found {runtime!r}; ranks that share one GPU run in our executor only: --runtime pipesim",
                key="--runtime",
            )
        return None
    return stack.enter_context(RankPool(num_processes, threads_per_rank=threads_per_rank))


def _times(
    scenario: ResolvedScenario,
    measured: Sequence[str | Path],
    counts: Sequence[int],
    device: str | None,
    model: str | None,
    runtime: str,
    pool: RankPool | None,
    progress: Callable[[str], None],
) -> dict[int, StageTimes]:
    """Measure the stages or take what is known of them, by chunks a rank."""
    if measured:
        costs = calibrate_measured(*measured)
        num_chunks, rest = divmod(costs.costs.num_stages, scenario.parallel.pipeline)
        if rest:
            raise ScenarioError(
                f"the measurements have {costs.costs.num_stages} stages, the scenario "
                f"{scenario.parallel.pipeline} ranks; a multiple is needed"
            )
        return {num_chunks: measured_times(costs, scenario, num_chunks)}
    if device is None:
        return {count: stated_times(scenario, count) for count in counts}
    runner = Runner(scenario, device, model, _CALIBRATION_STEPS, _WARMUP, _RETRIES, pool, progress, runtime)
    named = scenario.schedule.name
    base = "gpipe" if named is None or family(named).needs_costs else named
    runner.calibrate_on(base, needed=[(count, True) for count in counts])
    found = {count: measured_times(runner.measured(count), scenario, count) for count in counts}
    said = _doubts(runner)
    return {count: replace(times, notes=(*said, *times.notes)) for count, times in found.items()}


def _doubts(runner: Runner) -> list[str]:
    """Say why the times may be off: other work, or they do not predict the run that they come from."""
    said = []
    if runner.disturbed_calibration:
        disturbed = ", ".join(runner.disturbed_calibration)
        said.append(f"other work disturbed what the times were measured from: {disturbed}")
    error = runner.base.step_time_error
    if abs(error) > MOST_FIT_ERROR:
        said.append(
            f"the times predict the run that they come from {100 * error:+.1f} % off; trust no smaller gain"
        )
    return said


def choose(
    scenario: ResolvedScenario,
    in_use: Schedule,
    times: Mapping[int, StageTimes],
    *,
    max_in_flight: int | None = None,
    budget: int | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Tuning:
    """Choose among named and searched orders; the parameters are those of `tune`, and what it measured."""
    num_chunks = in_use.num_stages // in_use.num_ranks
    if num_chunks not in times:
        raise ScenarioError(
            f"times are of {', '.join(map(str, times))} chunks a rank, the schedule in use has {num_chunks}"
        )
    own = times[num_chunks]
    current = candidate(scenario, in_use, own, searched=False)
    limit = max_in_flight
    if limit is None and own.costs.memory_limit_bytes is None:
        limit = -(-int(np.max(peak_in_flight(in_use))) // num_chunks)
    allowed = within(limit, own.costs)
    options: dict[int, dict[str, Any]] = {count: {} for count in times}
    for count, chosen in options.items():
        if limit is not None and own.costs.memory_limit_bytes is None:
            chosen["max_in_flight"] = limit * count
        chosen["budget"] = budget or SEARCH_BUDGET
    distinct = {one.key: one for one in (current, *named_candidates(scenario, times, allowed))}
    named = sorted((one for one in distinct.values() if one.key != current.key), key=_nominal_s)[:NUM_NAMED]
    searched = searched_candidates(scenario, times, options, lambda words: progress(f"searching: {words}"))
    finalists = [current, *named, *{one.key: one for one in searched}.values()]
    drawn = step_times(
        [one.prepared for one in finalists],
        [one.times for one in finalists],
        num_draws=NUM_DRAWS,
        progress=lambda name: progress(f"under drawn hops: {name}"),
    )
    first, *others = [RatedOrder(one, steps) for one, steps in zip(finalists, drawn, strict=True)]
    others = _without_repeats(sorted(others, key=lambda one: one.step_time_s))
    notes = [words for one in times.values() for words in one.notes]
    if limit is not None and own.costs.memory_limit_bytes is None:
        notes.append(
            f"no rank holds more than {limit} microbatches on its stages; --max-in-flight allows more"
        )
    return Tuning(first, tuple(others), pick(first, others), None, tuple(dict.fromkeys(notes)))


def _without_repeats(choices: Sequence[RatedOrder]) -> list[RatedOrder]:
    """Keep the first searched order of each number of stages, and all named ones."""
    kept: list[RatedOrder] = []
    for one in choices:
        if one.candidate.searched and any(
            other.candidate.searched and other.order.num_stages == one.order.num_stages for other in kept
        ):
            continue
        kept.append(one)
    return kept


def _nominal_s(one: CandidateOrder) -> float:
    return float(one.prediction.step_time_s)


def pick(in_use: RatedOrder, others: Sequence[RatedOrder]) -> RatedOrder:
    """Take the fastest; a named order where it is within `TIE` of it, the one in use where it is."""
    everything = [in_use, *others]
    best = min(everything, key=lambda one: one.step_time_s)
    named = min((one for one in everything if not one.candidate.searched), key=lambda one: one.step_time_s)
    for simpler in (named, in_use):
        if best.step_time_s >= simpler.step_time_s * (1 - TIE):
            best = simpler
    return best


def _verified(
    scenario: ResolvedScenario,
    found: Tuning,
    num_rounds: int,
    device: str,
    model: str | None,
    runtime: str,
    pool: RankPool | None,
    progress: Callable[[str], None],
) -> PairedRuns:
    def runs(order: Schedule) -> Callable[[], Run]:
        lowered = lower(order)
        workload = workload_of(scenario, lowered, device, model)

        def run() -> Run:
            done = execute(
                lowered,
                workload,
                device=device,
                num_replicas=scenario.parallel.data,
                num_steps=_STEPS_A_ROUND,
                warmup=1,
                runtime=runtime,
                pool=pool,
            )
            assert done is not None
            return done

        return run

    return run_in_turn(
        runs(found.in_use.order), runs(found.best.order), num_rounds=num_rounds, progress=progress
    )
