"""How many parameters a transformer has, and how many of them one device holds.

Left out are the norms of queries and keys and the biases of queries, keys and values that some families
without other biases have: some thousands in a layer of hundreds of millions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pipesim.scenario.resolved import TrainableModule, Transformer


@dataclass(frozen=True, slots=True)
class ParameterCount:
    """Parameters by what parallelism does with them.

    Tensor parallelism cuts those that are `split`, and copies those that are `copied`; those of `experts` are
    cut by it and shared out by expert parallelism too.
    """

    split: int
    copied: int = 0
    experts: int = 0

    @property
    def total(self) -> int:
        """Parameters in all, each counted once."""
        return self.split + self.copied + self.experts

    def __add__(self, other: ParameterCount) -> ParameterCount:
        return ParameterCount(
            self.split + other.split, self.copied + other.copied, self.experts + other.experts
        )

    def per_device(self, tensor: int) -> float:
        """Parameters on one of `tensor` devices without experts (uneven vocabularies are not padded)."""
        return self.split / tensor + self.copied


def key_value_heads(model: Transformer, tensor: int = 1) -> int:
    """Key (or value) heads over all devices; with too few heads to cut, they are copied."""
    return max(model.num_key_value_heads, tensor)


def key_size(model: Transformer, tensor: int = 1) -> int:
    """Width of the keys over all devices."""
    return key_value_heads(model, tensor) * model.head_dim


def value_size(model: Transformer, tensor: int = 1) -> int:
    """Width of the values over all devices."""
    return key_value_heads(model, tensor) * value_head_size(model)


def value_head_size(model: Transformer) -> int:
    """Width of one value head, which is that of a query head except with latent attention."""
    latent = model.latent_attention
    return model.head_dim if latent is None else latent.v_head_dim


def query_size(model: Transformer) -> int:
    """Width of the queries over all heads."""
    return model.num_attention_heads * model.head_dim


def attention_output_size(model: Transformer) -> int:
    """Width of what attention gives over all heads."""
    return model.num_attention_heads * value_head_size(model)


def num_mlp_matrices(model: Transformer) -> int:
    """Matrices of one MLP: gate, up and down, or in and out."""
    return 3 if model.gated_mlp else 2


def layer_parameters(model: Transformer, tensor: int = 1, *, with_experts: bool = False) -> ParameterCount:
    """Parameters of one transformer layer: attention, MLP or router and experts, two norms.

    With biases, those of the column-parallel matrices (queries, keys, values, MLP in) are cut and the others
    copied, as in Megatron-LM. Experts and latent attention have no biases.
    """
    modules = module_parameters(model, tensor, with_experts=with_experts)
    return sum(modules.values(), ParameterCount(0))


def module_parameters(
    model: Transformer, tensor: int = 1, *, with_experts: bool = False
) -> dict[TrainableModule, ParameterCount]:
    """Give the same by module, each with the norm before it."""
    hidden, matrices = model.hidden_size, num_mlp_matrices(model)
    norm = ParameterCount(0, copied=(2 if model.biases else 1) * hidden)
    attention = attention_parameters(model, tensor) + norm
    experts = model.experts
    if with_experts and experts is not None:
        of_an_expert = matrices * hidden * experts.intermediate_size
        shared = ParameterCount(matrices * hidden * experts.shared_intermediate_size)
        routed = ParameterCount(0, experts.num_experts * hidden, experts.num_experts * of_an_expert)
        return {"attention": attention, "mlp": shared, "experts": routed + norm}
    inner = model.intermediate_size
    mlp = ParameterCount(matrices * hidden * inner)
    if model.biases:
        mlp += ParameterCount((matrices - 1) * inner, hidden)
    return {"attention": attention, "mlp": mlp + norm}


def attention_parameters(model: Transformer, tensor: int = 1) -> ParameterCount:
    """Parameters of one layer's attention, without its norm."""
    hidden, latent = model.hidden_size, model.latent_attention
    output = hidden * attention_output_size(model)
    if latent is None:
        qkv = query_size(model) + key_size(model, tensor) + value_size(model, tensor)
        biases = (qkv, hidden) if model.biases else (0, 0)
        return ParameterCount(split=hidden * qkv + output + biases[0], copied=biases[1])
    heads = model.num_attention_heads
    up = latent.kv_lora_rank * heads * (latent.qk_nope_head_dim + latent.v_head_dim)
    # Down-projections and the norms of the latent vectors are on every device.
    down = (hidden + 1) * latent.kv_lora_rank + hidden * latent.qk_rope_head_dim
    if latent.q_lora_rank is None:
        return ParameterCount(split=up + hidden * query_size(model) + output, copied=down)
    return ParameterCount(
        split=up + latent.q_lora_rank * query_size(model) + output,
        copied=down + (hidden + 1) * latent.q_lora_rank,
    )


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


def prediction_parameters(model: Transformer) -> ParameterCount:
    """Parameters that a further prediction has beside a layer: two norms, a matrix behind them, one more."""
    hidden = model.hidden_size
    return ParameterCount(split=2 * hidden * hidden, copied=(6 if model.biases else 3) * hidden)


def model_parameters(model: Transformer) -> int:
    """Parameters of the whole model, a tied embedding and what further predictions share counted once."""
    total = sum(
        layer_parameters(model, with_experts=model.has_experts(layer)).total
        for layer in range(model.num_hidden_layers)
    )
    for with_experts in model.prediction_layers:
        total += layer_parameters(model, with_experts=with_experts).total + prediction_parameters(model).total
    total += embedding_parameters(model).total + final_norm_parameters(model).total
    return total if model.tie_word_embeddings else total + head_parameters(model).total


def active_parameters(model: Transformer) -> int:
    """Parameters that one token meets: of the experts only those that it takes."""
    experts = model.experts
    if experts is None:
        return model_parameters(model)
    idle = experts.num_experts - experts.num_experts_per_tok
    of_an_expert = num_mlp_matrices(model) * model.hidden_size * experts.intermediate_size
    num_layers = sum(experts.in_layer) + sum(model.prediction_layers)
    return model_parameters(model) - num_layers * idle * of_an_expert


def experts_in_stages(model: Transformer, layers_per_stage: tuple[int, ...]) -> Iterator[int]:
    """Count the layers with experts of each stage."""
    first = 0
    for count in layers_per_stage:
        yield sum(map(model.has_experts, range(first, first + count)))
        first += count
