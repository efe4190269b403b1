"""Keys of a scenario that do not go together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pipesim.errors import ScenarioError
from pipesim.scenario.notes import Notes
from pipesim.scenario.resolve_sizes import check_torch_cut
from pipesim.scenario.resolved import LayerSplit, Parallel, RecomputeModule, Transformer
from pipesim.scenario.schema import AnyScenarioKeys
from pipesim.scenario.schema_conditions import Jitter

_ONLY_WITH_MODEL = (
    "layers",
    "recompute",
    "recompute_for_weights",
    "recompute_modules",
    "recompute_layers",
    "optimizer",
    "efficiency",
    "precision",
    "trainable",
)
_NEEDS: dict[RecomputeModule, str] = {
    "mla_up_proj": "latent attention",
    "moe": "experts",
    "moe_act": "experts",
    "shared_experts": "experts",
}
"""Modules that only some models have."""


_OF_EXPERTS = {
    "parallel": ("expert_dispatch", "expert_overlap", "expert_tensor"),
    "precision": ("dispatch_format",),
}


def check_one_basis(keys: AnyScenarioKeys) -> None:
    """Refuse costs beside a model or cluster, and keys that stated costs leave without effect."""
    if keys.costs is None:
        if keys.model is None and keys.cluster is None:
            raise ScenarioError("needed: costs, or model and cluster")
        if keys.model is None:
            raise ScenarioError("missing; a cluster needs a model to run", key="model")
        if keys.cluster is None:
            raise ScenarioError(
                "missing; a model needs a cluster to run on (or state costs instead)", key="cluster"
            )
        return
    for name in ("model", "cluster"):
        if getattr(keys, name) is not None:
            raise ScenarioError(
                f"costs are stated, so {name} has no effect; remove one of them (beside a model, costs may "
                "state overlapped_pair alone)",
                key=name,
            )
    without_memory = () if keys.costs.file is not None else ("memory_reserve", "headroom")
    for name in (*_ONLY_WITH_MODEL, *without_memory):
        if getattr(keys, name) is not None:
            raise ScenarioError("has no effect with stated costs; remove it", key=name)
    for name in ("sequence_parallel", "expert", "rank_order", "overlap_gradients"):
        if name in keys.parallel.model_fields_set and getattr(keys.parallel, name) is not None:
            raise ScenarioError("has no effect with stated costs; remove it", key=f"parallel.{name}")


def check_recompute(keys: AnyScenarioKeys, model: Transformer | None) -> None:
    """Refuse what is said of a recomputation that is not used, or of modules that the model has not."""
    for name, level in (
        ("recompute_for_weights", "full"),
        ("recompute_layers", "full"),
        ("recompute_modules", "selective"),
    ):
        if getattr(keys, name) is not None and keys.recompute != level:
            raise ScenarioError(f"has an effect only with recompute: {level}", key=name)
    for module in keys.recompute_modules or ():
        needed = _NEEDS.get(module)
        missing = {
            "experts": model is None or model.experts is None,
            "latent attention": model is None or model.latent_attention is None,
        }
        if needed is not None and missing[needed]:
            raise ScenarioError(f"{module}: the model has no {needed}", key="recompute_modules")


def check_without_effect(
    keys: AnyScenarioKeys, written: Mapping[str, Any], model: Transformer | None, notes: Notes
) -> None:
    """Refuse what is said of experts that a model has not, and of a host's link that nothing takes.

    Where the key it hangs on is stated too, as in a sweep over it, that is said and not refused; so is a
    term of a whole efficiency set, which serves any model. `written` are the keys before presets.
    """
    if model is None or model.experts is None:
        for section, names in _OF_EXPERTS.items():
            stated = getattr(keys, section)
            for name in names if stated is not None else ():
                if name in stated.model_fields_set and getattr(stated, name) is not None:
                    raise ScenarioError(
                        "has an effect only where the model has experts", key=f"{section}.{name}"
                    )
        of_set = written.get("efficiency")
        if isinstance(of_set, Mapping) and "expert_layer_floor" in of_set:
            notes.echo["efficiency.expert_layer_floor"] = "no effect: the model has no experts"
    offload = keys.offload
    if "bytes_per_s" in offload.model_fields_set and not offload.activations and not offload.optimizer:
        if not offload.model_fields_set & {"activations", "optimizer"}:
            raise ScenarioError(
                "has an effect only with offload.activations or offload.optimizer", key="offload.bandwidth"
            )
        notes.echo["offload.bandwidth"] = "no effect: nothing is offloaded"


def check_recomputed_layers(
    keys: AnyScenarioKeys, model: Transformer, parallel: Parallel, notes: Notes
) -> None:
    """Say where more layers are to run again than any stage has."""
    layers = keys.layers
    stated, most = max(keys.recompute_layers or (0,)), -(-model.num_hidden_layers // parallel.pipeline)
    if layers is not None and layers.kind == "list":
        most = max(layers.per_stage or (0,))
    if stated > most and (layers is None or layers.kind != "balanced"):
        notes.echo["recompute_layers"] = (
            f"{stated}: a stage has at most {most} layers, and all of them run again"
        )


def check_sharding(keys: AnyScenarioKeys, parallel: Parallel) -> None:
    """Refuse what does not go with the optimizer's sharing out over replicas."""
    is_plain = keys.optimizer in (None, "plain")
    if keys.parallel.data_shard is not None and is_plain and keys.parallel.local_steps == 1:
        raise ScenarioError(
            "has an effect only where replicas share out something", key="parallel.data_shard"
        )
    if keys.parallel.reshard_after_forward is not None and keys.optimizer != "fsdp":
        raise ScenarioError("has an effect only with optimizer: fsdp", key="parallel.reshard_after_forward")
    if parallel.overlap_gradients and keys.optimizer in ("zero2", "zero3", "fsdp"):
        raise ScenarioError(
            f"{keys.optimizer} reduces gradients beside backwards; remove overlap_gradients",
            key="parallel.overlap_gradients",
        )
    if keys.network.all_reduce not in ("auto", "ring") and keys.optimizer not in (None, "plain"):
        raise ScenarioError(
            f"found {keys.network.all_reduce}; {keys.optimizer} reduce-scatters and gathers in rings; "
            "allowed: auto, ring",
            key="network.all_reduce",
        )


