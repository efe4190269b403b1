"""Cost table of a transformer on a cluster: times, messages, gradients and memory of every stage."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from pipesim.actions import Op
from pipesim.costs.network.topology import (
    data_ring,
    expert_data_ring,
    fabric,
    pipeline_links,
    tied_embedding_ring,
)
from pipesim.costs.table import CostTable, GradientCollective
from pipesim.costs.transformer.flops import step_flops
from pipesim.costs.transformer.layer import (
    PARTS,
    BlockTimes,
    Setting,
    embedding_times,
    head_times,
    layer_times,
)
from pipesim.costs.transformer.memory import ActivationBytes, released_at_input_gradient, stage_activations
from pipesim.costs.transformer.parameters import (
    StageParameters,
    embedding_parameters,
    experts_in_stages,
    head_parameters,
    layer_parameters,
    stage_parameters,
)
from pipesim.costs.transformer.provenance import model_provenance
from pipesim.costs.transformer.setting import layer_setting, peak_flops
from pipesim.costs.transformer.sharding import Block, Sharding
from pipesim.errors import ScenarioError
from pipesim.scenario.layers import balance, split_layers
from pipesim.scenario.resolved import (
    Accelerator,
    Cluster,
    Efficiency,
    LayerSplit,
    OptimizerLevel,
    Scenario,
    Transformer,
)

FloatArray = npt.NDArray[np.float64]

_MOST_BUCKETS = 10_000
_OPTIMIZER_TRAFFIC_BYTES = 34
"""Memory traffic of mixed-precision Adam, for each parameter it updates."""
_COLLECTIVE_AT_END: dict[OptimizerLevel, GradientCollective] = {
    "plain": "all_reduce",
    "sharded": "reduce_scatter",
    "zero2": "all_gather",
    "zero3": "none",
}


def model_costs(
    scenario: Scenario, model: Transformer, cluster: Cluster, efficiency: Efficiency, *, num_chunks: int
) -> CostTable:
    """Cost table of `model` cut into S = pipeline * `num_chunks` stages.

    Raises
    ------
    ScenarioError
        If the layers do not fit the stages, the heads do not divide over the tensor-parallel devices, or the
        accelerator does not compute in the scenario's precision.
    """
    if cluster.other_accelerators:
        return _of_mixed_ranks(scenario, model, cluster, efficiency, num_chunks)
    parallel, precision, batch = scenario.parallel, scenario.precision, scenario.batch
    num_stages = parallel.pipeline * num_chunks
    setting = layer_setting(scenario, model, cluster, efficiency)
    counts = layers_per_stage(scenario, setting, num_stages)
    last = num_stages - 1
    times = _StageTimes.of(setting, counts)
    sharding = Sharding(
        scenario.optimizer,
        precision,
        data_ring(cluster, parallel, scenario.all_reduce),
        expert_data_ring(cluster, parallel, scenario.all_reduce),
        efficiency.overlap_slowdown,
    )
    forward_parts, backward_parts = times.by_part("forward_s"), times.by_part("backward_s")
    activations = _activations(setting, counts)
    working = np.array([stage.working for stage in activations])
    weight_gradient = times.of_stages([kind.weight_gradient_s for kind in times.kinds])
    input_gradient = np.sum(list(backward_parts.values()), axis=0) - weight_gradient
    exchange = None
    if scenario.optimizer in ("zero2", "zero3"):
        blocks = [_blocks(scenario, setting, times, counts, stage) for stage in range(num_stages)]
        working += [sharding.working_bytes(of_stage) for of_stage in blocks]
        exchange = sharding.exchange(blocks)
    if exchange is not None:
        forward_parts["shard_exchange"] = exchange.exposed_s[Op.F]
        backward_parts["shard_exchange"] = exchange.exposed_s[Op.B]
        input_gradient = input_gradient + exchange.exposed_s[Op.I]
        weight_gradient = weight_gradient + exchange.exposed_s[Op.W]

    held = stage_parameters(model, counts, parallel)
    dense = np.array([stage.dense for stage in held])
    experts = np.array([stage.experts for stage in held])
    parameters: FloatArray = dense + experts

    def shared_out(levels: tuple[OptimizerLevel, ...]) -> FloatArray:
        if scenario.optimizer not in levels:
            return parameters
        share: FloatArray = (dense + experts * parallel.expert) / parallel.num_replicas
        return share

    updated = shared_out(("sharded", "zero2", "zero3"))
    # Each device of the tensor group sends its share of the activation through its own port.
    boundary = np.full(num_stages, 2 * setting.num_tokens * model.hidden_size / parallel.tensor)
    boundary[last] = 0.0
    num_sequences = batch.num_microbatches * batch.micro * parallel.data
    return CostTable(
        forward_s=np.sum(list(forward_parts.values()), axis=0),
        backward_s=np.sum(list(backward_parts.values()), axis=0),
        input_gradient_s=input_gradient,
        weight_gradient_s=weight_gradient,
        boundary_bytes=boundary,
        point_to_point=pipeline_links(cluster, parallel),
        gradient_bytes=shared_out(("zero2", "zero3")) * precision.gradient_bytes,
        gradient_ring=sharding.ring,
        gradient_buckets=_gradient_buckets(scenario, parameters),
        gradient_collective=_COLLECTIVE_AT_END[scenario.optimizer if parallel.num_replicas > 1 else "plain"],
        expert_share=experts / parameters if parallel.expert > 1 else None,
        expert_ring=sharding.expert_ring if parallel.expert > 1 else None,
        fixed_sync_s=np.zeros(num_stages),
        tied_embedding_bytes=embedding_parameters(model).split / parallel.tensor * precision.gradient_bytes,
        tied_embedding_ring=tied_embedding_ring(cluster, parallel) if model.tie_word_embeddings else None,
        optimizer_s=updated * (_OPTIMIZER_TRAFFIC_BYTES / setting.rates.memory_bytes_per_s)
        + efficiency.step_overhead_s / num_chunks,
        weight_bytes=shared_out(("zero3",)) * precision.weight_bytes,
        optimizer_bytes=updated * precision.optimizer_bytes,
        activation_bytes=np.array([stage.held for stage in activations]),
        released_at_input_gradient=released_at_input_gradient(setting),
        working_bytes=working,
        memory_limit_bytes=cluster.accelerator.memory_bytes,
        overlap_slowdown=efficiency.overlap_slowdown,
        tokens_per_step=float(num_sequences * model.seq_length),
        model_flops_per_step=step_flops(model, num_sequences),
        num_gpus=parallel.num_gpus,
        peak_flops_per_gpu=peak_flops(cluster.accelerator, precision.compute, file=scenario.file),
        price_usd_per_gpu_hour=scenario.price_usd_per_gpu_hour,
        forward_parts_s=forward_parts,
        backward_parts_s=backward_parts,
        provenance=model_provenance(scenario, model, cluster, efficiency, counts),
        fabric=fabric(cluster, parallel),
        shard_exchange=exchange,
    )


@dataclass(frozen=True, slots=True)
class _StageTimes:
    """Times of the kinds of blocks, and how many of each a stage has.

    Parameters
    ----------
    kinds : tuple of BlockTimes
        Layer with one MLP, layer with experts, embedding, head.
    numbers : FloatArray
        Blocks of each kind on each stage, shape (4, S).
    """

    kinds: tuple[BlockTimes, BlockTimes, BlockTimes, BlockTimes]
    numbers: FloatArray

    @classmethod
    def of(cls, setting: Setting, counts: tuple[int, ...]) -> _StageTimes:
        numbers = np.zeros((4, len(counts)))
        numbers[1] = list(experts_in_stages(setting.model, counts))
        numbers[0] = np.array(counts) - numbers[1]
        numbers[2, 0] = numbers[3, -1] = 1
        kinds = (
            layer_times(setting),
            layer_times(setting, with_experts=True),
            embedding_times(setting),
            head_times(setting),
        )
        return cls(kinds, numbers)

    def of_stages(self, seconds: list[float]) -> FloatArray:
        """Seconds of each stage from those of each kind of block."""
        total: FloatArray = np.array(seconds) @ self.numbers
        return total

    def by_part(self, direction: str) -> dict[str, FloatArray]:
        """Seconds of each stage by part; parts that take no time are left out."""
        blocks: list[dict[str, float]] = [getattr(kind, direction) for kind in self.kinds]
        parts = {part: self.of_stages([block.get(part, 0.0) for block in blocks]) for part in PARTS}
        return {part: seconds for part, seconds in parts.items() if seconds.any()}


def _of_mixed_ranks(
    scenario: Scenario, model: Transformer, cluster: Cluster, efficiency: Efficiency, num_chunks: int
) -> CostTable:
    """Cost table of the usual accelerator, with one for each other; layers and efficiency are the same."""
    usual = replace(cluster, other_accelerators={})
    setting = layer_setting(scenario, model, usual, efficiency)
    counts = layers_per_stage(scenario, setting, scenario.parallel.pipeline * num_chunks)
    scenario = replace(scenario, layers=LayerSplit("list", counts))

    def on(accelerator: Accelerator) -> CostTable:
        alike = replace(usual, accelerator=accelerator)
        return model_costs(scenario, model, alike, efficiency, num_chunks=num_chunks)

    table, others = on(usual.accelerator), cluster.other_accelerators
    by_name = {accelerator.name: on(accelerator) for accelerator in others.values()}
    of_ranks = {rank: by_name[accelerator.name] for rank, accelerator in others.items()}
    peaks = [
        of_ranks.get(rank, table).peak_flops_per_gpu or 0.0 for rank in range(scenario.parallel.pipeline)
    ]
    words = ", ".join(f"rank {rank}: {accelerator.name}" for rank, accelerator in sorted(others.items()))
    return replace(
        table,
        of_ranks=of_ranks,
        peak_flops_per_gpu=sum(peaks) / len(peaks),
        provenance={**table.provenance, "other accelerators": words},
    )


def layers_per_stage(scenario: Scenario, setting: Setting, num_stages: int) -> tuple[int, ...]:
    """Layers of each stage; ``balanced`` weighs them by seconds of forward and backward together.

    Embedding and head are pieces of their own there, so that one which outweighs its share of the layers has
    its stage to itself.

    Raises
    ------
    ScenarioError
        See `split_layers`.
    """
    model = setting.model
    if scenario.layers.kind == "balanced" and num_stages <= model.num_hidden_layers:
        by_kind = [layer_times(setting, with_experts=kind).total_s for kind in (False, True)]
        weights = [by_kind[model.has_experts(layer)] for layer in range(model.num_hidden_layers)]
        ends = embedding_times(setting).total_s, head_times(setting).total_s
        counts = list(balance([ends[0], *weights, ends[1]], num_stages))
        counts[0] -= 1
        counts[-1] -= 1
        return tuple(counts)
    try:
        return split_layers(model.num_hidden_layers, num_stages, scenario.layers)
    except ScenarioError as error:
        raise ScenarioError(error.message, file=scenario.file, key=error.key) from None


def _activations(setting: Setting, counts: tuple[int, ...]) -> list[ActivationBytes]:
    num_with_experts = experts_in_stages(setting.model, counts)
    return [
        stage_activations(
            setting, count, first=stage == 0, last=stage == len(counts) - 1, num_with_experts=mixed
        )
        for stage, (count, mixed) in enumerate(zip(counts, num_with_experts, strict=True))
    ]


def _blocks(
    scenario: Scenario, setting: Setting, times: _StageTimes, counts: tuple[int, ...], stage: int
) -> list[Block]:
    """List what a stage gathers and reduces one by one, in the order of the forward."""
    model, parallel = setting.model, scenario.parallel
    first = sum(counts[:stage])
    blocks = []
    for layer in range(first, first + counts[stage]):
        mixed = model.has_experts(layer)
        number = layer_parameters(model, parallel.tensor, with_experts=mixed)
        of_experts = number.experts / (parallel.tensor * parallel.expert)
        held = StageParameters(number.per_device(parallel.tensor), of_experts)
        blocks.append(_block(times.kinds[mixed], held))
    if stage == 0:
        held = StageParameters(embedding_parameters(model).per_device(parallel.tensor), 0.0)
        blocks.insert(0, _block(times.kinds[2], held))
    if stage == len(counts) - 1:
        held = StageParameters(head_parameters(model).per_device(parallel.tensor), 0.0)
        blocks.append(_block(times.kinds[3], held))
    return blocks


def _block(times: BlockTimes, held: StageParameters) -> Block:
    return Block(sum(times.forward_s.values()), sum(times.backward_s.values()), times.weight_gradient_s, held)


def _gradient_buckets(scenario: Scenario, parameters: FloatArray) -> npt.NDArray[np.intp] | None:
    """Buckets of each stage's gradients where they are reduced during the backward."""
    parallel, gradient_bytes = scenario.parallel, scenario.precision.gradient_bytes
    if not parallel.overlap_gradients or parallel.num_replicas == 1:
        return None
    bucket_bytes = parallel.gradient_bucket_bytes
    if bucket_bytes is None:
        bucket_bytes = max(40e6, 1e6 * parallel.data) * gradient_bytes
    buckets = np.ceil(parameters * gradient_bytes / bucket_bytes)
    if buckets.max() > _MOST_BUCKETS:
        raise ScenarioError(
            f"cuts a stage's gradients into {buckets.max():.0f} buckets; at most {_MOST_BUCKETS} are allowed",
            file=scenario.file,
            key="parallel.gradient_bucket",
        )
    return buckets.astype(np.intp)
