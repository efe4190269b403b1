"""The search: every configuration bounded, the most promising refined until no other can be better.

Each configuration has a lower bound of its engine time: at first a closed form, then its own order's time
where nothing contends. Always the one of least bound is refined: timed if it was not, else confirmed by the
engine. When as many are confirmed as are wanted and every other bound exceeds the slowest of them, nothing
that is left can be among them.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pipesim.errors import InfeasibleError, PipesimError, ScenarioError, ScheduleError
from pipesim.prediction import Prediction
from pipesim.processes import num_workers_for
from pipesim.questions.call_pool import CallPool
from pipesim.questions.judgement import Judgement, judge
from pipesim.questions.planning.bounds import Bound, CutTask, bound_cut
from pipesim.questions.planning.candidate_timing import Timed
from pipesim.questions.planning.dominance import NO_BETTER
from pipesim.questions.planning.losses import Losses
from pipesim.questions.planning.refinement import Confirmed, Refinement
from pipesim.questions.planning.space import Candidate, changes_of, enumerate_cuts
from pipesim.scenario import ResolvedScenario, need_scenario
from pipesim.scenario.hardware import Cluster
from pipesim.scenario.resolved import Transformer
from pipesim.schedules import families_named
from pipesim.schedules.frameworks import find_framework

if TYPE_CHECKING:
    import pandas as pd

DEFAULT_TOP = 5
_SHORT = 12
"""Lines that a notebook shows of a table."""
_CUTS_A_WORKER = 40
_CUTS_BETWEEN_LOOKS = 4
"""Cuts that each process bounds between two looks at the clock."""
_BOUNDING_SHARE, _TIMING_SHARE = 0.4, 0.6
"""Of a time limit: what bounding may take, and when something is to be confirmed."""


@dataclass(frozen=True, slots=True, repr=False)
class Choice:
    """A configuration that fits, confirmed by the engine.

    Parameters
    ----------
    candidate : Candidate
        Which one.
    changes : dict
        Keys of the scenario that it sets; None: takes away.
    result : Prediction
        Of the engine; its scenario is the configuration, as a file would state it.
    least_step_s : float
        Its step where nothing contends.
    losses : Losses
        Where its step goes.
    kwh_per_step : float, optional
        Energy of a step if all devices draw their power limit; None where that is unknown.
    pareto : bool
        No other choice is better in one of step time, memory and cost without being worse in another.
    """

    candidate: Candidate
    changes: dict[str, Any]
    result: Prediction
    least_step_s: float
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
        if self.result.scenario.parallel.sequence_parallel:
            parts.append("sequence parallel")
        if self.result.scenario.optimizer != "plain":
            parts.append(f"{self.result.scenario.optimizer} optimizer")
        if self.candidate.recompute != "none":
            parts.append(f"{self.candidate.recompute} recompute")
        return " ".join(parts)

    def __repr__(self) -> str:
        return f"<Choice {self.label}: step {self.step_time_s:.6g} s>"

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
        return [f"{key}={_shown(value)}" for key, value in self.changes.items()]

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
            "least_step_s": self.least_step_s,
            "pareto": self.pareto,
            "overrides": self.overrides(),
        }


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True, slots=True, repr=False)
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
        Everything that was timed, by its least step.
    judged : Judgement
        Which of the choices to run, and which cannot be told apart from it.
    num_certain : int
        So many of the choices, from the first on, that no other configuration of the space is faster under
        this model; errors of the model and ties within its band are another matter.
    reason : str
        Why not all are certain; empty if they are.
    """

    scenario: ResolvedScenario
    num_evaluated: int
    rejected: dict[str, int]
    num_outrun: int
    choices: tuple[Choice, ...]
    timed: tuple[Timed, ...]
    num_certain: int
    judged: Judgement[Prediction]
    reason: str = ""

    @property
    def recommended(self) -> Choice:
        """The choice to run: the fastest, or of ties one that a framework runs by name."""
        return next(choice for choice in self.choices if choice.result is self.judged.recommended)

    @property
    def ties(self) -> tuple[Choice, ...]:
        """Choices that predictions cannot tell apart from the recommended one."""
        tied = {id(row.run) for row in self.judged.ties}
        return tuple(choice for choice in self.choices if id(choice.result) in tied)

    @property
    def certain(self) -> bool:
        """Whether every choice is certain."""
        return self.num_certain == len(self.choices)

    @property
    def frame(self) -> pd.DataFrame:
        """One line a choice: its keys, step time in s, band, memory in bytes."""
        import pandas as pd

        lines = []
        for choice in self.choices:
            low_s, high_s = choice.result.band_s or (None, None)
            numbers = {
                "step_time_s": choice.step_time_s,
                "low_s": low_s,
                "high_s": high_s,
                "memory": choice.result.memory,
                "bubble_ratio": float(choice.result.bubble_ratio),
                "tokens_per_s": choice.result.metrics.tokens_per_s,
            }
            lines.append({**choice.configuration(), "schedule": choice.result.label, **numbers})
        return pd.DataFrame(lines)

    def __repr__(self) -> str:
        return f"{self.frame.to_string(max_rows=_SHORT)}\n{self.certainty}"

    def _repr_html_(self) -> str:
        return f"{self.frame.to_html(max_rows=_SHORT)}<p>{self.certainty}</p>"

    @property
    def certainty(self) -> str:
        """Which choices are certain, in words."""
        num_left = len(self.timed) + self.num_outrun
        if self.certain:
            return f"certain: no other of {num_left:,} configurations that may fit is faster under this model"
        first = f"the first {self.num_certain} are certain" if self.num_certain else "none is certain"
        return f"{first}, of {num_left:,} configurations that may fit: {self.reason}"

    @property
    def best(self) -> ResolvedScenario:
        """The recommended configuration, as a scenario."""
        return self.recommended.result.scenario

    @property
    def num_infeasible(self) -> int:
        """Configurations that were rejected."""
        return sum(self.rejected.values())

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        judgement, places = self.judged.to_dict(), {id(one.result): n for n, one in enumerate(self.choices)}
        for entry, row in zip(judgement["differences"], self.judged.others, strict=True):
            entry["result"] = places[id(row.run)]
        return {
            "num_evaluated": self.num_evaluated,
            "num_infeasible": self.num_infeasible,
            "num_outrun": self.num_outrun,
            "certain": self.certain,
            "num_certain": self.num_certain,
            "not_certain_because": self.reason,
            "rejected": self.rejected,
            "judgement": judgement,
            "recommended": self.choices.index(self.recommended),
            "ties": [self.choices.index(choice) for choice in self.ties],
            "results": [choice.to_dict() for choice in self.choices],
        }


