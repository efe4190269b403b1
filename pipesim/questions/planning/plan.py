"""The search: all cuts bounded, the most promising candidates timed, the best confirmed by the engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pipesim.errors import InfeasibleError, PipesimError, ScenarioError, ScheduleError
from pipesim.questions.planning.bounds import Bound, CutTask, bound_cut
from pipesim.questions.planning.losses import Losses, losses_of
from pipesim.questions.planning.space import Candidate, enumerate_cuts, scenario_of
from pipesim.questions.planning.timing import Timed, group_by_shape, time_shape
from pipesim.questions.pool import Pool, num_workers_for
from pipesim.questions.run import Result, simulate_scenario
from pipesim.scenario import ResolvedScenario
from pipesim.scenario.resolved import Cluster, ScheduleChoice, Transformer
from pipesim.schedules import families, family

DEFAULT_TOP = 5
NUM_TIMED_AT_LEAST = 2048
"""Candidates timed before the bounds may end the search; in their order."""
_ROUND = 512
_CUTS_A_WORKER = 40


@dataclass(frozen=True, slots=True)
class Choice:
    """A configuration that fits, confirmed by the engine.

    Parameters
    ----------
    candidate : Candidate
        Which one.
    result : Result
        Of the engine.
    compiled_step_time_s : float
        What the compiled evaluator said, by which the candidate came this far.
    losses : Losses
        Where its step goes.
    kwh_per_step : float, optional
        Energy of a step if all devices draw their power limit; None where that is unknown.
    pareto : bool
        No other choice is better in one of step time, memory and cost without being worse in another.
    """

    candidate: Candidate
    result: Result
    compiled_step_time_s: float
    losses: Losses
    kwh_per_step: float | None
    pareto: bool = True

    @property
    def step_time_s(self) -> float:
        """Seconds of a step, by the engine."""
        return float(self.result.metrics.step_time_s)

    @property
    def label(self) -> str:
        """A short name of the configuration."""
        cut, parts = self.candidate.cut, [f"t{self.candidate.cut.tensor}", f"p{self.candidate.cut.pipeline}"]
        parts += [f"{letter}{size}" for letter, size in (("c", cut.context), ("e", cut.expert)) if size > 1]
        parts += [f"d{cut.data}", f"micro {cut.micro}", self.result.label]
        if self.candidate.recompute != "none":
            parts.append(f"{self.candidate.recompute} recompute")
        return " ".join(parts)

    def configuration(self) -> dict[str, Any]:
        """Values by the names of the scenario file's keys."""
        parallel, cut = self.result.scenario.parallel, self.candidate.cut
        return {
            "pipeline": cut.pipeline,
            "tensor": cut.tensor,
            "context": cut.context,
            "expert": cut.expert,
            "data": cut.data,
            "virtual_stages": self.candidate.num_chunks,
            "sequence_parallel": parallel.sequence_parallel,
            "global_batch": self.result.scenario.batch.global_size,
            "micro_batch": cut.micro,
            "recompute": self.candidate.recompute,
            "optimizer": self.result.scenario.optimizer,
        }

    def overrides(self) -> list[str]:
        """List what to give to ``--set`` for this configuration in the scenario's own file."""
        c = self.configuration()
        axes = ("pipeline", "tensor", "context", "expert", "data", "virtual_stages", "sequence_parallel")
        words = [f"parallel.{axis}={str(c[axis]).lower()}" for axis in axes]
        words += [f"batch.global={c['global_batch']}", f"batch.micro={c['micro_batch']}"]
        return [*words, f"recompute={c['recompute']}", f"schedule={self.candidate.schedule}"]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        document = self.result.to_dict()
        num_gpus, tokens = self.result.scenario.parallel.num_gpus, document["tokens_per_s"]
        return {
            **self.configuration(),
            **document,
            "tokens_per_s_per_gpu": None if tokens is None else tokens / num_gpus,
            "kwh_per_step": self.kwh_per_step,
            "losses": self.losses.to_dict(),
            "evaluator": "engine",
            "compiled_step_time_s": self.compiled_step_time_s,
            "pareto": self.pareto,
            "overrides": self.overrides(),
        }


