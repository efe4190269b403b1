"""Bytes of activations on one device: what a microbatch keeps in a stage, and what an operation needs on top.

16-bit activations. A GPT-style layer follows Korthikanti et al. 2022 (arXiv 2205.05198, equations 1-4 and
table 2), ``s b h (34 + 5 a s / h)`` without parallelism, with the MLP's width free as in Megatron-LM; a gated
layer without dropout keeps ``s b (8 h + 4 hq + 4 hkv + 6 f)``, counted the same way.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipesim.costs.parameters import key_value_size, query_size
from pipesim.costs.transformer import Setting

_LOGIT_HELD_BYTES = 4
_LOGIT_WORKING_BYTES = 2


@dataclass(frozen=True, slots=True)
class ActivationBytes:
    """Activations of one stage on one device.

    Parameters
    ----------
    held : float
        Kept for one microbatch from its F until its release.
    working : float
        Needed on top while one operation runs: the layer being recomputed, or the gradient of the logits.
    """

    held: float
    working: float


def stage_activations(setting: Setting, num_layers: int, *, first: bool, last: bool) -> ActivationBytes:
    """Activations of a stage of `num_layers` layers, with the embedding or the head where it has them."""
    whole, score_share = _layer_bytes(setting), _score_bytes(setting)
    if setting.attention_kernel == "flash":
        whole, score_share = whole - score_share, 0.0
    kept_per_layer = {
        "none": whole,
        "selective": whole - score_share,
        "full": _hidden_bytes(setting, 2),
    }[setting.recompute]
    held = num_layers * kept_per_layer
    working = whole - kept_per_layer if num_layers else 0.0
    if first and not setting.model.gated_mlp:
        held += _hidden_bytes(setting, 1)  # the embedding's dropout mask
    if last:
        logits = setting.num_tokens * setting.model.vocab_size / setting.tensor
        held += _hidden_bytes(setting, 4) + _LOGIT_HELD_BYTES * logits  # inputs of norm and head; the softmax
        working = max(working, _LOGIT_WORKING_BYTES * logits)
    return ActivationBytes(held, working)


def _layer_bytes(setting: Setting) -> float:
    """All that a layer's backward reads, attention scores included."""
    model = setting.model
    width_share = 4 * query_size(model) + 4 * key_value_size(model, setting.tensor)
    if model.gated_mlp:
        norm_and_input, width_share = 8, width_share + 6 * model.intermediate_size
    else:
        norm_and_input, width_share = 10, width_share + 4 * model.intermediate_size  # two dropout masks more
    return (
        _hidden_bytes(setting, norm_and_input)
        + setting.num_tokens * width_share / setting.tensor
        + _score_bytes(setting)
    )


def _hidden_bytes(setting: Setting, bytes_per_value: int) -> float:
    """Tensors of the hidden size, which only sequence parallelism cuts."""
    share = setting.tensor if setting.sequence_parallel else 1
    return bytes_per_value * setting.num_tokens * setting.model.hidden_size / share


def _score_bytes(setting: Setting) -> float:
    """Softmax output; with dropout also its mask and its result."""
    model = setting.model
    per_score = 2 if model.gated_mlp else 5
    scores = setting.micro * model.num_attention_heads * model.seq_length**2
    return per_score * scores / setting.tensor
