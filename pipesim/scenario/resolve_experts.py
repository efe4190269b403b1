"""Experts and latent attention of a model: complete and free of contradiction, or left out."""

from __future__ import annotations

from pipesim.errors import ScenarioError
from pipesim.scenario.notes import Notes
from pipesim.scenario.resolved import Experts, LatentAttention
from pipesim.scenario.schema import ModelKeys

_IMBALANCE = 1.04
_IMBALANCE_SOURCE = "arXiv 2408.15664 Table 2: busiest over mean load with loss-free balancing"
_OF_EXPERTS = (
    "num_experts_per_tok",
    "moe_intermediate_size",
    "num_shared_experts",
    "shared_expert_intermediate_size",
    "n_group",
    "topk_group",
    "first_k_dense_replace",
    "moe_layer_freq",
    "expert_imbalance",
)
_OF_LATENT_ATTENTION = ("q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


def resolve_experts(keys: ModelKeys, notes: Notes) -> Experts | None:
    """Fill in the experts' fields; None for a model without experts.

    Layer i has experts if ``i >= first_k_dense_replace`` and i is a multiple of `moe_layer_freq`, or if the
    list that may stand there has a 1.

    Raises
    ------
    ScenarioError
        A field of experts without `num_experts`, a missing or contradicting one, or no layer with experts.
    """
    if keys.num_experts is None:
        _refuse_without(keys, _OF_EXPERTS, "num_experts")
        return None
    for name in ("num_experts_per_tok", "moe_intermediate_size"):
        if getattr(keys, name) is None:
            raise ScenarioError("missing; a model with num_experts needs it", key=f"model.{name}")
    assert keys.num_experts_per_tok is not None
    assert keys.moe_intermediate_size is not None
    if keys.num_experts_per_tok > keys.num_experts:
        raise ScenarioError(
            f"{keys.num_experts_per_tok} experts a token, but there are {keys.num_experts}",
            key="model.num_experts_per_tok",
        )
    imbalance = keys.expert_imbalance
    if imbalance is None:
        imbalance = _IMBALANCE
        notes.echo["model.expert_imbalance"] = f"{imbalance:g} (default; {_IMBALANCE_SOURCE})"
    elif imbalance < 1:
        raise ScenarioError(
            f"found {imbalance:g}; the busiest device has at least the mean, so at least 1 is needed",
            key="model.expert_imbalance",
        )
    return Experts(
        num_experts=keys.num_experts,
        num_experts_per_tok=keys.num_experts_per_tok,
        intermediate_size=keys.moe_intermediate_size,
        shared_intermediate_size=_shared_size(keys, keys.moe_intermediate_size),
        in_layer=_layers_with_experts(keys),
        imbalance=imbalance,
        num_groups=keys.n_group or 1,
        num_groups_per_tok=_groups_of_a_token(keys),
    )


def _groups_of_a_token(keys: ModelKeys) -> int:
    groups, chosen = keys.n_group or 1, keys.topk_group or keys.n_group or 1
    assert keys.num_experts is not None
    if keys.num_experts % groups:
        raise ScenarioError(f"{groups} does not divide the {keys.num_experts} experts", key="model.n_group")
    if groups > 1 and keys.topk_group is None:
        raise ScenarioError("has an effect only with model.topk_group; state that too", key="model.n_group")
    if chosen > groups:
        raise ScenarioError(f"{chosen} groups a token, but there are {groups}", key="model.topk_group")
    if (keys.num_experts_per_tok or 1) > chosen * keys.num_experts // groups:
        raise ScenarioError(
            f"{chosen} groups have fewer than {keys.num_experts_per_tok} experts", key="model.topk_group"
        )
    return chosen


def resolve_latent_attention(keys: ModelKeys) -> LatentAttention | None:
    """Collect the fields of multi-head latent attention; None where `kv_lora_rank` is not stated.

    Raises
    ------
    ScenarioError
        A field of it without `kv_lora_rank`, or one that is missing.
    """
    if keys.kv_lora_rank is None:
        _refuse_without(keys, _OF_LATENT_ATTENTION, "kv_lora_rank")
        return None
    if keys.head_dim is not None:
        raise ScenarioError(
            "has no effect with latent attention, whose heads have qk_nope_head_dim + qk_rope_head_dim and "
            "v_head_dim; remove it",
            key="model.head_dim",
        )
    nope, rope, value = keys.qk_nope_head_dim, keys.qk_rope_head_dim, keys.v_head_dim
    if nope is None or rope is None or value is None:
        missing = next(name for name in _OF_LATENT_ATTENTION[1:] if getattr(keys, name) is None)
        raise ScenarioError("missing; a model with kv_lora_rank needs it", key=f"model.{missing}")
    return LatentAttention(keys.q_lora_rank, keys.kv_lora_rank, nope, rope, value)


def _refuse_without(keys: ModelKeys, names: tuple[str, ...], needed: str) -> None:
    for name in names:
        if getattr(keys, name) is not None:
            raise ScenarioError(f"has no effect without model.{needed}; state that too", key=f"model.{name}")


def _shared_size(keys: ModelKeys, expert_size: int) -> int:
    by_number = None if keys.num_shared_experts is None else keys.num_shared_experts * expert_size
    stated = keys.shared_expert_intermediate_size
    if by_number is not None and stated is not None and by_number != stated:
        raise ScenarioError(
            f"{stated}, but num_shared_experts {keys.num_shared_experts} x moe_intermediate_size "
            f"{expert_size} is {by_number}; state one of the two",
            key="model.shared_expert_intermediate_size",
        )
    return stated if stated is not None else by_number or 0


def _layers_with_experts(keys: ModelKeys) -> tuple[bool, ...]:
    frequency, first, num_layers = keys.moe_layer_freq, keys.first_k_dense_replace, keys.num_hidden_layers
    if isinstance(frequency, tuple):
        if first is not None:
            raise ScenarioError(
                "has no effect beside a list in moe_layer_freq; remove it", key="model.first_k_dense_replace"
            )
        if len(frequency) != num_layers:
            raise ScenarioError(
                f"the list has {len(frequency)} entries, the model has {num_layers} layers",
                key="model.moe_layer_freq",
            )
        in_layer = tuple(entry == 1 for entry in frequency)
    else:
        every, start = frequency or 1, first or 0
        in_layer = tuple(layer >= start and layer % every == 0 for layer in range(num_layers))
    if not any(in_layer):
        at_fault = "moe_layer_freq" if first is None else "first_k_dense_replace"
        raise ScenarioError(f"leaves none of the {num_layers} layers with experts", key=f"model.{at_fault}")
    return in_layer
