"""What a layer's backward reads, tensor by tensor, on one device and for one microbatch.

Each tensor says which module makes it, so that recomputing a module drops its own, and whether the gradient
of a weight needs it, so that a backward in two parts keeps what its second part reads. 16-bit values. A GPT
layer has the ``s b h (34 + 5 a s / h)`` bytes of arXiv 2205.05198, equations 1-4; a gated one without dropout
``s b (8 h + 4 hq + 4 hkv + 6 f)``; a layer with experts keeps each token once for every expert that takes it,
and the vectors of latent attention count as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pipesim.costs.transformer.layer import Setting
from pipesim.costs.transformer.parameters import (
    attention_output_size,
    key_size,
    query_size,
    value_head_size,
    value_size,
)
from pipesim.scenario.resolved import ActivationFormat, Experts, TrainableModule

VALUE_BYTES = 2
KEPT_BYTES: dict[ActivationFormat, float] = {
    "32-bit": 4,
    "16-bit": 2,
    "fp8": 1,
    "mxfp8": 1 + 1 / 32,
    "nvfp4": 0.5 + 1 / 16,
}
"""Of a value that is the input of a product, scales of its blocks included."""


class Tensor(NamedTuple):
    """One tensor of a layer.

    Parameters
    ----------
    name : str
        For tables.
    nbytes : float
        On one device, for one microbatch.
    module : str
        What makes it: ``stream`` (the residual stream), ``layernorm``, ``attention``, ``core_attn``,
        ``mla_up_proj``, ``mlp``, ``moe``, ``moe_act`` or ``shared_experts``.
    for_weights : bool
        Whether it is the input of a product with weights, which the weight's gradient reads.
    is_read_otherwise : bool
        Whether another part of the backward reads such an input too, and in 16 bits.
    weights : tuple of str
        Modules whose weights it is multiplied with; where none of them is trained it need not be kept.
    """

    name: str
    nbytes: float
    module: str
    for_weights: bool = False
    is_read_otherwise: bool = False
    weights: tuple[TrainableModule, ...] = ("attention",)


def saved_tensors(setting: Setting, experts: Experts | None) -> Iterator[Tensor]:
    """List what the forward of a layer leaves for its backward, scores of unfused attention included.

    Inputs of products are kept in the format in which these compute, beside 16 bits where attention's own
    backward reads them.
    """
    share = input_share(setting)
    for tensor in _tensors(setting, experts):
        if tensor.for_weights and setting.trained.passes_over(*tensor.weights):
            if tensor.is_read_otherwise:
                yield tensor._replace(for_weights=False)
            continue
        if tensor.for_weights and share != 1:
            yield tensor._replace(nbytes=(share + tensor.is_read_otherwise) * tensor.nbytes)
        else:
            yield tensor


def _tensors(setting: Setting, experts: Experts | None) -> Iterator[Tensor]:
    model, hidden = setting.model, setting.model.hidden_size
    yield Tensor("inputs of two norms", 2 * stream_bytes(setting, hidden), "stream")
    yield Tensor("input of attention", stream_bytes(setting, hidden), "layernorm", for_weights=True)
    yield from _attention(setting)
    mlp: tuple[TrainableModule, ...] = ("mlp",) if experts is None else ("mlp", "experts")
    into_mlp = stream_bytes(setting, hidden)
    yield Tensor("input of the MLP", into_mlp, "layernorm", for_weights=True, weights=mlp)
    if not model.gated_mlp:
        yield Tensor("two dropout masks", 2 * stream_bytes(setting, hidden) / setting.value_bytes, "stream")
    if experts is None:
        yield from _mlp(setting, setting.num_tokens, model.intermediate_size, "mlp", "mlp")
        return
    yield from _mlp(
        setting, setting.num_tokens, experts.shared_intermediate_size, "shared_experts", "shared_experts"
    )
    rows = setting.num_expert_rows
    of_experts = cut_bytes(setting, hidden, rows)
    yield Tensor("rows of the experts", of_experts, "moe", for_weights=True, weights=("experts",))
    yield from _mlp(setting, rows, experts.intermediate_size, "moe", "moe_act")
    if setting.exchange is None or not setting.exchange.one_copy:
        # For the gradient of the router's weights; the other dispatchers weigh inside the experts.
        yield Tensor("outputs of the experts", of_experts, "moe")


def product_gradients(setting: Setting, experts: Experts | None) -> float:
    """Bytes of the gradients of all outputs of products with weights, which the weights' gradients read."""
    return _product_gradients(setting, experts) * input_share(setting)


