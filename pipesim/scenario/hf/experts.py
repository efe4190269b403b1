"""Experts and latent attention in a Hugging Face ``config.json``, under the names that families give them."""

from __future__ import annotations

from typing import Any

from pipesim.scenario.counts import MAX_LAYERS, shown
from pipesim.scenario.settings import Settings

_LATENT = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "num_routed_experts", "moe_num_experts")
_TAKEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k")
_SHARED = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")


def expert_fields(settings: Settings, *, inner: int | None) -> dict[str, Any]:
    """Read the experts' fields of ``model:``; empty for a model without experts.

    Layers with experts are given by ``first_k_dense_replace`` with ``moe_layer_freq`` (DeepSeek), by
    ``decoder_sparse_step`` with ``mlp_only_layers`` (Qwen): layer i then has experts if i + 1 is a multiple
    of the step and i is not in the list, or by ``interleave_moe_layer_step`` (Llama 4), alike. Without any of
    them all layers have experts.

    Parameters
    ----------
    settings : Settings
        The configuration.
    inner : int, optional
        ``intermediate_size``, an expert's width where there is no ``moe_intermediate_size`` (Mixtral).

    Raises
    ------
    ScenarioError
        A missing or malformed field.
    """
    num_experts = settings.count(*_EXPERTS, minimum=0)
    of_llama4 = settings.count("intermediate_size_mlp")
    if num_experts in (None, 0, 1):
        return {} if of_llama4 is None else {"intermediate_size": of_llama4}
    fields: dict[str, Any] = {
        "num_experts": num_experts,
        "num_experts_per_tok": settings.required(
            *_TAKEN, what="experts that a token takes", sets="model.num_experts_per_tok"
        ),
    }
    key = "model.moe_intermediate_size"
    width = settings.count("moe_intermediate_size", "expert_ffn_hidden_size", sets=key) or inner
    if width is None:
        width = settings.required("moe_intermediate_size", what="width of one expert", sets=key)
    fields["moe_intermediate_size"] = width
    shared = settings.count("shared_expert_intermediate_size", "shared_intermediate_size", minimum=0)
    number = settings.count(*_SHARED, minimum=0)
    if of_llama4 is not None:
        fields["intermediate_size"] = of_llama4
        number = 1
    if shared or number:
        fields["shared_expert_intermediate_size"] = shared or (number or 0) * width
    groups = {name: settings.count(name) for name in ("n_group", "topk_group")}
    if (groups["n_group"] or 1) > 1:
        fields |= {name: value for name, value in groups.items() if value}
    return fields | _which_layers(settings)


def latent_attention_fields(settings: Settings) -> dict[str, int]:
    """Read the fields of multi-head latent attention; empty where there is no ``kv_lora_rank``.

    Raises
    ------
    ScenarioError
        A missing or malformed field.
    """
    queries = settings.count("q_lora_rank")
    if "kv_lora_rank" not in settings:
        return {}
    fields = {
        name: settings.required(name, what="a size of latent attention", sets=f"model.{name}")
        for name in _LATENT
    }
    return fields if queries is None else fields | {"q_lora_rank": queries}


def _which_layers(settings: Settings) -> dict[str, Any]:
    step = settings.count("decoder_sparse_step", "interleave_moe_layer_step")
    dense = _layer_numbers(settings, "mlp_only_layers")
    first = settings.count("first_k_dense_replace", "moe_layer_start_index", minimum=0)
    every = settings.count("moe_layer_freq", "moe_layer_interval")
    if step is None and dense is None:
        fields = {"first_k_dense_replace": first, "moe_layer_freq": every}
        return {name: value for name, value in fields.items() if value not in (None, 0)}
    if (step or 1) == 1 and not dense:
        return {}
    num_layers = settings.count(*_LAYERS, maximum=MAX_LAYERS) or 0
    return {
        "moe_layer_freq": [
            int((layer + 1) % (step or 1) == 0 and layer not in (dense or ())) for layer in range(num_layers)
        ]
    }


def _layer_numbers(settings: Settings, key: str) -> list[int] | None:
    value = settings.raw(key)[1]
    if value is None:
        return None
    if not isinstance(value, list) or not all(type(entry) is int and entry >= 0 for entry in value):
        raise settings.refuse(
            key, f"found {shown(value)}; a list of layer numbers is needed; --ignore {key} gives all experts"
        )
    return value
