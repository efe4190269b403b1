"""Cost table of a transformer on a cluster: times, messages, gradients and memory of every stage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from pipesim.costs.network.topology import tied_embedding_ring
from pipesim.costs.stages.assembly import Stages, cost_table, on_mixed_ranks
from pipesim.costs.stages.sharding import GatheredBlock, StageParameters
from pipesim.costs.stages.stage_provenance import runs
from pipesim.costs.table import CostTable
from pipesim.costs.token_exchange import TokenExchange
from pipesim.costs.transformer.activation_memory import stage_activations
from pipesim.costs.transformer.cut import Holders, layers_of_stages, layers_per_stage
from pipesim.costs.transformer.flops import recomputed_flops, step_flops
from pipesim.costs.transformer.layer import (
    LAYER_KINDS,
    PARTS,
    BlockTimes,
    LayerKind,
    Setting,
    boundary_gather_s,
    embedding_times,
    head_times,
    layer_times,
    message_bytes,
    prediction_times,
)
from pipesim.costs.transformer.layer_exchange import Moved
from pipesim.costs.transformer.parameters import (
    embedding_parameters,
    experts_in_stages,
    head_parameters,
)
from pipesim.costs.transformer.setting import layer_setting
from pipesim.costs.transformer.trained import trained_layer, trained_stages, untrained_flops
from pipesim.ir.actions import Op
from pipesim.scenario.hardware import Cluster
from pipesim.scenario.resolved import Efficiency, LayerSplit, ResolvedScenario, Transformer

FloatArray = npt.NDArray[np.float64]
_NO_PARAMETERS = StageParameters(0.0, 0.0)


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
    parallel = scenario.parallel
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
    stages = _stages(scenario, setting, cluster, counts, adds_gathers=not efficiency.scatter_gather)
    return cost_table(scenario, cluster, efficiency, stages, num_chunks=num_chunks)


def _stages(
    scenario: ResolvedScenario,
    setting: Setting,
    cluster: Cluster,
    counts: tuple[int, ...],
    *,
    adds_gathers: bool,
) -> Stages:
    """Find what stages of so many layers each take.

    `adds_gathers`: messages are gathered, which a set fitted to software that does so has in its numbers.
    """
    parallel, precision, batch = scenario.parallel, scenario.precision, scenario.batch
    model, num_stages = setting.model, len(counts)
    layers = layers_of_stages(scenario, model, counts)
    times = _StageTimes.of(setting, layers)
    activations = [
        stage_activations(setting, of_stage, first=stage == 0, last=stage == num_stages - 1)
        for stage, of_stage in enumerate(layers)
    ]
    boundary = _boundary_bytes(scenario, setting, num_stages)
    offloaded = np.array([stage.offloaded for stage in activations])
    gather_s = boundary_gather_s(setting) if scenario.scatter_gather and adds_gathers else 0.0
    forward_parts, backward_parts = _parts(
        times, boundary, gather_s, offloaded / scenario.offload.bytes_per_s
    )
    num_sequences = batch.num_microbatches * batch.micro * parallel.data
    spared_flops = untrained_flops(model, scenario.trained, num_sequences)
    model_flops = step_flops(model, num_sequences) - spared_flops
    kinds = tuple(tuple(kind.with_experts for kind in of_stage) for of_stage in layers)
    parameters, trained = trained_stages(model, kinds, parallel, scenario.trained)
    return Stages(
        forward_parts_s=forward_parts,
        backward_parts_s=backward_parts,
        weight_gradient_s=times.of_stages([kind.weight_gradient_s for kind in times.kinds]),
        weight_recompute_s=times.of_stages([kind.weight_recompute_s for kind in times.kinds]),
        boundary_bytes=boundary,
        layers_per_stage=counts,
        parameters=parameters,
        trained=trained if scenario.trained.frozen else None,
        activation_bytes=np.array([stage.held for stage in activations]),
        working_bytes=np.array([stage.working for stage in activations]),
        logit_bytes=np.array([stage.logits for stage in activations]),
        deferred_logit_bytes=np.array([stage.deferred_logits for stage in activations]),
        deferred_bytes=np.array([stage.deferred for stage in activations]),
        blocks=lambda stage: _blocks(scenario, setting, times, stage),
        tokens_per_sample=model.seq_length,
        model_flops_per_step=model_flops,
        causal_flops_per_step=step_flops(model, num_sequences, causal=True) - spared_flops,
        hardware_flops_per_step=model_flops + _recomputed(setting, layers, num_sequences),
        provenance=_provenance(model, counts),
        token_exchange=_token_exchange(setting, times),
        busiest_s=_busiest_s(scenario, setting, times),
        tied_embedding_bytes=embedding_parameters(model).split / parallel.tensor * precision.gradient_bytes,
        tied_embedding_ring=tied_embedding_ring(cluster, parallel)
        if model.embeds_twice and "embedding" not in scenario.trained.frozen
        else None,
        second_embedding_parameters=head_parameters(model).per_device(parallel.tensor)
        if model.embeds_twice and num_stages > 1
        else 0.0,
    )


def _parts(
    times: _StageTimes, boundary: FloatArray, gather_s: float, offload_s: FloatArray
) -> tuple[dict[str, FloatArray], dict[str, FloatArray]]:
    """Seconds of F and of B by part, with what shows of gathered messages and of the host's link."""
    forward_parts, backward_parts = times.by_part("forward_s"), times.by_part("backward_s")
    if gather_s:
        forward_parts["boundary_gather"] = np.where(np.arange(len(boundary)) > 0, gather_s, 0.0)
        backward_parts["boundary_gather"] = np.where(boundary > 0, gather_s, 0.0)
    if offload_s.any():
        # Out beside the forward and back beside the backward.
        for parts in (forward_parts, backward_parts):
            parts["offload"] = np.maximum(0.0, offload_s - np.sum(list(parts.values()), axis=0))
    return forward_parts, backward_parts


