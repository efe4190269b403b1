"""Cost table of a transformer on a cluster: times, messages, gradients and memory of every stage."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pipesim.costs.flops import step_flops
from pipesim.costs.memory import stage_activations
from pipesim.costs.network import all_reduce_s
from pipesim.costs.parameters import embedding_parameters, stage_parameters
from pipesim.costs.table import CostTable
from pipesim.costs.topology import data_ring, pipeline_links, tensor_ring, tied_embedding_ring
from pipesim.costs.transformer import (
    PARTS,
    Rates,
    Setting,
    embedding_times,
    head_times,
    layer_times,
)
from pipesim.errors import ScenarioError
from pipesim.scenario.layers import split_layers
from pipesim.scenario.resolved import Accelerator, Cluster, Efficiency, Parallel, Scenario, Transformer

FloatArray = npt.NDArray[np.float64]

_OPTIMIZER_TRAFFIC_BYTES = 34
"""Memory traffic of mixed-precision Adam, for each parameter it updates."""


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
    parallel, precision, batch = scenario.parallel, scenario.precision, scenario.batch
    num_stages = parallel.pipeline * num_chunks
    setting = _setting(scenario, model, cluster, efficiency)
    counts = layers_per_stage(scenario, setting, num_stages)
    layers = np.array(counts)
    last = num_stages - 1

    layer, embedding, head = layer_times(setting), embedding_times(setting), head_times(setting)

    def by_stage(a_layer: float, the_embedding: float, the_head: float) -> FloatArray:
        seconds = layers * a_layer
        seconds[0] += the_embedding
        seconds[last] += the_head
        return seconds

    def by_part(direction: str) -> dict[str, FloatArray]:
        blocks: list[dict[str, float]] = [getattr(block, direction) for block in (layer, embedding, head)]
        parts = {part: by_stage(*(block.get(part, 0.0) for block in blocks)) for part in PARTS}
        return {part: seconds for part, seconds in parts.items() if seconds.any()}

    forward_parts, backward_parts = by_part("forward_s"), by_part("backward_s")
    backward = np.sum(list(backward_parts.values()), axis=0)
    weight_gradient = by_stage(layer.weight_gradient_s, embedding.weight_gradient_s, head.weight_gradient_s)

    parameters = np.array(stage_parameters(model, counts, parallel.tensor))
    shards = parallel.data if scenario.optimizer_sharded else 1
    activations = [
        stage_activations(setting, count, first=stage == 0, last=stage == last)
        for stage, count in enumerate(counts)
    ]
    # Each device of the tensor group sends its share of the activation through its own port.
    boundary = np.full(num_stages, 2 * setting.num_tokens * model.hidden_size / parallel.tensor)
    boundary[last] = 0.0
    num_sequences = batch.num_microbatches * batch.micro * parallel.data
    return CostTable(
        forward_s=np.sum(list(forward_parts.values()), axis=0),
        backward_s=backward,
        input_gradient_s=backward - weight_gradient,
        weight_gradient_s=weight_gradient,
        boundary_bytes=boundary,
        point_to_point=pipeline_links(cluster, parallel),
        gradient_bytes=parameters * precision.gradient_bytes,
        gradient_ring=data_ring(cluster, parallel),
        gradient_collective="reduce_scatter" if scenario.optimizer_sharded else "all_reduce",
        fixed_sync_s=_tied_embedding_sync_s(scenario, model, cluster, num_stages),
        optimizer_s=parameters / shards * (_OPTIMIZER_TRAFFIC_BYTES / setting.rates.memory_bytes_per_s),
        weight_bytes=parameters * precision.weight_bytes,
        optimizer_bytes=parameters * precision.optimizer_bytes / shards,
        activation_bytes=np.array([stage.held for stage in activations]),
        working_bytes=np.array([stage.working for stage in activations]),
        memory_limit_bytes=cluster.accelerator.memory_bytes,
        tokens_per_step=float(num_sequences * model.seq_length),
        model_flops_per_step=step_flops(model, num_sequences),
        num_gpus=parallel.pipeline * parallel.tensor * parallel.data,
        peak_flops_per_gpu=peak_flops(cluster.accelerator, precision.compute, file=scenario.file),
        price_usd_per_gpu_hour=scenario.price_usd_per_gpu_hour,
        forward_parts_s=forward_parts,
        backward_parts_s=backward_parts,
        provenance=_provenance(scenario, model, cluster, efficiency, counts),
    )


def layers_per_stage(scenario: Scenario, setting: Setting, num_stages: int) -> tuple[int, ...]:
    """Layers of each stage; ``balanced`` weighs them by seconds of forward and backward together.

    The first layer carries the embedding's time and the last one the head's, since they share a stage.

    Raises
    ------
    ScenarioError
        See `split_layers`.
    """
    num_layers = setting.model.num_hidden_layers
    weights = None
    if scenario.layers.kind == "balanced":
        weights = [layer_times(setting).total_s] * num_layers
        weights[0] += embedding_times(setting).total_s
        weights[-1] += head_times(setting).total_s
    try:
        return split_layers(num_layers, num_stages, scenario.layers, weights)
    except ScenarioError as error:
        raise ScenarioError(error.message, file=scenario.file, key=error.key) from None


def peak_flops(accelerator: Accelerator, number_format: str, *, file: str | None = None) -> float:
    """Dense peak of an accelerator in a number format.

    Raises
    ------
    ScenarioError
        If the accelerator has no such units.
    """
    try:
        return accelerator.peak_flops[number_format]
    except KeyError:
        formats = ", ".join(sorted(accelerator.peak_flops))
        raise ScenarioError(
            f"{accelerator.name} has no {number_format} rate; it has {formats}", file=file, key="precision"
        ) from None


def _setting(scenario: Scenario, model: Transformer, cluster: Cluster, efficiency: Efficiency) -> Setting:
    parallel, compute = scenario.parallel, scenario.precision.compute
    if model.num_attention_heads % parallel.tensor:
        raise ScenarioError(
            f"{model.num_attention_heads} attention heads do not divide over {parallel.tensor} devices",
            file=scenario.file,
            key="parallel.tensor",
        )
    # Attention and the head stay in 16 bits when the layers compute in fp8.
    wide_peak = peak_flops(cluster.accelerator, "fp16" if compute == "fp16" else "bf16", file=scenario.file)
    layer_peak = peak_flops(cluster.accelerator, compute, file=scenario.file)
    rates = Rates(
        layer_gemm_flops_per_s=layer_peak * (efficiency.gemm_fp8 if compute == "fp8" else efficiency.gemm),
        unaligned_gemm=efficiency.unaligned_gemm,
        head_gemm_flops_per_s=wide_peak * efficiency.gemm,
        attention_flops_per_s=wide_peak * efficiency.attention,
        memory_bytes_per_s=cluster.accelerator.memory_bytes_per_s * efficiency.memory,
    )
    return Setting(
        model=model,
        micro=scenario.batch.micro,
        tensor=parallel.tensor,
        sequence_parallel=parallel.sequence_parallel,
        recompute=scenario.recompute,
        attention_kernel=efficiency.attention_kernel,
        layer_overhead_s=efficiency.layer_overhead_s,
        tensor_collective_factor=efficiency.tensor_collective_factor,
        tensor_ring=tensor_ring(cluster, parallel, intra_node_factor=efficiency.intra_node_bandwidth_factor),
        rates=rates,
    )


def _tied_embedding_sync_s(
    scenario: Scenario, model: Transformer, cluster: Cluster, num_stages: int
) -> FloatArray:
    """First and last stage add up their gradients of one and the same embedding."""
    seconds = np.zeros(num_stages)
    parallel = scenario.parallel
    if model.tie_word_embeddings and parallel.pipeline > 1:
        shared = embedding_parameters(model).split / parallel.tensor * scenario.precision.gradient_bytes
        seconds[[0, -1]] = float(all_reduce_s(shared, tied_embedding_ring(cluster, parallel)))
    return seconds


def _provenance(
    scenario: Scenario, model: Transformer, cluster: Cluster, efficiency: Efficiency, counts: tuple[int, ...]
) -> dict[str, str]:
    accelerator, parallel = cluster.accelerator, scenario.parallel
    words = {
        "model": f"{model.name} ({model.source})",
        "accelerator": f"{accelerator.name} ({accelerator.source}, {accelerator.date})",
        "efficiency": f"{efficiency.name} ({efficiency.source})"
        + ("" if efficiency.fitted else "; borrowed, not fitted to runs on this accelerator"),
        "layers per stage": _runs(counts),
        "pipeline links": _pipeline_words(cluster, parallel),
        "input and weight gradient": "W: products for the weights, half of the overhead; I: the rest",
    }
    ring = data_ring(cluster, parallel)
    if ring is not None:
        collective = "reduce-scatter and all-gather" if scenario.optimizer_sharded else "all-reduce"
        words["gradient synchronisation"] = (
            f"ring {collective} over {ring.num_members} replicas at {float(ring.bytes_per_s) / 1e9:g} GB/s"
        )
    return words


def _pipeline_words(cluster: Cluster, parallel: Parallel) -> str:
    links = pipeline_links(cluster, parallel)
    neighbours = range(parallel.pipeline - 1)
    num_intra = sum(links.same_node(rank, rank + 1) for rank in neighbours)
    return (
        f"{num_intra} of {len(neighbours)} neighbours share a node ({cluster.intra_node.name}), "
        f"the others use {cluster.inter_node.name}; devices numbered tensor, data, pipeline"
    )


def _runs(counts: tuple[int, ...]) -> str:
    """Write equal neighbours once: ``3 x 12, 11``."""
    runs: list[list[Any]] = []
    for count in counts:
        if runs and runs[-1][1] == count:
            runs[-1][0] += 1
        else:
            runs.append([1, count])
    return ", ".join(f"{times} x {count}" if times > 1 else str(count) for times, count in runs)
