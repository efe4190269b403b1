"""How a transformer's layers fall to stages, and what decides that where they are balanced."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from pipesim.costs.stages.balance import Chain, balanced, expected_in_flight
from pipesim.costs.stages.state import StateBytes
from pipesim.costs.transformer.activation_memory import stage_activations
from pipesim.costs.transformer.layer import (
    LayerKind,
    Setting,
    embedding_times,
    head_times,
    layer_times,
    prediction_times,
)
from pipesim.costs.transformer.parameters import (
    ParameterCount,
    embedding_parameters,
    head_parameters,
    prediction_parameters,
)
from pipesim.costs.transformer.setting import layer_setting
from pipesim.costs.transformer.trained import trained_layer
from pipesim.errors import ScenarioError
from pipesim.ir.shape import stage_holders
from pipesim.scenario.hardware import Accelerator
from pipesim.scenario.layers import split_layers
from pipesim.scenario.resolved import LayerSplit, ResolvedScenario, Transformer

Holders = tuple[tuple[int, ...], ...]


def layers_per_stage(
    scenario: ResolvedScenario, setting: Setting, num_stages: int, holders: Holders | None = None
) -> tuple[int, ...]:
    """Layers of each stage; ``balanced`` makes the slowest rank as fast as possible.

    Embedding and head are pieces of their own there, so that one which outweighs its share of the layers has
    its stage to itself; each rank has the speed and the memory of its own devices.

    Parameters
    ----------
    scenario : ResolvedScenario
        With a transformer on a cluster.
    setting : Setting
        Of the usual devices.
    num_stages : int
        S.
    holders : tuple of tuple of int, optional
        Ranks of each stage; by default stage s is on rank s mod p.

    Raises
    ------
    ScenarioError
        See `split_layers`.
    """
    num_layers, ranks = setting.model.num_hidden_layers, scenario.parallel.pipeline
    try:
        if scenario.layers.kind != "balanced" or num_stages > num_layers:
            return split_layers(num_layers, num_stages, scenario.layers)
    except ScenarioError as error:
        raise ScenarioError(error.message, file=scenario.file, key=error.key) from None
    holders = holders or stage_holders("loop", ranks, num_stages // ranks)
    even = list(split_layers(num_layers, num_stages, LayerSplit("even")))
    even[0] += 1
    even[-1] += 1
    counts = list(balanced(_chain(scenario, setting, holders), tuple(even)))
    counts[0] -= 1
    counts[-1] -= 1
    return tuple(counts)


def layers_of_stages(
    scenario: ResolvedScenario, model: Transformer, counts: tuple[int, ...]
) -> tuple[tuple[LayerKind, ...], ...]:
    """Kinds of the layers of each stage in turn, those of further predictions at the end.

    Raises
    ------
    ScenarioError
        If the numbers of recomputed layers are for another number of stages.
    """
    recomputed = scenario.recompute_layers
    if recomputed is not None and len(recomputed) not in (1, len(counts)):
        raise ScenarioError(
            f"has {len(recomputed)} entries; needed: one, or one for each of the {len(counts)} stages",
            file=scenario.file,
            key="recompute_layers",
        )
    stages, first = [], 0
    for stage, count in enumerate(counts):
        number = count if recomputed is None else recomputed[stage if len(recomputed) > 1 else 0]
        stages.append(
            tuple(LayerKind(model.has_experts(first + at), kept=at >= number) for at in range(count))
        )
        first += count
    stages[-1] += tuple(LayerKind(mixed, kept=recomputed is not None) for mixed in model.prediction_layers)
    return tuple(stages)


def _chain(scenario: ResolvedScenario, setting: Setting, holders: Holders) -> Chain:
    model, parallel, cluster = setting.model, scenario.parallel, scenario.cluster
    assert cluster is not None
    kinds = np.array([1, *(2 + model.has_experts(layer) for layer in range(model.num_hidden_layers)), 0])
    accelerators = cluster.accelerators(parallel.pipeline)
    slow = {} if scenario.jitter is None else scenario.jitter.slow_ranks
    by_accelerator = {each.name: _seconds(scenario, model, each) for each in accelerators}
    seconds = np.array(
        [by_accelerator[each.name] * slow.get(rank, 1.0) for rank, each in enumerate(accelerators)]
    )
    further = tuple(map(LayerKind, model.prediction_layers))
    alone = [
        stage_activations(setting, further, first=False, last=True),
        stage_activations(setting, (), first=True, last=False),
        stage_activations(setting, (LayerKind(False),), first=False, last=False),
        stage_activations(setting, (LayerKind(True),), first=False, last=False),
    ]
    present = sorted(set(kinds.tolist()))
    working = max(alone[kind].working for kind in present)
    state = StateBytes(scenario.sharding, parallel, scenario.precision)
    return Chain(
        seconds=seconds[:, kinds],
        state_bytes=_state_bytes(scenario, model, state)[kinds],
        activation_bytes=np.array([one.held for one in alone])[kinds],
        in_flight=expected_in_flight(holders, parallel.pipeline, scenario.batch.num_microbatches),
        limit_bytes=np.array([each.memory_bytes - working for each in accelerators]),
        holders=holders,
    )


def _seconds(
    scenario: ResolvedScenario, model: Transformer, accelerator: Accelerator
) -> npt.NDArray[np.float64]:
    """Forward and backward of the head and further predictions, the embedding, a layer of either kind."""
    assert scenario.cluster is not None
    assert scenario.efficiency is not None
    alike = replace(scenario.cluster, accelerator=accelerator, other_accelerators={})
    setting = layer_setting(scenario, model, alike, scenario.efficiency)
    layers = [layer_times(setting, with_experts=mixed).total_s for mixed in (False, True)]
    head_s = head_times(setting).total_s
    for mixed in model.prediction_layers:
        head_s += layers[mixed] + prediction_times(setting).total_s + head_times(setting).total_s
    return np.array([head_s, embedding_times(setting).total_s, *layers])


def _state_bytes(
    scenario: ResolvedScenario, model: Transformer, state: StateBytes
) -> npt.NDArray[np.float64]:
    """Weights, gradients and optimizer state on one device, in the same order."""
    parallel, trained = scenario.parallel, scenario.trained
    head = head_parameters(model)
    if model.tie_word_embeddings and parallel.pipeline == 1:
        head = ParameterCount(0)
    counts = [
        (count, ParameterCount(0) if module in trained.frozen else count)
        for module, count in (("head", head), ("embedding", embedding_parameters(model)))
    ]
    counts += [trained_layer(model, trained, parallel.tensor, with_experts=mixed) for mixed in (False, True)]
    for mixed in model.prediction_layers:
        beside = prediction_parameters(model)
        of_further = beside, ParameterCount(0) if "head" in trained.frozen else beside
        first, second = (
            sum(three, ParameterCount(0))
            for three in zip(counts[0], counts[2 + mixed], of_further, strict=True)
        )
        counts[0] = first, second
    found = []
    for pair in counts:
        held, learned = (
            (count.per_device(parallel.tensor), count.experts / parallel.num_expert_shards) for count in pair
        )
        found.append(state.weights(*held) + state.gradients(*learned) + state.optimizer(*learned))
    return np.array(found)
