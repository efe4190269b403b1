"""Cost table of a transformer on a cluster: times, messages, gradients and memory of every stage."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from pipesim.costs.network.topology import tied_embedding_ring
from pipesim.costs.stages.assembly import Stages, cost_table, on_mixed_ranks
from pipesim.costs.stages.sharding import Block, StageParameters
from pipesim.costs.table import CostTable
from pipesim.costs.transformer.cut import Holders, layers_per_stage
from pipesim.costs.transformer.flops import step_flops
from pipesim.costs.transformer.layer import (
    PARTS,
    BlockTimes,
    Setting,
    boundary_gather_s,
    embedding_times,
    head_times,
    layer_times,
    message_bytes,
)
from pipesim.costs.transformer.memory import ActivationBytes, stage_activations
from pipesim.costs.transformer.parameters import (
    embedding_parameters,
    experts_in_stages,
    head_parameters,
    layer_parameters,
    stage_parameters,
)
from pipesim.costs.transformer.provenance import transformer_provenance
from pipesim.costs.transformer.setting import layer_setting
from pipesim.scenario.resolved import Cluster, Efficiency, LayerSplit, ResolvedScenario, Transformer

FloatArray = npt.NDArray[np.float64]


def model_costs(
    scenario: ResolvedScenario,
    model: Transformer,
    cluster: Cluster,
    efficiency: Efficiency,
    *,
    num_chunks: int,
    holders: Holders | None = None,
) -> CostTable:
    """Cost table of `model` cut into S = pipeline * `num_chunks` stages; see `build_costs` for `holders`.

    Raises
    ------
    ScenarioError
        If the layers do not fit the stages, the heads do not divide over the tensor-parallel devices, or the
        accelerator does not compute in the scenario's precision.
    """
    parallel, precision, batch = scenario.parallel, scenario.precision, scenario.batch
    num_stages = parallel.pipeline * num_chunks
    setting = layer_setting(scenario, model, cluster, efficiency)
    counts = layers_per_stage(scenario, setting, num_stages, holders)
    if cluster.other_accelerators:
        cut_so = replace(scenario, layers=LayerSplit("list", counts))
        return on_mixed_ranks(
            parallel.pipeline,
            cluster,
            lambda alike: model_costs(cut_so, model, alike, efficiency, num_chunks=num_chunks),
        )
    times = _StageTimes.of(setting, counts)
    activations = _activations(setting, counts)
    forward_parts, backward_parts = times.by_part("forward_s"), times.by_part("backward_s")
    # What is not cut each tensor-parallel device sends in whole (Megatron-core, get_tensor_shapes).
    is_cut = parallel.sequence_parallel or scenario.scatter_gather
    boundary = np.full(num_stages, message_bytes(setting) / (parallel.tensor if is_cut else 1))
    boundary[-1] = 0.0
    if scenario.scatter_gather:
        gathers = np.full(num_stages, boundary_gather_s(setting))
        forward_parts["boundary_gather"] = np.where(np.arange(num_stages) > 0, gathers, 0.0)
        backward_parts["boundary_gather"] = np.where(boundary > 0, gathers, 0.0)
    num_sequences = batch.num_microbatches * batch.micro * parallel.data
    stages = Stages(
        forward_parts_s=forward_parts,
        backward_parts_s=backward_parts,
        weight_gradient_s=times.of_stages([kind.weight_gradient_s for kind in times.kinds]),
        weight_recompute_s=times.of_stages([kind.weight_recompute_s for kind in times.kinds]),
        boundary_bytes=boundary,
        layers_per_stage=counts,
        parameters=stage_parameters(model, counts, parallel),
        activation_bytes=np.array([stage.held for stage in activations]),
        working_bytes=np.array([stage.working for stage in activations]),
        deferred_bytes=np.array([stage.deferred for stage in activations]),
        blocks=lambda stage: _blocks(scenario, setting, times, counts, stage),
        tokens_per_sample=model.seq_length,
        model_flops_per_step=step_flops(model, num_sequences),
        provenance=transformer_provenance(model, counts),
        tied_embedding_bytes=embedding_parameters(model).split / parallel.tensor * precision.gradient_bytes,
        tied_embedding_ring=tied_embedding_ring(cluster, parallel) if model.tie_word_embeddings else None,
        second_embedding_parameters=head_parameters(model).per_device(parallel.tensor)
        if model.tie_word_embeddings and num_stages > 1
        else 0.0,
    )
    return cost_table(scenario, cluster, efficiency, stages, num_chunks=num_chunks)


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


def _activations(setting: Setting, counts: tuple[int, ...]) -> list[ActivationBytes]:
    num_with_experts = experts_in_stages(setting.model, counts)
    return [
        stage_activations(
            setting, count, first=stage == 0, last=stage == len(counts) - 1, num_with_experts=mixed
        )
        for stage, (count, mixed) in enumerate(zip(counts, num_with_experts, strict=True))
    ]


def _blocks(
    scenario: ResolvedScenario, setting: Setting, times: _StageTimes, counts: tuple[int, ...], stage: int
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
