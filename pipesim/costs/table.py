"""What every operation, message and byte costs, as plain data that the engine and evaluator read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from pipesim.costs.host import HostCost
from pipesim.costs.network.alpha_beta import (
    Collective,
    LinkCost,
    Number,
    PointToPoint,
    Ring,
    all_gather,
    all_reduce,
    reduce_scatter,
)
from pipesim.costs.network.traffic import Fabric
from pipesim.costs.shards import ShardExchange, SyncStep
from pipesim.costs.token_exchange import TokenExchange
from pipesim.errors import ScheduleError
from pipesim.ir.actions import ActionTable, Op

Array = npt.NDArray[Any]
"""Floats, or Python objects where entries are `fractions.Fraction` and everything must stay exact."""

GradientCollective = Literal["all_reduce", "reduce_scatter", "all_gather", "none"]


@dataclass(frozen=True, slots=True)
class Skip:
    """A skip connection: a tensor that one stage hands to a later one; a gradient as large comes back."""

    source: int
    target: int
    nbytes: Number


@dataclass(frozen=True, slots=True, eq=False)
class SitePrices:
    """What traffic between data centres costs.

    Parameters
    ----------
    message_usd_per_byte : Mapping of (int, int) to float
        By source and destination rank, of a byte that each of a rank's devices sends, in all replicas.
    sync_usd : Array
        Of what ends a step, stage by stage.
    """

    message_usd_per_byte: Mapping[tuple[int, int], float]
    sync_usd: Array


@dataclass(frozen=True, slots=True)
class EmbeddingCopy:
    """What one copy of a tied embedding takes of a stage, on one device."""

    weight_bytes: float
    gradient_bytes: float
    optimizer_bytes: float
    optimizer_s: float


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CostTable:
    """Costs of one pipeline; every array has one entry a stage, shape (S,).

    Times are seconds of one microbatch through one stage; bytes are those of one device of the
    tensor-parallel group that forms a rank. Durations are asked for in bulk and come back as one array, so
    that another source of them (jitter, measured durations) is another array of that shape.

    Parameters
    ----------
    forward_s, backward_s, input_gradient_s, weight_gradient_s : Array
        Durations of F, B, I, W. I and W need not add up to B.
    overlapped_pair_s : Array, optional
        Duration of a forward and a backward that run together, by the stage of the forward; None: their sum,
        less what each computes beside the other's exchange of tokens.
    boundary_bytes : Array
        Message that leaves a stage forward; 0 for the last. The gradient that returns has the same size.
    point_to_point : PointToPoint
        Links between ranks.
    host : HostCost, optional
        What ranks spend between computations; None: nothing.
    gradient_bytes : Array
        Gradients that a stage holds and, over data-parallel replicas, reduces.
    gradient_ring : Ring, optional
        Ring of the data-parallel replicas of one stage; None where gradients are not reduced.
    gradient_collective : {"all_reduce", "reduce_scatter", "all_gather", "none"}
        What ends a step. With a sharded optimizer gradients are reduce-scattered and the new weights
        all-gathered; where gradients are shared out every backward has reduced its own, and where weights
        are, every forward gathers its own; see `shard_exchange`.
    shard_exchange : ShardExchange, optional
        What every microbatch moves among the replicas; the durations above contain what of it is exposed on
        an idle network. None: nothing.
    token_exchange : TokenExchange, optional
        What every microbatch sends to experts and back; the durations above contain what of it shows on an
        idle network, and pairs hide more. None: nothing.
    busiest_s : Mapping of Op to Array
        Of the durations of F, B, I and W, what grows with the tokens of the busiest device that shares out
        experts, each of shape (S,). Empty where nobody asks.
    gradient_buckets : Array, optional
        Into how many buckets a stage's gradients fall whose collectives start during its last backward, each
        as soon as its gradients are there; None: all at once after a rank's own last backward.
    expert_share : Array, optional
        Share of a stage's gradients and weights that belongs to experts, which `expert_ring` reduces; None:
        no share.
    expert_ring : Ring, optional
        Ring of the devices that hold the same experts; None where there is one of each.
    across_ring : Ring, optional
        Ring of groups of replicas of which each shares out all there is; their shards of gradients are added
        up. None where there is one group.
    shown_sync : Array, optional
        Share of a stage's collectives at the end of a step that shows, where the rest runs beside computing;
        None: all of it.
    fixed_sync_s : Array
        Synchronisation a stage pays whatever the ring.
    tied_embedding_bytes : Number
        Gradients of an embedding that the first and the last stage have in common.
    second_embedding : EmbeddingCopy, optional
        What the last stage has for its copy of a tied embedding; see `pipesim.costs.copies`.
    tied_embedding_ring : Ring, optional
        Ring of the ranks that add them up, once both have synchronised theirs; None: stages have no
        parameters in common.
    optimizer_s : Array
        Optimizer step of a stage.
    optimizer_fixed_s : Number
        Part of each stage's optimizer step that does not depend on how much it updates.
    weight_bytes, optimizer_bytes, activation_bytes, working_bytes : Array
        Weights and optimizer state are held for the whole step, activations by one microbatch from F to
        B or I, and the working set only while an operation runs.
    updated_weight_bytes : Array, optional
        Of the weights, those that the optimizer updates; None: all.
    deferred_bytes : Array, optional
        Held by one microbatch from I to W: what the gradients of the weights read. Less than the activations
        where I gives back a part, more where it computes again what was not kept; None: as much.
    overlap_slowdown : Number
        Computing takes 1 + this times as long while a collective runs beside it; durations contain it for the
        collectives that they contain.
    logit_bytes, deferred_logit_bytes : Array, optional
        Of the activations and of what is deferred, the logits and what the loss keeps of them.
    memory_limit_bytes, memory_budget_bytes : float, optional
        Memory of one device, and what of it a run should take, the rest being kept free; see
        `pipesim.scenario.resolved.KeptFree`.
    tokens_per_step, samples_per_step, model_flops_per_step, causal_flops_per_step, hardware_flops_per_step,
    num_gpus, peak_flops_per_gpu, price_usd_per_gpu_hour
        Facts of the whole step over all replicas; None without a basis. Model FLOPs count attention in full;
        causal ones half of it; hardware FLOPs are model FLOPs with what is recomputed.
    forward_parts_s, backward_parts_s : Mapping of str to Array
        What F and B consist of; each mapping adds up to `forward_s` or `backward_s`. Empty when unknown.
    provenance : Mapping of str to str
        Where the numbers came from, in words.
    fabric : Fabric, optional
        The wires that messages and gradient collectives share; None: every pair of ranks has its own, and
        collectives theirs.
    skips : tuple of Skip
        Tensors that stages hand to others than the next.
    site_prices : SitePrices, optional
        None where no traffic is paid for.
    of_ranks : Mapping of int to CostTable
        Ranks whose devices are others than the rest's: durations, optimizer and memory limit are read there.
    """

    forward_s: Array
    backward_s: Array
    input_gradient_s: Array
    weight_gradient_s: Array
    boundary_bytes: Array
    point_to_point: PointToPoint
    gradient_bytes: Array
    fixed_sync_s: Array
    optimizer_s: Array
    weight_bytes: Array
    optimizer_bytes: Array
    activation_bytes: Array
    working_bytes: Array
    overlapped_pair_s: Array | None = None
    host: HostCost | None = None
    gradient_ring: Ring | None = None
    gradient_collective: GradientCollective = "all_reduce"
    gradient_buckets: npt.NDArray[np.intp] | None = None
    expert_share: Array | None = None
    expert_ring: Ring | None = None
    across_ring: Ring | None = None
    tied_embedding_bytes: Number = 0
    tied_embedding_ring: Ring | None = None
    updated_weight_bytes: Array | None = None
    deferred_bytes: Array | None = None
    logit_bytes: Array | None = None
    deferred_logit_bytes: Array | None = None
    overlap_slowdown: Number = 0
    memory_limit_bytes: float | None = None
    memory_budget_bytes: float | None = None
    tokens_per_step: float | None = None
    samples_per_step: float | None = None
    model_flops_per_step: float | None = None
    causal_flops_per_step: float | None = None
    hardware_flops_per_step: float | None = None
    num_gpus: int | None = None
    peak_flops_per_gpu: float | None = None
    price_usd_per_gpu_hour: float | None = None
    forward_parts_s: Mapping[str, Array] = field(default_factory=dict)
    backward_parts_s: Mapping[str, Array] = field(default_factory=dict)
    provenance: Mapping[str, str] = field(default_factory=dict)
    fabric: Fabric | None = None
    shard_exchange: ShardExchange | None = None
    token_exchange: TokenExchange | None = None
    second_embedding: EmbeddingCopy | None = None
    shown_sync: Array | None = None
    optimizer_fixed_s: Number = 0
    skips: tuple[Skip, ...] = ()
    site_prices: SitePrices | None = None
    of_ranks: Mapping[int, CostTable] = field(default_factory=dict)
    busiest_s: Mapping[Op, Array] = field(default_factory=dict)

    def __repr__(self) -> str:
        forward_s, backward_s = self.forward_s.sum(), self.backward_s.sum()
        return (
            f"<CostTable {self.num_stages} stages: F {float(forward_s):.4g} s, B {float(backward_s):.4g} s>"
        )

    @property
    def num_stages(self) -> int:
        """Number of stages S."""
        return len(self.forward_s)

    @property
    def skip_ends(self) -> tuple[tuple[int, int], ...]:
        """Stages that each skip connection comes from and goes to, as schedules hold them."""
        return tuple((skip.source, skip.target) for skip in self.skips)

    def check_stages(self, schedule: ActionTable) -> None:
        """Refuse a schedule of another number of stages.

        Raises
        ------
        ScheduleError
            With both numbers.
        """
        if schedule.num_stages != self.num_stages:
            raise ScheduleError(
                f"{schedule.name} has {schedule.num_stages} stages, the costs are of {self.num_stages}"
            )

    def durations(self, ops: npt.ArrayLike, stages: npt.ArrayLike) -> Array:
        """Duration in seconds of each (op, stage); operations that compute nothing take 0.

        Parameters
        ----------
        ops, stages : array_like of int
            Codes of `Op` and stages 0..S-1, same shape; the result has that shape.
        """
        by_op = np.zeros((max(Op) + 1, self.num_stages), dtype=self.forward_s.dtype)
        by_op[Op.F] = self.forward_s
        by_op[Op.B] = self.backward_s
        by_op[Op.I] = self.input_gradient_s
        by_op[Op.W] = self.weight_gradient_s
        result: Array = by_op[np.asarray(ops), np.asarray(stages)]
        return result

    def duration(self, op: Op, stage: int) -> Number:
        """Duration in seconds of one operation; an operation that computes nothing takes 0."""
        scalar: Number = self.durations([op], [stage])[0]
        return scalar

    def pair_s(self, forward_stage: int, backward_stage: int) -> Number:
        """Duration of F of one stage and B of another run together."""
        if self.overlapped_pair_s is not None:
            paired: Number = self.overlapped_pair_s[forward_stage]
            return paired
        forward_s, backward_s = self.forward_s[forward_stage], self.backward_s[backward_stage]
        if self.token_exchange is None:
            in_turn: Number = forward_s + backward_s
            return in_turn
        stages = np.array([forward_stage]), np.array([backward_stage])
        times = np.array([forward_s]), np.array([backward_s])
        return float(self.token_exchange.paired_s(*times, stages, float(self.overlap_slowdown))[0])

    def p2p(self, src_rank: int, dst_rank: int) -> LinkCost:
        """Link from one rank to another."""
        return self.point_to_point.between(src_rank, dst_rank)

    @property
    def tied_embedding(self) -> Collective | None:
        """All-reduce of the gradients of a tied embedding."""
        ring = self.tied_embedding_ring
        return None if ring is None else all_reduce(self.tied_embedding_bytes, ring)

    def gradient_sync_s(self, stage: int) -> Number:
        """Seconds to synchronise one stage's gradients (and sharded weights) on an idle network."""
        seconds: Number = self.fixed_sync_s[stage]
        for step in self.sync_steps(stage):
            seconds += step.collective.seconds
        return seconds

    def sync_steps(self, stage: int, share: Number = 1) -> list[SyncStep]:
        """List the collectives that synchronise a stage's gradients, in order.

        Parameters
        ----------
        stage : int
            One of 0..S-1.
        share : Number
            What part of the stage's gradients and weights; smaller than 1 for a bucket of them.
        """
        if self.shown_sync is not None:
            share *= self.shown_sync[stage]
        updated = self.weight_bytes if self.updated_weight_bytes is None else self.updated_weight_bytes
        gradient, weight = share * self.gradient_bytes[stage], share * updated[stage]
        if self.expert_share is None:
            return self._steps(gradient, weight, self.gradient_ring, of_experts=False)
        experts = self.expert_share[stage]
        steps = []
        for part, ring, of_experts in (
            (1 - experts, self.gradient_ring, False),
            (experts, self.expert_ring, True),
        ):
            if part:
                steps += self._steps(part * gradient, part * weight, ring, of_experts=of_experts)
        return steps

    def _steps(
        self, gradient: Number, weight: Number, ring: Ring | None, *, of_experts: bool
    ) -> list[SyncStep]:
        kind = self.gradient_collective
        if kind == "none" or not (gradient or weight):
            return []
        if ring is None:
            return self._across_steps(gradient, of_experts) if kind == "reduce_scatter" else []
        if kind == "all_reduce":
            return [SyncStep(all_reduce(gradient, ring), of_experts, of_weights=False)]
        gather = SyncStep(all_gather(weight, ring), of_experts, of_weights=True)
        if kind == "all_gather":
            return [gather]
        scattered = [SyncStep(reduce_scatter(gradient, ring), of_experts, of_weights=False)]
        return [*scattered, *self._across_steps(gradient / ring.num_members, of_experts), gather]

    def _across_steps(self, shard: Number, of_experts: bool) -> list[SyncStep]:
        """Add up the shards of groups that share out."""
        if self.across_ring is None:
            return []
        return [SyncStep(all_reduce(shard, self.across_ring), of_experts, of_weights=False, across=True)]
