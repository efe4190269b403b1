"""Floating-point operations of a transformer, a multiplication and an addition counted as two.

These count what the model asks for, attention in full as the papers' MFU does and of the experts those that a
token takes; what a kernel really runs (the causal half, a recomputation, a busy device's extra tokens) is the
business of the times in `layer`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from pipesim.costs.transformer.parameters import (
    attention_output_size,
    key_size,
    query_size,
    value_head_size,
    value_size,
)
from pipesim.scenario.resolved import Transformer

Shapes = tuple[tuple[float, float], ...]
"""Output and input width (N, K) of matrix multiplications."""


def layer_gemms(model: Transformer, tensor: int = 1) -> Shapes:
    """Matrix multiplications of a layer without experts on one of `tensor` devices.

    In order: those of `attention_gemms`, MLP in (gate and up as one), MLP out.
    """
    return attention_gemms(model, tensor) + mlp_gemms(model, model.intermediate_size, tensor)


def attention_gemms(model: Transformer, tensor: int = 1) -> Shapes:
    """Give queries with keys and values, and the output; latent attention projects down and up."""
    hidden, latent = model.hidden_size, model.latent_attention
    output = (hidden, attention_output_size(model) / tensor)
    if latent is None:
        qkv = query_size(model) + key_size(model, tensor) + value_size(model, tensor)
        return ((qkv / tensor, hidden), output)
    # Every device projects down its share of the tokens, which costs as much as a share of the width would.
    keys_values_down = ((latent.kv_lora_rank + latent.qk_rope_head_dim) / tensor, hidden)
    heads = model.num_attention_heads / tensor
    keys_values_up = (heads * (latent.qk_nope_head_dim + latent.v_head_dim), latent.kv_lora_rank)
    queries: Shapes = ((query_size(model) / tensor, hidden),)
    if latent.q_lora_rank is not None:
        queries = ((latent.q_lora_rank / tensor, hidden), (query_size(model) / tensor, latent.q_lora_rank))
    return (*queries, keys_values_down, keys_values_up, output)


def latent_up_gemms(model: Transformer, tensor: int = 1) -> Shapes:
    """Of the products of latent attention those that make keys, values and queries from narrow vectors."""
    latent = model.latent_attention
    if latent is None:
        return ()
    return tuple(shape for shape in attention_gemms(model, tensor)[:-1] if shape[1] != model.hidden_size)


def mlp_gemms(model: Transformer, inner: int, tensor: int = 1) -> Shapes:
    """MLP in (gate and up as one) and MLP out, for a width of `inner`."""
    mlp_in = (2 if model.gated_mlp else 1) * inner
    return ((mlp_in / tensor, model.hidden_size), (model.hidden_size, inner / tensor))


def shapes_flops(shapes: Shapes, num_tokens: float) -> float:
    """Forward FLOPs of matrix multiplications of `num_tokens` rows."""
    return 2 * num_tokens * sum(outputs * inputs for outputs, inputs in shapes)


def router_flops(model: Transformer, num_tokens: float) -> float:
    """Forward FLOPs of the scores that choose a token's experts."""
    return 0.0 if model.experts is None else 2 * num_tokens * model.hidden_size * model.experts.num_experts


def layer_gemm_flops(model: Transformer, num_tokens: float, *, with_experts: bool = False) -> float:
    """Forward FLOPs of one layer's matrix multiplications with weights."""
    experts = model.experts
    if not with_experts or experts is None:
        return shapes_flops(layer_gemms(model), num_tokens)
    shared = attention_gemms(model) + mlp_gemms(model, experts.shared_intermediate_size)
    routed = mlp_gemms(model, experts.intermediate_size)
    return (
        shapes_flops(shared, num_tokens)
        + router_flops(model, num_tokens)
        + shapes_flops(routed, num_tokens * experts.num_experts_per_tok)
    )


def layer_attention_flops(model: Transformer, num_sequences: float) -> float:
    """Forward FLOPs of one layer's scores and their product with the values, full (not causal) attention."""
    widths = model.head_dim + value_head_size(model)
    return 2 * num_sequences * model.seq_length**2 * model.num_attention_heads * widths


def head_flops(model: Transformer, num_tokens: float) -> float:
    """Forward FLOPs of the output matrix."""
    return 2 * num_tokens * model.hidden_size * model.vocab_size


def step_flops(
    model: Transformer,
    num_sequences: float,
    *,
    recompute: Literal["none", "selective", "full"] = "none",
    causal: bool = False,
) -> float:
    """FLOPs of forward and backward for `num_sequences` of `seq_length` tokens.

    Without recomputation these are the model FLOPs of MFU. For GPT they equal Narayanan et al. 2021 (arXiv
    2104.04473, section 5.1 and equation 3): ``72 B s L h^2 (1 + s/6h + V/12Lh)``, and with full recomputation
    ``96 B s L h^2 (1 + s/6h + V/16Lh)``. Selective recomputation runs the attention again. `causal` counts
    half of the attention, as Megatron-core does.
    """
    num_tokens = num_sequences * model.seq_length
    with_experts = [model.has_experts(layer) for layer in range(model.num_hidden_layers)]
    with_experts += model.prediction_layers
    attention = len(with_experts) * layer_attention_flops(model, num_sequences) * (0.5 if causal else 1)
    layers = attention + sum(layer_gemm_flops(model, num_tokens, with_experts=each) for each in with_experts)
    again = {"none": 0.0, "selective": attention, "full": layers}[recompute]
    predictions = model.num_nextn_predict_layers * prediction_flops(model, num_tokens)
    heads = (1 + model.num_nextn_predict_layers) * head_flops(model, num_tokens)
    return 3 * layers + again + 3 * (heads + predictions)


def prediction_flops(model: Transformer, num_tokens: float) -> float:
    """Forward FLOPs of the matrix that puts a further prediction's two inputs together."""
    return shapes_flops(prediction_gemms(model), num_tokens)


def prediction_gemms(model: Transformer, tensor: int = 1) -> Shapes:
    """Give that matrix."""
    return ((model.hidden_size / tensor, 2 * model.hidden_size),)


def recomputed_flops(
    model: Transformer, num_sequences: float, modules: Collection[str] | None, *, with_experts: bool
) -> float:
    """FLOPs that the backward of one layer runs again: of some modules, or, None, of the whole layer."""
    num_tokens = num_sequences * model.seq_length
    experts = model.experts if with_experts else None
    if modules is None:
        gemms = layer_gemm_flops(model, num_tokens, with_experts=with_experts)
        return gemms + layer_attention_flops(model, num_sequences)
    of_modules = {
        "core_attn": layer_attention_flops(model, num_sequences),
        "mla_up_proj": shapes_flops(latent_up_gemms(model), num_tokens),
    }
    if experts is None:
        of_modules["mlp"] = shapes_flops(mlp_gemms(model, model.intermediate_size), num_tokens)
    else:
        rows = num_tokens * experts.num_experts_per_tok
        shared = mlp_gemms(model, experts.shared_intermediate_size)
        of_modules["shared_experts"] = shapes_flops(shared, num_tokens)
        of_modules["moe"] = router_flops(model, num_tokens) + shapes_flops(
            mlp_gemms(model, experts.intermediate_size), rows
        )
    return sum(flops for name, flops in of_modules.items() if name in modules)