def _boundary_bytes(scenario: ResolvedScenario, setting: Setting, num_stages: int) -> FloatArray:
    """Bytes that each stage sends on; what is not cut each tensor-parallel device sends in whole.

    So does Megatron-core (schedules.py, get_tensor_shapes).
    """
    is_cut = scenario.parallel.sequence_parallel or scenario.scatter_gather
    boundary = np.full(num_stages, message_bytes(setting) / (scenario.parallel.tensor if is_cut else 1))
    boundary[-1] = 0.0
    return boundary


@dataclass(frozen=True, slots=True)
class _StageTimes:
    """Times of the kinds of blocks, and how many of each a stage has.

    Parameters
    ----------
    kinds : tuple of BlockTimes
        Embedding, head, layers by `LayerKind`, and what a further prediction has beside a layer and the head.
    numbers : FloatArray
        Blocks of each kind on each stage, shape (7, S).
    layers : tuple of tuple of LayerKind
        Layers of each stage in turn.
    """

    kinds: tuple[BlockTimes, ...]
    numbers: FloatArray
    layers: tuple[tuple[LayerKind, ...], ...]

    @classmethod
    def of(cls, setting: Setting, layers: tuple[tuple[LayerKind, ...], ...]) -> _StageTimes:
        further = setting.model.num_nextn_predict_layers
        numbers = np.zeros((3 + len(LAYER_KINDS), len(layers)))
        numbers[0, 0], numbers[1, -1], numbers[-1, -1] = 1, 1 + further, further
        for stage, of_stage in enumerate(layers):
            for kind in of_stage:
                numbers[2 + LAYER_KINDS.index(kind), stage] += 1
        of_layers = (
            layer_times(kind.setting(setting), with_experts=kind.with_experts) for kind in LAYER_KINDS
        )
        ends = embedding_times(setting), head_times(setting)
        return cls((*ends, *of_layers, prediction_times(setting)), numbers, layers)

    def of_layer(self, kind: LayerKind) -> BlockTimes:
        """Look up the times of one layer."""
        return self.kinds[2 + LAYER_KINDS.index(kind)]

    def of_stages(self, seconds: list[float]) -> FloatArray:
        """Seconds of each stage from those of each kind of block."""
        total: FloatArray = np.array(seconds) @ self.numbers
        return total

    def by_part(self, direction: str) -> dict[str, FloatArray]:
        """Seconds of each stage by part; parts that take no time are left out."""
        blocks: list[dict[str, float]] = [getattr(kind, direction) for kind in self.kinds]
        parts = {part: self.of_stages([block.get(part, 0.0) for block in blocks]) for part in PARTS}
        return {part: seconds for part, seconds in parts.items() if seconds.any()}


