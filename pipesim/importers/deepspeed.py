"""DeepSpeed's JSON (batch, ZeRO, number format) with the launcher's Megatron arguments (everything else)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pipesim.errors import ScenarioError
from pipesim.importers.facts import Facts, Imported, complete
from pipesim.importers.megatron import megatron_facts
from pipesim.importers.megatron_arguments import Arguments, read_arguments
from pipesim.importers.values import Settings, joined
from pipesim.reading import read_text
from pipesim.scenario.counts import MAX_LAYERS
from pipesim.scenario.json_text import parse_json_object

_MODEL = "gpt3-6.7b"
_ZERO = {0: "plain", 1: "sharded", 2: "zero2", 3: "zero3"}


def read_deepspeed(
    paths: Sequence[str | Path],
    *,
    define: Mapping[str, str] | None = None,
    num_gpus: int | None = None,
    overrides: Iterable[str] = (),
) -> Imported:
    """Read a DeepSpeed configuration, and scripts or YAML with the arguments of Megatron-DeepSpeed.

    Parameters
    ----------
    paths : sequence of path
        The JSON may stand in a file of its own or in a here-document of a script.
    define : Mapping, optional
        Values of shell variables.
    num_gpus : int, optional
        GPUs of the run, where the files do not say.
    overrides : iterable of str
        ``KEY=VALUE`` each, laid over the scenario.

    Returns
    -------
    Imported
        A scenario that loads; without arguments, model and sizes are placeholders.

    Raises
    ------
    ScenarioError
        No or more than one configuration, batch sizes that contradict each other, ZeRO stages that a pipeline
        does not take, or what `read_megatron` refuses.
    """
    texts = {path: read_text(path) for path in paths}
    objects = [path for path, text in texts.items() if text.lstrip().startswith("{")]
    others = [path for path in paths if path not in objects]
    found = [parse_json_object(texts[path], file=str(path)) for path in objects]
    arguments = read_arguments(others, define or {}) if others else None
    if arguments is not None:
        found += [
            parse_json_object(text, file=arguments.files)
            for text in arguments.documents
            if text.lstrip().startswith("{")
        ]
    files = ", ".join(Path(path).name for path in paths)
    if len(found) != 1:
        raise ScenarioError(f"{len(found)} DeepSpeed configurations found, one is needed", file=files)
    config = Settings(found[0], ", ".join(str(path) for path in objects) or files)
    facts, settings = _facts(arguments, Path(others[0] if others else paths[0]), files, num_gpus)
    _apply(facts, settings, config, num_gpus)
    facts.not_used |= config.unused() | ({} if settings is None else settings.unused())
    return complete(facts, overrides=overrides)


def zero_level(config: Settings, facts: Facts) -> str:
    """Read ``zero_optimization.stage``; 2 and 3 do not go with a pipeline.

    Raises
    ------
    ScenarioError
        Not a stage, or one that DeepSpeed refuses.
    """
    stage = config.count("zero_optimization.stage", minimum=0) or 0
    if stage not in _ZERO:
        raise ScenarioError(
            f"found {stage}; 0, 1, 2 or 3 is needed", file=config.file, key="zero_optimization.stage"
        )
    if stage >= 2 and facts.pipeline > 1:
        raise ScenarioError(
            f"found {stage} with {facts.pipeline} pipeline ranks; DeepSpeed refuses ZeRO 2 and 3 with them",
            file=config.file,
            key="zero_optimization.stage",
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
        raise ScenarioError("bf16 and fp16 are both enabled", file=config.file, key="fp16.enabled")
    return enabled[0] if enabled else None


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
    layers = filled_layers(num_layers, facts.pipeline, ends=ends)
    if min(layers) < 1:
        empty = [rank for rank, count in enumerate(layers) if not count]
        raise ScenarioError(
            f"{num_layers} layers on {facts.pipeline} ranks: DeepSpeed fills stages with {max(layers)} "
            f"layers, which leaves nothing for rank {joined(empty)}",
            file=file,
            key=key,
        )
    if len(set(layers)) > 1:
        facts.layers = layers
        facts.inferred["layers"] = f"{joined(layers)} (DeepSpeed fills each stage before the next)"


def _facts(
    arguments: Arguments | None, path: Path, files: str, num_gpus: int | None
) -> tuple[Facts, Settings | None]:
    if arguments is not None and arguments.values:
        settings = arguments.settings()
        ranks = settings.count("pipeline-model-parallel-size", maximum=MAX_LAYERS) or 1
        total = settings.count("num-layers", maximum=MAX_LAYERS)
        method = settings.text("pp-partition-method") or ""
        uneven = None
        if total is not None and ranks > 1 and (total % ranks or "embedding" in method):
            uneven, arguments.values["num-layers"] = total, str(ranks)
            settings = arguments.settings()
            settings.raw("pp-partition-method")
        for other in ("zero-stage", "deepspeed-activation-checkpointing"):
            settings.raw(other)
        facts = megatron_facts(settings, arguments, path, num_gpus=num_gpus)
        facts.files = files
        if uneven is not None:
            facts.model["num_hidden_layers"] = uneven
            split_as_deepspeed(
                facts, uneven, ends="embedding" in method, file=arguments.files, key="num-layers"
            )
        facts.tool = "DeepSpeed"
        return facts, settings
    facts = Facts("DeepSpeed", files, path.stem, {"preset": _MODEL}, num_gpus=num_gpus)
    facts.placeholders["model"] = "the JSON knows no model; name the launcher's script as well, or edit"
    for size in ("tensor", "pipeline"):
        facts.placeholders[f"parallel.{size}"] = "the JSON knows no sizes"
    if arguments is not None:
        facts.inferred |= arguments.notes
    return facts, None


def _apply(facts: Facts, settings: Settings | None, config: Settings, num_gpus: int | None) -> None:
    facts.optimizer = zero_level(config, facts)
    read_overlap(config, facts, pipelined=facts.pipeline > 1)
    stated = number_format(config)
    if stated is not None and facts.precision not in (None, stated):
        raise ScenarioError(
            f"{stated} is enabled, the arguments say {facts.precision}", file=config.file, key=stated
        )
    facts.precision = stated or facts.precision
    micro = _batch_size(config, "train_micro_batch_size_per_gpu")
    steps = _batch_size(config, "gradient_accumulation_steps")
    total = _batch_size(config, "train_batch_size")
    if settings is not None:
        micro = _agreed(settings, ("micro-batch-size", "batch-size"), micro, "train_micro_batch_size_per_gpu")
        total = _agreed(settings, ("global-batch-size",), total, "train_batch_size")
    if micro is None and total is None:
        raise ScenarioError(
            "missing; needed: train_micro_batch_size_per_gpu or train_batch_size",
            file=config.file,
            key="train_micro_batch_size_per_gpu",
        )
    if micro is None:
        micro, facts.inferred["batch.micro"] = 1, "1 (not stated)"
    facts.micro, facts.global_size, facts.microbatches = micro, total, steps
    if steps is None and total is None:
        facts.microbatches = 1
        facts.inferred["batch.microbatches"] = "gradient_accumulation_steps is not stated, and is 1 then"
    if num_gpus is None and facts.num_gpus is None and steps is not None and total is not None:
        data, rest = divmod(total, micro * steps)
        if rest or not data:
            raise ScenarioError(
                f"train_batch_size {total} is not micro {micro} x accumulation {steps} x replicas",
                file=config.file,
                key="train_batch_size",
            )
        facts.data = data
        facts.inferred["parallel.data"] = f"{data} (train_batch_size {total} / (micro {micro} x {steps}))"


def _batch_size(config: Settings, key: str) -> int | None:
    if config.raw(key)[1] == "auto":
        return None
    return config.count(key)


def _agreed(settings: Settings, names: Sequence[str], stated: int | None, key: str) -> int | None:
    other = settings.count(*names)
    if stated is not None and other is not None and stated != other:
        raise ScenarioError(
            f"found {stated} in the JSON, {other} among the arguments (--{names[0]})",
            file=settings.file,
            key=key,
        )
    return other if stated is None else stated
