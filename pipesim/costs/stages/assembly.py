"""Cost table of stages: replicas, optimizer and hardware around what a model's layers take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pipesim.costs.network.alpha_beta import Ring
from pipesim.costs.network.topology import (
    across_ring,
    data_ring,
    expert_data_ring,
    fabric,
    pipeline_links,
)
from pipesim.costs.shards import ShardExchange
from pipesim.costs.stages.overlap import shown_sync
from pipesim.costs.stages.rates import memory_bytes_per_s, peak_flops
from pipesim.costs.stages.sharding import GatheredBlock, Sharding, StageParameters
from pipesim.costs.stages.site_traffic import outer_collectives, outer_sync_s, site_prices
from pipesim.costs.stages.stage_provenance import common_provenance
from pipesim.costs.stages.state import StateBytes
from pipesim.costs.table import CostTable, EmbeddingCopy, GradientCollective, Skip
from pipesim.costs.token_exchange import TokenExchange
from pipesim.errors import ScenarioError
from pipesim.ir.actions import Op
from pipesim.scenario.hardware import Accelerator, Cluster
from pipesim.scenario.resolved import Efficiency, OptimizerLevel, ResolvedScenario

FloatArray = npt.NDArray[np.float64]

_MOST_BUCKETS = 10_000
_OPTIMIZER_TRAFFIC_BYTES = 34
"""Memory traffic of mixed-precision Adam, for each parameter it updates."""
_COLLECTIVE_AT_END: dict[OptimizerLevel, GradientCollective] = {
    "plain": "all_reduce",
    "sharded": "reduce_scatter",
    "zero2": "all_gather",
    "zero3": "none",
    "fsdp": "none",
}


@dataclass(frozen=True, slots=True, eq=False)
class Stages:
    """What the stages of a model take on one device, for one microbatch; arrays have shape (S,).

    Parameters
    ----------
    forward_parts_s, backward_parts_s : Mapping of str to FloatArray
        Seconds by part; each mapping adds up to the stage's F or B.
    weight_gradient_s : FloatArray
        What of the backward W runs when a schedule splits it.
    boundary_bytes : FloatArray
        Message that leaves a stage; 0 for the last.
    layers_per_stage : sequence of int
        For the table's provenance.
    parameters : sequence of StageParameters
        Held by one device.
    trained : sequence of StageParameters, optional
        Of them, those that have gradients and optimizer state; None: all.
    activation_bytes, working_bytes : FloatArray
        Held from F to the release, and needed on top while an operation runs.
    deferred_bytes : FloatArray, optional
        Held from I to W; None: as from F to I.
    blocks : Callable
        From a stage to what it gathers and reduces one by one; asked only where replicas share out gradients.
    tokens_per_sample : int, optional
        None without a sequence.
    model_flops_per_step : float
        Over all replicas, recomputation left out.
    provenance : Mapping of str to str
        What is particular to the model.
    token_exchange : TokenExchange, optional
        Of stages with experts that are shared out.
    busiest_s : Mapping of Op to FloatArray
        See `CostTable`.
    causal_flops_per_step, hardware_flops_per_step : float, optional
        The same with half of the attention, and with what is recomputed.
    logit_bytes, deferred_logit_bytes : FloatArray, optional
        Of the activations and of what is deferred, those of the logits.
    tied_embedding_bytes, tied_embedding_ring
        See `CostTable`.
    second_embedding_parameters : float
        Of the last stage's, those that are its copy of a tied embedding.
    weight_recompute_s : FloatArray
        What W runs on top where it computes layers again.
    skips : tuple of Skip
        See `CostTable`.
    """

    forward_parts_s: Mapping[str, FloatArray]
    backward_parts_s: Mapping[str, FloatArray]
    weight_gradient_s: FloatArray
    boundary_bytes: FloatArray
    layers_per_stage: Sequence[int]
    parameters: Sequence[StageParameters]
    activation_bytes: FloatArray
    working_bytes: FloatArray
    deferred_bytes: FloatArray | None
    blocks: Callable[[int], Sequence[GatheredBlock]]
    tokens_per_sample: int | None
    model_flops_per_step: float
    provenance: Mapping[str, str]
    trained: Sequence[StageParameters] | None = None
    tied_embedding_bytes: float = 0.0
    tied_embedding_ring: Ring | None = None
    second_embedding_parameters: float = 0.0
    weight_recompute_s: FloatArray | float = 0.0
    token_exchange: TokenExchange | None = None
    busiest_s: Mapping[Op, FloatArray] = field(default_factory=dict)
    causal_flops_per_step: float | None = None
    hardware_flops_per_step: float | None = None
    logit_bytes: FloatArray | None = None
    deferred_logit_bytes: FloatArray | None = None
    skips: tuple[Skip, ...] = ()


def cost_table(
    scenario: ResolvedScenario, cluster: Cluster, efficiency: Efficiency, stages: Stages, *, num_chunks: int
) -> CostTable:
    """Lay replicas, optimizer and hardware around the stages of a model.

    Raises
    ------
    ScenarioError
        If the accelerator does not compute in the scenario's precision, or gradients fall into too many
        buckets.
    """
    parallel = scenario.parallel
    num_stages = parallel.pipeline * num_chunks
    sharding, apart = _sharing(scenario, cluster, efficiency)
    exchange, working = None, stages.working_bytes
    if scenario.sharding in ("zero2", "zero3", "fsdp"):
        blocks = [stages.blocks(stage) for stage in range(num_stages)]
        working = working + [sharding.working_bytes(of_stage) for of_stage in blocks]
        exchange = sharding.exchange(blocks)
    times = _times_beside(stages, exchange)
    held = _columns(stages.parameters)
    learned = held if stages.trained is None else _columns(stages.trained)
    state = StateBytes(scenario.sharding, parallel, scenario.precision)
    seconds_each = _OPTIMIZER_TRAFFIC_BYTES / memory_bytes_per_s(cluster.accelerator, efficiency)
    overhead_s = efficiency.step_overhead_s / num_chunks
    offload = scenario.offload
    # Read and written at a time, for the host's link is full duplex.
    offloaded = offload.optimizer * state.optimizer(*learned)
    pair_s = scenario.overlapped_pair_s
    table = CostTable(
        overlapped_pair_s=None if pair_s is None else np.full(num_stages, pair_s / num_chunks),
        forward_s=np.sum(list(times.forward_parts.values()), axis=0),
        backward_s=np.sum(list(times.backward_parts.values()), axis=0),
        input_gradient_s=times.input_gradient,
        weight_gradient_s=times.weight_gradient,
        forward_parts_s=times.forward_parts,
        backward_parts_s=times.backward_parts,
        boundary_bytes=stages.boundary_bytes,
        point_to_point=pipeline_links(cluster, parallel),
        fabric=fabric(cluster, parallel),
        gradient_bytes=state.gradients(*learned),
        fixed_sync_s=np.zeros(num_stages),
        optimizer_s=state.updated(*learned) * seconds_each + offloaded / offload.bytes_per_s + overhead_s,
        optimizer_fixed_s=overhead_s,
        second_embedding=_second_embedding(scenario, stages, state, seconds_each),
        weight_bytes=state.weights(*held),
        updated_weight_bytes=None if stages.trained is None else state.weights(*learned),
        optimizer_bytes=state.optimizer(*learned) - offloaded,
        logit_bytes=stages.logit_bytes,
        deferred_logit_bytes=stages.deferred_logit_bytes,
        activation_bytes=stages.activation_bytes,
        deferred_bytes=stages.deferred_bytes,
        working_bytes=working,
        memory_limit_bytes=cluster.accelerator.memory_bytes,
        overlap_slowdown=efficiency.overlap_slowdown,
        shard_exchange=exchange,
        skips=stages.skips,
        token_exchange=stages.token_exchange,
        busiest_s=stages.busiest_s,
    )
    table = _with_step_facts(table, scenario, cluster, efficiency, stages)
    dense, experts = learned
    outer = [] if apart is None else outer_collectives(parallel, apart, dense, experts)
    if outer:
        table = replace(table, fixed_sync_s=outer_sync_s(outer, cluster, parallel))
    table = _with_reductions(table, scenario, stages, sharding, dense, experts)
    table = replace(table, site_prices=site_prices(cluster, parallel, table, outer))
    return _with_hidden_gradients(table) if scenario.hides_gradients else table


def _sharing(
    scenario: ResolvedScenario, cluster: Cluster, efficiency: Efficiency
) -> tuple[Sharding, Ring | None]:
    """Say what replicas share out in every step, and over which ring groups meet that train apart."""
    parallel, all_reduce = scenario.parallel, scenario.network.reduction
    across = across_ring(cluster, parallel, all_reduce)
    apart = across if parallel.local_steps > 1 else None
    sharding = Sharding(
        scenario.sharding,
        scenario.precision,
        data_ring(cluster, parallel, all_reduce),
        expert_data_ring(cluster, parallel, all_reduce),
        efficiency.overlap_slowdown,
        None if apart is not None else across,
        parallel.reshard_after_forward,
    )
    return sharding, apart


def _with_step_facts(
    table: CostTable, scenario: ResolvedScenario, cluster: Cluster, efficiency: Efficiency, stages: Stages
) -> CostTable:
    """Add what a whole step comes to over all replicas, and where the numbers are from."""
    batch, parallel, tokens = scenario.batch, scenario.parallel, stages.tokens_per_sample
    num_samples = float(batch.num_microbatches * batch.micro * parallel.data)
    common = common_provenance(scenario, cluster, efficiency, stages.layers_per_stage)
    return replace(
        table,
        tokens_per_step=None if tokens is None else num_samples * tokens,
        samples_per_step=num_samples,
        model_flops_per_step=stages.model_flops_per_step,
        causal_flops_per_step=stages.causal_flops_per_step,
        hardware_flops_per_step=stages.hardware_flops_per_step,
        num_gpus=parallel.num_gpus,
        peak_flops_per_gpu=peak_flops(cluster.accelerator, scenario.precision.compute, file=scenario.file),
        price_usd_per_gpu_hour=scenario.price_usd_per_gpu_hour,
        provenance={**stages.provenance, **common},
    )


def _with_reductions(
    table: CostTable,
    scenario: ResolvedScenario,
    stages: Stages,
    sharding: Sharding,
    dense: FloatArray,
    experts: FloatArray,
) -> CostTable:
    """Add how replicas, and the two ends of a tied embedding, add their gradients up."""
    parallel, parameters = scenario.parallel, dense + experts
    experts_apart = parallel.experts_apart
    return replace(
        table,
        gradient_ring=sharding.ring,
        gradient_buckets=_gradient_buckets(scenario, parameters),
        gradient_collective=_COLLECTIVE_AT_END[scenario.sharding if parallel.num_replicas > 1 else "plain"],
        across_ring=sharding.across,
        expert_share=experts / np.where(parameters > 0, parameters, 1.0) if experts_apart else None,
        expert_ring=sharding.expert_ring if experts_apart else None,
        tied_embedding_bytes=stages.tied_embedding_bytes,
        tied_embedding_ring=stages.tied_embedding_ring,
    )


class _Times(NamedTuple):
    """Seconds of F and B by part, and of I and W; arrays have shape (S,)."""

    forward_parts: dict[str, FloatArray]
    backward_parts: dict[str, FloatArray]
    input_gradient: FloatArray
    weight_gradient: FloatArray


def _times_beside(stages: Stages, exchange: ShardExchange | None) -> _Times:
    """Add to the stages' operations what each of them waits for shared-out weights and gradients."""
    forward_parts, backward_parts = dict(stages.forward_parts_s), dict(stages.backward_parts_s)
    input_gradient = np.sum(list(backward_parts.values()), axis=0) - stages.weight_gradient_s
    weight_gradient = stages.weight_gradient_s + stages.weight_recompute_s
    if exchange is not None and exchange.in_every_operation:
        forward_parts["shard_exchange"] = exchange.exposed_s[Op.F]
        backward_parts["shard_exchange"] = exchange.exposed_s[Op.B]
        input_gradient = input_gradient + exchange.exposed_s[Op.I]
        weight_gradient = weight_gradient + exchange.exposed_s[Op.W]
    return _Times(forward_parts, backward_parts, input_gradient, weight_gradient)


