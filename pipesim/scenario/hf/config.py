"""Hugging Face ``config.json`` of a decoder to the ``model:`` mapping of a scenario."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipesim.errors import ScenarioError
from pipesim.scenario.hf.layers import expert_fields, latent_attention_fields
from pipesim.scenario.hf.values import count, flag
from pipesim.scenario.json_text import read_json_object

DEFAULT_SEQ_LENGTH = 8192
"""A configuration states only the largest sequence; runs rarely train at 131072, so more is not assumed."""


@dataclass(frozen=True, slots=True)
class _Family:
    """What a ``model_type`` implies without saying so, and the names it gives the fields."""

    gated_mlp: bool
    biases: bool
    tied: bool
    learned_positions: bool
    position_padding: int = 0
    default_ffn_factor: int | None = None


_LLAMA = _Family(gated_mlp=True, biases=False, tied=False, learned_positions=False)
_GPT2 = _Family(gated_mlp=False, biases=True, tied=True, learned_positions=True, default_ffn_factor=4)
_FAMILIES = {
    "gpt2": _GPT2,
    "opt": _Family(gated_mlp=False, biases=True, tied=True, learned_positions=True, position_padding=2),
    "bloom": _Family(gated_mlp=False, biases=True, tied=True, learned_positions=False, default_ffn_factor=4),
    "gpt_neox": _Family(gated_mlp=False, biases=True, tied=False, learned_positions=False),
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "mixtral": _LLAMA,
    "qwen2_moe": _LLAMA,
    "qwen3_moe": _LLAMA,
    "deepseek_v2": _LLAMA,
    "deepseek_v3": _LLAMA,
}


def read_hf_config(path: str | Path) -> dict[str, Any]:
    """Read a Hugging Face configuration of a decoder-only transformer.

    Parameters
    ----------
    path : str or Path
        The ``config.json`` of a GPT-2, OPT, BLOOM, GPT-NeoX, Llama, Mistral, Mixtral, Qwen2, Qwen3 (each with
        or without experts), DeepSeek-V2 or V3 model. Without a ``model_type`` the keys decide between the
        GPT-2 and the Llama form.

    Returns
    -------
    dict
        The fields of ``model:`` in a scenario. ``seq_length`` is the largest sequence that the configuration
        allows, but not above 8192 nor above a sliding window.

    Raises
    ------
    ScenarioError
        Not a JSON object, a missing or malformed field, or a family that is not one of the above.
    """
    file = str(path)
    config = read_json_object(path)
    family = _family(config, file)
    fields: dict[str, Any] = {"name": _name(config, Path(path))}
    for key in ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size"):
        fields[key] = count(config, key, file, required=True)
    for key in ("num_key_value_heads", "head_dim", "intermediate_size"):
        size = count(config, key, file)
        if size is not None:
            fields[key] = size
    fields |= expert_fields(config, file, inner=fields.get("intermediate_size"))
    latent = latent_attention_fields(config, file)
    if latent:
        # What stands there describes no head of latent attention.
        fields.pop("head_dim", None)
        fields.pop("num_key_value_heads", None)
        fields |= latent
    if "intermediate_size" not in fields:
        if family.default_ffn_factor is None:
            raise ScenarioError("missing; needed: width of the MLP", file=file, key="intermediate_size")
        fields["intermediate_size"] = family.default_ffn_factor * fields["hidden_size"]
    width = config.get("word_embed_proj_dim")
    if width is not None and width != fields["hidden_size"]:
        raise ScenarioError(
            f"found {width}; only an embedding as wide as hidden_size {fields['hidden_size']} is supported",
            file=file,
            key="word_embed_proj_dim",
        )
    positions = count(config, "max_position_embeddings", file, required=family.learned_positions)
    window = count(config, "sliding_window", file) if config.get("use_sliding_window", True) else None
    fields["seq_length"] = min(size for size in (positions, window, DEFAULT_SEQ_LENGTH) if size is not None)
    fields["gated_mlp"] = family.gated_mlp
    fields["tie_word_embeddings"] = flag(config, "tie_word_embeddings", family.tied, file)
    fields["biases"] = family.biases
    learned = positions + family.position_padding if family.learned_positions and positions else 0
    fields["num_learned_positions"] = learned
    fields["source"] = f"Hugging Face configuration {Path(path).name}"
    if window is not None:
        fields["source"] += f" (sliding window of {window} not modelled beyond that length)"
    return fields


def _family(config: Mapping[str, Any], file: str) -> _Family:
    model_type = config.get("model_type")
    if model_type is None:
        if "n_embd" in config:
            return _GPT2
        if "rms_norm_eps" in config or config.get("hidden_act") == "silu":
            return _LLAMA
        raise ScenarioError(f"missing; known: {', '.join(_FAMILIES)}", file=file, key="model_type")
    if not isinstance(model_type, str) or model_type not in _FAMILIES:
        raise ScenarioError(
            f"found {model_type!r}; known decoders: {', '.join(_FAMILIES)}", file=file, key="model_type"
        )
    return _FAMILIES[model_type]


def _name(config: Mapping[str, Any], path: Path) -> str:
    name = config.get("_name_or_path")
    return (
        name
        if isinstance(name, str) and name
        else (path.parent.name if path.stem == "config" and path.parent.name else path.stem)
    )
