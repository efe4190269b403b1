"""From validated keys to a ResolvedScenario: what each key means beside the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipesim.files import printable_stem
from pipesim.scenario.contradictions import (
    check_loads,
    check_one_basis,
    check_ranks,
    check_recompute,
    check_recomputed_layers,
    check_sharding,
    check_torch,
    check_without_effect,
)
from pipesim.scenario.hardware import Cluster
from pipesim.scenario.notes import Notes
from pipesim.scenario.resolve_costs import check_units, resolve_costs
from pipesim.scenario.resolve_groups import place_groups
from pipesim.scenario.resolve_hardware import resolve_cluster, resolve_efficiency, resolve_precision
from pipesim.scenario.resolve_model import resolve_model, resolve_torch_model
from pipesim.scenario.resolve_parts import (
    costs,
    hides_gradients,
    kept_free,
    price,
    scatter_gather,
    schedule,
    warn_of_torch,
)
from pipesim.scenario.resolve_sizes import check_cut, resolve_batch, resolve_parallel
from pipesim.scenario.resolve_trainable import resolve_trainable
from pipesim.scenario.resolved import (
    Batch,
    DirectCosts,
    Efficiency,
    LayerSplit,
    Parallel,
    ResolvedScenario,
    Transformer,
)
from pipesim.scenario.schema import (
    AnyScenarioKeys,
    BatchKeys,
    ModelKeys,
    ParallelKeys,
    PrecisionKeys,
    TorchModelKeys,
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

    Raises
    ------
    ScenarioError
        With the key at fault, without the file.
    """
    pair_s = _stated_pair_s(keys)
    if pair_s is not None:
        keys = keys.model_copy(update={"costs": None})
    check_one_basis(keys)
    file, directory = source.file, source.directory
    keys, cluster, parallel, batch, uncut = _cut(keys, notes, uncut=uncut)
    model = resolve_model(keys.model, notes) if isinstance(keys.model, ModelKeys) else None
    torch = keys.model if isinstance(keys.model, TorchModelKeys) else None
    efficiency, borrowed_for = _software(keys, source, cluster, parallel, model, notes, uncut=uncut)
    if not uncut:
        _check_numbered(keys, cluster, parallel)
    accelerator = None if cluster is None else cluster.accelerator
    stated, costs_file = _costs(keys, source, parallel, notes)
    return kind(
        name=keys.name or (printable_stem(file) if file else "scenario"),
        parallel=parallel,
        batch=batch,
        schedule=schedule(keys, directory, notes),
        model=model,
        cluster=cluster,
        costs=stated,
        costs_file=costs_file,
        layers=_layers(keys),
        recompute=keys.recompute or "none",
        optimizer=keys.optimizer or "plain",
        efficiency=efficiency,
        borrowed_for=borrowed_for,
        precision=resolve_precision(keys.precision or PrecisionKeys(), accelerator, notes),
        network=keys.network,
        reliability=keys.reliability,
        jitter=keys.jitter,
        seed=keys.seed,
        price_usd_per_gpu_hour=price(keys, cluster, parallel, notes),
        measured_step_time_s=None if keys.measured_step_time is None else float(keys.measured_step_time),
        torch_model=None if torch is None else resolve_torch_model(torch, directory),
        overlapped_pair_s=pair_s,
        recompute_for_weights=keys.recompute_for_weights or "held",
        recompute_modules=keys.recompute_modules or ("core_attn",),
        recompute_layers=keys.recompute_layers,
        trained=resolve_trainable(keys.trainable, model, notes),
        offload=keys.offload,
        scatter_gather=scatter_gather(keys, parallel, efficiency, notes),
        cuda_graphs=keys.cuda_graphs,
        hides_gradients=hides_gradients(keys, parallel, efficiency, notes),
        kept_free=kept_free(keys, cluster, notes),
        file=file,
        echo=notes.echo,
        warnings=tuple(notes.warnings),
        keys=source.keys,
        uncut=uncut,
    )


def _cut(
    keys: AnyScenarioKeys, notes: Notes, *, uncut: bool
) -> tuple[AnyScenarioKeys, Cluster | None, Parallel, Batch, bool]:
    """Cut the cluster and the batch into ranks, replicas and microbatches, unless they stay whole."""
    cluster = None if keys.cluster is None else resolve_cluster(keys.cluster, notes)
    uncut = uncut and cluster is not None and keys.model is not None and keys.batch.global_size is not None
    if uncut and cluster is not None:
        cluster, keys, notes = _on_all_devices(cluster, keys), _without_cut(keys), Notes()
    parallel = resolve_parallel(keys.parallel, None if uncut else cluster, notes)
    if cluster is not None and not uncut:
        cluster = place_groups(cluster, parallel, notes)
    batch = resolve_batch(keys.batch, parallel.data, has_samples=keys.model is not None, notes=notes)
    if keys.costs is not None:
        _echo_sizes_beside_costs(parallel, keys, notes)
    return keys, cluster, parallel, batch, uncut


