"""The model: a transformer's shape with everything that follows from it, or where a user's own model is."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pipesim.errors import ScenarioError
from pipesim.scenario.notes import Notes
from pipesim.scenario.resolve_experts import resolve_experts, resolve_latent_attention
from pipesim.scenario.resolved import LatentAttention, TorchModel, Transformer
from pipesim.scenario.schema import ModelKeys, TorchModelKeys

T = TypeVar("T")


def resolve_model(keys: ModelKeys, notes: Notes) -> Transformer:
    """Fill in what a model leaves to convention; refuse shapes that cannot be.

    A plain MLP goes with GPT's conventions (width 4 * hidden, tied embeddings, biases, a learned position a
    token), a gated one with Llama's (none of these, and the MLP's width must be stated).

    Raises
    ------
    ScenarioError
        Heads that do not divide the width or each other, a sequence longer than its positions, or experts or
        latent attention stated in part.
    """
    latent, experts = resolve_latent_attention(keys), resolve_experts(keys, notes)
    like = f"usual with a {'gated' if keys.gated_mlp else 'plain'} MLP"
    key_value_heads, head_dim = _heads(keys, latent, notes)
    width, how = 4 * keys.hidden_size, "4 * hidden_size"
    if experts is not None and all(experts.in_layer):
        width, how = experts.intermediate_size, "every layer has experts, of moe_intermediate_size"
    elif keys.intermediate_size is None and keys.gated_mlp:
        raise ScenarioError(
            "missing; a gated MLP has no usual width, so it must be stated", key="model.intermediate_size"
        )
    positions = _inferred(
        notes,
        "num_learned_positions",
        keys.num_learned_positions,
        0 if keys.gated_mlp else keys.seq_length,
        "rotary positions, " + like if keys.gated_mlp else "one a token, " + like,
    )
    if 0 < positions < keys.seq_length:
        raise ScenarioError(
            f"{keys.seq_length} tokens, but the model has {positions} learned positions",
            key="model.seq_length",
        )
    return Transformer(
        name=keys.name or f"{keys.num_hidden_layers} layers of {keys.hidden_size}",
        num_hidden_layers=keys.num_hidden_layers,
        hidden_size=keys.hidden_size,
        num_attention_heads=keys.num_attention_heads,
        num_key_value_heads=key_value_heads,
        head_dim=head_dim,
        intermediate_size=_inferred(notes, "intermediate_size", keys.intermediate_size, width, how),
        vocab_size=keys.vocab_size,
        seq_length=keys.seq_length,
        gated_mlp=keys.gated_mlp,
        tie_word_embeddings=_inferred(
            notes, "tie_word_embeddings", keys.tie_word_embeddings, not keys.gated_mlp, like
        ),
        biases=_inferred(notes, "biases", keys.biases, not keys.gated_mlp, like),
        num_learned_positions=positions,
        source=keys.source,
        experts=experts,
        latent_attention=latent,
        num_nextn_predict_layers=keys.num_nextn_predict_layers or 0,
    )


def _heads(keys: ModelKeys, latent: LatentAttention | None, notes: Notes) -> tuple[int, int]:
    """Find the number of key and value heads, and the width of a head."""
    heads, hidden = keys.num_attention_heads, keys.hidden_size
    key_value_heads = _inferred(
        notes, "num_key_value_heads", keys.num_key_value_heads, heads, "as many as query heads"
    )
    if heads % key_value_heads:
        raise ScenarioError(
            f"{key_value_heads} key and value heads do not divide the {heads} query heads",
            key="model.num_key_value_heads",
        )
    if latent is not None:
        if key_value_heads != heads:
            raise ScenarioError(
                f"{key_value_heads}, but latent attention has a key and a value for each of {heads} heads",
                key="model.num_key_value_heads",
            )
        return key_value_heads, latent.qk_nope_head_dim + latent.qk_rope_head_dim
    if keys.head_dim is not None:
        return key_value_heads, keys.head_dim
    if hidden % heads:
        raise ScenarioError(
            f"{heads} heads do not divide hidden_size {hidden}; state model.head_dim if that is meant",
            key="model.num_attention_heads",
        )
    words = f"hidden_size {hidden} / {heads} heads"
    return key_value_heads, _inferred(notes, "head_dim", None, hidden // heads, words)


def resolve_torch_model(keys: TorchModelKeys, directory: Path) -> TorchModel:
    """Say where a user's model is to be found; nothing is imported yet."""
    return TorchModel(keys.name or keys.torch, keys.torch, str(directory.absolute()))


def _inferred(notes: Notes, key: str, stated: T | None, value: T, why: str) -> T:
    if stated is not None:
        return stated
    shown = str(value).lower() if isinstance(value, bool) else value
    notes.echo[f"model.{key}"] = f"{shown} ({why})"
    return value