def plan(
    scenario: ResolvedScenario,
    *,
    top: int = DEFAULT_TOP,
    schedules: str | Sequence[str] = (),
    framework: str | None = None,
    num_workers: int | None = None,
    executor: Executor | None = None,
    time_limit_s: float | None = None,
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
    schedules : str or sequence of str
        Schedules to try; by default all synchronous ones that are not themselves searched for.
    framework : str, optional
        Try only what it runs by name: megatron, torch or deepspeed. How much memory a choice leaves free is
        the scenario's `headroom`.
    num_workers : int, optional
        Processes; by default as many as there are cores and work for.
    executor : concurrent.futures.Executor, optional
        Runs the work in place of processes.
    time_limit_s : float, optional
        Stop after so many seconds; the plan says what is certain by then. Where little is, the best of what
        was timed by three fifths of it is confirmed first, so that there is an answer.
    progress : Callable
        Told what runs next.

    Raises
    ------
    ScenarioError
        If the scenario has no model on a cluster, or no global batch.
    ScheduleError
        If there is no schedule, or framework, of a name.
    InfeasibleError
        If nothing fits.
    """
    need_scenario(scenario)
    started = time.monotonic()
    model, cluster, _ = basis_of(scenario)
    names = schedules_for_plan(schedules)
    wanted = None if framework is None else find_framework(framework)
    space = enumerate_cuts(scenario, model, cluster)
    rejected: Counter[str] = Counter(space.rejected)
    workers = num_workers or num_workers_for(len(space.cuts), tasks_each=_CUTS_A_WORKER)
    clock = _Clock(started, time_limit_s)
    with CallPool(workers, executor) as pool:
        progress(f"{len(space.cuts)} cuts")
        tasks = [CutTask(scenario, cut, names, wanted) for cut in space.cuts]
        bounds, num_unbounded = _bounded(tasks, pool, workers, clock, rejected)
        search = Refinement(scenario, bounds, top, pool, workers, clock.until_s)
        while not clock.is_past(1.0) and search.refine(
            progress, confirm_now=not search.confirmed and clock.is_past(_TIMING_SHARE)
        ):
            pass
    rejected.update(search.rejected)
    if not search.confirmed:
        if search.num_left or num_unbounded:
            raise InfeasibleError(f"nothing was confirmed within {time_limit_s:g} s; allow more time")
        raise InfeasibleError(_nothing_fits(cluster, rejected))
    chosen = search.confirmed[:top]
    num_certain, reason = _certainty(scenario, search, len(chosen), time_limit_s)
    if num_unbounded:
        num_certain = 0
        reason = f"the time limit of {time_limit_s:g} s left {num_unbounded} of {len(tasks)} cuts untried"
    choices = _with_pareto([_choice(scenario, one, cluster) for one in chosen])
    return Plan(
        scenario=scenario,
        num_evaluated=len(search.timed),
        rejected=dict(sorted(rejected.items(), key=lambda item: (-item[1], item[0]))),
        num_outrun=search.num_untimed,
        choices=choices,
        timed=tuple(sorted(search.timed, key=lambda one: (one.least_step_s, one.candidate.sort_key()))),
        num_certain=num_certain,
        judged=judge([choice.result for choice in choices], framework=wanted),
        reason=reason,
    )


@dataclass(frozen=True, slots=True)
class _Clock:
    """How far a search is in its time."""

    started_s: float
    limit_s: float | None

    @property
    def until_s(self) -> float | None:
        """End of the search on the clock of `time.monotonic`; None: it has no limit."""
        return None if self.limit_s is None else self.started_s + self.limit_s

    def is_past(self, share: float) -> bool:
        """Whether that share of the time is over."""
        return self.limit_s is not None and time.monotonic() - self.started_s >= share * self.limit_s


def _bounded(
    tasks: list[CutTask], pool: CallPool, num_workers: int, clock: _Clock, rejected: Counter[str]
) -> tuple[list[Bound], int]:
    """Bound the candidates of all cuts, and count the cuts that the time did not last for.

    With a limit the cuts come in an order of chance, so that those that are looked at are of all kinds.
    """
    bounds: list[Bound] = []
    each = len(tasks)
    if clock.limit_s is not None:
        tasks, each = random.Random(0).sample(tasks, len(tasks)), _CUTS_BETWEEN_LOOKS * num_workers
    for first in range(0, len(tasks), max(1, each)):
        if clock.is_past(_BOUNDING_SHARE):
            return bounds, len(tasks) - first
        for done in pool.run(bound_cut, tasks[first : first + each]):
            if done.value is None:
                raise PipesimError(f"a configuration {done.lost}")
            bounds += done.value.bounds
            rejected.update(done.value.rejected)
    return bounds, 0


def _certainty(
    scenario: ResolvedScenario, search: Refinement, num_chosen: int, time_limit_s: float | None
) -> tuple[int, str]:
    """Count the choices that nothing left can be faster than, and say why not all are."""
    if scenario.jitter is not None and scenario.jitter.random:
        return 0, "times are drawn at random, so nothing bounds them"
    num_certain = search.num_certain(num_chosen)
    reason = "" if num_certain == num_chosen else f"the time limit of {time_limit_s:g} s ended the search"
    return num_certain, reason


def _choice(scenario: ResolvedScenario, one: Confirmed, cluster: Cluster) -> Choice:
    candidate, power_w = one.timed.candidate, cluster.accelerator.tdp_w
    kwh = None if power_w is None else power_w * cluster.num_gpus * float(one.prediction.step_time_s) / 3.6e6
    return Choice(
        candidate=candidate,
        changes=changes_of(
            scenario, candidate.cut, candidate.num_chunks, candidate.recompute, candidate.schedule
        ),
        result=one.prediction,
        least_step_s=one.timed.least_step_s,
        losses=one.losses,
        kwh_per_step=kwh,
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


def schedules_for_plan(names: str | Sequence[str]) -> tuple[str, ...]:
    """Names of the registry to try; by default all synchronous ones whose order follows from the shape.

    Raises
    ------
    ScheduleError
        If there is none of a name, or its order follows from costs.
    """
    chosen = families_named(names)
    if not names:
        return tuple(one.name for one in chosen if one.synchronous and not one.needs_costs)
    for one in chosen:
        if one.needs_costs:
            raise ScheduleError(
                f"{one.name} is searched anew for every set of costs, too long for a plan of thousands; "
                "plan without it, then compare it on the choice"
            )
    return tuple(one.name for one in chosen)


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
    told = [(reason, count) for reason, count in rejected.most_common() if not reason.startswith(NO_BETTER)]
    lines += [f"  {count} configurations: {reason}" for reason, count in told[:5]]
    return "\n".join(lines)
