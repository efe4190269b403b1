"""DeepSpeed's JSON (batch, ZeRO, number format) with the launcher's Megatron arguments (everything else)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path

from pipesim.errors import ScenarioError
from pipesim.importers.facts import Facts, Limit, joined, spread
from pipesim.importers.megatron import megatron_facts
from pipesim.importers.megatron_arguments import Arguments, read_arguments
from pipesim.importers.megatron_formats import (
    BYTES,
    STATES,
)
from pipesim.importers.request import Request
from pipesim.reading import read_text
from pipesim.scenario.counts import MAX_LAYERS, shown
from pipesim.scenario.json_text import parse_json_object
from pipesim.scenario.settings import Settings

_MODEL = "gpt3-6.7b"
_ZERO = {0: "plain", 1: "sharded", 2: "zero2", 3: "zero3"}
LIMITS = (
    Limit(
        lambda facts: facts.pipeline > 1 and facts.optimizer in ("zero2", "zero3"),
        "refuses ZeRO 2 and 3 with a pipeline",
        "deepspeed/runtime/pipe/engine.py, since 0.3.11",
        "optimizer",
        "--set optimizer=sharded states ZeRO 1",
    ),
)


def read(request: Request) -> Facts:
    """Read a DeepSpeed configuration, and scripts or YAML with the arguments of Megatron-DeepSpeed.

    The JSON may stand in a file of its own or in a here-document of a script. Without arguments, model and
    sizes are placeholders.

    Raises
    ------
    ScenarioError
        No or more than one configuration, batch sizes that contradict each other, ZeRO stages that a pipeline
        does not take, or what the reader of Megatron-LM refuses.
    """
    texts = {path: read_text(path) for path in request.paths}
    objects = [path for path, text in texts.items() if text.lstrip().startswith("{")]
    others = [path for path in request.paths if path not in objects]
    found = [parse_json_object(texts[path], file=str(path)) for path in objects]
    arguments = read_arguments(others, request.define) if others else None
    if arguments is not None:
        found += [
            parse_json_object(text, file=arguments.files)
            for text in arguments.documents
            if text.lstrip().startswith("{")
        ]
    if len(found) != 1:
        raise ScenarioError(f"{len(found)} DeepSpeed configurations found, one is needed", file=request.files)
    config = request.settings(found[0], ", ".join(str(path) for path in objects) or None)
    facts, settings = _facts(request, arguments, others[0] if others else request.paths[0])
    facts.limits = LIMITS
    _apply(facts, settings, config)
    return facts


def zero_level(config: Settings, facts: Facts) -> str:
    """Read ``zero_optimization.stage``.

    Raises
    ------
    ScenarioError
        Not a stage.
    """
    stage = config.count("zero_optimization.stage", minimum=0) or 0
    if stage not in _ZERO:
        raise config.refuse(
            "zero_optimization.stage",
            f"found {stage}; 0, 1, 2 or 3 is needed; --ignore zero_optimization.stage reads on without it",
        )
    return _ZERO[stage]


def read_overlap(config: Settings, facts: Facts, *, pipelined: bool) -> None:
    """Read ``zero_optimization.overlap_comm``; it hides reductions with ZeRO 1 and without a pipeline only.

    DeepSpeed's pipeline switches reductions inside the backward off and runs them after the last one (its
    ``runtime/pipe/engine.py``); ZeRO 2 and 3 reduce in every backward as it is.
    """
    key = "zero_optimization.overlap_comm"
    if not config.flag(key):
        return
    facts.overlap_gradients = facts.optimizer == "sharded" and not pipelined
    if facts.overlap_gradients:
        facts.inferred["parallel.overlap_gradients"] = f"true ({key})"
    elif pipelined:
        facts.not_used[key] = "true: DeepSpeed's pipeline reduces gradients after the last backward"
    else:
        facts.not_used[key] = f"true: has no effect beyond what {facts.optimizer} does"


def number_format(config: Settings) -> str | None:
    """Read which of ``bf16`` and ``fp16`` is enabled.

    Raises
    ------
    ScenarioError
        Both are.
    """
    enabled = [
        name
        for name, paths in (("bf16", ("bf16.enabled", "bfloat16.enabled")), ("fp16", ("fp16.enabled",)))
        if config.raw(*paths)[1] is True
    ]
    if len(enabled) > 1:
        raise config.refuse(
            "fp16.enabled", "bf16 and fp16 are both enabled; --ignore fp16.enabled leaves one out"
        )
    return enabled[0] if enabled else None


def read_formats(config: Settings, facts: Facts) -> None:
    """Read the format in which gradients are added up, and the kind of optimizer.

    Raises
    ------
    ScenarioError
        A format that is not known.
    """
    key = "data_types.grad_accum_dtype"
    kind = config.text(key)
    if kind is not None:
        if kind not in BYTES:
            raise config.refuse(
                key, f"found {shown(kind)}; known: {', '.join(BYTES)}; --ignore {key} reads on without it"
            )
        if BYTES[kind] != 4:
            facts.precision["gradient_bytes"] = BYTES[kind]
            facts.inferred["precision.gradient_bytes"] = f"{BYTES[kind]} ({key} {kind})"
    name = (config.text("optimizer.type") or "adam").lower()
    known = {short: number for short, number in STATES.items() if name.endswith(short)}
    if not known:
        facts.not_used["optimizer.type"] = f"{name}: its state is counted as that of Adam"
    elif max(known.values()) != 2:
        facts.precision["optimizer_bytes"] = 4 + 4 * max(known.values())
        facts.inferred["precision.optimizer_bytes"] = (
            f"{facts.precision['optimizer_bytes']} (main parameters and state of {name})"
        )


def read_offload(config: Settings, facts: Facts) -> None:
    """Read ``zero_optimization.offload_optimizer`` and ``mics_shard_size``.

    Raises
    ------
    ScenarioError
        A share that is none, or groups that are not counts.
    """
    section = "zero_optimization.offload_optimizer"
    device = config.text(f"{section}.device") or "none"
    config.skip(f"{section}.pin_memory", f"{section}.fast_init", f"{section}.buffer_count")
    key, ratio = config.raw(f"{section}.ratio")
    if device == "none" and not config.flag("zero_optimization.cpu_offload"):
        return
    ratio = 1.0 if ratio is None else ratio
    if not isinstance(ratio, (int, float)) or isinstance(ratio, bool) or not 0 <= ratio <= 1:
        raise config.refuse(
            key, f"found {shown(ratio)}; a share from 0 to 1 is needed; --ignore {key} takes 1"
        )
    facts.offload["optimizer"] = float(ratio)
    facts.inferred["offload.optimizer"] = f"{ratio:g} (the optimizer's state waits in the {device} memory)"
    if device == "nvme":
        facts.placeholders["offload"] = "the disk's rate is not stated; offload.bandwidth states it"


def filled_layers(num_layers: int, ranks: int, *, ends: int = 0) -> list[int]:
    """Split as DeepSpeed's partitioner does: every stage is filled before the next begins.

    Parameters
    ----------
    num_layers, ranks : int
        What to split, among how many.
    ends : int
        1 where the embedding and the head count as a layer each.

    Returns
    -------
    list of int
        Layers of each stage; the last may be empty.
    """
    total = num_layers + 2 * ends
    most = math.ceil(total / ranks)
    edges = [min(rank * most, total) for rank in range(ranks + 1)]
    return [
        min(max(end - ends, 0), num_layers) - min(max(start - ends, 0), num_layers)
        for start, end in itertools.pairwise(edges)
    ]


def split_as_deepspeed(facts: Facts, num_layers: int, *, ends: int, file: str, key: str) -> None:
    """Set the layers of each stage where they are uneven.

    Raises
    ------
    ScenarioError
        A stage would be empty.
    """
    if "layers" in facts.stated:
        return
    layers = filled_layers(num_layers, facts.pipeline, ends=ends)
    if min(layers) < 1:
        empty = [rank for rank, count in enumerate(layers) if not count]
        way_out = (
            f"--set layers=[{','.join(map(str, spread(num_layers, facts.pipeline)))}] gives every rank one"
            if facts.pipeline <= min(num_layers, 100)
            else "--set parallel.pipeline=N states fewer ranks"
        )
        raise ScenarioError(
            f"{num_layers} layers on {facts.pipeline} ranks: DeepSpeed fills stages with {max(layers)} "
            f"layers, which leaves nothing for rank {joined(empty[:20])}; {way_out}",
            file=file,
            key=key,
        )
    if len(set(layers)) > 1:
        facts.layers = layers
        facts.inferred["layers"] = f"{joined(layers)} (DeepSpeed fills each stage before the next)"


def _facts(request: Request, arguments: Arguments | None, path: Path) -> tuple[Facts, Settings | None]:
    if arguments is not None and arguments.values:
        return _of_arguments(request, arguments, path)
    facts = request.facts("DeepSpeed", path.stem)
    facts.model = {"preset": _MODEL}
    facts.placeholders["model"] = "the JSON knows no model; name the launcher's script as well, or edit"
    for size in ("tensor", "pipeline"):
        facts.placeholders[f"parallel.{size}"] = "the JSON knows no sizes"
    if arguments is not None:
        facts.inferred |= arguments.notes
        request.settings(arguments.rest, arguments.files)
    return facts, None


def _of_arguments(request: Request, arguments: Arguments, path: Path) -> tuple[Facts, Settings]:
    """Read as Megatron-LM's arguments, but split the layers as DeepSpeed does."""
    settings = request.settings(arguments.values, arguments.files, numbers_are_text=True)
    ranks = settings.count("pipeline-model-parallel-size", sets="parallel.pipeline", maximum=MAX_LAYERS) or 1
    total = settings.count("num-layers", sets="model.num_hidden_layers", maximum=MAX_LAYERS)
    ends = "embedding" in (settings.text("pp-partition-method") or "")
    uneven = None
    if total is not None and ranks > 1 and (total % ranks or ends):
        uneven, arguments.values["num-layers"] = total, str(ranks)
        request.made.remove(settings)
        settings = request.settings(arguments.values, arguments.files, numbers_are_text=True)
    settings.skip("pp-partition-method", "zero-stage", "deepspeed-activation-checkpointing")
    facts = megatron_facts(request, settings, arguments, path)
    if uneven is not None:
        facts.model["num_hidden_layers"] = uneven
        split_as_deepspeed(facts, uneven, ends=ends, file=arguments.files, key="num-layers")
    facts.tool = "DeepSpeed"
    return facts, settings