def _layers(keys: AnyScenarioKeys) -> LayerSplit:
    return keys.layers or LayerSplit("even")


def _software(
    keys: AnyScenarioKeys,
    source: Source,
    cluster: Cluster | None,
    parallel: Parallel,
    model: Transformer | None,
    notes: Notes,
    *,
    uncut: bool,
) -> tuple[Efficiency | None, tuple[str, ...]]:
    """Resolve the efficiency set that a model runs with, for what it is borrowed; refuse what cannot run."""
    if keys.model is None or cluster is None:
        return None, ()
    if model is not None and not uncut:
        check_cut(model, parallel, _layers(keys), notes)
    found = _efficiency(keys, cluster, parallel, _layers(keys), notes)
    _check_run(keys, source, model, parallel, notes, uncut=uncut)
    return found


def _costs(
    keys: AnyScenarioKeys, source: Source, parallel: Parallel, notes: Notes
) -> tuple[DirectCosts | None, str | None]:
    """Read stated costs, or name the file that holds them."""
    if keys.costs is None:
        return None, None
    stated, costs_file = costs(keys.costs, source.directory)
    if stated is None:
        return None, costs_file
    if isinstance(written := source.keys.get("costs"), Mapping):
        check_units(written)
    return resolve_costs(stated, parallel, notes), None


def _check_run(
    keys: AnyScenarioKeys,
    source: Source,
    model: Transformer | None,
    parallel: Parallel,
    notes: Notes,
    *,
    uncut: bool,
) -> None:
    """Refuse what is said of how a model runs and does not go together."""
    check_sharding(keys, parallel)
    check_recompute(keys, model)
    check_without_effect(keys, source.keys, model, notes)
    if uncut:
        return
    if model is not None:
        check_recomputed_layers(keys, model, parallel, notes)
    if keys.layers is None:
        notes.echo["layers"] += " (default)"


def _check_numbered(keys: AnyScenarioKeys, cluster: Cluster | None, parallel: Parallel) -> None:
    """Refuse ranks, and loads of devices that share out experts, that there are not."""
    if cluster is not None:
        check_ranks(cluster.other_accelerators, parallel.pipeline, "cluster.other_accelerators")
    if keys.jitter is not None:
        check_ranks(keys.jitter.slow_ranks, parallel.pipeline, "jitter.slow_ranks")
        check_loads(keys.jitter, parallel)


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


def _echo_sizes_beside_costs(parallel: Parallel, keys: AnyScenarioKeys, notes: Notes) -> None:
    """Say of sizes that stated times do not follow what they do."""
    for name in ("tensor", "context", "data"):
        size = getattr(parallel, name)
        if size > 1:
            notes.echo[f"parallel.{name}"] = f"{size} (only counts devices: stated costs stay as they are)"
    if "micro" in keys.batch.model_fields_set and keys.batch.global_size is None:
        notes.echo["batch.micro"] = f"{keys.batch.micro} (stated costs stay as they are)"


def _efficiency(
    keys: AnyScenarioKeys, cluster: Cluster, parallel: Parallel, layers: LayerSplit, notes: Notes
) -> tuple[Efficiency, tuple[str, ...]]:
    """Resolve the efficiency set, say for what it is borrowed, and what else such a run has by default."""
    names = cluster.device_names(parallel.pipeline)
    efficiency, borrowed_for = resolve_efficiency(keys.efficiency, names, notes)
    if isinstance(keys.model, TorchModelKeys):
        check_torch(keys, parallel, layers, notes)
        if not borrowed_for:
            warn_of_torch(efficiency, notes)
    if keys.recompute is None:
        notes.default("recompute", "none")
    if keys.optimizer is None:
        notes.default("optimizer", "plain")
    return efficiency, borrowed_for


def _on_all_devices(cluster: Cluster, keys: AnyScenarioKeys) -> Cluster:
    """Keep how many ranks a file numbers, where its cut is left out."""
    check_ranks(cluster.other_accelerators, keys.parallel.pipeline, "cluster.other_accelerators")
    if not cluster.other_accelerators:
        return cluster
    return replace(cluster, num_numbered_ranks=keys.parallel.pipeline)
