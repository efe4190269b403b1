"""Gradients and weights shared out among replicas: what gathering and reducing them adds to every microbatch.

With ZeRO-2 the gradients of a block (a layer, the embedding, the head) are reduce-scattered as soon as its
backward has made them, beside the backward of the block before it. With ZeRO-3, also known as fully sharded
data parallelism, the weights of a block are gathered too, for the forward and again for the backward, beside
the block that runs before: two gathers and one reduction a microbatch (Rajbhandari et al. 2020, arXiv
1910.02054, section 7; Zhao et al. 2023, arXiv 2304.11277). Torch's pipeline stages leave the gradients of
FSDP alone until a stage's last backward, and its weights gathered until then unless told to drop them
(torch/distributed/pipelining/stage.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise

import numpy as np
import numpy.typing as npt

from pipesim.costs.network.alpha_beta import Ring, all_gather, all_reduce, reduce_scatter
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
class GatheredBlock:
    """A part of a stage that gathers and reduces as one: seconds of it and parameters on one device.

    The backward contains the weight gradient.
    """

    forward_s: float
    backward_s: float
    weight_gradient_s: float
    parameters: StageParameters
    trained: StageParameters | None = None
    """Of them, those with gradients; None: all."""


@dataclass(frozen=True, slots=True)
class Sharding:
    """How parameters are shared out, and what they are moved over.

    Parameters
    ----------
    level : str
        What is shared out.
    precision : Precision
        Bytes of weights and gradients.
    ring, expert_ring : Ring, optional
        Replicas that share out among themselves.
    slowdown : float
        Of computing beside collectives.
    across : Ring, optional
        Groups of such replicas, between which reduced shards are added up.
    reshard : bool
        With fsdp, whether gathered weights are dropped when a rank leaves a stage.
    """

    level: OptimizerLevel
    precision: Precision
    ring: Ring | None
    expert_ring: Ring | None
    slowdown: float
    across: Ring | None = None
    reshard: bool = False

    def exchange(self, stages: Sequence[Sequence[GatheredBlock]]) -> ShardExchange | None:
        """Gathers and reductions of stages, given as their blocks; None where nothing is moved."""
        gathers = tuple(tuple(self._all(self._gather(block) for block in blocks)) for blocks in stages)
        reductions = tuple(tuple(self._all(self._reduce(block) for block in blocks)) for blocks in stages)
        if not any(gathers) and not any(reductions):
            return None

        def exposed(**moved: bool) -> dict[Op, npt.NDArray[np.float64]]:
            seconds = np.array([self.exposed_s(blocks, **moved) for blocks in stages]).T
            return dict(zip((Op.F, Op.B, Op.I, Op.W), seconds, strict=True))

        once = self.level == "fsdp"
        whole = np.array(
            [sum(b.parameters.dense + b.parameters.experts for b in blocks) for blocks in stages]
        )
        nbytes = self.precision.weight_bytes + (0.0 if once else self.precision.gradient_bytes)
        return ShardExchange(
            gathers,
            reductions,
            tuple(len(blocks) for blocks in stages),
            exposed(),
            exposed(reduces=False),
            exposed(gathers=False),
            gathered=("run" if self.reshard else "step") if once else "microbatch",
            reduced="step" if once else "microbatch",
            whole_bytes=whole * nbytes,
        )

    def exposed_s(
        self, blocks: Sequence[GatheredBlock], *, gathers: bool = True, reduces: bool = True
    ) -> tuple[float, float, float, float]:
        """Seconds that gathers and reductions add to F, B, I and W of a stage's blocks on an idle network."""
        gathered = [_seconds(self._gather(block)) if gathers else 0.0 for block in blocks]
        reductions = [_seconds(self._reduce(block)) if reduces else 0.0 for block in blocks]
        # Beside block i: forward, the weights of i + 1; backward, those of i - 1 and the gradients of i + 1.
        following, preceding = [*gathered[1:], 0.0], [0.0, *gathered[:-1]]
        reduced = [*reductions[1:], 0.0]
        forward, backward = gathered[0], gathered[-1] + reductions[0]
        input_gradient, weight_gradient = gathered[-1], reductions[0]
        for block, ahead, behind, gradient in zip(blocks, following, preceding, reduced, strict=True):
            forward += exposed_s(block.forward_s, ahead, self.slowdown)
            backward += exposed_s(block.backward_s, behind + gradient, self.slowdown)
            back_s = block.backward_s - block.weight_gradient_s
            input_gradient += exposed_s(back_s, behind, self.slowdown)
            weight_gradient += exposed_s(block.weight_gradient_s, gradient, self.slowdown)
        return forward, backward, input_gradient, weight_gradient

    def working_bytes(self, blocks: Sequence[GatheredBlock]) -> float:
        """Whole weights and gradients of two neighbouring blocks, one at work and one on its way."""
        if self.level == "fsdp":
            # Gradients and gathered weights lie whole anyway, or the whole stage is gathered.
            whole_stage = sum(block.parameters.dense + block.parameters.experts for block in blocks)
            return whole_stage * self.precision.weight_bytes if self.reshard else 0.0
        whole = [block.parameters.dense + block.parameters.experts for block in blocks]
        largest = max((one + other for one, other in pairwise(whole)), default=whole[0])
        nbytes = self.precision.gradient_bytes if self.level in ("zero2", "zero3") else 0.0
        if self.level == "zero3":
            nbytes += self.precision.weight_bytes
        return largest * nbytes

    def _gather(self, block: GatheredBlock) -> list[SyncStep]:
        if self.level not in ("zero3", "fsdp"):
            return []
        return self._moved(block, self.precision.weight_bytes, gather=True)

    def _reduce(self, block: GatheredBlock) -> list[SyncStep]:
        if self.level not in ("zero2", "zero3", "fsdp"):
            return []
        return self._moved(block, self.precision.gradient_bytes, gather=False)

    def _moved(self, block: GatheredBlock, bytes_each: float, *, gather: bool) -> list[SyncStep]:
        moved = block.parameters if gather or block.trained is None else block.trained
        collective = all_gather if gather else reduce_scatter
        steps = [
            SyncStep(collective(number * bytes_each, ring), of_experts, of_weights=gather)
            for number, ring, of_experts in (
                (moved.dense, self.ring, False),
                (moved.experts, self.expert_ring, True),
            )
            if number and ring is not None
        ]
        if self.across is not None and not gather:
            for number, ring, of_experts in (
                (moved.dense, self.ring, False),
                (moved.experts, self.expert_ring, True),
            ):
                if number:
                    shard = number * bytes_each / (1 if ring is None else ring.num_members)
                    added_up = all_reduce(shard, self.across)
                    steps.append(SyncStep(added_up, of_experts, of_weights=False, across=True))
        return steps

    @staticmethod
    def _all(of_blocks: Iterable[list[SyncStep]]) -> list[SyncStep]:
        """Add up the collectives of blocks, those of experts and those across groups apart."""
        total: dict[tuple[bool, bool], SyncStep] = {}
        for step in chain.from_iterable(of_blocks):
            if (before := total.get((step.of_experts, step.across))) is not None:
                one, other = before.collective, step.collective
                latency_s, nbytes = one.latency_s + other.latency_s, one.nbytes + other.nbytes
                step = step._replace(collective=replace(one, latency_s=latency_s, nbytes=nbytes))
            total[step.of_experts, step.across] = step
        return list(total.values())


def _seconds(steps: Iterable[SyncStep]) -> float:
    return sum(float(step.collective.seconds) for step in steps)
