"""Ways of sharing that lose nowhere to another one: found from one pair of cost tables, for all schedules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pipesim.costs import CostTable
from pipesim.costs.table import Array
from pipesim.errors import ScenarioError
from pipesim.questions.planning.space import Cut, costs_of_cut
from pipesim.scenario import ResolvedScenario

NO_BETTER = "no better than with"
"""How the reason begins for which a way of sharing is left out; another one is tried for it."""
_NEVER_MORE = (
    *("forward_s", "backward_s", "input_gradient_s", "weight_gradient_s", "optimizer_s"),
    *("boundary_bytes", "gradient_bytes", "weight_bytes", "optimizer_bytes", "activation_bytes"),
)
_ROUNDING = 1 + 1e-12


def better_sharing(scenario: ResolvedScenario, cut: Cut) -> str:
    """Name what a cut lacks, where the same cut with it is at least as good in everything; else nothing.

    Compared with one stage a rank and nothing recomputed: layers differ alike in all other stages.
    """
    for words, other in _others(cut):
        try:
            mine, theirs = (costs_of_cut(scenario, one, 1, "none") for one in (cut, other))
        except ScenarioError:
            continue
        if no_worse(theirs, mine):
            return words
    return ""


def _others(cut: Cut) -> Iterator[tuple[str, Cut]]:
    if cut.tensor > 1 and not cut.sequence_parallel:
        yield "sequence parallelism", replace(cut, sequence_parallel=True)
    if cut.optimizer == "plain":
        yield "a sharded optimizer", replace(cut, optimizer="sharded")


def no_worse(one: CostTable, other: CostTable) -> bool:
    """Whether a table asks for no more time, traffic or memory than another in any order of the stages."""
    if any((getattr(one, name) > getattr(other, name) * _ROUNDING).any() for name in _NEVER_MORE):
        return False
    for table_held, other_held in zip(_held(one), _held(other), strict=True):
        # Some microbatch is held beside whatever works.
        more = table_held + one.working_bytes > (other_held + other.working_bytes) * _ROUNDING
        if (table_held > other_held * _ROUNDING).any() or more.any():
            return False
    stages = range(one.num_stages)
    return all(one.gradient_sync_s(s) <= other.gradient_sync_s(s) * _ROUNDING for s in stages)


def _held(costs: CostTable) -> tuple[Array, Array]:
    deferred = costs.activation_bytes if costs.deferred_bytes is None else costs.deferred_bytes
    return costs.activation_bytes, deferred
