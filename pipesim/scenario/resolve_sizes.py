"""How the cluster, the model and the batch are cut: sizes that must multiply and divide."""

from __future__ import annotations

from pipesim.errors import ScenarioError
from pipesim.scenario.hardware import Cluster
from pipesim.scenario.layers import split_layers
from pipesim.scenario.notes import Notes
from pipesim.scenario.resolved import RANK_ORDER, Batch, LayerSplit, Parallel, Transformer
from pipesim.scenario.schema import BatchKeys, ParallelKeys


def resolve_parallel(keys: ParallelKeys, cluster: Cluster | None, notes: Notes) -> Parallel:
    """Infer the replicas from the cluster; refuse sizes that do not multiply to it.

    Raises
    ------
    ScenarioError
        tensor * context * pipeline * data is not the number of devices, experts are shared among more
        devices than hold the same layers, or the rank order leaves an axis out.
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
    if keys.gradient_bucket is not None and not keys.overlap_gradients:
        raise ScenarioError("has an effect only with overlap_gradients: true", key="parallel.gradient_bucket")
    _check_context_exchange(keys, notes)
    sequence_parallel = bool(keys.sequence_parallel)
    if keys.sequence_parallel is None and cluster is not None:
        notes.default("parallel.sequence_parallel", "false")
    parallel = Parallel(
        pipeline=keys.pipeline,
        tensor=keys.tensor,
        data=data,
        virtual_stages=keys.virtual_stages,
        sequence_parallel=sequence_parallel,
        microbatch_group_size=keys.microbatch_group_size,
        context=keys.context,
        context_exchange=keys.context_exchange,
        context_inner=_context_inner(keys),
        expert=keys.expert,
        expert_tensor=_expert_tensor(keys, data, notes),
        expert_dispatch=keys.expert_dispatch,
        expert_overlap=_expert_overlap(keys, notes),
        rank_order=RANK_ORDER if keys.rank_order is None else _rank_order(keys.rank_order, keys, data),
        overlap_gradients=bool(keys.overlap_gradients),
        gradient_bucket_bytes=keys.gradient_bucket,
        data_shard=_data_shard(keys, data, notes),
        local_steps=keys.local_steps,
        reshard_after_forward=bool(keys.reshard_after_forward),
    )
    if keys.rank_order is None and cluster is not None:
        notes.default("parallel.rank_order", "-".join(RANK_ORDER))
    _check_expert_groups(parallel)
    return parallel


def _check_context_exchange(keys: ParallelKeys, notes: Notes) -> None:
    """Refuse an exchange among one device; a sweep over context may state it, and then it is said."""
    if keys.context > 1 or "context_exchange" not in keys.model_fields_set:
        return
    if "context" not in keys.model_fields_set:
        raise ScenarioError(
            "has an effect only with parallel.context above 1", key="parallel.context_exchange"
        )
    notes.echo["parallel.context_exchange"] = f"{keys.context_exchange}: no effect with context 1"


def _context_inner(keys: ParallelKeys) -> int | None:
    """Check the inner group of a hierarchical exchange."""
    inner, key = keys.context_inner, "parallel.context_inner"
    if keys.context_exchange != "hierarchical":
        if inner is not None:
            raise ScenarioError(
                f"found {inner}, with context_exchange {keys.context_exchange}; only hierarchical has inner "
                "groups",
                key=key,
            )
        return None
    if inner is None:
        raise ScenarioError("missing; hierarchical needs the devices of an inner group", key=key)
    if keys.context % inner:
        raise ScenarioError(f"{inner} does not divide context {keys.context}", key=key)
    return inner


def _expert_tensor(keys: ParallelKeys, data: int, notes: Notes) -> int | None:
    """Cut experts as other matrices, unless their groups then do not fit the replicas, and do uncut."""
    replicas = data * keys.context
    if keys.expert_tensor is not None:
        return None if keys.expert_tensor == keys.tensor else keys.expert_tensor
    if keys.expert == 1 or replicas % keys.expert == 0 or keys.tensor * replicas % keys.expert:
        return None
    notes.echo["parallel.expert_tensor"] = (
        f"1 (not stated; expert {keys.expert} does not divide data {data} x context {keys.context}, so "
        f"experts are spread over tensor {keys.tensor} too, uncut)"
    )
    return 1


def _expert_overlap(keys: ParallelKeys, notes: Notes) -> float:
    if keys.expert_overlap is not None:
        return keys.expert_overlap
    if keys.expert == 1 or keys.expert_dispatch == "alltoall":
        return 0.0
    notes.default("parallel.expert_overlap", "0.5 of the exchange of tokens")
    return 0.5


def _data_shard(keys: ParallelKeys, data: int, notes: Notes) -> int | None:
    if keys.local_steps > 1:
        if (keys.data_shard or 1) == data:
            raise ScenarioError(
                f"found {keys.local_steps}, but there is one group of {data} replicas; nothing is apart",
                key="parallel.local_steps",
            )
        if keys.data_shard is None:
            notes.echo["parallel.data_shard"] = "1 (not stated; with local_steps every replica is on its own)"
            return 1
    if keys.data_shard is None or keys.data_shard == data:
        return None
    if data % keys.data_shard:
        raise ScenarioError(
            f"{keys.data_shard} does not divide the {data} replicas", key="parallel.data_shard"
        )
    return keys.data_shard


def _rank_order(text: str, keys: ParallelKeys, data: int) -> tuple[str, ...]:
    """Read ``tp-cp-ep-dp-pp``; axes of size one may be left out and are then the slowest."""
    axes = tuple(text.lower().split("-"))
    if len(set(axes)) != len(axes) or not set(axes) <= set(RANK_ORDER):
        raise ScenarioError(
            f"found {text!r}; each of {', '.join(RANK_ORDER)} at most once is needed, the fastest first, "
            f"such as {'-'.join(RANK_ORDER)}",
            key="parallel.rank_order",
        )
    sizes = {"tp": keys.tensor, "cp": keys.context, "ep": keys.expert, "dp": data, "pp": keys.pipeline}
    left_out = [axis for axis in RANK_ORDER if axis not in axes]
    for axis in left_out:
        if sizes[axis] > 1:
            raise ScenarioError(
                f"{text!r} leaves out {axis}, of which there are {sizes[axis]}", key="parallel.rank_order"
            )
    return (*axes, *left_out)


def _check_expert_groups(parallel: Parallel) -> None:
    """Devices that share experts hold the same layers: they are among the data * context replicas."""
    key, expert, replicas = "parallel.expert", parallel.expert, parallel.num_replicas
    devices, shards = parallel.tensor * replicas, parallel.num_expert_shards
    if parallel.num_groups > 1 and expert > 1 and parallel.tensor * parallel.num_sharing % shards:
        raise ScenarioError(
            f"{parallel.data_shard} x context {parallel.context} x tensor {parallel.tensor} is no multiple "
            f"of the {shards} devices that hold a layer's experts",
            key="parallel.data_shard",
        )
    if devices % shards:
        cut = (
            "" if parallel.expert_tensor is None else f" x expert_tensor {parallel.expert_tensor} = {shards}"
        )
        over = f"data {parallel.data} x context {parallel.context} = {replicas}"
        over = over if parallel.expert_tensor is None else f"tensor {parallel.tensor} x {over}"
        raise ScenarioError(
            f"{expert}{cut} does not divide {over}; devices that share a layer's experts are among those "
            "that hold its other weights",
            key=key,
        )
    behind_pipeline = parallel.rank_order[parallel.rank_order.index("pp") + 1 :]
    sizes = {"tp": parallel.tensor, "cp": parallel.context, "ep": expert, "dp": parallel.data}
    pipeline_is_slowest = parallel.pipeline == 1 or all(sizes[axis] == 1 for axis in behind_pipeline)
    if expert > 1 and not pipeline_is_slowest and parallel.num_expert_replicas != parallel.data:
        raise ScenarioError(
            f"with {'-'.join(parallel.rank_order)} experts need context = expert, so that as many devices "
            f"share gradients of experts as of other weights; found context {parallel.context}, expert "
            f"{expert} (Megatron-LM has this rule too)",
            key="parallel.rank_order",
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
    if layers.kind != "list" and ranks > model.num_hidden_layers:
        raise ScenarioError(_too_few(f"{ranks} stages", ranks, model), key="parallel.pipeline")
    if layers.kind != "list" and num_stages > model.num_hidden_layers:
        what = f"{ranks} ranks x {chunks} chunks = {num_stages} stages"
        raise ScenarioError(_too_few(what, num_stages, model), key="parallel.virtual_stages")
    _check_context(model, parallel)
    _check_tensor(model, parallel)
    _check_experts(model, parallel)
    notes.echo["layers"] = _describe_split(model, parallel, layers)
    if tensor == 1 and parallel.sequence_parallel:
        notes.warnings.append("parallel.sequence_parallel changes nothing without tensor parallelism")


def check_torch_cut(parallel: Parallel, layers: LayerSplit, notes: Notes) -> None:
    """Refuse what nobody knows how to do with a user's own layers; echo how they are cut.

    Raises
    ------
    ScenarioError
        Parallelism inside a layer.
    """
    for axis in ("tensor", "context", "expert"):
        if getattr(parallel, axis) > 1:
            raise ScenarioError(
                f"found {getattr(parallel, axis)}; a torch model's layers are not cut into, so 1 is needed "
                "(pipeline and data parallelism take them whole)",
                key=f"parallel.{axis}",
            )
    if parallel.sequence_parallel:
        raise ScenarioError("has no effect on a torch model; remove it", key="parallel.sequence_parallel")
    notes.echo["layers"] = layers.kind


def _describe_split(model: Transformer, parallel: Parallel, layers: LayerSplit) -> str:
    """Words for the layers of each stage; for an even split also of a schedule that has one chunk a rank."""
    ranks, num_stages = parallel.pipeline, parallel.pipeline * parallel.virtual_stages
    if layers.kind == "balanced":
        return "balanced: the slowest rank as fast as possible within its memory, embedding and head counted"
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
    if parallel.sequence_parallel and model.seq_length % (tensor * parallel.context):
        share = f" / context {parallel.context}" if parallel.context > 1 else ""
        raise ScenarioError(
            f"{tensor} does not divide seq_length {model.seq_length}{share}, which sequence_parallel needs",
            key=key,
        )


def _check_context(model: Transformer, parallel: Parallel) -> None:
    context = parallel.context
    if context > 1 and model.seq_length % (2 * context):
        raise ScenarioError(
            f"2 x {context} does not divide seq_length {model.seq_length}; a device takes two chunks of each "
            "sequence, an early and a late one, so that causal attention is even",
            key="parallel.context",
        )
    groups = {"ulysses": context, "hierarchical": parallel.context_inner or 1}
    by_heads = parallel.tensor * groups.get(parallel.context_exchange, 1)
    if context > 1 and model.num_key_value_heads % by_heads and by_heads > parallel.tensor:
        raise ScenarioError(
            f"{parallel.context_exchange} shares whole heads out: tensor {parallel.tensor} x "
            f"{by_heads // parallel.tensor} does not divide the {model.num_key_value_heads} key-value heads",
            key="parallel.context_exchange",
        )


def _check_experts(model: Transformer, parallel: Parallel) -> None:
    experts, tensor = model.experts, parallel.tensor
    if experts is None:
        if parallel.expert > 1:
            raise ScenarioError(f"{parallel.expert}, but the model has no experts", key="parallel.expert")
        return
    if experts.num_experts % parallel.expert:
        raise ScenarioError(
            f"{parallel.expert} does not divide the model's {experts.num_experts} experts",
            key="parallel.expert",
        )
    for name, size, cut in (
        ("moe_intermediate_size", experts.intermediate_size, parallel.expert_tensor or tensor),
        ("shared_expert_intermediate_size", experts.shared_intermediate_size, tensor),
    ):
        if size % cut:
            raise ScenarioError(f"{cut} does not divide {name} {size}", key="parallel.tensor")
    if tensor > 1 and not parallel.sequence_parallel:
        raise ScenarioError(
            "experts with tensor parallelism need it: true (Megatron-LM has this rule too)",
            key="parallel.sequence_parallel",
        )


def _replicas(keys: ParallelKeys, cluster: Cluster, notes: Notes) -> int:
    model_gpus = keys.tensor * keys.context * keys.pipeline
    size = f"{cluster.num_gpus} GPUs ({cluster.num_nodes} nodes x {cluster.gpus_per_node})"
    data, rest = divmod(cluster.num_gpus, model_gpus)
    context = f" x context {keys.context}" if keys.context > 1 else ""
    product = f"tensor {keys.tensor}{context} x pipeline {keys.pipeline}"
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
