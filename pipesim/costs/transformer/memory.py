"""Bytes of activations on one device: what a microbatch keeps in a stage, and what an operation needs on top.

16-bit activations. A GPT-style layer follows Korthikanti et al. 2022 (arXiv 2205.05198, equations 1-4 and
table 2), ``s b h (34 + 5 a s / h)`` without parallelism, with the MLP's width free as in Megatron-LM; a gated
layer without dropout keeps ``s b (8 h + 4 hq + 4 hkv + 6 f)``, counted the same way. A layer with experts
keeps each token once for every expert that takes it, and the vectors of latent attention count as they are.

While the backward runs, gradients of the same tensors exist beside them for one sublayer at a time. Software
that accumulates weight gradients in place may keep a placeholder of every weight shape for autograd:
Transformer Engine does since its release 2.3 (`get_dummy_wgrad` in
transformer_engine/pytorch/module/base.py), with Megatron-LM's output layer among them.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipesim.costs.transformer.flops import layer_gemms
from pipesim.costs.transformer.layer import Setting
from pipesim.costs.transformer.parameters import (
    attention_output_size,
    attention_parameters,
    head_parameters,
    key_size,
    num_mlp_matrices,
    query_size,
    value_size,
)
from pipesim.scenario.resolved import Experts

_LOSS_BYTES, _FUSED_LOSS_BYTES = (4, 2), (2, 0)
"""Kept of a logit and needed beside it: a 32-bit softmax and the 16-bit logit or its gradient; or, fused, a
16-bit logit that its gradient overwrites."""
_SCORE_GRADIENT_BYTES = 4
"""Gradients of the attention scores before and after the softmax."""
_PLACEHOLDER_BYTES = 2


@dataclass(frozen=True, slots=True)
class ActivationBytes:
    """Activations of one stage on one device.

    Parameters
    ----------
    held : float
        Kept for one microbatch from its F until its release.
    working : float
        Needed on top while one operation runs: the layer being recomputed, the gradients of a sublayer or of
        the logits, placeholders of weight gradients.
    """

    held: float
    working: float


def stage_activations(
    setting: Setting, num_layers: int, *, first: bool, last: bool, num_with_experts: int = 0
) -> ActivationBytes:
    """Activations of a stage of `num_layers` layers, with the embedding or the head where it has them.

    Parameters
    ----------
    num_layers, num_with_experts : int
        Layers in all, and those of them that have experts.
    first, last : bool
        Whether the stage has the embedding, and the head.
    """
    held, working = 0.0, 0.0
    placeholders = _placeholder_bytes(setting, attention_parameters(setting.model, setting.tensor).split)
    kinds = ((None, num_layers - num_with_experts), (setting.model.experts, num_with_experts))
    for experts, count in kinds:
        if not count:
            continue
        whole, kept = _layer_bytes(setting, experts)
        held += count * kept
        working = max(working, whole - kept + _gradient_bytes(setting, experts))
        placeholders += _placeholder_bytes(setting, _mlp_parameters(setting, experts))
    if first and not setting.model.gated_mlp:
        held += _hidden_bytes(setting, 1)  # the embedding's dropout mask
    if last:
        held += _hidden_bytes(setting, 4)  # inputs of norm and head
        logits = setting.num_tokens * setting.model.vocab_size / setting.tensor
        kept, beside = _FUSED_LOSS_BYTES if setting.fused_loss else _LOSS_BYTES
        held += kept * logits
        # The logits are gone by the time the backward reaches the layers.
        working = max(working - kept * logits, beside * logits + _stream_gradient_bytes(setting))
        placeholders += _placeholder_bytes(setting, head_parameters(setting.model).split)
    if setting.weight_gradient_placeholders:
        working += placeholders
    return ActivationBytes(held, working)


def released_at_input_gradient(setting: Setting) -> float:
    """Share of a layer's activations that I gives back: what W needs are the products' inputs and gradients.

    For GPT W needs ``32 s b h`` of ``s b (34 h + 5 a s)`` bytes, as arXiv 2401.10241 counts (table 1). Layers
    with experts or latent attention are taken to keep everything until W, as are recomputed ones.
    """
    model = setting.model
    if setting.recompute == "full" or model.experts is not None or model.latent_attention is not None:
        return 0.0
    hidden_share = setting.tensor if setting.sequence_parallel else 1
    width = sum(
        size / hidden_share if size == model.hidden_size else size
        for shape in layer_gemms(model, setting.tensor)
        for size in shape
    )
    kept = _layer_bytes(setting, None)[1]
    return max(0.0, 1 - 2 * setting.num_tokens * width / kept)


def _layer_bytes(setting: Setting, experts: Experts | None) -> tuple[float, float]:
    """All that a layer's backward reads, and what of it is kept until then."""
    whole, scores = _whole_layer_bytes(setting, experts), _score_bytes(setting)
    if setting.attention_kernel == "flash":
        scores = 0.0
    whole += scores
    if setting.recompute == "full":
        return whole, _hidden_bytes(setting, 2)
    return whole, whole - scores if setting.recompute == "selective" else whole