def _second_embedding(
    scenario: ResolvedScenario, stages: Stages, state: StateBytes, seconds_each: float
) -> EmbeddingCopy | None:
    """Weigh the last stage's copy of a tied embedding; a frozen one has no gradients."""
    second = stages.second_embedding_parameters
    if not second:
        return None
    learned = 0.0 if "embedding" in scenario.trained.frozen else second
    return EmbeddingCopy(
        weight_bytes=state.weights(second, 0.0),
        gradient_bytes=state.gradients(learned, 0.0),
        optimizer_bytes=state.optimizer(learned, 0.0),
        optimizer_s=state.updated(learned, 0.0) * seconds_each,
    )


def _with_hidden_gradients(table: CostTable) -> CostTable:
    """Leave of the synchronisation at the end of a step what does not run beside computing."""
    shares = []
    for stage in range(table.num_stages):
        steps = table.sync_steps(stage)
        shares.append(
            shown_sync(
                sum(float(step.collective.seconds) for step in steps if not step.of_weights),
                sum(float(step.collective.seconds) for step in steps if step.of_weights),
                forward_s=float(table.forward_s[stage]),
                backward_s=float(table.backward_s[stage]),
                slowdown=float(table.overlap_slowdown),
            )
        )
    return replace(table, shown_sync=np.array(shares))