@dataclass(frozen=True, slots=True)
class Plan:
    """What a search found.

    Parameters
    ----------
    scenario : ResolvedScenario
        What was asked.
    num_evaluated : int
        Configurations timed in the order of their own schedule.
    rejected : dict of str to int
        Configurations that cannot run or do not fit, by reason.
    num_outrun : int
        Configurations left untimed: even without idle time they are slower than the ones that were chosen.
    choices : tuple of Choice
        The fastest first.
    timed : tuple of Timed
        Everything that was timed, the fastest first; compiled.
    """

    scenario: ResolvedScenario
    num_evaluated: int
    rejected: dict[str, int]
    num_outrun: int
    choices: tuple[Choice, ...]
    timed: tuple[Timed, ...]

    @property
    def num_infeasible(self) -> int:
        """Configurations that were rejected."""
        return sum(self.rejected.values())

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "num_evaluated": self.num_evaluated,
            "num_infeasible": self.num_infeasible,
            "num_outrun": self.num_outrun,
            "rejected": self.rejected,
            "results": [choice.to_dict() for choice in self.choices],
        }


@dataclass(frozen=True, slots=True)
class _Finalist:
    scenario: ResolvedScenario
    timed: Timed


def plan(
    scenario: ResolvedScenario,
    *,
    top: int = DEFAULT_TOP,
    schedules: Sequence[str] = (),
    num_workers: int | None = None,
    executor: Executor | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Plan:
    """Find the fastest configurations of a scenario's model and batch on its cluster that fit in memory.

    On one cluster the fastest is also the one of most tokens per second and device, and the cheapest.

    Parameters
    ----------
    scenario : ResolvedScenario
        Its model, cluster, global batch, optimizer and network stay; how they are cut is searched.
    top : int
        Choices wanted.
    schedules : sequence of str
        Schedules to try; by default all synchronous ones that are not themselves searched for.
    num_workers : int, optional
        Processes; by default as many as there are cores and work for.
    executor : concurrent.futures.Executor, optional
        Runs the work in place of processes.
    progress : Callable
        Told what runs next.

    Raises
    ------
    ScenarioError
        If the scenario has no model on a cluster, or no global batch.
    ScheduleError
        If there is no schedule of a name.
    InfeasibleError
        If nothing fits.
    """
    model, cluster, global_size = basis_of(scenario)
    names = schedules_for_plan(schedules)
    space = enumerate_cuts(scenario, model, cluster, global_size)
    rejected: Counter[str] = Counter(space.rejected)
    workers = num_workers or num_workers_for(len(space.cuts), tasks_each=_CUTS_A_WORKER)
    with Pool(workers, executor) as pool:
        progress(f"{len(space.cuts)} cuts")
        tasks = [CutTask(scenario, cut, global_size, names) for cut in space.cuts]
        bounds: list[Bound] = []
        for done in pool.run(bound_cut, tasks):
            if done.value is None:
                raise PipesimError(f"a configuration {done.lost}")
            bounds += done.value.bounds
            rejected.update(done.value.rejected)
        timed: list[Timed] = []
        num_bounds = len(bounds)
        while some := _next(bounds, timed, top):
            progress(f"{num_bounds - len(bounds)} of {num_bounds} configurations")
            for shape in pool.run(time_shape, group_by_shape(scenario, global_size, some)):
                if shape.value is None:
                    raise PipesimError(f"a configuration {shape.lost}")
                timed += shape.value.timed
                rejected.update(shape.value.rejected)
        timed.sort(key=lambda one: (one.step_time_s, one.candidate.sort_key()))
        if not timed:
            raise InfeasibleError(_nothing_fits(cluster, rejected))
        progress("confirming")
        choices: list[Choice] = []
        for first in range(0, len(timed), 2 * top):
            finalists = [_finalist(scenario, one, global_size) for one in timed[first : first + 2 * top]]
            for confirmed in pool.run(_confirm, finalists):
                if isinstance(confirmed.value, Choice):
                    choices.append(confirmed.value)
                else:
                    rejected[confirmed.value or confirmed.lost or ""] += 1
            if len(choices) >= top:
                break
    if not choices:
        raise InfeasibleError(_nothing_fits(cluster, rejected))
    choices.sort(key=lambda choice: (choice.step_time_s, choice.candidate.sort_key()))
    return Plan(
        scenario=scenario,
        num_evaluated=len(timed),
        rejected=dict(sorted(rejected.items(), key=lambda item: (-item[1], item[0]))),
        num_outrun=len(bounds),
        choices=_with_pareto(choices[:top]),
        timed=tuple(timed),
    )


def basis_of(scenario: ResolvedScenario) -> tuple[Transformer, Cluster, int]:
    """Model, cluster and global batch that a plan needs.

    Raises
    ------
    ScenarioError
        If one is missing, or the layers of each stage are stated.
    """
    if scenario.torch_model is not None:
        message = "a plan tries cuts of a transformer's layers; sweep a torch model over pipeline and micro"
        raise ScenarioError(message, file=scenario.file, key="model.torch")
    if scenario.model is None or scenario.cluster is None:
        message = "a plan needs a model and a cluster, not stated costs"
        raise ScenarioError(message, file=scenario.file, key="model")
    if scenario.batch.global_size is None:
        raise ScenarioError("a plan needs it", file=scenario.file, key="batch.global")
    if scenario.layers.kind == "list":
        message = "a list fits one number of stages; a plan needs even or balanced"
        raise ScenarioError(message, file=scenario.file, key="layers")
    return scenario.model, scenario.cluster, scenario.batch.global_size


def schedules_for_plan(names: Sequence[str]) -> tuple[str, ...]:
    """Names of the registry to try; by default all synchronous ones whose order follows from the shape.

    Raises
    ------
    ScheduleError
        If there is none of a name, or its order follows from costs.
    """
    if names:
        chosen = [family(name) for name in names]
        for one in chosen:
            if one.needs_costs:
                raise ScheduleError(
                    f"{one.name} is searched anew for every set of costs, too long for a plan of thousands; "
                    "plan without it, then compare it on the choice"
                )
        return tuple(dict.fromkeys(one.name for one in chosen))
    return tuple(one.name for one in families().values() if one.synchronous and not one.needs_costs)


def _next(bounds: list[Bound], timed: Sequence[Timed], top: int) -> list[Bound]:
    """Take the next candidates to time out of `bounds`; none once the finalists are certain.

    First those that could be among the finalists, the most promising first. Then, up to a number that shows
    the field around them, those that are the least work.
    """
    worst_s = sorted(one.step_time_s for one in timed)[2 * top - 1] if len(timed) >= 2 * top else np.inf
    promising = [bound for bound in bounds if bound.least_step_s <= worst_s]
    if promising:
        some = sorted(promising, key=lambda bound: (bound.least_step_s, bound.candidate.sort_key()))[:_ROUND]
    else:
        left = max(0, NUM_TIMED_AT_LEAST - len(timed))
        some = sorted(bounds, key=lambda bound: (bound.num_actions, bound.candidate.sort_key()))[:left]
    taken = set(some)
    bounds[:] = [bound for bound in bounds if bound not in taken]
    return some


def _finalist(scenario: ResolvedScenario, timed: Timed, global_size: int) -> _Finalist:
    one = timed.candidate
    cut_so = scenario_of(scenario, one.cut, one.num_chunks, one.recompute, global_size)
    return _Finalist(replace(cut_so, schedule=ScheduleChoice(one.schedule)), timed)


def _confirm(finalist: _Finalist) -> Choice | str:
    """Run the engine; the reason in words where the schedule cannot run after all."""
    try:
        result = simulate_scenario(finalist.scenario)
    except PipesimError as error:
        return str(error).splitlines()[0].rstrip(":")
    if result.metrics.fits_memory is False:
        return "does not fit in memory"
    cluster = finalist.scenario.cluster
    assert cluster is not None
    step_s, power_w = float(result.metrics.step_time_s), cluster.accelerator.tdp_w
    return Choice(
        candidate=finalist.timed.candidate,
        result=result,
        compiled_step_time_s=finalist.timed.step_time_s,
        losses=losses_of(result),
        kwh_per_step=None if power_w is None else power_w * cluster.num_gpus * step_s / 3.6e6,
    )


def _with_pareto(choices: Sequence[Choice]) -> tuple[Choice, ...]:
    """Mark the choices that no other beats; on one cluster the cost follows from the step time."""
    numbers = [(choice.step_time_s, choice.result.metrics.peak_memory_bytes or 0.0) for choice in choices]
    return tuple(
        replace(
            choice,
            pareto=not any(
                other != mine and other[0] <= mine[0] and other[1] <= mine[1] for other in numbers
            ),
        )
        for choice, mine in zip(choices, numbers, strict=True)
    )


def _nothing_fits(cluster: Cluster, rejected: Counter[str]) -> str:
    lines = [f"nothing can run on {cluster.num_gpus} {cluster.accelerator.name}:"]
    lines += [f"  {count} configurations: {reason}" for reason, count in rejected.most_common(5)]
    return "\n".join(lines)