def _busiest_s(scenario: ResolvedScenario, setting: Setting, times: _StageTimes) -> dict[Op, FloatArray]:
    """Seconds that as many tokens again on the busiest device would add to each operation of the stages."""
    experts, jitter = setting.model.experts, scenario.jitter
    if experts is None or setting.exchange is None or jitter is None or not jitter.experts:
        return {}
    twice = replace(experts, imbalance=2 * experts.imbalance)
    loaded = _StageTimes.of(replace(setting, model=replace(setting.model, experts=twice)), times.layers)

    def seconds(of: _StageTimes) -> tuple[FloatArray, FloatArray, FloatArray]:
        forward, backward = (
            np.sum(list(of.by_part(way).values()), axis=0) for way in ("forward_s", "backward_s")
        )
        return forward, backward, of.of_stages([kind.weight_gradient_s for kind in of.kinds])

    forward, backward, weights = (
        more - usual for more, usual in zip(seconds(loaded), seconds(times), strict=True)
    )
    return {Op.F: forward, Op.B: backward, Op.I: backward - weights, Op.W: weights}


def _token_exchange(setting: Setting, times: _StageTimes) -> TokenExchange | None:
    group = setting.exchange
    if group is None:
        return None
    crosses = group.num_together < group.num_members

    def of_stages(read: Callable[[Moved], float]) -> dict[Op, FloatArray]:
        by_pass = [times.of_stages([read(kind.moved[way]) for kind in times.kinds]) for way in (0, 1)]
        return dict(zip((Op.F, Op.B), by_pass, strict=True))

    nbytes = of_stages(lambda moved: moved.sent.to_others if crosses else moved.sent.inside)
    latency_s, alone_s = of_stages(lambda moved: moved.latency_s), of_stages(lambda moved: moved.alone_s)
    moved = next(kind.moved[0] for kind in times.kinds if kind.moved[0].alone_s)
    sent = moved.sent.to_others if crosses else moved.sent.inside
    return TokenExchange(
        nbytes,
        latency_s,
        alone_s,
        of_stages(lambda moved: moved.shown_s),
        num_parts=tuple(sum(kind.with_experts for kind in of_stage) for of_stage in times.layers),
        bytes_per_s=sent / (moved.alone_s - moved.latency_s),
        num_members=group.num_members,
        inside_share=moved.sent.inside / sent,
        imbalance=1.0 if setting.model.experts is None else setting.model.experts.imbalance,
    )


def _recomputed(setting: Setting, layers: Sequence[Sequence[LayerKind]], num_sequences: float) -> float:
    """FLOPs that backwards of a step run again."""
    if setting.recompute == "none":
        return 0.0
    modules = None if setting.recompute == "full" else setting.recomputed_modules
    return sum(
        number * recomputed_flops(setting.model, num_sequences, modules, with_experts=kind.with_experts)
        for kind, number in Counter(kind for of_stage in layers for kind in of_stage).items()
        if not kind.kept
    )


def _blocks(
    scenario: ResolvedScenario, setting: Setting, times: _StageTimes, stage: int
) -> list[GatheredBlock]:
    """List what a stage gathers and reduces one by one, in the order of the forward."""
    model, parallel = setting.model, scenario.parallel
    blocks = []
    for kind in times.layers[stage]:
        counts = trained_layer(model, scenario.trained, parallel.tensor, with_experts=kind.with_experts)
        held, trained = (
            StageParameters(count.per_device(parallel.tensor), count.experts / parallel.num_expert_shards)
            for count in counts
        )
        blocks.append(_block(times.of_layer(kind), held, trained))
    if stage == 0:
        held = StageParameters(embedding_parameters(model).per_device(parallel.tensor), 0.0)
        is_frozen = "embedding" in scenario.trained.frozen
        blocks.insert(0, _block(times.kinds[0], held, _NO_PARAMETERS if is_frozen else held))
    if stage == len(times.layers) - 1:
        held = StageParameters(head_parameters(model).per_device(parallel.tensor), 0.0)
        is_frozen = "head" in scenario.trained.frozen
        blocks.append(_block(times.kinds[1], held, _NO_PARAMETERS if is_frozen else held))
    return blocks


def _block(times: BlockTimes, held: StageParameters, trained: StageParameters) -> GatheredBlock:
    forward_s, backward_s = sum(times.forward_s.values()), sum(times.backward_s.values())
    return GatheredBlock(forward_s, backward_s, times.weight_gradient_s, held, trained)


def _provenance(model: Transformer, counts: tuple[int, ...]) -> dict[str, str]:
    """Name the model and how its backward is split; `counts` are the layers of each stage."""
    words = {
        "model": f"{model.name} ({model.source})",
        "input and weight gradient": "W: products for the weights, half of the overhead; I: the rest",
    }
    if model.experts is not None:
        words["layers with experts per stage"] = runs(tuple(experts_in_stages(model, counts)))
    return words
