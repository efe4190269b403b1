"""What a reader found in another tool's files, completed to a scenario that loads."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pipesim.errors import ScenarioError
from pipesim.importers.values import joined, product
from pipesim.scenario.entry import scenario_from_mapping
from pipesim.scenario.overrides import apply_overrides, parse_override
from pipesim.scenario.presets import get_preset

GPUS_PER_NODE = 8
PLACEHOLDER_ACCELERATOR = "h100-sxm"
_INTER_NODE = {"a100-sxm-40": "ib-hdr", "a100-sxm-80": "ib-hdr", "v100-sxm2-32": "ib-edr"}


@dataclass(slots=True)
class Facts:
    """Sizes that a file states (None: it does not), and what was noted on the way.

    Parameters
    ----------
    tool, files, name : str
        The framework, the files' names, the scenario's name.
    model : dict
        Fields of ``model:`` as a scenario states them.
    inferred : dict
        What was concluded or taken by default, by key, in words.
    not_used : dict
        What the file states and the scenario does not say, by the file's own key, in words.
    placeholders : dict
        What the file does not state and the scenario needs, by the scenario's key: why, in words.
    """

    tool: str
    files: str
    name: str
    model: dict[str, Any]
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    expert_tensor: int | None = None
    data: int | None = None
    virtual_stages: int = 1
    microbatch_group_size: int | None = None
    sequence_parallel: bool | None = None
    overlap_gradients: bool = False
    num_gpus: int | None = None
    gpus_per_node: int | None = None
    accelerator: str | None = None
    micro: int = 1
    global_size: int | None = None
    microbatches: int | None = None
    schedule: Any = "1f1b"
    layers: Any = None
    added_layers: int = 0
    recompute: str | None = None
    optimizer: str | None = None
    precision: str | None = None
    p2p: str | None = None
    inferred: dict[str, str] = field(default_factory=dict)
    not_used: dict[str, str] = field(default_factory=dict)
    placeholders: dict[str, str] = field(default_factory=dict)


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
        fit, or anything else that a scenario refuses.
    """
    data = _replicas(facts)
    experts = _experts(facts, data)
    batch = _batch(facts, data)
    parallel: dict[str, Any] = {"tensor": facts.tensor, "pipeline": facts.pipeline, "data": data}
    parallel |= {key: size for key, size in (("context", facts.context), ("expert", experts)) if size > 1}
    gpus = facts.tensor * facts.pipeline * facts.context * data
    parallel["virtual_stages"] = facts.virtual_stages
    if facts.microbatch_group_size is not None:
        parallel["microbatch_group_size"] = facts.microbatch_group_size
    if facts.sequence_parallel is not None:
        parallel["sequence_parallel"] = facts.sequence_parallel and facts.tensor > 1
    if facts.overlap_gradients:
        parallel["overlap_gradients"] = True
    mapping: dict[str, Any] = {
        "name": facts.name,
        "model": facts.model,
        "cluster": _cluster(facts, gpus),
        "parallel": parallel,
        "batch": batch,
        "schedule": facts.schedule,
    }
    for key in ("layers", "recompute", "optimizer", "precision"):
        value = getattr(facts, key)
        if value is not None:
            mapping[key] = value
    if facts.p2p is not None:
        mapping["network"] = {"p2p": facts.p2p}
    overrides = tuple(overrides)
    mapping = apply_overrides(mapping, overrides)
    try:
        scenario_from_mapping(mapping)
    except ScenarioError as error:
        raise ScenarioError(error.message, file=error.file or facts.files, key=error.key) from None
    stated = [parse_override(override)[0] for override in overrides]
    invented = {key: why for key, why in facts.placeholders.items() if not _is_below(key, stated)}
    return Imported(facts.tool, facts.files, mapping, facts.inferred, facts.not_used, invented)


def spread_layers(num_layers: int, parts: int) -> str:
    """Propose a split that loses no layer, in words."""
    each, more = divmod(num_layers, parts)
    return joined([each + 1] * more + [each] * (parts - more))


def refuse_lost_layers(num_layers: int, parts: int, *, what: str, file: str, key: str) -> None:
    """Refuse a number of layers that the parts do not divide: frameworks then drop the rest in silence.

    Raises
    ------
    ScenarioError
        With the number of layers that would be lost and a split that loses none.
    """
    each, lost = divmod(num_layers, parts)
    if not lost:
        return
    if not each:
        raise ScenarioError(f"{num_layers} layers cannot fill {parts} {what}", file=file, key=key)
    raise ScenarioError(
        f"{num_layers} layers on {parts} {what}: {each} each hold {each * parts}, {lost} would be dropped in "
        f"silence; {spread_layers(num_layers, parts)} would keep all",
        file=file,
        key=key,
    )


