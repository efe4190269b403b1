"""Keys of ``model:``, for a transformer's shape and for a function that makes a model in PyTorch."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator, Field, PlainValidator

from pipesim.scenario.problems import refused
from pipesim.scenario.quantities import Count, CountOrZero, Pieces, PositiveNumber
from pipesim.scenario.schema_cluster import Keys


def _layer_frequency(value: object) -> int | tuple[int, ...] | None:
    entries = value if isinstance(value, (list, tuple)) else None
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return value
    if entries and all(type(entry) is int and entry in (0, 1) for entry in entries):
        return tuple(entries)
    reason = f"found {value!r}; needed: a whole number of at least 1, or a list with one 0 or 1 a layer"
    raise refused(reason)


class ModelKeys(Keys):
    """``model:`` as a transformer's own fields, named as in a Hugging Face configuration."""

    references = ("preset", "hf", "torch")

    name: str | None = Field(None, description="name for tables")
    num_hidden_layers: Pieces = Field(description="transformer layers")
    hidden_size: Count = Field(description="width of the residual stream")
    num_attention_heads: Count = Field(description="query heads")
    num_key_value_heads: Count | None = Field(
        None, description="key and value heads; the query heads by default"
    )
    head_dim: Count | None = Field(None, description="width of one head; hidden_size / heads by default")
    intermediate_size: Count | None = Field(
        None, description="width of the MLP; 4 * hidden_size by default, unless gated"
    )
    vocab_size: Count = Field(description="rows of the token embedding")
    seq_length: Count = Field(description="tokens of one sequence")
    gated_mlp: bool = Field(False, description="three MLP matrices in place of two")
    tie_word_embeddings: bool | None = Field(
        None, description="whether the head shares the embedding; as a rule unless gated"
    )
    biases: bool | None = Field(
        None, description="whether linear layers and norms carry biases; as a rule unless gated"
    )
    num_learned_positions: CountOrZero | None = Field(
        None, description="rows of the position embedding; one a token by default, 0 if gated"
    )
    num_experts: Count | None = Field(None, description="experts of a layer that has them")
    num_experts_per_tok: Count | None = Field(None, description="experts that a token takes")
    moe_intermediate_size: Count | None = Field(None, description="width of one expert")
    num_shared_experts: CountOrZero | None = Field(None, description="experts that every token takes")
    shared_expert_intermediate_size: CountOrZero | None = Field(
        None, description="width of the experts that every token takes, together"
    )
    n_group: Count | None = Field(None, description="groups of experts, of which a token takes some")
    topk_group: Count | None = Field(None, description="groups that a token takes its experts from")
    first_k_dense_replace: CountOrZero | None = Field(None, description="first layers without experts")
    moe_layer_freq: Annotated[int | tuple[int, ...] | None, PlainValidator(_layer_frequency)] = Field(
        None, description="every n-th layer has experts, or one 0 or 1 a layer"
    )
    expert_imbalance: PositiveNumber | None = Field(
        None, description="tokens of the busiest device over the mean"
    )
    num_nextn_predict_layers: CountOrZero | None = Field(
        None,
        description="further layers on the last stage, each of which predicts one more token with the same "
        "embedding and head; none by default",
    )
    q_lora_rank: Count | None = Field(None, description="width of the queries' latent vector")
    kv_lora_rank: Count | None = Field(None, description="width of the keys' and values' latent vector")
    qk_nope_head_dim: Count | None = Field(None, description="width of a query head without position")
    qk_rope_head_dim: Count | None = Field(None, description="width of a query head's position")
    v_head_dim: Count | None = Field(None, description="width of a value head")
    source: str = Field("the scenario", description="where the shape is from")
    date: str | None = Field(None, description="when the source was read")
    notes: str | None = Field(None, description="remarks")


def _factory(value: object) -> object:
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", value):
        return value
    reason = f"found {value!r}; the form module:factory is needed, such as resnet:resnet50"
    raise refused(reason)


class TorchModelKeys(Keys):
    """``model:`` as a function of the user's own that returns a model's layers in PyTorch."""

    torch: Annotated[str, BeforeValidator(_factory)] = Field(
        description="module:factory, as for pipesim execute --model"
    )
    name: str | None = Field(None, description="name for tables")
