"""Options of Megatron-core's configuration, which Megatron-LM, NeMo and Megatron-Bridge spell differently."""

from __future__ import annotations

from typing import Any

from pipesim.importers.facts import Facts
from pipesim.importers.megatron_formats import Names
from pipesim.importers.model_names import fields_of
from pipesim.scenario.settings import Settings

SHARDED = {
    "no_shard": "plain",
    "optim": "sharded",
    "optim_grads": "zero2",
    "optim_grads_params": "zero3",
}
"""What replicas share out by Megatron-core's ``data_parallel_sharding_strategy``."""
KERNELS = {"flash": "flash", "fused": "flash", "auto": "flash", "unfused": "unfused", "local": "unfused"}
MODULES = ("core_attn", "mla_up_proj", "layernorm", "mlp", "moe", "moe_act", "shared_experts")
"""What ``recompute_modules`` may hold; a scenario has the same names."""
EXCHANGES = {"p2p": "ring", "all_gather": "all-gather", "a2a": "ulysses", "a2a+p2p": "hierarchical"}
"""How context-parallel devices share a sequence, by ``cp_comm_type``."""
_OF_EXPERTS = ("moe", "moe_act", "shared_experts")
_DISPATCHERS = ("allgather", "alltoall", "alltoall_seq", "flex")
_BACKENDS = ("deepep", "hybridep")


def read_recomputation(settings: Settings, facts: Facts, named: Names, kind: str | None) -> None:
    """Set what is recomputed: layers, the first ones of each stage, or modules of every layer.

    Parameters
    ----------
    settings : Settings
        The file's.
    facts : Facts
        With the model; receives what is recomputed.
    named : callable
        Where an option may stand.
    kind : str, optional
        ``full`` or ``selective``.

    Raises
    ------
    ScenarioError
        Numbers that are none, or modules that Megatron-core does not know.
    """
    method = settings.text(*named("recompute_method"))
    layers = settings.count(*named("recompute_num_layers"), minimum=0)
    key, names = settings.words(*named("recompute_modules"))
    facts.recompute = kind or "none"
    if kind == "full" and layers is not None:
        if method == "block":
            facts.recompute_layers = layers
            facts.inferred["recompute_layers"] = f"{layers} (block: the first layers of every stage)"
        elif layers > 1:
            facts.not_used[named("recompute_num_layers")[0]] = (
                f"{layers}: the input of one in {layers} layers is kept; here every layer's is"
            )
    unknown = [name for name in names if name not in MODULES]
    if unknown:
        raise settings.refuse(
            key,
            f"found {unknown[0][:40]!r}; allowed: {', '.join(MODULES)}; --ignore {key} reads on without it",
        )
    if not names or kind != "selective":
        if names and names != ["core_attn"]:
            facts.not_used[key] = f"{' '.join(names)}: has no effect without selective recomputation"
        return
    model = fields_of(facts.model)
    absent = [name for name in names if _is_absent(name, model)]
    if absent:
        facts.not_used[key] = f"{' '.join(absent)}: the model has no such part"
    facts.recompute_modules = [name for name in names if name not in absent]
    if not facts.recompute_modules:
        facts.recompute, facts.recompute_modules = "none", None
    elif facts.recompute_modules == ["core_attn"]:
        facts.recompute_modules = None


def _is_absent(module: str, model: dict[str, Any]) -> bool:
    latent = "kv_lora_rank" not in model and module == "mla_up_proj"
    return latent or ("num_experts" not in model and module in _OF_EXPERTS)


def read_dispatch(settings: Settings, facts: Facts, named: Names) -> None:
    """Set how tokens travel to experts.

    Raises
    ------
    ScenarioError
        A dispatcher that Megatron-core does not have.
    """
    key, kind = settings.raw(*named("moe_token_dispatcher_type"))
    backend_key, backend = settings.raw(*named("moe_flex_dispatcher_backend"))
    old = settings.flag(*named("moe_enable_deepep"))
    for path, value, allowed in ((key, kind, _DISPATCHERS), (backend_key, backend, _BACKENDS)):
        if value is not None and value not in allowed:
            raise settings.refuse(
                path,
                f"found {str(value)[:40]!r}; allowed: {', '.join(allowed)}; --ignore {path} leaves it out",
            )
    if kind == "flex" or old:
        facts.expert_dispatch = str(backend or "deepep")
    elif kind == "allgather":
        facts.not_used[key] = "allgather: not modelled, tokens are exchanged by all-to-all"
    if facts.expert_dispatch and facts.expert > 1:
        facts.inferred["parallel.expert_dispatch"] = f"{facts.expert_dispatch} ({key} {kind or 'not stated'})"


def read_offload(settings: Settings, facts: Facts, named: Names) -> None:
    """Set what waits in the host's memory.

    Raises
    ------
    ScenarioError
        Shares or counts that are none.
    """
    fraction_key, fraction = settings.raw(*named("optimizer_offload_fraction"))
    if settings.flag(*named("optimizer_cpu_offload")):
        share = _share(settings, fraction_key, 1.0 if fraction is None else fraction)
        if share:
            facts.offload["optimizer"] = share
            facts.inferred["offload.optimizer"] = (
                f"{share:g} (the optimizer's state waits in the host's memory)"
            )
    elif fraction is not None:
        facts.not_used[fraction_key] = f"{fraction}: has no effect without optimizer_cpu_offload"
    number = settings.count(*named("cpu_offloading_num_layers"), minimum=0)
    layers = fields_of(facts.model).get("num_hidden_layers")
    if settings.flag(*named("cpu_offloading"), default=bool(number)) and layers:
        share = min(1.0, (layers if number is None else number) / layers)
        facts.offload["activations"] = round(share, 6)
        facts.inferred["offload.activations"] = f"{share:.4g} ({number} of {layers} layers)"


