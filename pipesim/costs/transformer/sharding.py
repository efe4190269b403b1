"""Gradients and weights shared out among replicas: what gathering and reducing them adds to every microbatch.

With ZeRO-2 the gradients of a block (a layer, the embedding, the head) are reduce-scattered as soon as its
backward has made them, beside the backward of the block before it. With ZeRO-3, also known as fully sharded
data parallelism, the weights of a block are gathered too, for the forward and again for the backward, beside
the block that runs before: two gathers and one reduction a microbatch (Rajbhandari et al. 2020, arXiv
1910.02054, section 7; Zhao et al. 2023, arXiv 2304.11277).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipesim.costs.network.alpha_beta import Ring, all_gather_s, reduce_scatter_s
from pipesim.costs.transformer.overlap import exposed_s
from pipesim.costs.transformer.parameters import StageParameters
from pipesim.scenario.resolved import OptimizerLevel, Precision


@dataclass(frozen=True, slots=True)
class Block:
    """A part of a stage that gathers and reduces as one: seconds of it and parameters on one device."""

    forward_s: float
    backward_s: float
    parameters: StageParameters


@dataclass(frozen=True, slots=True)
class Sharding:
    """How parameters are shared out, and what they are moved over."""

    level: OptimizerLevel
    precision: Precision
    ring: Ring | None
    expert_ring: Ring | None
    slowdown: float

    def exchange_s(self, blocks: Sequence[Block]) -> tuple[float, float]:
        """Seconds that gathers and reductions add to the forward and to the backward of a stage's blocks."""
        if self.level not in ("zero2", "zero3"):
            return 0.0, 0.0
        gathers = [self._gather_s(block) for block in blocks]
        reductions = [self._reduce_s(block) for block in blocks]
        # Beside block i: forward, the weights of i + 1; backward, those of i - 1 and the gradients of i + 1.
        following, preceding = [*gathers[1:], 0.0], [0.0, *gathers[:-1]]
        reduced = [*reductions[1:], 0.0]
        forward, backward = gathers[0], gathers[-1] + reductions[0]
        for block, ahead, behind, gradient in zip(blocks, following, preceding, reduced, strict=True):
            forward += exposed_s(block.forward_s, ahead, self.slowdown)
            backward += exposed_s(block.backward_s, behind + gradient, self.slowdown)
        return forward, backward

    def working_bytes(self, blocks: Sequence[Block]) -> float:
        """Whole weights and gradients of two neighbouring blocks, one at work and one on its way."""
        largest = max(block.parameters.dense + block.parameters.experts for block in blocks)
        nbytes = self.precision.gradient_bytes if self.level in ("zero2", "zero3") else 0.0
        if self.level == "zero3":
            nbytes += self.precision.weight_bytes
        return 2 * largest * nbytes

    def _gather_s(self, block: Block) -> float:
        if self.level != "zero3":
            return 0.0
        return self._moved_s(block, self.precision.weight_bytes, gather=True)

    def _reduce_s(self, block: Block) -> float:
        return self._moved_s(block, self.precision.gradient_bytes, gather=False)

    def _moved_s(self, block: Block, bytes_each: float, *, gather: bool) -> float:
        collective = all_gather_s if gather else reduce_scatter_s
        seconds = 0.0
        for number, ring in (
            (block.parameters.dense, self.ring),
            (block.parameters.experts, self.expert_ring),
        ):
            if number and ring is not None:
                seconds += float(collective(number * bytes_each, ring))
        return seconds