def input_share(setting: Setting) -> float:
    """Bytes of a value that is the input of a product over those of others."""
    return KEPT_BYTES[setting.activation_format] / setting.value_bytes


def _product_gradients(setting: Setting, experts: Experts | None) -> float:
    model, latent, hidden = setting.model, setting.model.latent_attention, setting.model.hidden_size
    inner = 2 if model.gated_mlp else 1
    nbytes = 2 * stream_bytes(setting, hidden)  # of attention and of the MLP
    nbytes += cut_bytes(setting, query_size(model))
    if latent is None:
        nbytes += cut_bytes(setting, key_size(model, setting.tensor) + value_size(model, setting.tensor))
    else:
        width = (latent.q_lora_rank or 0) + latent.kv_lora_rank + latent.qk_rope_head_dim
        width += model.num_attention_heads * (latent.qk_nope_head_dim + value_head_size(model))
        nbytes += cut_bytes(setting, width)
    if experts is None:
        return nbytes + cut_bytes(setting, inner * model.intermediate_size)
    nbytes += cut_bytes(setting, inner * experts.shared_intermediate_size)
    width = inner * experts.intermediate_size + hidden
    return nbytes + cut_bytes(setting, width, setting.num_expert_rows)


def stream_bytes(setting: Setting, width: float) -> float:
    """Bytes of a tensor that only sequence parallelism cuts, such as the residual stream."""
    share = setting.tensor if setting.sequence_parallel else 1
    return setting.value_bytes * setting.num_tokens * width / share


def cut_bytes(setting: Setting, width: float, rows: float | None = None) -> float:
    """Bytes of a tensor that tensor parallelism cuts; of `rows` tokens, by default those of a microbatch."""
    return setting.value_bytes * (setting.num_tokens if rows is None else rows) * width / setting.tensor


def num_scores(setting: Setting) -> float:
    """Entries of the attention matrices on one device."""
    model = setting.model
    num_shares = setting.tensor * setting.context
    return setting.micro * model.num_attention_heads * model.seq_length**2 / num_shares


def _attention(setting: Setting) -> Iterator[Tensor]:
    model, latent = setting.model, setting.model.latent_attention
    keys_and_values = key_size(model, setting.tensor) + value_size(model, setting.tensor)
    made_by = "attention" if latent is None else "mla_up_proj"
    yield Tensor("queries, keys, values", cut_bytes(setting, query_size(model) + keys_and_values), made_by)
    output = cut_bytes(setting, attention_output_size(model))
    yield Tensor("output of attention", output, "attention", for_weights=True, is_read_otherwise=True)
    if latent is not None:
        ranks = latent.kv_lora_rank + (latent.q_lora_rank or 0)
        before = cut_bytes(setting, ranks + latent.qk_rope_head_dim)
        yield Tensor("latent vectors", before, "attention")
        yield Tensor("latent vectors behind norms", cut_bytes(setting, ranks), "attention", for_weights=True)
    if setting.attention_kernel == "unfused":
        # The softmax's output; with dropout also its mask and its result.
        score_bytes = setting.value_bytes if model.gated_mlp else 2 * setting.value_bytes + 1
        yield Tensor("scores", score_bytes * num_scores(setting), "core_attn")


def _mlp(setting: Setting, rows: float, inner: int, made_by: str, act_made_by: str) -> Iterator[Tensor]:
    if not inner:
        return
    matrices_in = 2 if setting.model.gated_mlp else 1
    narrow = setting.activation_function_bytes < VALUE_BYTES
    share = setting.activation_function_bytes / setting.value_bytes if narrow else 1
    before = share * cut_bytes(setting, matrices_in * inner, rows)
    yield Tensor("outputs of the MLP's first product", before, made_by)
    weights: tuple[TrainableModule, ...] = ("experts",) if made_by == "moe" else ("mlp",)
    second = cut_bytes(setting, inner, rows)
    yield Tensor("input of the MLP's second product", second, act_made_by, for_weights=True, weights=weights)
