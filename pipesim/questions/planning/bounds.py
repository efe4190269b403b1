"""What a configuration takes at least, whatever its schedule's order: sorts the search and cuts it short."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipesim.costs import CostTable
from pipesim.errors import ScenarioError
from pipesim.questions.planning.dominance import NO_BETTER, better_sharing
from pipesim.questions.planning.space import (
    Candidate,
    Cut,
    Recompute,
    chunk_counts,
    costs_of_cut,
    recomputes,
)
from pipesim.scenario import ResolvedScenario
from pipesim.schedules import Shape, family
from pipesim.schedules.frameworks import verdict
from pipesim.schedules.registry import Family

DOES_NOT_FIT = "does not fit in memory with the headroom asked for"


@dataclass(frozen=True, slots=True)
class Bound:
    """A candidate that may fit, and the shortest step that it could have."""

    candidate: Candidate
    num_microbatches: int
    least_step_s: float

    @property
    def num_actions(self) -> int:
        """Forwards of the schedule, a measure of the work that it makes."""
        return self.candidate.cut.pipeline * self.candidate.num_chunks * self.num_microbatches


@dataclass(frozen=True, slots=True)
class CutTask:
    """A cut whose candidates are to be bounded."""

    scenario: ResolvedScenario
    cut: Cut
    schedules: tuple[str, ...]
    framework: str | None = None
    """Bounds are wanted of what it runs by name."""


@dataclass(frozen=True, slots=True)
class CutBounds:
    """Candidates of a cut that may fit, and how many cannot run, by reason."""

    bounds: tuple[Bound, ...]
    rejected: dict[str, int]


def bound_cut(task: CutTask) -> CutBounds:
    """Bound all candidates of a cut.

    One that is left out would not fit in any order of its schedule, or breaks a rule of it.
    """
    bounds: list[Bound] = []
    rejected: dict[str, int] = {}
    cut, model = task.cut, task.scenario.model
    assert model is not None
    num_microbatches = (task.scenario.batch.global_size or 0) // (cut.micro * cut.data)
    levels = recomputes(task.scenario)
    limit_bytes = _budget_bytes(task.scenario)
    if words := better_sharing(task.scenario, cut):
        counts = [len(chunk_counts(model, cut.pipeline, family(name))) for name in _names(task)]
        return CutBounds((), {f"{NO_BETTER} {words}": sum(counts) * len(levels)})
    tables: dict[tuple[int, Recompute], CostTable | ScenarioError] = {}
    for name in _names(task):
        one = family(name)
        for num_chunks in chunk_counts(model, cut.pipeline, one):
            shape = Shape(cut.pipeline, num_chunks, num_microbatches)
            broken = next((rule for rule in one.rules if not rule.holds(shape)), None)
            if broken is not None:
                _count(rejected, f"{name} needs {broken.words}", len(levels))
                continue
            if task.framework is not None and not verdict(name, shape, task.framework).accepts:
                _count(rejected, f"{task.framework} does not run {name} by name at its shape", len(levels))
                continue
            holding = _Holding.of(one, shape)
            for level in levels:
                key = (num_chunks, level)
                if key not in tables:
                    tables[key] = _costs_or_error(task, num_chunks, level)
                costs = tables[key]
                if isinstance(costs, ScenarioError):
                    _count(rejected, f"{costs.key} does not go with {num_chunks} chunks a rank", 1)
                elif least_memory_bytes(costs, one, holding) > limit_bytes:
                    _count(rejected, DOES_NOT_FIT, 1)
                else:
                    candidate = Candidate(cut, num_chunks, level, name)
                    bounds.append(Bound(candidate, num_microbatches, least_step_s(costs, one, shape)))
    return CutBounds(tuple(bounds), rejected)


def _names(task: CutTask) -> tuple[str, ...]:
    """Schedules to try: a single rank has one order that matters."""
    return ("1f1b",) if task.cut.pipeline == 1 and "1f1b" in task.schedules else task.schedules


def _budget_bytes(scenario: ResolvedScenario) -> float:
    """Give what a run should take of a device's memory at most."""
    if scenario.cluster is None:
        return np.inf
    return scenario.kept_free.budget_bytes(scenario.cluster.accelerator.memory_bytes)


def _costs_or_error(task: CutTask, num_chunks: int, recompute: Recompute) -> CostTable | ScenarioError:
    try:
        return costs_of_cut(task.scenario, task.cut, num_chunks, recompute)
    except ScenarioError as error:
        return error


@dataclass(frozen=True, slots=True)
class _Holding:
    """What a family's closed forms say of the ranks.

    Parameters
    ----------
    stages : array of int, shape (num_ranks, stages of a rank), optional
        None where an order places its stages as it likes.
    peak : array, shape (num_ranks,)
        Most chunks in flight; 1 where there is no closed form.
    """

    stages: npt.NDArray[np.intp] | None
    peak: npt.NDArray[np.float64]

    @classmethod
    def of(cls, one: Family, shape: Shape) -> _Holding:
        p = shape.num_ranks
        peaks = [one.peak_in_flight(shape, rank) if one.peak_in_flight else None for rank in range(p)]
        peak = np.array([peak or 1 for peak in peaks], np.float64)
        turns = np.arange(shape.num_stages).reshape(shape.num_chunks, p)
        if one.placement in ("v", "wave"):
            turns[1::2] = turns[1::2, ::-1]
        elif one.placement == "bidirectional":
            turns = np.concatenate([turns, turns[:, ::-1]])
        return cls(None if one.placement is None else turns.T, peak)


def least_memory_bytes(costs: CostTable, one: Family, holding: _Holding) -> float:
    """Memory that the fullest rank needs at least: its state, and the closed form of its activations."""
    static = costs.weight_bytes + costs.gradient_bytes + costs.optimizer_bytes
    if holding.stages is None:
        return float(static.sum()) / len(holding.peak)
    of_rank = static[holding.stages].sum(axis=1) + costs.working_bytes[holding.stages].min(axis=1)
    # A slice of a sequence holds a share that the family alone knows.
    if "num_slices" in one.options:
        return float(of_rank.max())
    kept = costs.activation_bytes
    if one.splits_backward and costs.deferred_bytes is not None:
        kept = np.minimum(kept, costs.deferred_bytes)
    full = of_rank + holding.peak * kept[holding.stages].min(axis=1)
    # On a V the closed form is the peak of the fullest rank, whichever that is.
    return float(full.min() if one.placement == "v" else full.max())


def least_step_s(costs: CostTable, one: Family, shape: Shape) -> float:
    """Seconds of a step without idle time: the mean rank's work or the slowest stage's, and an optimizer."""
    of_stage = costs.forward_s + costs.backward_s
    parts = costs.forward_s + costs.input_gradient_s + costs.weight_gradient_s
    busy = np.minimum(of_stage, parts)
    paired = busy if costs.overlapped_pair_s is None else np.minimum(busy, costs.overlapped_pair_s)
    work = float(paired.sum()) / shape.num_ranks
    if one.num_model_replicas == 1:
        work = max(work, float(paired.max()))
    return shape.num_microbatches * work + float(costs.optimizer_s.min())


def _count(rejected: dict[str, int], reason: str, number: int) -> None:
    rejected[reason] = rejected.get(reason, 0) + number
