"""Bytes of activations on one device: what a microbatch keeps in a stage, and what an operation needs on top.

What a layer keeps is the list of `tensors`. While the backward runs, gradients of the same tensors exist
beside them for one sublayer at a time. A backward in two parts hands what the gradients of the weights read
from I to W: the loss is over by then, and of the logits their 16-bit gradient is left. Software that
accumulates weight gradients in place may keep a placeholder of every weight shape for autograd: Transformer
Engine does since its release 2.3 (`get_dummy_wgrad` in transformer_engine/pytorch/module/base.py), with
Megatron-LM's output layer among them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pipesim.costs.transformer.context_exchange import gathered_bytes
from pipesim.costs.transformer.layer import LayerKind, Setting
from pipesim.costs.transformer.parameters import attention_parameters, head_parameters, num_mlp_matrices
from pipesim.costs.transformer.tensors import (
    input_share,
    num_scores,
    product_gradients,
    saved_tensors,
    stream_bytes,
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
        Kept for one microbatch from its F until B, or until I.
    deferred : float
        Kept for one microbatch from I until W.
    working : float
        Needed on top while one operation runs: the layer being recomputed, the gradients of a sublayer or of
        the logits, placeholders of weight gradients.
    logits, deferred_logits : float
        Of what is held and deferred, the logits and what the loss keeps of them.
    offloaded : float
        Copied to the host's memory after the forward and back for the backward.
    """

    held: float
    deferred: float
    working: float
    logits: float
    deferred_logits: float
    offloaded: float


def stage_activations(
    setting: Setting, layers: Sequence[LayerKind], *, first: bool, last: bool
) -> ActivationBytes:
    """Activations of a stage of some layers, with the embedding or the head where it has them.

    Parameters
    ----------
    layers : sequence of LayerKind
        Of the stage.
    first, last : bool
        Whether the stage has the embedding, and the head.
    """
    held, deferred, working, logits, deferred_logits = 0.0, 0.0, 0.0, 0.0, 0.0
    hidden = stream_bytes(setting, setting.model.hidden_size)
    placeholders = _placeholder_bytes(setting, attention_parameters(setting.model, setting.tensor).split)
    for kind, count in Counter(layers).items():
        of_kind, experts = kind.setting(setting), setting.model.experts if kind.with_experts else None
        whole, kept = _layer_bytes(of_kind, experts)
        held += count * kept
        deferred += count * _deferred_layer_bytes(of_kind, experts)
        working = max(working, whole - kept + _gradient_bytes(of_kind, experts))
    # Layers with and without experts have weights of other shapes, of which one of each is at hand.
    for with_experts in sorted({kind.with_experts for kind in layers}):
        experts = setting.model.experts if with_experts else None
        placeholders += _placeholder_bytes(setting, _mlp_parameters(setting, experts))
    offloaded = setting.offloaded * held
    held -= offloaded
    if first:
        deferred += hidden  # the gradient of the embedding's output
        if not setting.model.gated_mlp:
            held += hidden / setting.value_bytes  # the embedding's dropout mask
    if last:
        # Inputs of norm and head, of as many losses; of a further prediction also those of its two norms and
        # of the matrix behind them.
        further = setting.model.num_nextn_predict_layers
        held += 2 * hidden * (1 + further) + 4 * hidden * further
        number = setting.num_tokens * setting.model.vocab_size / setting.tensor
        kept, beside = _FUSED_LOSS_BYTES if setting.fused_loss else _LOSS_BYTES
        logits, deferred_logits = (1 + further) * kept * number, (1 + further) * setting.value_bytes * number
        deferred += (1 + further) * hidden + 2 * further * hidden + deferred_logits
        held += logits
        # The logits are gone by the time the backward reaches the layers.
        working = max(working - logits, beside * number + _stream_gradient_bytes(setting))
        placeholders += _placeholder_bytes(setting, head_parameters(setting.model).split)
    if setting.weight_gradient_placeholders:
        working += placeholders
    return ActivationBytes(held, deferred, working, logits, deferred_logits, offloaded)


def _layer_bytes(setting: Setting, experts: Experts | None) -> tuple[float, float]:
    """All that a layer's backward reads, and what of it is kept until then."""
    tensors = list(saved_tensors(setting, experts))
    whole = sum(tensor.nbytes for tensor in tensors)
    if setting.recompute == "full":
        return whole, stream_bytes(setting, setting.model.hidden_size)
    return whole, sum(t.nbytes for t in tensors if t.module not in setting.recomputed_modules)


def _deferred_layer_bytes(setting: Setting, experts: Experts | None) -> float:
    """Add up what W reads of a layer: inputs of products with weights, gradients of their outputs.

    For GPT ``32 s b h`` bytes, as arXiv 2401.10241 counts (table 1). A recomputed layer has them too once I
    has run; where W computes the layer again, its input stands for those of its products.
    """
    if setting.trained.passes_over("attention", "mlp", "experts"):
        return 0.0
    gradients = product_gradients(setting, experts)
    if setting.recompute == "full" and setting.weights_recompute:
        return gradients + stream_bytes(setting, setting.model.hidden_size)
    # What attention's own backward reads is over.
    kept = input_share(setting)
    inputs = (
        t.nbytes * (kept / (1 + kept) if t.is_read_otherwise and kept != 1 else 1)
        for t in saved_tensors(setting, experts)
        if t.for_weights
    )
    return gradients + sum(inputs)


def _gradient_bytes(setting: Setting, experts: Experts | None) -> float:
    """Gradients inside and around the larger sublayer, attention or MLP."""
    tensors = list(saved_tensors(setting, experts))
    mlp = sum(t.nbytes for t in tensors if t.module in ("mlp", "moe", "moe_act", "shared_experts"))
    attention = sum(t.nbytes for t in tensors if t.module in ("attention", "mla_up_proj"))
    attention += 2 * gathered_bytes(setting)  # and their gradients
    if setting.attention_kernel == "unfused":
        attention += _SCORE_GRADIENT_BYTES * num_scores(setting)
    return _stream_gradient_bytes(setting) + max(mlp, attention)


def _stream_gradient_bytes(setting: Setting) -> float:
    """Gradient of the residual stream; with sequence parallelism also a gathered input and gradient."""
    is_gathered = setting.sequence_parallel and setting.tensor > 1
    gathered = 4 * setting.num_tokens * setting.model.hidden_size if is_gathered else 0.0
    return stream_bytes(setting, setting.model.hidden_size) + gathered


def _placeholder_bytes(setting: Setting, num_parameters: float) -> float:
    return _PLACEHOLDER_BYTES * num_parameters / setting.tensor


def _mlp_parameters(setting: Setting, experts: Experts | None) -> float:
    """Parameters of the distinct shapes of a layer's MLP; all experts have the same ones."""
    num_values = num_mlp_matrices(setting.model) * setting.model.hidden_size
    if experts is None:
        return num_values * setting.model.intermediate_size
    return num_values * (experts.shared_intermediate_size + experts.intermediate_size)