def check_torch(keys: AnyScenarioKeys, parallel: Parallel, layers: LayerSplit, notes: Notes) -> None:
    """Refuse what a user's own model cannot do."""
    check_torch_cut(parallel, layers, notes)
    if keys.recompute == "selective":
        raise ScenarioError(
            "selective recomputes a transformer's attention; a torch model takes none or full",
            key="recompute",
        )
    if keys.recompute_for_weights == "again":
        raise ScenarioError("a torch model's W reads what I left; remove it", key="recompute_for_weights")
    if keys.recompute_layers is not None:
        raise ScenarioError("a torch model recomputes all of its layers; remove it", key="recompute_layers")
    # Its attention is whatever the module calls.
    del notes.echo["efficiency.attention_kernel"]


def check_loads(jitter: Jitter, parallel: Parallel) -> None:
    """Refuse loads of experts that lie on one device.

    Raises
    ------
    ScenarioError
        With the key.
    """
    if jitter.experts and parallel.expert == 1:
        raise ScenarioError(
            "has an effect only where experts are shared out (parallel.expert)", key="jitter.experts"
        )


def check_ranks(ranks: Iterable[int], num_ranks: int, key: str) -> None:
    """Refuse a rank that there is not."""
    for rank in ranks:
        if rank >= num_ranks:
            raise ScenarioError(f"found rank {rank}; ranks are 0 to {num_ranks - 1}", key=key)
