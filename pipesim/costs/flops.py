"""Floating-point operations of a transformer, a multiplication and an addition counted as two.

These count what the model asks for, attention in full as the papers' MFU does; what a kernel really runs (the
causal half, a recomputation) is the business of the times in `transformer`.
"""

from __future__ import annotations

from typing import Literal

from pipesim.costs.parameters import key_value_size, query_size
from pipesim.scenario.resolved import Transformer


def layer_gemms(model: Transformer, tensor: int = 1) -> tuple[tuple[float, float], ...]:
    """Output and input width (N, K) of a layer's matrix multiplications on one of `tensor` devices.

    In order: queries with keys and values, attention output, MLP in (gate and up as one), MLP out.
    """
    hidden, inner = model.hidden_size, model.intermediate_size
    queries = query_size(model)
    mlp_in = (2 if model.gated_mlp else 1) * inner
    return (
        ((queries + 2 * key_value_size(model, tensor)) / tensor, hidden),
        (hidden, queries / tensor),
        (mlp_in / tensor, hidden),
        (hidden, inner / tensor),
    )


def layer_gemm_flops(model: Transformer, num_tokens: float) -> float:
    """Forward FLOPs of one layer's matrix multiplications with weights."""
    return 2 * num_tokens * sum(outputs * inputs for outputs, inputs in layer_gemms(model))


def layer_attention_flops(model: Transformer, num_sequences: float) -> float:
    """Forward FLOPs of one layer's scores and their product with the values, full (not causal) attention."""
    return 4 * num_sequences * model.seq_length**2 * query_size(model)


def head_flops(model: Transformer, num_tokens: float) -> float:
    """Forward FLOPs of the output matrix."""
    return 2 * num_tokens * model.hidden_size * model.vocab_size


def step_flops(
    model: Transformer, num_sequences: float, *, recompute: Literal["none", "selective", "full"] = "none"
) -> float:
    """FLOPs of forward and backward for `num_sequences` of `seq_length` tokens.

    Without recomputation these are the model FLOPs of MFU. For GPT they equal Narayanan et al. 2021 (arXiv
    2104.04473, section 5.1 and equation 3): ``72 B s L h^2 (1 + s/6h + V/12Lh)``, and with full recomputation
    ``96 B s L h^2 (1 + s/6h + V/16Lh)``. Selective recomputation runs the attention again.
    """
    num_tokens = num_sequences * model.seq_length
    attention = layer_attention_flops(model, num_sequences)
    layer = layer_gemm_flops(model, num_tokens) + attention
    again = {"none": 0.0, "selective": attention, "full": layer}[recompute]
    return model.num_hidden_layers * (3 * layer + again) + 3 * head_flops(model, num_tokens)
