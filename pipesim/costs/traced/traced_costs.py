"""Cost table of a user's PyTorch model on a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from pipesim import units
from pipesim.costs.stages.assembly import FloatArray, Stages, cost_table, on_mixed_ranks
from pipesim.costs.stages.balance import Chain, balanced, expected_in_flight
from pipesim.costs.stages.sharding import GatheredBlock, StageParameters
from pipesim.costs.stages.state import StateBytes
from pipesim.costs.table import CostTable, Skip
from pipesim.costs.traced.layer_trace import LayerTrace, ModelTrace
from pipesim.costs.traced.pipeline_model import stage_skips
from pipesim.costs.traced.times import KERNELS_OF_A_LAYER, KernelRates, LayerTimes, kernel_rates, layer_times
from pipesim.costs.traced.trace import trace_model
from pipesim.costs.traced.traced_memory import stage_bytes
from pipesim.errors import ScenarioError
from pipesim.ir.shape import stage_holders
from pipesim.scenario.hardware import Cluster
from pipesim.scenario.layers import split_layers
from pipesim.scenario.resolved import Efficiency, LayerSplit, ResolvedScenario, TorchModel


def traced_costs(
    scenario: ResolvedScenario,
    model: TorchModel,
    cluster: Cluster,
    efficiency: Efficiency,
    *,
    num_chunks: int,
    holders: tuple[tuple[int, ...], ...] | None = None,
) -> CostTable:
    """Cost table of `model` cut into S = pipeline * `num_chunks` stages; no device is needed.

    See `pipesim.costs.build_costs` for `holders`.

    Raises
    ------
    ScenarioError
        If the model cannot be found, built or traced, its layers do not fit the stages, or the accelerator
        does not compute in the scenario's precision.
    """
    timed = _timed(scenario, model, replace(cluster, other_accelerators={}), efficiency)
    counts = timed.layers_per_stage(scenario, scenario.parallel.pipeline * num_chunks, holders)
    if cluster.other_accelerators:
        cut_so = replace(scenario, layers=LayerSplit("list", counts))
        return on_mixed_ranks(
            scenario.parallel.pipeline,
            cluster,
            lambda alike: traced_costs(cut_so, model, alike, efficiency, num_chunks=num_chunks),
        )
    stages = _stages(scenario, model, timed, counts)
    return cost_table(scenario, cluster, efficiency, stages, num_chunks=num_chunks)


def traced_layers_per_stage(
    scenario: ResolvedScenario, model: TorchModel, cluster: Cluster, efficiency: Efficiency, num_stages: int
) -> tuple[int, ...]:
    """Layers of each stage; ``balanced`` weighs them by seconds of forward and backward together.

    Raises
    ------
    ScenarioError
        As for `traced_costs`.
    """
    alike = replace(cluster, other_accelerators={})
    return _timed(scenario, model, alike, efficiency).layers_per_stage(scenario, num_stages, None)


@dataclass(frozen=True, slots=True)
class _Timed:
    """A traced model with the seconds of every layer and of the loss."""

    trace: ModelTrace
    rates: KernelRates
    layers: tuple[LayerTimes, ...]
    loss: LayerTimes

    @property
    def layer_seconds(self) -> list[float]:
        """Forward and backward of each layer, the loss with the last."""
        seconds = [layer.forward_s + layer.backward_s for layer in self.layers]
        seconds[-1] += self.loss.forward_s + self.loss.backward_s
        return seconds

    def layers_per_stage(
        self, scenario: ResolvedScenario, num_stages: int, holders: tuple[tuple[int, ...], ...] | None
    ) -> tuple[int, ...]:
        num_layers = len(self.layers)
        try:
            if scenario.layers.kind == "balanced" and num_stages <= num_layers:
                ranks = scenario.parallel.pipeline
                holders = holders or stage_holders("loop", ranks, num_stages // ranks)
                even = split_layers(num_layers, num_stages, LayerSplit("even"))
                return balanced(self._chain(scenario, holders), even)
            counts = split_layers(num_layers, num_stages, scenario.layers)
        except ScenarioError as error:
            raise ScenarioError(error.message, file=scenario.file, key=error.key) from None
        if 0 in counts:
            raise ScenarioError(
                f"stage {counts.index(0)} has no layer; a torch model's stages need one each",
                file=scenario.file,
                key="layers",
            )
        return counts

    def _chain(self, scenario: ResolvedScenario, holders: tuple[tuple[int, ...], ...]) -> Chain:
        cluster, model, efficiency = scenario.cluster, scenario.torch_model, scenario.efficiency
        assert cluster is not None
        assert model is not None
        assert efficiency is not None
        ranks = range(scenario.parallel.pipeline)
        accelerators = cluster.accelerators(len(ranks))
        slow = {} if scenario.jitter is None else scenario.jitter.slow_ranks
        of_usual = {cluster.accelerator.name: self}
        for one in accelerators:
            if one.name not in of_usual:
                alike = replace(cluster, accelerator=one, other_accelerators={})
                of_usual[one.name] = _timed(scenario, model, alike, efficiency)
        state = StateBytes(scenario.sharding, scenario.parallel, scenario.precision)
        recompute = scenario.recompute == "full"
        memory = [stage_bytes([layer], None, recompute=recompute) for layer in self.trace.layers]
        working = max(working for _, working in memory)
        return Chain(
            seconds=np.array(
                [
                    np.array(of_usual[one.name].layer_seconds) * slow.get(rank, 1.0)
                    for rank, one in enumerate(accelerators)
                ]
            ),
            state_bytes=np.array(
                [state.in_all(float(layer.num_parameters), 0.0) for layer in self.trace.layers]
            ),
            activation_bytes=np.array([held for held, _ in memory]),
            in_flight=expected_in_flight(holders, len(ranks), scenario.batch.num_microbatches),
            limit_bytes=np.array([one.memory_bytes - working for one in accelerators]),
            holders=holders,
        )


def _timed(scenario: ResolvedScenario, model: TorchModel, cluster: Cluster, efficiency: Efficiency) -> _Timed:
    dtype = "float16" if scenario.precision.compute == "fp16" else "bfloat16"
    try:
        trace = trace_model(model.factory, model.directory, scenario.batch.micro, dtype)
    except ScenarioError as error:
        raise ScenarioError(error.message, file=scenario.file, key=error.key) from error.__cause__
    rates = kernel_rates(scenario, cluster, efficiency)
    of_layer = partial(
        layer_times,
        rates=rates,
        recompute=scenario.recompute == "full",
        gradient_bytes=scenario.precision.gradient_bytes,
    )
    once = {id(layer): of_layer(layer) for layer in trace.layers}
    loss = layer_times(trace.loss, rates, recompute=False, gradient_bytes=0.0)
    return _Timed(trace, rates, tuple(once[id(layer)] for layer in trace.layers), loss)


def _stages(scenario: ResolvedScenario, model: TorchModel, timed: _Timed, counts: tuple[int, ...]) -> Stages:
    trace, last = timed.trace, len(counts) - 1
    ends = np.cumsum(counts)
    cuts = [slice(end - count, end) for end, count in zip(ends.tolist(), counts, strict=True)]
    times = [list(timed.layers[cut]) for cut in cuts]
    of_stages = [[*of_stage, timed.loss] if at == last else of_stage for at, of_stage in enumerate(times)]

    crossing = stage_skips(trace.skips, counts)

    def memory_of(recompute: bool) -> list[tuple[float, float]]:
        return [
            stage_bytes(
                trace.layers[cut],
                trace.loss if at == last else None,
                recompute=recompute,
                handed_on=_handed_on(trace, cut, recompute=recompute),
                taken_bytes=sum(
                    trace.layers[skip.layer].message_bytes for skip in crossing if skip.target == at
                ),
            )
            for at, cut in enumerate(cuts)
        ]

    memory = memory_of(scenario.recompute == "full")
    # W reads what autograd saves, whether in F or, with recomputation, in I.
    deferred = memory_of(recompute=False)
    boundary = np.array([float(trace.layers[end - 1].message_bytes) for end in ends])
    boundary[-1] = 0.0

    def blocks(stage: int) -> Sequence[GatheredBlock]:
        layers = zip(times[stage], trace.layers[cuts[stage]], strict=True)
        return [
            GatheredBlock(
                seconds.forward_s, seconds.backward_s, seconds.weight_gradient_s, _parameters([layer])
            )
            for seconds, layer in layers
        ]

    batch = scenario.batch
    num_microbatches = batch.num_microbatches * scenario.parallel.data
    return Stages(
        forward_parts_s=_by_part([[one.forward_parts_s for one in stage] for stage in of_stages]),
        backward_parts_s=_by_part([[one.backward_parts_s for one in stage] for stage in of_stages]),
        weight_gradient_s=np.array([sum(one.weight_gradient_s for one in stage) for stage in of_stages]),
        boundary_bytes=boundary,
        layers_per_stage=counts,
        parameters=[_parameters(trace.layers[cut]) for cut in cuts],
        activation_bytes=np.array([held for held, _ in memory]),
        working_bytes=np.array([working for _, working in memory]),
        deferred_bytes=np.array([held for held, _ in deferred]),
        blocks=blocks,
        tokens_per_sample=trace.sequence_length,
        model_flops_per_step=num_microbatches * trace.model_flops,
        provenance=_provenance(model, timed, batch.micro),
        skips=tuple(
            Skip(skip.source, skip.target, float(trace.layers[skip.layer].message_bytes)) for skip in crossing
        ),
    )


def _handed_on(trace: ModelTrace, cut: slice, *, recompute: bool) -> set[int]:
    """Layers of a stage, from 0, whose outputs are held for skip connections."""
    found = set()
    for source, target in trace.skips:
        if cut.start <= source < cut.stop:
            of_target = [begin for begin, end in trace.skips if end == target]
            saved = trace.layers[target].saves_further[of_target.index(source)]
            if target >= cut.stop or saved or recompute:
                found.add(source - cut.start)
    return found


def _parameters(layers: Iterable[LayerTrace]) -> StageParameters:
    return StageParameters(float(sum(layer.num_parameters for layer in layers)), 0.0)


def _by_part(stages: Sequence[Sequence[dict[str, float]]]) -> dict[str, FloatArray]:
    """Seconds of each stage by part, from those of its layers."""
    names = dict.fromkeys(part for stage in stages for layer in stage for part in layer)
    return {
        part: np.array([sum(layer.get(part, 0.0) for layer in stage) for stage in stages]) for part in names
    }


def _provenance(model: TorchModel, timed: _Timed, micro: int) -> dict[str, str]:
    trace = timed.trace
    forward = sum(layer.forward.model_flops for layer in trace.layers) / micro
    number = sum(layer.num_parameters for layer in trace.layers)
    launch = units.format_time_s(timed.rates.launch_s)
    words = {
        "model": f"{model.name}: {len(trace.layers)} layers, of which {trace.num_distinct} differ, "
        f"{number:,} parameters, {forward / 1e9:.4g} GFLOP forward a sample "
        f"({model.factory}, traced with torch {torch.__version__})",
        "times": "every operation as a kernel of its own: the longer of its FLOPs and its bytes at the "
        f"efficiency's rates, and {launch} (the overhead of a "
        f"layer over the {KERNELS_OF_A_LAYER} kernels of a GPT layer); attention as the module calls it, "
        "scaled_dot_product_attention as one fused kernel",
        "input and weight gradient": "I: traced with the gradient of the input alone; W: what all gradients "
        "take more, and adding them to those of other microbatches",
        "activations": "what autograd saves, each storage once, and a stage's input and output; kept until W",
    }
    if trace.skips:
        words["skip connections"] = (
            f"{len(trace.skips)} between layers; one that leaves a stage is a message to the stage that "
            "takes it, and its gradient, as large, one back"
        )
    frozen = sum(layer.num_frozen for layer in trace.layers)
    if frozen:
        words["frozen parameters"] = f"{frozen:,}, held with gradients and optimizer state as all others are"
    if trace.unknown:
        words["counted by bytes alone"] = ", ".join(sorted(trace.unknown))
    return words
