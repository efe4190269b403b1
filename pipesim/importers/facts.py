"""What a reader found in another tool's files."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pipesim.errors import ScenarioError


@dataclass(slots=True)
class Facts:
    """Sizes that a file states (None: it does not), and what was noted on the way.

    Parameters
    ----------
    tool, files, name : str
        The framework, the files' names, the scenario's name.
    model : dict
        Fields of ``model:`` as a scenario states them.
    stated : Mapping
        What the user states by the scenario's keys, which goes before what the files say.
    efficiency, precision, offload : dict
        Fields of the scenario's sections of these names.
    sets : Mapping
        Efficiency sets fitted on the framework's own runs, by accelerator, where they are not the usual ones.
    recompute_modules, recompute_layers : list of str, int
        The scenario's keys of these names, where `recompute` does not say it all.
    expert_dispatch : str, optional
        How tokens travel to experts, where there is more than one device of them.
    num_mirrors, shard : int
        Groups of replicas each of which holds all that replicas share out (HSDP), or the size of one.
    trainable : dict
        The scenario's section of this name.
    context_exchange, context_inner : str, int
        How context-parallel devices share a sequence, where that is stated.
    cuda_graphs : str, optional
        What of a step is captured, where anything is.
    reshard_after_forward : bool, optional
        Of FSDP in a pipeline.
    limits : tuple of Limit
        What the framework itself refuses.
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
    stated: Mapping[str, Any] = field(default_factory=dict)
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
    recompute_modules: list[str] | None = None
    recompute_layers: int | None = None
    optimizer: str | None = None
    num_mirrors: int = 1
    shard: int | None = None
    reshard_after_forward: bool | None = None
    expert_dispatch: str | None = None
    cuda_graphs: str | None = None
    trainable: dict[str, Any] = field(default_factory=dict)
    context_exchange: str | None = None
    context_inner: int | None = None
    offload: dict[str, Any] = field(default_factory=dict)
    precision: dict[str, Any] = field(default_factory=dict)
    efficiency: dict[str, Any] = field(default_factory=dict)
    sets: Mapping[str, str] = field(default_factory=dict)
    p2p: str | None = None
    limits: tuple[Limit, ...] = ()
    inferred: dict[str, str] = field(default_factory=dict)
    not_used: dict[str, str] = field(default_factory=dict)
    placeholders: dict[str, str] = field(default_factory=dict)

    @property
    def num_stages(self) -> int:
        """Stages of the pipeline: chunks of all ranks."""
        return self.pipeline * self.virtual_stages

    @property
    def num_microbatches(self) -> int | None:
        """Microbatches of a step of one replica; None where batch or replicas are not known yet."""
        if self.global_size is None or self.data is None:
            return self.microbatches
        return self.global_size // (self.micro * self.data)


@dataclass(frozen=True, slots=True)
class Limit:
    """What a framework refuses to run.

    Parameters
    ----------
    refused : callable
        Whether it refuses what was read.
    words : str
        What it asks for.
    since : str
        The release or file that refuses it.
    key : str
        The scenario's key, or the tool's own, that is at fault.
    way_out : str
        An option of ``pipesim import`` that gets past it.
    only_noted : bool
        Whether it is said and read on, as for what only some releases refuse.
    """

    refused: Callable[[Facts], bool]
    words: str
    since: str
    key: str
    way_out: str
    only_noted: bool = False


def refuse_what_the_tool_refuses(facts: Facts) -> None:
    """Check the framework's own limits.

    Raises
    ------
    ScenarioError
        The framework would not run this.
    """
    for limit in facts.limits:
        if limit.key in facts.stated or not limit.refused(facts):
            continue
        if limit.only_noted:
            facts.inferred[limit.key] = f"{facts.tool} {limit.words} ({limit.since})"
        else:
            raise ScenarioError(
                f"{facts.tool} {limit.words} ({limit.since}); {limit.way_out}",
                file=facts.files,
                key=limit.key,
            )


def joined(numbers: Iterable[int]) -> str:
    """Write numbers, runs of equal ones as 8 x 3."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number:
            runs[-1] = (runs[-1][0] + 1, number)
        else:
            runs.append((1, number))
    return ", ".join(f"{times} x {number}" if times > 1 else str(number) for times, number in runs)


def product(**sizes: int) -> tuple[int, str]:
    """Multiply named sizes, and write the product out: ``tensor 8 x pipeline 6 = 48``."""
    total = math.prod(sizes.values())
    return total, " x ".join(f"{name} {size}" for name, size in sizes.items()) + f" = {total}"


def spread(num_layers: int, parts: int) -> list[int]:
    """Split without losing a layer, the larger parts first."""
    each, more = divmod(num_layers, parts)
    return [each + 1] * more + [each] * (parts - more)


def refuse_lost_layers(
    facts: Facts, num_layers: int, parts: int, *, what: str, file: str, key: str, total: int | None = None
) -> None:
    """Refuse a number of layers that the parts do not divide: frameworks then drop the rest in silence.

    Parameters
    ----------
    facts : Facts
        The user may have stated the layers of each stage, which then count.
    num_layers, parts : int
        What is split, among how many.
    what, file, key : str
        For the message.
    total : int, optional
        Layers of the model, where they are not `num_layers`.

    Raises
    ------
    ScenarioError
        With the number of layers that would be lost and a split that loses none.
    """
    each, lost = divmod(num_layers, parts)
    if not lost or "layers" in facts.stated:
        return
    if not each:
        raise ScenarioError(
            f"{num_layers} layers cannot fill {parts} {what}; --set parallel.pipeline=N states fewer ranks",
            file=file,
            key=key,
        )
    stages = facts.num_stages if parts <= facts.num_stages else parts
    listed = ",".join(map(str, spread(num_layers if total is None else total, stages)))
    way_out = f"--set layers=[{listed}] does" if len(listed) < 300 else "--set layers=balanced does"
    raise ScenarioError(
        f"{num_layers} layers on {parts} {what}: {each} each hold {each * parts}, {lost} would be dropped in "
        f"silence; {joined(spread(num_layers, parts))} would keep all, as {way_out}",
        file=file,
        key=key,
    )


def cut_evenly(
    facts: Facts, num_layers: int, chunks: int, *, file: str, key: str, first: int = 0, last: int = 0
) -> None:
    """Set the chunks of a rank, the 1F1B that runs them, and the layers of each stage where they differ.

    Parameters
    ----------
    facts : Facts
        With the pipeline's size.
    num_layers, chunks : int
        Layers of the model, chunks of a rank.
    file, key : str
        For messages.
    first, last : int
        1 where the embedding, or the head, counts as a layer of its stage.

    Raises
    ------
    ScenarioError
        As for `refuse_lost_layers`.
    """
    facts.virtual_stages = chunks
    facts.schedule = "interleaved-1f1b" if chunks > 1 else "1f1b"
    what = f"stages (pipeline {facts.pipeline} x virtual {chunks})"
    stages, counted = facts.num_stages, num_layers + first + last
    refuse_lost_layers(facts, counted, stages, what=what, file=file, key=key, total=num_layers)
    if (first or last) and stages > 1 and "layers" not in facts.stated:
        layers = [counted // stages] * stages
        layers[0] -= first
        layers[-1] -= last
        facts.layers = layers
        facts.inferred["layers"] = (
            f"{joined(layers)} on {stages} stages (the {'embedding' if first else ''}"
            f"{' and the ' if first and last else ''}{'head' if last else ''} counted as a layer each)"
        )
