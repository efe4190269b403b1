"""How the cluster, the model and the batch are cut: sizes that must multiply and divide."""

from __future__ import annotations

from pipesim.errors import ScenarioError
from pipesim.scenario.layers import split_layers
from pipesim.scenario.notes import Notes
from pipesim.scenario.resolved import Batch, Cluster, LayerSplit, Parallel, Transformer
from pipesim.scenario.schema import BatchKeys, ParallelKeys


def resolve_parallel(keys: ParallelKeys, cluster: Cluster | None, notes: Notes) -> Parallel:
    """Infer the replicas from the cluster; refuse sizes that do not multiply to it.

    Raises
    ------
    ScenarioError
        tensor * pipeline * data is not the number of devices.
    """
    for key in ("tensor", "virtual_stages"):
        if key not in keys.model_fields_set:
            notes.default(f"parallel.{key}", getattr(keys, key))
    data = keys.data
    if cluster is None:
        if data is None:
            data = 1
            notes.default("parallel.data", data)
    else:
        data = _replicas(keys, cluster, notes)
        if keys.tensor > cluster.gpus_per_node:
            notes.warnings.append(
                f"parallel.tensor {keys.tensor} is larger than a node of {cluster.gpus_per_node}: "
                "its collectives cross nodes"
            )
    sequence_parallel = bool(keys.sequence_parallel)
    if keys.sequence_parallel is None and cluster is not None:
        notes.default("parallel.sequence_parallel", "false")
    return Parallel(
        pipeline=keys.pipeline,
        tensor=keys.tensor,
        data=data,
        virtual_stages=keys.virtual_stages,
        sequence_parallel=sequence_parallel,
        microbatch_group_size=keys.microbatch_group_size,
    )


def resolve_batch(keys: BatchKeys, data: int, *, has_samples: bool, notes: Notes) -> Batch:
    """Derive the microbatches of one pipeline from the global batch, or the other way round.

    Parameters
    ----------
    keys : BatchKeys
        The validated fields.
    data : int
        Replicas.
    has_samples : bool
        False for direct costs, which know microbatches but no sequences unless a global batch is stated.
    notes : Notes
        Receives what was derived.

    Returns
    -------
    Batch
        With at least one microbatch.

    Raises
    ------
    ScenarioError
        Neither or contradicting sizes, or a global batch that micro * data does not divide.
    """
    if "micro" not in keys.model_fields_set and (has_samples or keys.global_size is not None):
        notes.default("batch.micro", keys.micro)
    at_once = keys.micro * data
    if keys.global_size is None:
        if keys.microbatches is None:
            raise ScenarioError("needed: global (and micro), or microbatches", key="batch")
        if not has_samples:
            return Batch(keys.microbatches, keys.micro, None)
        total = keys.microbatches * at_once
        notes.echo["batch.global"] = (
            f"{total} (microbatches {keys.microbatches} x micro {keys.micro} x data {data})"
        )
        return Batch(keys.microbatches, keys.micro, total)
    num_microbatches, rest = divmod(keys.global_size, at_once)
    if rest:
        raise ScenarioError(
            f"{keys.global_size} is not a multiple of micro {keys.micro} x data {data} = {at_once}; "
            f"nearest: {_neighbours(keys.global_size, at_once)}",
            key="batch.global",
        )
    if keys.microbatches is not None and keys.microbatches != num_microbatches:
        raise ScenarioError(
            f"{keys.microbatches}, but global {keys.global_size} / (micro {keys.micro} x data {data}) is "
            f"{num_microbatches}; state one of the two",
            key="batch.microbatches",
        )
    notes.echo["batch.microbatches"] = (
        f"{num_microbatches} (global {keys.global_size} / (micro {keys.micro} x data {data}))"
    )
    return Batch(num_microbatches, keys.micro, keys.global_size)


