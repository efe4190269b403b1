"""Experts and latent attention in a Hugging Face ``config.json``, under the names that families give them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipesim.errors import ScenarioError
from pipesim.scenario.counts import MAX_LAYERS
from pipesim.scenario.hf.values import count

_LATENT = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


def expert_fields(config: Mapping[str, Any], file: str, *, inner: int | None) -> dict[str, Any]:
    """Read the experts' fields of ``model:``; empty for a model without experts.

    Layers with experts are given by ``first_k_dense_replace`` with ``moe_layer_freq`` (DeepSeek), or by
    ``decoder_sparse_step`` with ``mlp_only_layers`` (Qwen): layer i then has experts if i + 1 is a multiple
    of the step and i is not in the list. Without any of them all layers have experts.

    Parameters
    ----------
    inner : int, optional
        ``intermediate_size``, an expert's width where there is no ``moe_intermediate_size`` (Mixtral).

    Raises
    ------
    ScenarioError
        A missing or malformed field.
    """
    num_experts = count(config, "num_experts", file, minimum=0)
    if num_experts in (None, 0, 1):
        return {}
    fields: dict[str, Any] = {
        "num_experts": num_experts,
        "num_experts_per_tok": count(config, "num_experts_per_tok", file, required=True),
    }
    width = count(config, "moe_intermediate_size", file) or inner
    if width is None:
        raise ScenarioError("missing; needed: width of one expert", file=file, key="moe_intermediate_size")
    fields["moe_intermediate_size"] = width
    shared = count(config, "shared_expert_intermediate_size", file, minimum=0)
    number = count(config, "num_shared_experts", file, minimum=0)
    if shared or number:
        fields["shared_expert_intermediate_size"] = shared or (number or 0) * width
    groups = {name: count(config, name, file) for name in ("n_group", "topk_group")}
    fields |= {name: value for name, value in groups.items() if value and (groups["n_group"] or 1) > 1}
    return fields | _which_layers(config, file)


def latent_attention_fields(config: Mapping[str, Any], file: str) -> dict[str, int]:
    """Read the fields of multi-head latent attention; empty where there is no ``kv_lora_rank``.

    Raises
    ------
    ScenarioError
        A missing or malformed field.
    """
    if config.get("kv_lora_rank") is None:
        return {}
    fields = {name: count(config, name, file, required=True) for name in _LATENT}
    fields["q_lora_rank"] = count(config, "q_lora_rank", file)
    return {name: value for name, value in fields.items() if value is not None}


def _which_layers(config: Mapping[str, Any], file: str) -> dict[str, Any]:
    step = count(config, "decoder_sparse_step", file)
    dense = _layer_numbers(config, "mlp_only_layers", file)
    if step is None and dense is None:
        fields = {
            "first_k_dense_replace": count(config, "first_k_dense_replace", file, minimum=0),
            "moe_layer_freq": count(config, "moe_layer_freq", file),
        }
        return {name: value for name, value in fields.items() if value not in (None, 0)}
    if (step or 1) == 1 and not dense:
        return {}
    num_layers = count(config, "num_hidden_layers", file, required=True, maximum=MAX_LAYERS) or 0
    return {
        "moe_layer_freq": [
            int((layer + 1) % (step or 1) == 0 and layer not in (dense or ())) for layer in range(num_layers)
        ]
    }


def _layer_numbers(config: Mapping[str, Any], key: str, file: str) -> list[int] | None:
    value = config.get(key)
    if value is None:
        return None
    if not isinstance(value, list) or not all(type(entry) is int and entry >= 0 for entry in value):
        raise ScenarioError(f"found {value!r}; a list of layer numbers is needed", file=file, key=key)
    return value
