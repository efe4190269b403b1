"""From validated keys to a ResolvedScenario: what each key means beside the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipesim.errors import ScenarioError
from pipesim.files import printable_stem
from pipesim.scenario.hardware import Cluster
from pipesim.scenario.notes import Notes
from pipesim.scenario.resolve_costs import resolve_costs
from pipesim.scenario.resolve_hardware import (
    BORROWED_ERROR_BAND,
    resolve_cluster,
    resolve_efficiency,
    resolve_precision,
)
from pipesim.scenario.resolve_model import resolve_model, resolve_torch_model
from pipesim.scenario.resolve_sizes import check_cut, check_torch_cut, resolve_batch, resolve_parallel
from pipesim.scenario.resolve_trainable import resolve_trainable
from pipesim.scenario.resolved import (
    Documents,
    Efficiency,
    Jitter,
    KeptFree,
    LayerSplit,
    Offload,
    Parallel,
    RecomputeModule,
    Reliability,
    ResolvedScenario,
    ScheduleChoice,
    Transformer,
)
from pipesim.scenario.schema import (
    AnyScenarioKeys,
    BatchKeys,
    CostKeys,
    JitterKeys,
    ModelKeys,
    ParallelKeys,
    PrecisionKeys,
    ReliabilityKeys,
    TorchModelKeys,
)
from pipesim.units import format_bytes

DEFAULT_SCHEDULE = "1f1b"
DEFAULT_HEADROOM = 0.05
DEFAULT_MEMORY_RESERVE_BYTES = 2.0 * 2**30
"""Half a GiB of CUDA context (0.40 GiB beside torch's allocator in one process: HiDream-ai/VAREdit issue 6),
one of communicators (1.43 GiB with the context, four ranks: wbfwonderful/Vad-R1 issue 11), half of fragments
(0.2 to 0.96 GiB reserved but unallocated in such messages, as in ali-vilab/VGen issue 104)."""
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


@dataclass(frozen=True, slots=True)
class Source:
    """What a scenario is read from: its mapping, the file, and where the names of files in it start."""

    keys: Mapping[str, Any]
    file: str | None
    directory: Path


def resolve(
    keys: AnyScenarioKeys,
    source: Source,
    *,
    notes: Notes,
    uncut: bool = False,
    kind: type[ResolvedScenario] = ResolvedScenario,
) -> ResolvedScenario:
    """Infer, check and convert.

    Parameters
    ----------
    keys : ScenarioKeys
        What the schema let through, references written out.
    source : Source
        Where they come from.
    notes : Notes
        Receives what was inferred; ends in the scenario's `echo` and `warnings`.
    uncut, kind
        See `pipesim.scenario.load_scenario`.

    Returns
    -------
    ResolvedScenario
        Complete and free of contradiction.

    Raises
    ------
    ScenarioError
        With the key at fault, without the file.
    """
    pair_s = _stated_pair_s(keys)
    if pair_s is not None:
        keys = keys.model_copy(update={"costs": None})
    _check_one_basis(keys)
    file, directory = source.file, source.directory
    cluster = None if keys.cluster is None else resolve_cluster(keys.cluster, notes)
    uncut = uncut and keys.model is not None and keys.batch.global_size is not None
    if uncut:
        assert cluster is not None
        if cluster.other_accelerators:
            cluster = replace(cluster, num_numbered_ranks=keys.parallel.pipeline)
        _check_ranks(cluster.other_accelerators, keys.parallel.pipeline, "cluster.other_accelerators")
        keys = _without_cut(keys)
    of_cut = Notes() if uncut else notes
    parallel = resolve_parallel(keys.parallel, None if uncut else cluster, of_cut)
    batch = resolve_batch(keys.batch, parallel.data, has_samples=keys.model is not None, notes=of_cut)
    if keys.costs is not None:
        _echo_sizes_beside_costs(parallel, keys, notes)
    layers = keys.layers or LayerSplit("even")
    model = resolve_model(keys.model, notes) if isinstance(keys.model, ModelKeys) else None
    torch_model = None
    if isinstance(keys.model, TorchModelKeys):
        torch_model = resolve_torch_model(keys.model, directory)
    efficiency = None
    if keys.model is not None and cluster is not None:
        if model is not None and not uncut:
            check_cut(model, parallel, layers, notes)
        efficiency = resolve_efficiency(keys.efficiency, cluster.accelerator, notes)
        if torch_model is not None:
            _check_torch(keys, parallel, layers, notes)
            efficiency = _borrowed(efficiency, notes)
        _check_sharding(keys, parallel)
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
        if keys.recompute is None:
            notes.default("recompute", "none")
        _check_recompute(keys, model)
        if keys.optimizer is None:
            notes.default("optimizer", "plain")
        if keys.layers is None and not uncut:
            notes.echo["layers"] += " (default)"
    accelerator = None if cluster is None else cluster.accelerator
    if cluster is not None and not uncut:
        _check_ranks(cluster.other_accelerators, parallel.pipeline, "cluster.other_accelerators")
    if keys.jitter is not None and not uncut:
        _check_ranks(keys.jitter.slow_ranks, parallel.pipeline, "jitter.slow_ranks")
    costs, costs_file = _costs(keys.costs, directory) if keys.costs is not None else (None, None)
    return kind(
        name=keys.name or (printable_stem(file) if file else "scenario"),
        parallel=parallel,
        batch=batch,
        schedule=_schedule(keys, directory, notes),
        model=model,
        cluster=cluster,
        costs=None if costs is None else resolve_costs(costs, parallel, notes),
        costs_file=costs_file,
        layers=layers,
        recompute=keys.recompute or "none",
        optimizer=keys.optimizer or "plain",
        efficiency=efficiency,
        precision=resolve_precision(keys.precision or PrecisionKeys(), accelerator, notes),
        p2p_mode=keys.network.p2p,
        network_mode=keys.network.mode,
        reliability=_reliability(keys.reliability),
        jitter=None if keys.jitter is None else _jitter(keys.jitter),
        all_reduce=None if keys.network.all_reduce == "auto" else keys.network.all_reduce,
        seed=keys.seed,
        price_usd_per_gpu_hour=_price(keys, cluster, parallel, notes),
        measured_step_time_s=None if keys.measured_step_time is None else float(keys.measured_step_time),
        torch_model=torch_model,
        overlapped_pair_s=pair_s,
        recompute_for_weights=keys.recompute_for_weights or "held",
        recompute_modules=keys.recompute_modules or ("core_attn",),
        recompute_layers=keys.recompute_layers,
        trained=resolve_trainable(keys.trainable, model, notes),
        offload=Offload(keys.offload.activations, keys.offload.optimizer, keys.offload.bandwidth),
        scatter_gather=_scatter_gather(keys, parallel, efficiency, notes),
        cuda_graphs=keys.cuda_graphs,
        hides_gradients=_hides_gradients(keys, parallel, efficiency, notes),
        kept_free=_kept_free(keys, cluster, notes),
        file=file,
        echo=notes.echo,
        warnings=tuple(notes.warnings),
        keys=source.keys,
        uncut=uncut,
    )


_NEEDS: dict[RecomputeModule, str] = {
    "mla_up_proj": "latent attention",
    "moe": "experts",
    "moe_act": "experts",
    "shared_experts": "experts",
}
"""Modules that only some models have."""


def _check_recompute(keys: AnyScenarioKeys, model: Transformer | None) -> None:
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


def _check_sharding(keys: AnyScenarioKeys, parallel: Parallel) -> None:
    if keys.parallel.data_shard is not None and keys.optimizer in (None, "plain"):
        raise ScenarioError(
            "has an effect only where replicas share out something", key="parallel.data_shard"
        )
    if keys.parallel.reshard_after_forward is not None and keys.optimizer != "fsdp":
        raise ScenarioError("has an effect only with optimizer: fsdp", key="parallel.reshard_after_forward")


def _hides_gradients(
    keys: AnyScenarioKeys, parallel: Parallel, efficiency: Efficiency | None, notes: Notes
) -> bool:
    """Whether the set's software reduces gradients beside backwards, where the scenario says nothing."""
    if efficiency is None or not efficiency.gradient_overlap or parallel.num_replicas == 1:
        return False
    if keys.parallel.overlap_gradients is not None or keys.optimizer not in (None, "plain", "sharded"):
        return False
    notes.echo["parallel.overlap_gradients"] = (
        f"in closed form (default of {efficiency.name}'s software; true simulates every bucket)"
    )
    return True


def _scatter_gather(
    keys: AnyScenarioKeys, parallel: Parallel, efficiency: Efficiency | None, notes: Notes
) -> bool:
    """Whether messages are cut: as stated, else as the software of the efficiency set does.

    With sequence parallelism activations are cut already (Megatron-LM leaves it out then).
    """
    stated = keys.network.scatter_gather
    if efficiency is None or parallel.tensor == 1 or parallel.pipeline == 1:
        return False
    if parallel.sequence_parallel:
        if stated:
            raise ScenarioError(
                "sequence_parallel cuts messages already; remove one of them", key="network.scatter_gather"
            )
        return False
    if stated is None:
        stated = efficiency.scatter_gather
        notes.echo["network.scatter_gather"] = f"{str(stated).lower()} (of {efficiency.name})"
    return stated


def _check_torch(keys: AnyScenarioKeys, parallel: Parallel, layers: LayerSplit, notes: Notes) -> None:
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


def _borrowed(efficiency: Efficiency, notes: Notes) -> Efficiency:
    """Say of a set that was fitted to transformers that it is used for something else."""
    if not efficiency.fitted or efficiency.error_band is None:
        return efficiency
    notes.warnings.append(
        f"efficiency {efficiency.name} was fitted to transformers: for a torch model its numbers are "
        f"borrowed, and the step time may be off by {BORROWED_ERROR_BAND:.0%}"
    )
    return replace(efficiency, error_band=BORROWED_ERROR_BAND)


def _without_cut(keys: AnyScenarioKeys) -> AnyScenarioKeys:
    """Leave out the sizes into which model and batch are cut."""
    parallel = ParallelKeys(pipeline=1, rank_order=keys.parallel.rank_order)
    batch = BatchKeys.model_validate({"global": keys.batch.global_size})
    return keys.model_copy(update={"parallel": parallel, "batch": batch})


def _stated_pair_s(keys: AnyScenarioKeys) -> float | None:
    """Seconds of an overlapped pair, where costs beside a model state that and nothing else."""
    if keys.costs is None or keys.model is None or keys.costs.model_fields_set != {"overlapped_pair"}:
        return None
    stated = keys.costs.overlapped_pair
    return None if stated is None else float(stated)


def _check_one_basis(keys: AnyScenarioKeys) -> None:
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


def _echo_sizes_beside_costs(parallel: Parallel, keys: AnyScenarioKeys, notes: Notes) -> None:
    """Say of sizes that stated times do not follow what they do."""
    for name in ("tensor", "context", "data"):
        size = getattr(parallel, name)
        if size > 1:
            notes.echo[f"parallel.{name}"] = f"{size} (only counts devices: stated costs stay as they are)"
    if "micro" in keys.batch.model_fields_set and keys.batch.global_size is None:
        notes.echo["batch.micro"] = f"{keys.batch.micro} (stated costs stay as they are)"


def _costs(keys: CostKeys, directory: Path) -> tuple[CostKeys | None, str | None]:
    if keys.file is None:
        return keys, None
    others = sorted(keys.model_fields_set - {"file"})
    if others:
        raise ScenarioError(f"costs come from the file, so {', '.join(others)} has no effect", key="costs")
    return None, str((directory / keys.file).absolute())


def _kept_free(keys: AnyScenarioKeys, cluster: Cluster | None, notes: Notes) -> KeptFree:
    """Say what is left of the memory for tensors, and how much of that advice lets a run take."""
    reserve_bytes, headroom = keys.memory_reserve, keys.headroom
    if reserve_bytes is None:
        reserve_bytes = 0.0 if cluster is None else DEFAULT_MEMORY_RESERVE_BYTES
        if cluster is not None:
            words = format_bytes(reserve_bytes)
            notes.default("memory_reserve", f"{words} of context, communicators and fragments")
    if headroom is None:
        headroom = 0.0 if keys.costs is not None and cluster is None else DEFAULT_HEADROOM
        if cluster is not None:
            notes.default("headroom", f"{headroom:.0%} of the memory left to tensors")
    return KeptFree(reserve_bytes, headroom)


def _jitter(keys: JitterKeys) -> Jitter:
    documents = keys.documents
    return Jitter(
        keys.compute,
        keys.devices,
        keys.network,
        dict(keys.slow_ranks),
        None if documents is None else Documents(documents.mean, documents.sigma, documents.split),
    )


def _check_ranks(ranks: Iterable[int], num_ranks: int, key: str) -> None:
    for rank in ranks:
        if rank >= num_ranks:
            raise ScenarioError(f"found rank {rank}; ranks are 0 to {num_ranks - 1}", key=key)


def _reliability(keys: ReliabilityKeys) -> Reliability:
    return Reliability(
        mtbf_per_gpu_s=float(keys.mtbf_per_gpu),
        restart_s=float(keys.restart),
        checkpoint_s=float(keys.checkpoint),
        interval_s=None if keys.interval is None else float(keys.interval),
        days=keys.days,
        num_runs=keys.runs,
    )


def _schedule(keys: AnyScenarioKeys, directory: Path, notes: Notes) -> ScheduleChoice:
    if keys.schedule is None:
        notes.default("schedule", DEFAULT_SCHEDULE)
        return ScheduleChoice(DEFAULT_SCHEDULE)
    if keys.schedule.csv is not None:
        return ScheduleChoice(None, csv=str((directory / keys.schedule.csv).absolute()))
    return ScheduleChoice(keys.schedule.name, dict(keys.schedule.model_extra or {}))


def _price(keys: AnyScenarioKeys, cluster: Cluster | None, parallel: Parallel, notes: Notes) -> float | None:
    """Rent of a device as stated, else of the mean device."""
    if keys.price_per_gpu_hour is not None:
        return keys.price_per_gpu_hour
    if cluster is None:
        return None
    devices = cluster.accelerators(cluster.num_numbered_ranks or parallel.pipeline)
    prices = [device.price_usd_per_hour for device in devices if device.price_usd_per_hour is not None]
    if len(prices) < len(devices):
        return None
    price = sum(prices) / len(prices)
    names = ", ".join(dict.fromkeys(device.name for device in devices))
    words = f"preset {names}" if len(set(prices)) == 1 else f"mean of {names}, each rank's devices counted"
    notes.echo["price_per_gpu_hour"] = f"{price:g} USD ({words})"
    return price