def _apply(facts: Facts, settings: Settings | None, config: Settings) -> None:
    facts.optimizer = zero_level(config, facts)
    read_overlap(config, facts, pipelined=facts.pipeline > 1)
    read_offload(config, facts)
    stated = number_format(config)
    of_arguments = facts.precision.get("compute")
    if stated is not None and of_arguments not in (None, stated):
        raise config.refuse(
            f"{stated}.enabled",
            f"{stated} is enabled, the arguments say {of_arguments}; --ignore {stated}.enabled leaves it out",
        )
    if stated is not None:
        facts.precision["compute"] = stated
        facts.placeholders.pop("precision", None)
    read_formats(config, facts)
    micro = _batch_size(config, "train_micro_batch_size_per_gpu", "batch.micro")
    steps = _batch_size(config, "gradient_accumulation_steps", "batch.microbatches")
    total = _batch_size(config, "train_batch_size", "batch.global")
    if settings is not None:
        micro = _agreed(settings, ("micro-batch-size", "batch-size"), micro, "train_micro_batch_size_per_gpu")
        total = _agreed(settings, ("global-batch-size",), total, "train_batch_size")
    if micro is None and total is None:
        raise config.refuse(
            "train_micro_batch_size_per_gpu",
            "missing; needed: this or train_batch_size; --set batch.micro=N states it",
        )
    if micro is None:
        micro, facts.inferred["batch.micro"] = 1, "1 (not stated)"
    facts.micro, facts.global_size, facts.microbatches = micro, total, steps
    if steps is None and total is None:
        facts.microbatches = 1
        facts.inferred["batch.microbatches"] = "gradient_accumulation_steps is not stated, and is 1 then"
    if facts.num_gpus is None and steps is not None and total is not None:
        data, rest = divmod(total, micro * steps)
        if rest or not data:
            raise config.refuse(
                "train_batch_size",
                f"{total} is not micro {micro} x accumulation {steps} x replicas; --set batch.global=N "
                "states another",
            )
        facts.data = data
        facts.inferred["parallel.data"] = f"{data} (train_batch_size {total} / (micro {micro} x {steps}))"


def _batch_size(config: Settings, key: str, sets: str) -> int | None:
    if config.raw(key, sets=sets)[1] == "auto":
        return None
    return config.count(key, sets=sets)


def _agreed(settings: Settings, names: Sequence[str], stated: int | None, key: str) -> int | None:
    other = settings.count(*names)
    if stated is not None and other is not None and stated != other:
        raise settings.refuse(
            key,
            f"found {stated} in the JSON, {other} among the arguments (--{names[0]}); --ignore {key} leaves "
            "the JSON's out",
        )
    return other if stated is None else stated
