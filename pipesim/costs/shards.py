"""What every microbatch moves among replicas that share out gradients or weights."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipesim.costs.network.alpha_beta import Collective
from pipesim.costs.network.traffic import Reduction
from pipesim.ir.actions import COMPUTE, Op

Array = npt.NDArray[Any]


class SyncStep(NamedTuple):
    """One collective over replicas: of experts or of all else, of weights or of gradients."""

    collective: Collective
    of_experts: bool
    of_weights: bool


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
    """

    gathers: tuple[tuple[SyncStep, ...], ...]
    reductions: tuple[tuple[SyncStep, ...], ...]
    num_blocks: tuple[int, ...]
    exposed_s: Mapping[Op, Array]

    def steps(self, op: Op, stage: int) -> tuple[SyncStep, ...]:
        """List the collectives of one operation: F and I gather, W reduces, B does both."""
        gathers = self.gathers[stage] if op in (Op.F, Op.B, Op.I) else ()
        return gathers + (self.reductions[stage] if op in (Op.B, Op.W) else ())

    def seconds(self) -> dict[Op, Array]:
        """How long they take alone, hidden or not, by operation; each of shape (S,)."""
        return {
            op: np.array([self._seconds(op, stage) for stage in range(len(self.num_blocks))])
            for op in COMPUTE
        }

    def _seconds(self, op: Op, stage: int) -> float:
        return sum(float(step.collective.seconds) for step in self.steps(op, stage))

    def traffic(self, ranks_and_stages: Iterable[tuple[int, int]]) -> dict[Hashable, Reduction]:
        """Say what they ask of the wires; every rank moves its own shards, whatever copies others hold."""
        return {
            ShardKey(rank, step.of_experts): Reduction((rank,), step.collective.bytes_per_s, step.of_experts)
            for rank, stage in ranks_and_stages
            for step in self.gathers[stage] + self.reductions[stage]
        }


class ShardKey(NamedTuple):
    """Whose shards move."""

    rank: int
    of_experts: bool
