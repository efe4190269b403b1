"""A model after reading: the shape of a transformer, or a function that makes one in PyTorch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Experts:
    """MLPs of which every token takes a few, in place of the one MLP of some or all layers."""

    num_experts: int
    num_experts_per_tok: int
    intermediate_size: int
    """Width of one expert."""
    shared_intermediate_size: int
    """Width of the experts that every token takes, together; 0 where there are none."""
    in_layer: tuple[bool, ...]
    """Which layers have experts, one entry a layer."""
    imbalance: float
    """Tokens of the busiest device over the mean of its expert-parallel group."""
    num_groups: int = 1
    """Groups of neighbouring experts, of which a token's router first chooses some."""
    num_groups_per_tok: int = 1


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Keys, values and queries made from narrow latent vectors (multi-head latent attention)."""

    q_lora_rank: int | None
    """None: queries come from the hidden state at once."""
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    """Positional part of a head; on the keys' side all heads share it."""
    v_head_dim: int


@dataclass(frozen=True, slots=True)
class Transformer:
    """Shape of a decoder-only transformer; names follow the Hugging Face configuration."""

    name: str
    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    """Width of the MLP of layers without experts."""
    vocab_size: int
    seq_length: int
    gated_mlp: bool
    """Three MLP matrices (gate, up, down) in place of two."""
    tie_word_embeddings: bool
    biases: bool
    """Linear layers and norms carry bias vectors (GPT); otherwise none, and norms are RMS norms (Llama)."""
    num_learned_positions: int
    """Rows of a learned position embedding; 0 for rotary positions."""
    source: str
    experts: Experts | None = None
    latent_attention: LatentAttention | None = None
    num_nextn_predict_layers: int = 0
    """Layers behind the last, each of which predicts one more token (DeepSeek-V3, arXiv 2412.19437, 2.2)."""

    @property
    def prediction_layers(self) -> tuple[bool, ...]:
        """Whether each of them has experts: as the last layer does."""
        return (self.has_experts(self.num_hidden_layers - 1),) * self.num_nextn_predict_layers

    @property
    def embeds_twice(self) -> bool:
        """Whether the last stage needs the embedding too: for its head, or for what it predicts beyond."""
        return self.tie_word_embeddings or self.num_nextn_predict_layers > 0

    def has_experts(self, layer: int) -> bool:
        """Whether layer 0..L-1 has experts in place of one MLP."""
        return self.experts is not None and self.experts.in_layer[layer]


@dataclass(frozen=True, slots=True)
class TorchModel:
    """A user's model in PyTorch: ``module:factory`` names a function that returns its layers."""

    name: str
    factory: str
    directory: str
    """The scenario's folder, where the module is looked for first."""