def _whole_layer_bytes(setting: Setting, experts: Experts | None) -> float:
    """All that a layer's backward reads but for the attention scores."""
    model = setting.model
    nbytes = setting.num_tokens * _attention_width(setting) * 2 / setting.tensor
    nbytes += _hidden_bytes(setting, 8 if model.gated_mlp else 10)  # the latter with two dropout masks
    inner_bytes = (6 if model.gated_mlp else 4) / setting.tensor
    if experts is None:
        return nbytes + setting.num_tokens * inner_bytes * model.intermediate_size
    nbytes += setting.num_tokens * inner_bytes * experts.shared_intermediate_size
    # An expert's rows are kept as they arrive, at the width of the hidden state and inside the expert, and as
    # they leave, for the gradient of the router's weights.
    return nbytes + setting.num_expert_rows * (
        inner_bytes * experts.intermediate_size + 4 * model.hidden_size / setting.tensor
    )


def _attention_width(setting: Setting) -> float:
    """Values a token that attention keeps over all devices: queries, keys, values, output, latent vectors."""
    model, latent = setting.model, setting.model.latent_attention
    width = query_size(model) + attention_output_size(model)
    width += key_size(model, setting.tensor) + value_size(model, setting.tensor)
    if latent is not None:
        # Each latent vector before and after its norm.
        width += 2 * (latent.kv_lora_rank + (latent.q_lora_rank or 0)) + latent.qk_rope_head_dim
    return width


def _gradient_bytes(setting: Setting, experts: Experts | None) -> float:
    """Gradients inside and around the larger sublayer, attention or MLP."""
    model = setting.model
    inner_bytes = (6 if model.gated_mlp else 4) / setting.tensor
    if experts is None:
        mlp = setting.num_tokens * inner_bytes * model.intermediate_size
    else:
        mlp = setting.num_tokens * inner_bytes * experts.shared_intermediate_size
        row_bytes = inner_bytes * experts.intermediate_size + 4 * model.hidden_size / setting.tensor
        mlp += setting.num_expert_rows * row_bytes
    attention = 2 * setting.num_tokens * _attention_width(setting) / setting.tensor
    if setting.attention_kernel == "unfused":
        attention += _SCORE_GRADIENT_BYTES * _num_scores(setting)
    return _stream_gradient_bytes(setting) + max(mlp, attention)


def _stream_gradient_bytes(setting: Setting) -> float:
    """Gradient of the residual stream; with sequence parallelism also a gathered input and gradient."""
    is_gathered = setting.sequence_parallel and setting.tensor > 1
    gathered = 4 * setting.num_tokens * setting.model.hidden_size if is_gathered else 0.0
    return _hidden_bytes(setting, 2) + gathered


def _placeholder_bytes(setting: Setting, num_parameters: float) -> float:
    return _PLACEHOLDER_BYTES * num_parameters / setting.tensor


def _mlp_parameters(setting: Setting, experts: Experts | None) -> float:
    """Parameters of the distinct shapes of a layer's MLP; all experts have the same ones."""
    num_values = num_mlp_matrices(setting.model) * setting.model.hidden_size
    if experts is None:
        return num_values * setting.model.intermediate_size
    return num_values * (experts.shared_intermediate_size + experts.intermediate_size)


def _hidden_bytes(setting: Setting, bytes_per_value: int) -> float:
    """Tensors of the hidden size, which only sequence parallelism cuts."""
    share = setting.tensor if setting.sequence_parallel else 1
    return bytes_per_value * setting.num_tokens * setting.model.hidden_size / share


def _score_bytes(setting: Setting) -> float:
    """Softmax output; with dropout also its mask and its result."""
    return (2 if setting.model.gated_mlp else 5) * _num_scores(setting)


def _num_scores(setting: Setting) -> float:
    model = setting.model
    num_shares = setting.tensor * setting.context
    return setting.micro * model.num_attention_heads * model.seq_length**2 / num_shares
