"""From a scenario to what the time and the memory of a layer depend on."""

from __future__ import annotations

from pipesim.costs.network.topology import (
    context_group,
    context_link,
    expert_exchange,
    expert_tensor_ring,
    tensor_ring,
)
from pipesim.costs.stages.rates import memory_bytes_per_s, reference_flops
from pipesim.costs.transformer.layer import Setting
from pipesim.costs.transformer.products import Rates
from pipesim.errors import ScenarioError
from pipesim.scenario.hardware import Cluster
from pipesim.scenario.resolved import Efficiency, ResolvedScenario, Transformer

OPERAND_BYTES = {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "mxfp8": 1.0, "nvfp4": 0.5}
"""Of a value that a product reads in each format; results are 16-bit."""


def layer_setting(
    scenario: ResolvedScenario, model: Transformer, cluster: Cluster, efficiency: Efficiency
) -> Setting:
    """Collect rates, sizes and links.

    Raises
    ------
    ScenarioError
        If the heads do not divide over the tensor-parallel devices, or the accelerator does not compute in
        the scenario's precision.
    """
    parallel, compute = scenario.parallel, scenario.precision.compute
    if model.num_attention_heads % parallel.tensor:
        raise ScenarioError(
            f"{model.num_attention_heads} attention heads do not divide over {parallel.tensor} devices",
            file=scenario.file,
            key="parallel.tensor",
        )
    # Attention and the head stay in 16 bits when the layers compute in narrower formats.
    wide = "fp16" if compute == "fp16" else "bf16"
    wide_peak = reference_flops(cluster.accelerator, efficiency, wide, file=scenario.file)
    layer_peak = reference_flops(cluster.accelerator, efficiency, compute, file=scenario.file)
    rates = Rates(
        layer_gemm_flops_per_s=layer_peak * efficiency.gemm_in(compute),
        unaligned_gemm=efficiency.unaligned_gemm,
        grouped_gemm=efficiency.grouped_gemm,
        head_gemm_flops_per_s=wide_peak * efficiency.gemm,
        attention_flops_per_s=wide_peak * efficiency.attention,
        memory_bytes_per_s=memory_bytes_per_s(cluster.accelerator, efficiency),
        operand_bytes=OPERAND_BYTES[compute] if efficiency.operand_traffic else None,
        quantise_bytes=efficiency.quantise_bytes.get(compute, 0.0),
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
        context=parallel.context,
        context_exchange=parallel.context_exchange,
        context_link=context_link(cluster, parallel),
        context_group=context_group(cluster, parallel),
        exchange=expert_exchange(cluster, parallel),
        expert_tensor=parallel.expert_tensor,
        expert_tensor_ring=expert_tensor_ring(
            cluster, parallel, intra_node_factor=efficiency.intra_node_bandwidth_factor
        ),
        dispatch_bytes=scenario.precision.dispatch_bytes,
        overlap_slowdown=efficiency.overlap_slowdown,
        fused_loss=efficiency.loss_kernel == "fused",
        weights_recompute=scenario.recompute_for_weights == "again",
        recompute_modules=scenario.recompute_modules,
        activation_format=scenario.precision.activation_format,
        activation_function_bytes=scenario.precision.activation_function_bytes,
        offloaded=scenario.offload.activations,
        trained=scenario.trained,
        weight_gradient_placeholders=efficiency.weight_gradient_placeholders and not scenario.trained.frozen,
        sort_passes=efficiency.sort_passes,
        expert_layer_floor_s=0.0 if scenario.cuda_graphs == "full" else efficiency.expert_layer_floor_s,
    )
