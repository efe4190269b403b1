"""Hugging Face ``config.json`` of a decoder to the ``model:`` mapping of a scenario."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipesim.errors import ScenarioError
from pipesim.scenario.hf.experts import expert_fields, latent_attention_fields
from pipesim.scenario.hf.families import FAMILIES, GPT2, LLAMA, REFUSED, DecoderFamily
from pipesim.scenario.json_text import read_json_object
from pipesim.scenario.settings import Settings, known_settings

DEFAULT_SEQ_LENGTH = 8192
"""A configuration states only the largest sequence; runs rarely train at 131072, so more is not assumed."""
_SIZES = {
    "num_hidden_layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "hidden_size": ("hidden_size", "n_embd", "n_embed", "d_model"),
    "num_attention_heads": ("num_attention_heads", "n_head", "n_heads"),
    "vocab_size": ("vocab_size",),
    "num_key_value_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv"),
    "head_dim": ("head_dim",),
    "intermediate_size": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"),
}
_NEEDED = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")
_POSITIONS = ("max_position_embeddings", "n_positions", "n_ctx", "seq_length", "max_sequence_length")
_TEXT_PARTS = ("text_config", "llm_config", "language_config")


@dataclass(frozen=True, slots=True)
class HfModel:
    """Fields of ``model:``, and what of the configuration they do not say."""

    fields: dict[str, Any]
    not_used: dict[str, str]


def read_hf_config(path: str | Path) -> dict[str, Any]:
    """Read the fields of ``model:`` alone, as `read_hf_model` does."""
    return read_hf_model(path).fields


def read_hf_model(
    path: str | Path, *, ignore: Iterable[str] = (), stated: Mapping[str, Any] | None = None
) -> HfModel:
    """Read a Hugging Face configuration of a decoder-only transformer.

    Parameters
    ----------
    path : str or Path
        The ``config.json`` of a family in `pipesim.scenario.hf.families`; of a model for pictures the part
        that reads text. Without a ``model_type`` the keys decide between the GPT-2 and the Llama form.
    ignore : iterable of str
        Keys to be read on without; without ``model_type`` the keys decide.
    stated : Mapping, optional
        Values by the scenario's keys, which go before what the configuration says.

    Returns
    -------
    HfModel
        ``seq_length`` is the largest sequence that the configuration allows, but not above 8192 nor above a
        sliding window of every layer.

    Raises
    ------
    ScenarioError
        Not a JSON object, a missing or malformed field, a family that is not known, or what is not modelled.
    """
    file = str(path)
    document = read_json_object(path)
    parts = [document[part] for part in _TEXT_PARTS if isinstance(document.get(part), dict)]
    inner: dict[str, Any] = parts[0] if parts else {}
    config = {key: value for key, value in document.items() if document.get(key) is not inner} | inner
    known = known_settings(Path(__file__).with_name("known.yaml"))
    ignore = tuple(ignore)
    family = _family(config, file, ignored="model_type" in ignore)
    values = {**family.defaults, **config}
    settings = Settings(values, file, known=known, ignore=ignore, stated=stated)
    missing = set(ignore) - settings.ignored
    if missing:
        raise ScenarioError(f"{min(missing)} is not there", file=file, key="--ignore")
    _refuse_other_layers(settings)
    fields = {"name": _name(config, Path(path))} | _shape(settings, family)
    latent = latent_attention_fields(settings)
    if latent:
        # What stands there describes no head of latent attention.
        fields.pop("head_dim", None)
        fields.pop("num_key_value_heads", None)
        fields |= latent
    fields |= _positions(settings, family)
    fields["gated_mlp"] = family.gated_mlp
    fields["tie_word_embeddings"] = settings.flag("tie_word_embeddings", default=family.tied)
    fields["biases"] = family.biases
    fields["source"] = f"Hugging Face configuration {Path(path).name}"
    return HfModel(fields, settings.unused())


def _shape(settings: Settings, family: DecoderFamily) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key, names in _SIZES.items():
        sets = f"model.{key}"
        needed = key in _NEEDED
        size = (
            settings.required(*names, what=_what(key), sets=sets)
            if needed
            else settings.count(*names, sets=sets)
        )
        if size is not None:
            fields[key] = size
    if settings.flag("multi_query") and not settings.flag("new_decoder_architecture"):
        fields.setdefault("num_key_value_heads", 1)
    fields |= expert_fields(settings, inner=fields.get("intermediate_size"))
    if "intermediate_size" not in fields:
        if family.default_ffn_factor is None:
            raise settings.refuse(
                "intermediate_size",
                "missing; needed: width of the MLP; --set model.intermediate_size=N states it",
            )
        fields["intermediate_size"] = family.default_ffn_factor * fields["hidden_size"]
    width = settings.count("word_embed_proj_dim")
    if width is not None and width != fields["hidden_size"]:
        raise settings.refuse(
            "word_embed_proj_dim",
            f"found {width}; only an embedding as wide as hidden_size {fields['hidden_size']} is supported; "
            "--ignore word_embed_proj_dim takes it as that wide",
        )
    return fields


def _positions(settings: Settings, family: DecoderFamily) -> dict[str, Any]:
    positions = settings.count(*_POSITIONS)
    if positions is None and family.learned_positions:
        positions = settings.required(*_POSITIONS, what="the longest sequence")
    used = settings.flag("use_sliding_window", default=True)
    if not used:
        settings.skip("sliding_window")
    window = settings.count("sliding_window") if used and not family.some_windows else None
    length = min(size for size in (positions, window, DEFAULT_SEQ_LENGTH) if size is not None)
    learned = positions + family.position_padding if family.learned_positions and positions else 0
    return {"seq_length": length, "num_learned_positions": learned}


def _refuse_other_layers(settings: Settings) -> None:
    """Refuse lists of layers that name a kind other than full and windowed attention."""
    for key, allowed in (
        ("layer_types", ("full_attention", "sliding_attention", "chunked_attention")),
        ("attn_type_list", (1,)),
    ):
        value = settings.raw(key)[1]
        other = [kind for kind in value if kind not in allowed] if isinstance(value, list) else []
        if other:
            raise settings.refuse(
                key,
                f"found {str(other[0])[:40]!r} in {len(other)} of {len(value)} layers, which is not modelled "
                f"(linear attention and the like); --ignore {key} reads on without it",
            )


def _what(key: str) -> str:
    return {
        "num_hidden_layers": "transformer layers",
        "hidden_size": "width of the residual stream",
        "num_attention_heads": "query heads",
    }.get(key, "rows of the token embedding")


def _family(config: Mapping[str, Any], file: str, *, ignored: bool) -> DecoderFamily:
    model_type = config.get("model_type")
    if model_type is None or ignored:
        if "n_embd" in config:
            return GPT2
        if ignored or "rms_norm_eps" in config or config.get("hidden_act") == "silu":
            return LLAMA
        raise ScenarioError(f"missing; known: {', '.join(FAMILIES)}", file=file, key="model_type")
    plain = str(model_type).lower()
    if plain in REFUSED:
        raise ScenarioError(
            f"found {model_type!r}, which has {REFUSED[plain]}: not modelled; --ignore model_type reads it "
            "as a model of Llama's form all the same",
            file=file,
            key="model_type",
        )
    if not isinstance(model_type, str) or plain not in FAMILIES:
        raise ScenarioError(
            f"found {model_type!r}; known decoders: {', '.join(FAMILIES)}; where it is of Llama's form, "
            "--ignore model_type reads it as that",
            file=file,
            key="model_type",
        )
    return FAMILIES[plain]


def _name(config: Mapping[str, Any], path: Path) -> str:
    name = config.get("_name_or_path")
    return (
        name
        if isinstance(name, str) and name
        else (path.parent.name if path.stem == "config" and path.parent.name else path.stem)
    )
