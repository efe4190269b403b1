"""What every microbatch moves among replicas that share out gradients or weights."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from pipesim.costs.network.alpha_beta import Collective
from pipesim.costs.network.traffic import Reduction
from pipesim.ir.actions import ActionTable, BoolArray, Op

Array = npt.NDArray[Any]
When = Literal["microbatch", "run", "step"]


class SyncStep(NamedTuple):
    """One collective over replicas: of experts or of all else, of weights or of gradients.

    `across` is one between groups of replicas that share out among themselves.
    """

    collective: Collective
    of_experts: bool
    of_weights: bool
    across: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class ShardExchange:
    """Gathers of weights before, and reductions of gradients after, the blocks of a stage.

    Parameters
    ----------
    gathers, reductions : tuple of tuple of SyncStep
        For each stage, those of one pass over all of its blocks.
    num_blocks : tuple of int
        In how many parts, one after the other, a stage moves them.
    exposed_s : Mapping of Op to Array
        What they add to the durations of F, B, I and W on an idle network, each of shape (S,).
    exposed_gathers_s, exposed_reductions_s : Mapping of Op to Array
        What the one or the other adds where an operation does one of them; needed unless both rules are
        ``microbatch``.
    gathered, reduced : {"microbatch", "run", "step"}
        When: in every operation; once for neighbouring operations of one stage and direction on a rank; or
        before a rank's first and after its last of a stage.
    whole_bytes : Array, optional
        Gathered weights and unreduced gradients of each stage, held where it is gathered for a run.
    """

    gathers: tuple[tuple[SyncStep, ...], ...]
    reductions: tuple[tuple[SyncStep, ...], ...]
    num_blocks: tuple[int, ...]
    exposed_s: Mapping[Op, Array]
    exposed_gathers_s: Mapping[Op, Array] = field(default_factory=dict)
    exposed_reductions_s: Mapping[Op, Array] = field(default_factory=dict)
    gathered: When = "microbatch"
    reduced: When = "microbatch"
    whole_bytes: Array | None = None

    @property
    def in_every_operation(self) -> bool:
        """Whether durations contain what is exposed: no operation differs from others of its kind."""
        return self.gathered == self.reduced == "microbatch"

    def moves(self, schedule: ActionTable) -> tuple[BoolArray, BoolArray]:
        """Rows of a schedule that gather, and rows that reduce; each of shape (rows,).

        F, B and I need weights, B and W make gradients.
        """
        op, stage, rank = schedule.op, schedule.stage, schedule.rank
        needs, makes = np.isin(op, (Op.F, Op.B, Op.I)), np.isin(op, (Op.B, Op.W))
        place = rank.astype(np.int64) * schedule.num_stages + stage
        gathers = _chosen(needs, place, 2 * place + (op == Op.F), self.gathered, first=True)
        return gathers, _chosen(makes, place, place, self.reduced, first=False)

    def steps(self, stage: int, *, gathers: bool, reduces: bool) -> tuple[SyncStep, ...]:
        """List the collectives of an operation that does one or the other or both."""
        return (self.gathers[stage] if gathers else ()) + (self.reductions[stage] if reduces else ())

    def seconds(self) -> tuple[Array, Array]:
        """Seconds of a stage's gathers and of its reductions alone, hidden or not; each of shape (S,)."""
        gathers, reductions = (
            np.array([sum(float(step.collective.seconds) for step in steps) for steps in of_stages])
            for of_stages in (self.gathers, self.reductions)
        )
        return gathers, reductions

    def traffic(self, ranks_and_stages: Iterable[tuple[int, int]]) -> dict[Hashable, Reduction]:
        """Say what they ask of the wires; every rank moves its own shards, whatever copies others hold."""
        return {
            ShardKey(rank, step.of_experts, step.across): Reduction(
                (rank,), step.collective.bytes_per_s, step.of_experts, across=step.across
            )
            for rank, stage in ranks_and_stages
            for step in self.gathers[stage] + self.reductions[stage]
        }


def _chosen(
    rows: BoolArray, place: npt.NDArray[np.int64], kind: npt.NDArray[np.int64], when: When, *, first: bool
) -> BoolArray:
    """Leave of `rows` those that move something; of equal neighbours the first or the last."""
    if when == "microbatch":
        return rows
    at = np.flatnonzero(rows)
    chosen = np.zeros(len(rows), np.bool_)
    if when == "step":
        order = at if first else at[::-1]
        chosen[order[np.unique(place[order], return_index=True)[1]]] = True
        return chosen
    changes = kind[at][1:] != kind[at][:-1]
    chosen[at[np.concatenate(([True], changes)) if first else np.concatenate((changes, [True]))]] = True
    return chosen


class ShardKey(NamedTuple):
    """Whose shards move."""

    rank: int
    of_experts: bool
    across: bool = False
