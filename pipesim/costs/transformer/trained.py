"""What of a transformer is trained: parameters with gradients and optimizer state, and adapters.

A low-rank adapter adds two products to each of a module, ``r`` values in between (Hu et al. 2021, arXiv
2106.09685): ``r (N + K)`` parameters for N outputs and K inputs. What is frozen has no gradient of its
weights to compute, keep or reduce; gradients of its inputs pass all the same.
"""

from __future__ import annotations

from collections.abc import Iterator

from pipesim.costs.stages.sharding import StageParameters
from pipesim.costs.transformer.flops import (
    Shapes,
    attention_gemms,
    head_flops,
    layer_gemm_flops,
    mlp_gemms,
    prediction_flops,
    router_flops,
    shapes_flops,
)
from pipesim.costs.transformer.parameters import (
    ParameterCount,
    embedding_parameters,
    final_norm_parameters,
    head_parameters,
    module_parameters,
    prediction_parameters,
)
from pipesim.scenario.resolved import Experts, Parallel, TrainableModule, Trained, Transformer


def adapter_shapes(shapes: Shapes, rank: int) -> Shapes:
    """Give the two products of an adapter beside each of some products."""
    return tuple(shape for outputs, inputs in shapes for shape in ((rank, inputs), (outputs, rank)))


def adapter_parameters(model: Transformer, trained: Trained, *, with_experts: bool) -> ParameterCount:
    """Parameters of a layer's adapters, cut as what they stand beside."""
    dense = of_experts = 0
    for module, shapes, number in _products(model, with_experts=with_experts):
        if module in trained.adapted:
            each = sum(round(trained.lora_rank * (outputs + inputs)) for outputs, inputs in shapes)
            if module == "experts":
                of_experts += number * each
            else:
                dense += each
    return ParameterCount(split=dense, experts=of_experts)


def trained_layer(
    model: Transformer, trained: Trained, tensor: int, *, with_experts: bool
) -> tuple[ParameterCount, ParameterCount]:
    """Parameters of a layer that are held, adapters with them, and those of them that are trained."""
    modules = module_parameters(model, tensor, with_experts=with_experts)
    adapters = adapter_parameters(model, trained, with_experts=with_experts)
    held = sum(modules.values(), adapters)
    return held, sum((count for name, count in modules.items() if name not in trained.frozen), adapters)


def trained_stages(
    model: Transformer, layers: tuple[tuple[bool, ...], ...], parallel: Parallel, trained: Trained
) -> tuple[tuple[StageParameters, ...], tuple[StageParameters, ...]]:
    """Parameters that one device of each stage holds, and those of them that are trained.

    Parameters
    ----------
    layers : tuple of tuple of bool
        Whether each layer of each stage has experts.
    """
    tensor = parallel.tensor
    kinds = {mixed: trained_layer(model, trained, tensor, with_experts=mixed) for mixed in (False, True)}
    stages: list[list[StageParameters]] = [[], []]
    for stage, of_stage in enumerate(layers):
        for which, found in enumerate(stages):
            counts = [kinds[mixed][which] for mixed in of_stage]
            counts += _ends(model, trained, stage, len(layers), only_trained=which == 1)
            dense = sum(count.per_device(tensor) for count in counts)
            experts = sum(count.experts for count in counts) / parallel.num_expert_shards
            found.append(StageParameters(dense, experts))
    return tuple(stages[0]), tuple(stages[1])


def _ends(
    model: Transformer, trained: Trained, stage: int, num_stages: int, *, only_trained: bool
) -> list[ParameterCount]:
    """Embedding and head of the stages that have them; one that both need lies on both."""
    found = []
    if stage == 0 and not (only_trained and "embedding" in trained.frozen):
        found.append(embedding_parameters(model))
    if stage == num_stages - 1 and not (only_trained and "head" in trained.frozen):
        found.append(final_norm_parameters(model))
        found += [prediction_parameters(model)] * model.num_nextn_predict_layers
        if num_stages > 1 or not model.tie_word_embeddings:
            found.append(head_parameters(model))
    is_trained = not (only_trained and "embedding" in trained.frozen)
    if stage == num_stages - 1 > 0 and is_trained and model.embeds_twice and not model.tie_word_embeddings:
        found.append(head_parameters(model))
    return found


def untrained_flops(model: Transformer, trained: Trained, num_sequences: float) -> float:
    """FLOPs of a step that frozen weights spare, less those of adapters."""
    num_tokens = num_sequences * model.seq_length
    further = model.num_nextn_predict_layers
    of_heads = (1 + further) * head_flops(model, num_tokens) + further * prediction_flops(model, num_tokens)
    spared = of_heads if "head" in trained.frozen else 0.0
    layers = [model.has_experts(layer) for layer in range(model.num_hidden_layers)]
    layers += model.prediction_layers
    for mixed in (False, True):
        number = layers.count(mixed)
        if number:
            spared += number * _layer_spared(model, trained, num_tokens, with_experts=mixed)
    return spared


def _layer_spared(model: Transformer, trained: Trained, num_tokens: float, *, with_experts: bool) -> float:
    spared = 0.0
    experts = model.experts if with_experts else None
    for module, shapes, _ in _products(model, with_experts=with_experts):
        rows = _rows(num_tokens, module, experts)
        if module in trained.frozen:
            spared += shapes_flops(shapes, rows)
        if module in trained.adapted:
            spared -= 3 * shapes_flops(adapter_shapes(shapes, trained.lora_rank), rows)
    if experts is not None and "experts" in trained.frozen:
        spared += router_flops(model, num_tokens)
    assert spared <= layer_gemm_flops(model, num_tokens, with_experts=with_experts)
    return spared


def _rows(num_tokens: float, module: str, experts: Experts | None) -> float:
    return num_tokens * (experts.num_experts_per_tok if experts is not None and module == "experts" else 1)


def _products(model: Transformer, *, with_experts: bool) -> Iterator[tuple[TrainableModule, Shapes, int]]:
    """Products of a layer by module, and how many matrices of each shape there are."""
    yield "attention", attention_gemms(model), 1
    experts = model.experts if with_experts else None
    if experts is None:
        yield "mlp", mlp_gemms(model, model.intermediate_size), 1
        return
    if experts.shared_intermediate_size:
        yield "mlp", mlp_gemms(model, experts.shared_intermediate_size), 1
    yield "experts", mlp_gemms(model, experts.intermediate_size), experts.num_experts