def cut_evenly(facts: Facts, num_layers: int, chunks: int, *, file: str, key: str) -> None:
    """Set the chunks of a rank and the 1F1B that runs them.

    Raises
    ------
    ScenarioError
        As for `refuse_lost_layers`.
    """
    facts.virtual_stages = chunks
    facts.schedule = "interleaved-1f1b" if chunks > 1 else "1f1b"
    refuse_lost_layers(
        num_layers,
        facts.pipeline * chunks,
        what=f"stages (pipeline {facts.pipeline} x virtual {chunks})",
        file=file,
        key=key,
    )


def _is_below(key: str, stated: Iterable[str]) -> bool:
    return any(f"{key}.".startswith(f"{other}.") for other in stated)


def _replicas(facts: Facts) -> int:
    sizes = {"tensor": facts.tensor, "pipeline": facts.pipeline}
    if facts.context > 1:
        sizes["context"] = facts.context
    at_least, words = product(**sizes)
    if facts.data is not None:
        total, words = product(**sizes, data=facts.data)
        if facts.num_gpus is not None and total != facts.num_gpus:
            raise ScenarioError(
                f"{words}, but the run has {facts.num_gpus} GPUs", file=facts.files, key="parallel"
            )
        return facts.data
    if facts.num_gpus is not None:
        data, rest = divmod(facts.num_gpus, at_least)
        if rest or not data:
            raise ScenarioError(
                f"{words} does not divide the run's {facts.num_gpus} GPUs", file=facts.files, key="parallel"
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


def _experts(facts: Facts, data: int) -> int:
    """Check the experts' groups; give the number of devices among which whole experts are shared out.

    Megatron-LM may cut experts less than other weights (``--expert-tensor-parallel-size``). A scenario cuts
    them alike, so fewer devices then share out thinner experts: as many weights a device.
    """
    if facts.expert == 1:
        return 1
    each = facts.tensor if facts.expert_tensor is None else facts.expert_tensor
    group = facts.tensor * facts.context * data
    if group % (facts.expert * each):
        raise ScenarioError(
            f"expert {facts.expert} x expert-tensor {each} = {facts.expert * each} does not divide "
            f"tensor {facts.tensor} x context {facts.context} x data {data} = {group}",
            file=facts.files,
            key="parallel.expert",
        )
    if each == facts.tensor:
        return facts.expert
    written, rest = divmod(facts.expert * each, facts.tensor)
    if rest or not written:
        raise ScenarioError(
            f"expert {facts.expert} x expert-tensor {each} is not a multiple of tensor {facts.tensor}, which "
            "is not modelled",
            file=facts.files,
            key="parallel.expert",
        )
    facts.not_used["expert-tensor-parallel-size"] = (
        f"{each}: not modelled; expert {facts.expert} is written as {written} with experts cut by tensor "
        f"{facts.tensor}, which leaves the weights of a device the same"
    )
    return written


def _batch(facts: Facts, data: int) -> dict[str, int]:
    at_once = facts.micro * data
    if facts.global_size is None:
        if facts.microbatches is None:
            raise ScenarioError("neither a global batch nor a number of microbatches", file=facts.files)
        facts.global_size = facts.microbatches * at_once
        facts.inferred["batch.global"] = (
            f"{facts.global_size} (microbatches {facts.microbatches} x micro {facts.micro} x data {data})"
        )
    num_microbatches, rest = divmod(facts.global_size, at_once)
    if rest or not num_microbatches:
        raise ScenarioError(
            f"global batch {facts.global_size} is not a multiple of micro {facts.micro} x data {data} = "
            f"{at_once}",
            file=facts.files,
            key="batch.global",
        )
    if facts.microbatches is not None and facts.microbatches != num_microbatches:
        raise ScenarioError(
            f"{facts.microbatches} microbatches x micro {facts.micro} x data {data} = "
            f"{facts.microbatches * at_once}, but the global batch is {facts.global_size}",
            file=facts.files,
            key="batch",
        )
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
        accelerator = PLACEHOLDER_ACCELERATOR
        facts.placeholders["cluster.accelerator"] = "not stated; `pipesim presets` lists what there is"
    facts.placeholders["cluster.intra_node"] = f"not stated; usual for {accelerator}"
    facts.placeholders["cluster.inter_node"] = f"not stated; usual for {accelerator}, one a device"
    return {
        "accelerator": accelerator,
        "num_nodes": gpus // per_node,
        "gpus_per_node": per_node,
        "intra_node": get_preset("accelerators", accelerator).fields["intra_node"],
        "inter_node": _INTER_NODE.get(accelerator, "ib-ndr"),
    }