def check_cut(model: Transformer, parallel: Parallel, layers: LayerSplit, notes: Notes) -> None:
    """Refuse a model that cannot be cut so; echo the layers of each stage.

    Raises
    ------
    ScenarioError
        Fewer layers than stages, heads or widths that tensor parallelism does not divide, or a list of
        layers for other sizes.
    """
    ranks, chunks, tensor = parallel.pipeline, parallel.virtual_stages, parallel.tensor
    num_stages = ranks * chunks
    if ranks > model.num_hidden_layers:
        raise ScenarioError(_too_few(f"{ranks} stages", ranks, model), key="parallel.pipeline")
    if num_stages > model.num_hidden_layers:
        what = f"{ranks} ranks x {chunks} chunks = {num_stages} stages"
        raise ScenarioError(_too_few(what, num_stages, model), key="parallel.virtual_stages")
    _check_tensor(model, parallel)
    notes.echo["layers"] = _describe_split(model, parallel, layers)
    remainder = next((n for n in (ranks, num_stages) if model.num_hidden_layers % n), None)
    if layers.kind == "even" and remainder:
        notes.warnings.append(
            f"{model.num_hidden_layers} layers on {remainder} stages leave a remainder: the first "
            f"{model.num_hidden_layers % remainder} have one layer more (Megatron-LM refuses this split)"
        )
    if tensor == 1 and parallel.sequence_parallel:
        notes.warnings.append("parallel.sequence_parallel changes nothing without tensor parallelism")


def _describe_split(model: Transformer, parallel: Parallel, layers: LayerSplit) -> str:
    """Words for the layers of each stage; for an even split also of a schedule that has one chunk a rank."""
    ranks, num_stages = parallel.pipeline, parallel.pipeline * parallel.virtual_stages
    if layers.kind == "balanced":
        return "balanced: the slowest stage as fast as possible, embedding and head counted"
    if layers.per_stage is not None and len(layers.per_stage) == ranks:
        num_stages = ranks
    shapes = {num_stages} if layers.kind == "list" else {ranks, num_stages}
    words = []
    for shape in sorted(shapes):
        counts = split_layers(model.num_hidden_layers, shape, layers)
        each = f"{counts[0]} each" if max(counts) == min(counts) else " ".join(map(str, counts))
        words.append(f"{each} on {shape} stages")
    chunks = f" (with {parallel.virtual_stages} chunks a rank)" if len(shapes) > 1 else ""
    return f"{layers.kind}: {', '.join(words)}{chunks}"


def _check_tensor(model: Transformer, parallel: Parallel) -> None:
    tensor, key = parallel.tensor, "parallel.tensor"
    heads, key_value_heads = model.num_attention_heads, model.num_key_value_heads
    if heads % tensor:
        raise ScenarioError(f"{tensor} does not divide the model's {heads} attention heads", key=key)
    if key_value_heads % tensor and tensor % key_value_heads:
        raise ScenarioError(
            f"{tensor} neither divides nor is a multiple of the model's {key_value_heads} key-value heads",
            key=key,
        )
    if model.intermediate_size % tensor:
        raise ScenarioError(f"{tensor} does not divide intermediate_size {model.intermediate_size}", key=key)
    if parallel.sequence_parallel and model.seq_length % tensor:
        raise ScenarioError(
            f"{tensor} does not divide seq_length {model.seq_length}, which sequence_parallel needs", key=key
        )


def _replicas(keys: ParallelKeys, cluster: Cluster, notes: Notes) -> int:
    model_gpus = keys.tensor * keys.pipeline
    size = f"{cluster.num_gpus} GPUs ({cluster.num_nodes} nodes x {cluster.gpus_per_node})"
    data, rest = divmod(cluster.num_gpus, model_gpus)
    product = f"tensor {keys.tensor} x pipeline {keys.pipeline}"
    if rest or not data:
        raise ScenarioError(f"{product} = {model_gpus} does not divide the cluster's {size}", key="parallel")
    if keys.data is not None and keys.data != data:
        raise ScenarioError(
            f"{product} x data {keys.data} = {model_gpus * keys.data}, but the cluster has {size}; "
            f"data {data} would use them all",
            key="parallel.data",
        )
    if keys.data is None:
        notes.echo["parallel.data"] = f"{data} ({size} / ({product}))"
    return data


def _neighbours(size: int, step: int) -> str:
    below = size // step * step
    return f"{below} or {below + step}" if below else str(step)


def _too_few(what: str, num_stages: int, model: Transformer) -> str:
    return f"{what} need at least {num_stages} layers, the model has {model.num_hidden_layers}"
