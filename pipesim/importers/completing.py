"""Facts completed to a scenario that loads: replicas, batch and cluster."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pipesim.errors import ScenarioError
from pipesim.importers.facts import Facts, product, refuse_what_the_tool_refuses
from pipesim.scenario.counts import shown
from pipesim.scenario.entry import scenario_from_mapping
from pipesim.scenario.overrides import apply_overrides, parse_override
from pipesim.scenario.presets import get_preset

GPUS_PER_NODE = 8
PLACEHOLDER_ACCELERATOR = "h100-sxm"
BLACKWELL = "b200-sxm"
"""Placeholder where a format needs such a device."""
_INTER_NODE = {"a100-sxm-40": "ib-hdr", "a100-sxm-80": "ib-hdr", "v100-sxm2-32": "ib-edr"}
_GPUS = "--gpus N states another number"
_SECTIONS = (
    "layers",
    "recompute",
    "recompute_modules",
    "recompute_layers",
    "trainable",
    "offload",
    "cuda_graphs",
    "optimizer",
    "precision",
    "efficiency",
)
"""Keys of a scenario that the facts hold as they are, in the order in which they are written."""


@dataclass(frozen=True, slots=True)
class Imported:
    """A scenario as a mapping, and what its reader has to say about it."""

    tool: str
    files: str
    mapping: dict[str, Any]
    inferred: dict[str, str]
    not_used: dict[str, str]
    placeholders: dict[str, str]


def complete(facts: Facts, *, overrides: Iterable[str] = ()) -> Imported:
    """Infer the replicas and the batch, refuse what cannot be, fill what is missing with placeholders.

    Parameters
    ----------
    facts : Facts
        From a reader.
    overrides : iterable of str
        ``KEY=VALUE`` each, laid over the scenario before it is checked.

    Returns
    -------
    Imported
        Its mapping loads as a scenario.

    Raises
    ------
    ScenarioError
        Sizes that do not multiply to the number of GPUs, a batch that does not divide, experts that do not
        fit, what the framework itself refuses, or anything else that a scenario refuses.
    """
    _take_stated(facts)
    _drop_what_has_no_effect(facts)
    facts.data = _replicas(facts)
    _check_experts(facts, facts.data)
    batch = _batch(facts, facts.data)
    refuse_what_the_tool_refuses(facts)
    mapping: dict[str, Any] = {
        "name": facts.name,
        "model": facts.model,
        "cluster": _cluster(facts, facts.tensor * facts.pipeline * facts.context * facts.data),
        "parallel": _parallel(facts),
        "batch": batch,
        "schedule": facts.schedule,
    }
    _take_own_set(facts, mapping["cluster"]["accelerator"])
    for key in _SECTIONS:
        value = getattr(facts, key)
        if value not in (None, {}):
            mapping[key] = value["preset"] if key == "efficiency" and list(value) == ["preset"] else value
    if "compute" not in facts.precision:
        facts.placeholders.setdefault("precision", "the number format is not stated; bf16 is taken")
        facts.precision.setdefault("compute", "bf16")
        mapping["precision"] = facts.precision
    if list(facts.precision) == ["compute"]:
        mapping["precision"] = facts.precision["compute"]
    if facts.p2p is not None:
        mapping["network"] = {"p2p": facts.p2p}
    overrides = tuple(overrides)
    mapping = apply_overrides(mapping, overrides)
    try:
        scenario_from_mapping(mapping)
    except ScenarioError as error:
        way_out = (
            "" if error.key is None or "--" in error.message else f"; --set {error.key}=VALUE changes it"
        )
        raise ScenarioError(error.message + way_out, file=error.file or facts.files, key=error.key) from None
    stated = [parse_override(override)[0] for override in overrides]
    invented = {key: why for key, why in facts.placeholders.items() if not _is_below(key, stated)}
    return Imported(facts.tool, facts.files, mapping, facts.inferred, facts.not_used, invented)


def _take_own_set(facts: Facts, accelerator: str) -> None:
    """Time a run with the efficiency set of its own software, or say that the accelerator has none."""
    if not facts.sets or "efficiency" in facts.stated or "efficiency.preset" in facts.stated:
        return
    accelerator = facts.stated.get(
        "cluster.accelerator.preset", facts.stated.get("cluster.accelerator", accelerator)
    )
    if own := facts.sets.get(accelerator if isinstance(accelerator, str) else ""):
        facts.efficiency["preset"] = own
        facts.inferred["efficiency"] = (
            f"{own} (runs of {facts.tool} on {accelerator}; `pipesim presets` lists others)"
        )
    else:
        facts.inferred["efficiency"] = (
            f"no set of {facts.tool} on {shown(accelerator)}: the accelerator's usual one, measured with "
            "other software, stands in; `pipesim presets` lists what there is"
        )


def _is_below(key: str, stated: Iterable[str]) -> bool:
    return any(f"{key}.".startswith(f"{other}.") for other in stated)


def _take_stated(facts: Facts) -> None:
    """Let what the user states stand in place of what the file says, where readers have not seen to it."""
    for key in ("tensor", "pipeline", "context", "expert", "virtual_stages", "data"):
        value = facts.stated.get(f"parallel.{key}")
        if type(value) is int and value > 0:
            setattr(facts, key, value)
    for key, attribute in (("micro", "micro"), ("global", "global_size"), ("microbatches", "microbatches")):
        value = facts.stated.get(f"batch.{key}")
        if type(value) is int and value > 0:
            setattr(facts, attribute, value)
    if "batch.microbatches" in facts.stated:
        facts.global_size = None
    elif "batch.global" in facts.stated:
        facts.microbatches = None
    facts.schedule = facts.stated.get("schedule", facts.schedule)
    nodes, per_node = facts.stated.get("cluster.num_nodes"), facts.stated.get("cluster.gpus_per_node")
    if type(per_node) is int and per_node > 0:
        facts.gpus_per_node = per_node
    if type(nodes) is int and nodes > 0:
        facts.num_gpus = nodes * (facts.gpus_per_node or GPUS_PER_NODE)
        facts.data = None if "parallel.data" not in facts.stated else facts.data
    elif "parallel.data" in facts.stated:
        facts.num_gpus = None


def _drop_what_has_no_effect(facts: Facts) -> None:
    """Leave out what a scenario would refuse beside the optimizer and the recomputation that count."""
    facts.optimizer = facts.stated.get("optimizer", facts.optimizer)
    if facts.overlap_gradients and facts.optimizer in ("zero2", "zero3", "fsdp"):
        facts.overlap_gradients = False
        facts.inferred["parallel.overlap_gradients"] = (
            f"left out: {facts.optimizer} reduces gradients beside every backward"
        )
    recompute = facts.stated.get("recompute", facts.recompute)
    if recompute != "selective":
        facts.recompute_modules = None
    if recompute != "full":
        facts.recompute_layers = None


def _parallel(facts: Facts) -> dict[str, Any]:
    parallel: dict[str, Any] = {"tensor": facts.tensor, "pipeline": facts.pipeline, "data": facts.data}
    parallel |= {
        key: size for key, size in (("context", facts.context), ("expert", facts.expert)) if size > 1
    }
    if facts.context > 1:
        parallel |= {"context_exchange": facts.context_exchange} if facts.context_exchange else {}
        parallel |= {"context_inner": facts.context_inner} if facts.context_inner else {}
    if facts.expert > 1:
        cut = facts.expert_tensor
        parallel |= {"expert_tensor": cut} if cut not in (None, facts.tensor) else {}
        parallel |= {"expert_dispatch": facts.expert_dispatch} if facts.expert_dispatch else {}
    parallel["virtual_stages"] = facts.virtual_stages
    if facts.microbatch_group_size is not None:
        parallel["microbatch_group_size"] = facts.microbatch_group_size
    if facts.sequence_parallel is not None:
        parallel["sequence_parallel"] = facts.sequence_parallel and facts.tensor > 1
    if facts.overlap_gradients:
        parallel["overlap_gradients"] = True
    if facts.reshard_after_forward and facts.optimizer == "fsdp" and facts.pipeline > 1:
        parallel["reshard_after_forward"] = True
    return parallel | _mirrors(facts)


def _mirrors(facts: Facts) -> dict[str, int]:
    """Say how many replicas share out among themselves, where the others hold the same again.

    Raises
    ------
    ScenarioError
        Groups that do not divide the replicas.
    """
    data = facts.data or 1
    if facts.optimizer in (None, "plain") or "parallel.data_shard" in facts.stated:
        return {}
    shard = data // facts.num_mirrors if facts.shard is None else min(facts.shard, data)
    if shard == 0 or data % shard or (facts.shard is None and data % facts.num_mirrors):
        groups = f"groups of {facts.shard}" if facts.shard else f"{facts.num_mirrors} groups"
        raise ScenarioError(
            f"{groups} that share out optimizer states do not divide {data} replicas; "
            "--set parallel.data_shard=N states another size",
            file=facts.files,
            key="parallel.data_shard",
        )
    mirrors = data // shard
    if mirrors == 1:
        return {}
    if facts.expert > 1:
        facts.not_used["parallel.data_shard"] = (
            f"{shard}: not modelled with experts shared out among replicas; what they share out is spread "
            f"over all {data}, so the run keeps {mirrors} times that"
        )
        return {}
    facts.inferred["parallel.data_shard"] = f"{shard} ({data} replicas / {mirrors} groups)"
    return {"data_shard": shard}


def _replicas(facts: Facts) -> int:
    sizes = {"tensor": facts.tensor, "pipeline": facts.pipeline}
    if facts.context > 1:
        sizes["context"] = facts.context
    at_least, words = product(**sizes)
    if facts.data is not None:
        total, words = product(**sizes, data=facts.data)
        if facts.num_gpus is not None and total != facts.num_gpus:
            raise ScenarioError(
                f"{words}, but the run has {facts.num_gpus} GPUs; --gpus {total} or --set parallel.data=N "
                "states another number",
                file=facts.files,
                key="parallel",
            )
        return facts.data
    if facts.num_gpus is not None:
        data, rest = divmod(facts.num_gpus, at_least)
        if rest or not data:
            raise ScenarioError(
                f"{words} does not divide the run's {facts.num_gpus} GPUs; {_GPUS}, a multiple of {at_least}",
                file=facts.files,
                key="parallel",
            )
        facts.inferred["parallel.data"] = f"{data} ({facts.num_gpus} GPUs / ({words}))"
        return data
    data = _placeholder_replicas(facts, at_least)
    facts.placeholders["parallel.data"] = (
        f"the number of GPUs is not stated; {data} replica{'s' if data > 1 else ''} of {words} taken"
    )
    facts.placeholders["cluster.num_nodes"] = "follows from parallel.data"
    return data


def _placeholder_replicas(facts: Facts, at_least: int) -> int:
    """Take the fewest replicas that hold the experts, preferably of whole nodes."""
    group = facts.tensor * facts.context
    experts = facts.expert * (facts.expert_tensor or facts.tensor) if facts.expert > 1 else 1
    fewest = experts // math.gcd(experts, group)
    whole = GPUS_PER_NODE // math.gcd(at_least, GPUS_PER_NODE)
    for data in (math.lcm(fewest, whole), fewest):
        if facts.global_size is None or facts.global_size % (facts.micro * data) == 0:
            return data
    return fewest


def _check_experts(facts: Facts, data: int) -> None:
    """Refuse groups of experts that do not fit, with the number of devices that they need.

    Raises
    ------
    ScenarioError
        They do not divide the devices of a stage.
    """
    if facts.expert == 1:
        return
    each = facts.tensor if facts.expert_tensor is None else facts.expert_tensor
    group = facts.tensor * facts.context * data
    if group % (facts.expert * each):
        fewest = facts.pipeline * math.lcm(facts.tensor * facts.context, facts.expert * each)
        raise ScenarioError(
            f"expert {facts.expert} x expert-tensor {each} = {facts.expert * each} does not divide "
            f"tensor {facts.tensor} x context {facts.context} x data {data} = {group}; state the number of "
            f"GPUs by --gpus N or the script's own variable by --define, such as --define NNODES=N: "
            f"{fewest} at least",
            file=facts.files,
            key="parallel.expert",
        )


def _batch(facts: Facts, data: int) -> dict[str, int]:
    at_once = facts.micro * data
    if facts.global_size is None:
        if facts.microbatches is None:
            raise ScenarioError(
                "neither a global batch nor a number of microbatches; --set batch.global=N states it",
                file=facts.files,
                key="batch",
            )
        facts.global_size = facts.microbatches * at_once
        facts.inferred["batch.global"] = (
            f"{facts.global_size} (microbatches {facts.microbatches} x micro {facts.micro} x data {data})"
        )
    num_microbatches, rest = divmod(facts.global_size, at_once)
    if rest or not num_microbatches:
        raise ScenarioError(
            f"global batch {facts.global_size} is not a multiple of micro {facts.micro} x data {data} = "
            f"{at_once}; --set batch.global=N or --gpus N states another",
            file=facts.files,
            key="batch.global",
        )
    if facts.microbatches is not None and facts.microbatches != num_microbatches:
        raise ScenarioError(
            f"{facts.microbatches} microbatches x micro {facts.micro} x data {data} = "
            f"{facts.microbatches * at_once}, but the global batch is {facts.global_size}; "
            "--set batch.global=N states which counts",
            file=facts.files,
            key="batch",
        )
    if "batch.microbatches" in facts.stated:
        return {"micro": facts.micro}
    words = f"{num_microbatches} (global {facts.global_size} / (micro {facts.micro} x data {data}))"
    why = facts.inferred.get("batch.microbatches")
    facts.inferred["batch.microbatches"] = f"{words}; {why}" if why else words
    return {"global": facts.global_size, "micro": facts.micro}


def _cluster(facts: Facts, gpus: int) -> dict[str, Any]:
    per_node = facts.gpus_per_node
    if per_node is None:
        per_node = max(size for size in range(1, GPUS_PER_NODE + 1) if gpus % size == 0)
        facts.placeholders["cluster.gpus_per_node"] = "not stated"
        facts.placeholders.setdefault("cluster.num_nodes", "follows from cluster.gpus_per_node")
    elif gpus < per_node or gpus % per_node:
        facts.placeholders["cluster.gpus_per_node"] = f"{per_node} do not divide the {gpus} GPUs used here"
        per_node = math.gcd(gpus, per_node)
    accelerator = facts.accelerator
    if accelerator is None:
        blackwell = {"nvfp4", "mxfp8"}.intersection(map(str, facts.precision.values()))
        accelerator = BLACKWELL if blackwell else PLACEHOLDER_ACCELERATOR
        facts.placeholders["cluster.accelerator"] = "not stated; `pipesim presets` lists what there is" + (
            f", and {min(blackwell)} needs a Blackwell" if blackwell else ""
        )
    facts.placeholders["cluster.intra_node"] = f"not stated; usual for {accelerator}"
    facts.placeholders["cluster.inter_node"] = f"not stated; usual for {accelerator}, one a device"
    return {
        "accelerator": accelerator,
        "num_nodes": gpus // per_node,
        "gpus_per_node": per_node,
        "intra_node": get_preset("accelerators", accelerator).fields["intra_node"],
        "inter_node": _INTER_NODE.get(accelerator, "ib-ndr"),
    }