def _share(settings: Settings, key: str, value: Any) -> float:
    try:
        share = float(value)
    except (TypeError, ValueError):
        share = -1.0
    if not 0 <= share <= 1:
        raise settings.refuse(
            key, f"found {str(value)[:40]!r}; a share from 0 to 1 is needed; --ignore {key} takes 1"
        )
    return share


def read_kernels(settings: Settings, facts: Facts, named: Names, *, flash: bool = False) -> None:
    """Set the kernels of attention and of the loss.

    Raises
    ------
    ScenarioError
        An attention backend that is not known.
    """
    key, backend = settings.raw(*named("attention_backend"))
    if flash and backend is None:
        backend = "flash"
    if backend is not None:
        backend = str(backend).rpartition(".")[2]
        if backend not in KERNELS:
            raise settings.refuse(
                key,
                f"found {backend[:40]!r}; allowed: {', '.join(KERNELS)}; --ignore {key} leaves it out",
            )
        facts.efficiency["attention_kernel"] = KERNELS[backend]
        facts.inferred["efficiency.attention_kernel"] = f"{KERNELS[backend]} ({key} {backend})"
    if settings.flag(*named("cross_entropy_loss_fusion")):
        facts.efficiency["loss_kernel"] = "fused"
        facts.inferred["efficiency.loss_kernel"] = f"fused ({named('cross_entropy_loss_fusion')[0]})"


def read_sharding(settings: Settings, facts: Facts, named: Names, *, sharded: bool) -> None:
    """Set what replicas share out, and among how many.

    Parameters
    ----------
    settings, facts, named
        As for `read_recomputation`.
    sharded : bool
        Whether the distributed optimizer is on.

    Raises
    ------
    ScenarioError
        A strategy that is not known, or FSDP of torch with a pipeline or experts.
    """
    facts.num_mirrors = settings.count(*named("num_distributed_optimizer_instances")) or 1
    facts.optimizer = "sharded" if sharded else "plain"
    key, strategy = settings.raw(*named("data_parallel_sharding_strategy"))
    if strategy not in (None, *SHARDED):
        raise settings.refuse(
            key,
            f"found {str(strategy)[:40]!r}; allowed: {', '.join(SHARDED)}; --ignore {key} leaves it out",
        )
    of_torch = named("use_torch_fsdp2")
    if settings.flag(*of_torch):
        for size, number in (("pipeline", facts.pipeline), ("expert", facts.expert)):
            if number > 1:
                raise settings.refuse(
                    of_torch[0],
                    f"Megatron-LM refuses it with {size} parallelism (megatron/training/arguments.py); "
                    f"--ignore {of_torch[0]} reads on without it",
                )
        facts.optimizer = "zero3"
        facts.inferred["optimizer"] = f"zero3 ({of_torch[0]})"
    elif settings.flag(*named("use_megatron_fsdp"), *named("use_custom_fsdp")):
        facts.optimizer = SHARDED[strategy or "no_shard"]
        facts.inferred["optimizer"] = f"{facts.optimizer} (Megatron's FSDP with {strategy or 'no_shard'})"
    elif strategy not in (None, "no_shard"):
        facts.not_used[key] = f"{strategy}: no effect without FSDP"


def read_context(settings: Settings, facts: Facts, named: Names) -> None:
    """Set how context-parallel devices share a sequence.

    Raises
    ------
    ScenarioError
        A kind that is not known, or sizes of groups that are none.
    """
    key, kinds = settings.words(*named("cp_comm_type"))
    sizes_key, sizes = settings.words(*named("hierarchical_context_parallel_sizes"))
    unknown = [kind for kind in kinds if kind not in EXCHANGES]
    if unknown:
        raise settings.refuse(
            key, f"found {unknown[0][:40]!r}; allowed: {', '.join(EXCHANGES)}; --ignore {key} takes p2p"
        )
    if facts.context == 1 or not kinds:
        return
    if len(set(kinds)) > 1:
        facts.not_used[key] = f"{' '.join(kinds)}: not modelled by layer, every layer takes {kinds[0]}"
    facts.context_exchange = EXCHANGES[kinds[0]]
    facts.inferred["parallel.context_exchange"] = f"{facts.context_exchange} ({key} {kinds[0]})"
    if facts.context_exchange == "hierarchical":
        first = sizes[0] if sizes else ""
        if not first.isdecimal() or len(first) > 9:
            raise settings.refuse(
                sizes_key,
                f"found {' '.join(sizes)[:40]!r}; the devices of an inner group are needed; "
                "--set parallel.context_inner=N states them",
            )
        facts.context_inner = int(first)


def read_graphs(settings: Settings, facts: Facts, named: Names) -> None:
    """Set what of a step is captured as CUDA graphs: the full iteration, or parts."""
    implementation = settings.text(*named("cuda_graph_impl")) or "none"
    scope = settings.raw(*named("cuda_graph_scope"))[1]
    of_layers = [settings.flag(*named(name)) for name in ("enable_cuda_graph", "external_cuda_graph")]
    whole = settings.flag(*named("full_cuda_graph"))
    if implementation == "none" and not whole and not any(of_layers):
        return
    whole = whole or "full_iteration" in (scope if isinstance(scope, list) else [scope])
    facts.cuda_graphs = "full" if whole else "partial"
    facts.inferred["cuda_graphs"] = (
        "full (the whole iteration)" if whole else "partial (layers or parts of them)"
    )
