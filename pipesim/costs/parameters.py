"""How many parameters a transformer has, and how many of them one tensor-parallel device holds."""

from __future__ import annotations

from dataclasses import dataclass

from pipesim.scenario.resolved import Transformer


@dataclass(frozen=True, slots=True)
class ParameterCount:
    """Parameters by what tensor parallelism does: cut them into equal shares, or copy them all over."""

    split: int
    copied: int = 0

    @property
    def total(self) -> int:
        """Parameters in all, each counted once."""
        return self.split + self.copied

    def per_device(self, tensor: int) -> float:
        """Parameters on one of `tensor` devices (vocabularies that do not divide are not padded)."""
        return self.split / tensor + self.copied


def key_value_size(model: Transformer, tensor: int = 1) -> int:
    """Width of the keys (or of the values) over all devices; with too few heads to cut, they are copied."""
    return max(model.num_key_value_heads, tensor) * model.head_dim


def query_size(model: Transformer) -> int:
    """Width of the queries over all heads."""
    return model.num_attention_heads * model.head_dim


def layer_parameters(model: Transformer, tensor: int = 1) -> ParameterCount:
    """Parameters of one transformer layer: attention, MLP, two norms.

    With biases, those of the column-parallel matrices (queries, keys, values, MLP in) are cut and the others
    copied, as in Megatron-LM.
    """
    hidden, inner = model.hidden_size, model.intermediate_size
    qkv = query_size(model) + 2 * key_value_size(model, tensor)
    num_mlp_matrices = 3 if model.gated_mlp else 2
    matrices = hidden * (qkv + query_size(model)) + num_mlp_matrices * hidden * inner
    if not model.biases:
        return ParameterCount(split=matrices, copied=2 * hidden)
    norms, row_biases = 4 * hidden, 2 * hidden
    return ParameterCount(split=matrices + qkv + (num_mlp_matrices - 1) * inner, copied=norms + row_biases)


def embedding_parameters(model: Transformer) -> ParameterCount:
    """Parameters of the token embedding and of learned positions, on the first stage."""
    return ParameterCount(
        split=model.vocab_size * model.hidden_size, copied=model.num_learned_positions * model.hidden_size
    )


def final_norm_parameters(model: Transformer) -> ParameterCount:
    """Parameters of the norm before the head, on the last stage."""
    return ParameterCount(split=0, copied=(2 if model.biases else 1) * model.hidden_size)


def head_parameters(model: Transformer) -> ParameterCount:
    """Parameters of the output matrix, on the last stage; a tied one is the token embedding's copy."""
    return ParameterCount(split=model.vocab_size * model.hidden_size)


def model_parameters(model: Transformer) -> int:
    """Parameters of the whole model, a tied embedding counted once."""
    total = model.num_hidden_layers * layer_parameters(model).total
    total += embedding_parameters(model).total + final_norm_parameters(model).total
    return total if model.tie_word_embeddings else total + head_parameters(model).total


def stage_parameters(model: Transformer, layers_per_stage: tuple[int, ...], tensor: int) -> tuple[float, ...]:
    """Parameters that one device of each stage holds.

    Returns
    -------
    tuple of float
        One entry a stage. A tied embedding lies on the first and on the last stage, once if those are one.
    """
    layer = layer_parameters(model, tensor).per_device(tensor)
    held = [count * layer for count in layers_per_stage]
    held[0] += embedding_parameters(model).per_device(tensor)
    held[-1] += final_norm_parameters(model).per_device(tensor)
    if len(held) > 1 or not model.tie_word_embeddings:
        held[-1] += head_parameters(model).per_device(tensor)
    return tuple(held)