def _columns(parameters: Sequence[StageParameters]) -> tuple[FloatArray, FloatArray]:
    """Parameters of each stage without experts, and of its experts."""
    return np.array([stage.dense for stage in parameters]), np.array([stage.experts for stage in parameters])


def on_mixed_ranks(num_ranks: int, cluster: Cluster, costs_on: Callable[[Cluster], CostTable]) -> CostTable:
    """Cost table of the usual accelerator, with one for each other; layers and efficiency are the same.

    Parameters
    ----------
    num_ranks : int
        Pipeline ranks.
    cluster : Cluster
        With other accelerators on some of them.
    costs_on : Callable
        From a cluster of one accelerator to costs of the same layers.

    Raises
    ------
    ScenarioError
        If it is on a rank that there is not.
    """
    last = max(cluster.other_accelerators, default=0)
    if last >= num_ranks:
        raise ScenarioError(
            f"found rank {last}; ranks are 0 to {num_ranks - 1}", key="cluster.other_accelerators"
        )
    usual = replace(cluster, other_accelerators={})

    def on(accelerator: Accelerator) -> CostTable:
        return costs_on(replace(usual, accelerator=accelerator))

    table, others = on(usual.accelerator), cluster.other_accelerators
    kinds = {(device.name, device.memory_bytes): device for device in others.values()}
    tables = {kind: on(device) for kind, device in kinds.items()}
    of_ranks = {rank: tables[device.name, device.memory_bytes] for rank, device in others.items()}
    peaks = [of_ranks.get(rank, table).peak_flops_per_gpu or 0.0 for rank in range(num_ranks)]
    if cluster.groups:
        # A rank has the slowest of its devices; what all could do is more.
        of_groups = {device.name: device for device in cluster.accelerator_of_device()}
        of_kind = {name: on(device).peak_flops_per_gpu or 0.0 for name, device in of_groups.items()}
        peaks = [of_kind[device.name] for device in cluster.accelerator_of_device()]
    words = ", ".join(f"rank {rank}: {accelerator.name}" for rank, accelerator in sorted(others.items()))
    return replace(
        table,
        of_ranks=of_ranks,
        peak_flops_per_gpu=sum(peaks) / len(peaks),
        provenance={**table.provenance, "other accelerators": words},
    )


def _gradient_buckets(scenario: ResolvedScenario, parameters: FloatArray) -> npt.NDArray[np.intp] | None:
    """Buckets of each stage's gradients where they are reduced during the backward."""
    parallel, gradient_bytes = scenario.parallel, scenario.precision.gradient_bytes
    if not parallel.overlap_gradients or parallel.num_replicas == 1:
        return None
    bucket_bytes = parallel.gradient_bucket_bytes
    if bucket_bytes is None:
        bucket_bytes = max(40e6, 1e6 * parallel.data) * gradient_bytes
    # A stage without parameters has nothing to reduce, in one bucket.
    buckets = np.maximum(1, np.ceil(parameters * gradient_bytes / bucket_bytes))
    if buckets.max() > _MOST_BUCKETS:
        raise ScenarioError(
            f"cuts a stage's gradients into {buckets.max():.0f} buckets; at most {_MOST_BUCKETS} are allowed",
            file=scenario.file,
            key="parallel.gradient_bucket",
        )
    return buckets.astype(np.intp)
