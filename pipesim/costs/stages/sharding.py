"""Gradients and weights shared out among replicas: what gathering and reducing them adds to every microbatch.

With ZeRO-2 the gradients of a block (a layer, the embedding, the head) are reduce-scattered as soon as its
backward has made them, beside the backward of the block before it. With ZeRO-3, also known as fully sharded
data parallelism, the weights of a block are gathered too, for the forward and again for the backward, beside
the block that runs before: two gathers and one reduction a microbatch (Rajbhandari et al. 2020, arXiv
1910.02054, section 7; Zhao et al. 2023, arXiv 2304.11277).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise

import numpy as np

from pipesim.costs.network.alpha_beta import Ring, all_gather, reduce_scatter
from pipesim.costs.shards import ShardExchange, SyncStep
from pipesim.costs.stages.overlap import exposed_s
from pipesim.ir.actions import Op
from pipesim.scenario.resolved import OptimizerLevel, Precision


@dataclass(frozen=True, slots=True)
class StageParameters:
    """Parameters that one device of a stage holds; replicas of experts are others than those of the rest."""

    dense: float
    experts: float


@dataclass(frozen=True, slots=True)
class Block:
    """A part of a stage that gathers and reduces as one: seconds of it and parameters on one device.

    The backward contains the weight gradient.
    """

    forward_s: float
    backward_s: float
    weight_gradient_s: float
    parameters: StageParameters


@dataclass(frozen=True, slots=True)
class Sharding:
    """How parameters are shared out, and what they are moved over."""

    level: OptimizerLevel
    precision: Precision
    ring: Ring | None
    expert_ring: Ring | None
    slowdown: float

    def exchange(self, stages: Sequence[Sequence[Block]]) -> ShardExchange | None:
        """Gathers and reductions of stages, given as their blocks; None where nothing is moved."""
        gathers = tuple(tuple(self._all(self._gather(block) for block in blocks)) for blocks in stages)
        reductions = tuple(tuple(self._all(self._reduce(block) for block in blocks)) for blocks in stages)
        if not any(gathers) and not any(reductions):
            return None
        exposed = np.array([self.exposed_s(blocks) for blocks in stages]).T
        return ShardExchange(
            gathers,
            reductions,
            tuple(len(blocks) for blocks in stages),
            dict(zip((Op.F, Op.B, Op.I, Op.W), exposed, strict=True)),
        )

    def exposed_s(self, blocks: Sequence[Block]) -> tuple[float, float, float, float]:
        """Seconds that gathers and reductions add to F, B, I and W of a stage's blocks on an idle network."""
        gathers = [_seconds(self._gather(block)) for block in blocks]
        reductions = [_seconds(self._reduce(block)) for block in blocks]
        # Beside block i: forward, the weights of i + 1; backward, those of i - 1 and the gradients of i + 1.
        following, preceding = [*gathers[1:], 0.0], [0.0, *gathers[:-1]]
        reduced = [*reductions[1:], 0.0]
        forward, backward = gathers[0], gathers[-1] + reductions[0]
        input_gradient, weight_gradient = gathers[-1], reductions[0]
        for block, ahead, behind, gradient in zip(blocks, following, preceding, reduced, strict=True):
            forward += exposed_s(block.forward_s, ahead, self.slowdown)
            backward += exposed_s(block.backward_s, behind + gradient, self.slowdown)
            back_s = block.backward_s - block.weight_gradient_s
            input_gradient += exposed_s(back_s, behind, self.slowdown)
            weight_gradient += exposed_s(block.weight_gradient_s, gradient, self.slowdown)
        return forward, backward, input_gradient, weight_gradient

    def working_bytes(self, blocks: Sequence[Block]) -> float:
        """Whole weights and gradients of two neighbouring blocks, one at work and one on its way."""
        whole = [block.parameters.dense + block.parameters.experts for block in blocks]
        largest = max((one + other for one, other in pairwise(whole)), default=whole[0])
        nbytes = self.precision.gradient_bytes if self.level in ("zero2", "zero3") else 0.0
        if self.level == "zero3":
            nbytes += self.precision.weight_bytes
        return largest * nbytes

    def _gather(self, block: Block) -> list[SyncStep]:
        return self._moved(block, self.precision.weight_bytes, gather=True) if self.level == "zero3" else []

    def _reduce(self, block: Block) -> list[SyncStep]:
        if self.level not in ("zero2", "zero3"):
            return []
        return self._moved(block, self.precision.gradient_bytes, gather=False)

    def _moved(self, block: Block, bytes_each: float, *, gather: bool) -> list[SyncStep]:
        collective = all_gather if gather else reduce_scatter
        return [
            SyncStep(collective(number * bytes_each, ring), of_experts, of_weights=gather)
            for number, ring, of_experts in (
                (block.parameters.dense, self.ring, False),
                (block.parameters.experts, self.expert_ring, True),
            )
            if number and ring is not None
        ]

    @staticmethod
    def _all(of_blocks: Iterable[list[SyncStep]]) -> list[SyncStep]:
        """Add up the collectives of blocks, those of experts apart."""
        total: dict[bool, SyncStep] = {}
        for step in chain.from_iterable(of_blocks):
            if (before := total.get(step.of_experts)) is not None:
                one, other = before.collective, step.collective
                latency_s, nbytes = one.latency_s + other.latency_s, one.nbytes + other.nbytes
                step = step._replace(collective=replace(one, latency_s=latency_s, nbytes=nbytes))
            total[step.of_experts] = step
        return list(total.values())


def _seconds(steps: Iterable[SyncStep]) -> float:
    return sum(float(step.collective.seconds) for step in steps)
