"""How torchtitan cuts layers into stages and batches into microbatches; its defaults have changed twice."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pipesim.errors import ScenarioError
from pipesim.importers.facts import Facts, Limit, joined, spread
from pipesim.scenario.counts import shown
from pipesim.scenario.presets import get_preset
from pipesim.scenario.settings import Settings

_SCHEDULES = {
    "gpipe": "gpipe",
    "1f1b": "1f1b",
    "interleaved1f1b": "interleaved-1f1b",
    "flexibleinterleaved1f1b": "interleaved-1f1b",
    "loopedbfs": "looped-bfs",
    "interleavedzerobubble": "interleaved-zb",
    "zbvzerobubble": "zb-v",
    "dualpipev": "dualpipe-v",
}
_Paths = Callable[[str], list[str]]
"""From a setting's name to where it may stand, newest first."""
_SINGLE_STAGE = ("gpipe", "1f1b")
LIMITS = (
    Limit(
        lambda facts: facts.schedule == "1f1b" and 0 < (facts.num_microbatches or 0) < facts.pipeline,
        "runs on torch, whose 1F1B asks for as many microbatches as stages",
        "torch/distributed/pipelining/schedules.py, since torch 2.5",
        "batch.microbatches",
        "--set batch.microbatches=N states more",
    ),
    Limit(
        lambda facts: facts.schedule in ("interleaved-1f1b", "interleaved-zb") and _ragged(facts),
        "runs on torch, whose interleaved schedules ask for microbatches that fall into equal rounds",
        "torch/distributed/pipelining/schedules.py, since torch 2.5",
        "batch.microbatches",
        "--set batch.microbatches=N states a multiple of the pipeline degree",
    ),
    Limit(
        lambda facts: (
            facts.schedule == "dualpipe-v" and 0 < (facts.num_microbatches or 0) < 2 * facts.pipeline
        ),
        "runs on torch, whose DualPipeV asks for as many microbatches as stages",
        "torch/distributed/pipelining/schedules.py, torch 2.10",
        "batch.microbatches",
        "--set batch.microbatches=N states more",
        only_noted=True,
    ),
)


def _ragged(facts: Facts) -> bool:
    """Whether torch's rounds, microbatches // ranks of them, are of different sizes."""
    number = facts.num_microbatches or 0
    return number > 0 and number % max(1, number // facts.pipeline) > 0


_FROM_CSV = ("pipelineschedulesingle", "pipelineschedulemulti", "_pipelinescheduleruntime")


def cut(facts: Facts, settings: Settings, *, degree_sections: Sequence[str], folder: Path) -> None:
    """Set schedule, chunks, layers, microbatches and batch.

    Parameters
    ----------
    facts : Facts
        With sizes, replicas and the model's preset.
    settings : Settings
        The file's.
    degree_sections : sequence of str
        Sections that may hold the pipeline's settings.
    folder : Path
        Of the TOML file: a schedule's CSV must lie in it.

    Raises
    ------
    ScenarioError
        An unknown schedule, a split that does not fit, or a batch that does not fall into microbatches.
    """

    def paths(name: str) -> list[str]:
        return [f"{section}.pipeline_parallel_{name}" for section in degree_sections]

    _schedule(facts, settings, paths, folder)
    _layers(facts, settings, paths)
    _batch(facts, settings, paths)


def _schedule(facts: Facts, settings: Settings, paths: _Paths, folder: Path) -> None:
    key, _ = settings.raw(*paths("schedule"))
    stated = settings.text(*paths("schedule")) or "1F1B"
    plain = re.sub(r"[-_ ]", "", stated.lower()) if not stated.startswith("_") else stated.lower()
    file = settings.text(*paths("schedule_csv"))
    if facts.pipeline == 1:
        facts.schedule = "1f1b"
        return
    if file:
        facts.schedule = {"csv": str(_inside(file, folder, facts.files, paths("schedule_csv")[0]))}
        facts.virtual_stages = 1 if plain == _FROM_CSV[0] else 2
        return
    if plain not in _SCHEDULES:
        raise ScenarioError(
            f"found {shown(stated)}; known: GPipe, 1F1B, Interleaved1F1B, LoopedBFS, InterleavedZeroBubble, "
            f"ZBVZeroBubble, DualPipeV; --ignore {key} takes 1F1B",
            file=facts.files,
            key=key,
        )
    facts.schedule = _SCHEDULES[plain]
    facts.virtual_stages = 1 if facts.schedule in _SINGLE_STAGE else 2
    facts.inferred["schedule"] = f"{facts.schedule} (torchtitan's {stated})"


def _inside(file: str, folder: Path, files: str, key: str) -> Path:
    path = (folder / file).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise ScenarioError(
            f"found {file[:80]!r}, which lies outside the file's folder; --ignore {key} reads on without it",
            file=files,
            key=key,
        )
    return path


def _layers(facts: Facts, settings: Settings, paths: _Paths) -> None:
    preset = facts.model.get("preset")
    fields = get_preset("models", preset, key="model").fields if preset else facts.model
    num_layers = int(fields["num_hidden_layers"])
    key, points = settings.raw(*paths("split_points"))
    per_stage = settings.count(*paths("layers_per_stage"))
    lighter = [settings.count(*paths(f"{end}_stage_less_layers"), minimum=0) for end in ("first", "last")]
    if facts.pipeline == 1:
        return
    stated = facts.stated.get("layers")
    if isinstance(stated, list):
        facts.virtual_stages = max(len(stated) // facts.pipeline, 1)
        return
    if points:
        starts = _split_points(points, num_layers, facts.files, key)
        num_stages = len(starts) + 1
        facts.layers = [end - start for start, end in zip([0, *starts], [*starts, num_layers], strict=True)]
    else:
        before, behind = (1 if less is None else less for less in lighter)
        if per_stage is None:
            num_stages = facts.pipeline * facts.virtual_stages
        else:
            num_stages = math.ceil((num_layers + before + behind) / per_stage)
        old = "training.batch_size" in settings and lighter == [None, None] and per_stage is None
        facts.layers = (
            _evenly(num_layers, num_stages)
            if old
            else _weighted(num_layers, num_stages, before, behind, facts.files)
        )
    _check_stages(facts, num_stages)
    facts.inferred["layers"] = f"{joined(facts.layers)} on {num_stages} stages, as torchtitan splits them"
    if facts.virtual_stages > 1:
        facts.inferred["parallel.virtual_stages"] = (
            f"{facts.virtual_stages} ({num_stages} stages on {facts.pipeline} ranks)"
        )


def _check_stages(facts: Facts, num_stages: int) -> None:
    chunks, rest = divmod(num_stages, facts.pipeline)
    single = facts.virtual_stages == 1
    if rest or not chunks or (chunks > 1) is single:
        wanted = "one stage a rank" if single else "the same number of stages, at least two, on every rank"
        raise ScenarioError(
            f"{num_stages} stages on {facts.pipeline} ranks: this schedule needs {wanted}; --set layers=[...]"
            " states the layers of every stage",
            file=facts.files,
            key="pipeline_parallel_layers_per_stage",
        )
    facts.virtual_stages = chunks


def _split_points(points: Any, num_layers: int, files: str, key: str) -> list[int]:
    names = points if isinstance(points, list) else str(points).split(",")
    starts: list[int] = []
    for name in names:
        match = re.fullmatch(r"\s*layers\.(\d{1,9})\s*", str(name))
        before = starts[-1] if starts else 0
        if match is None or not before < int(match[1]) < num_layers:
            raise ScenarioError(
                f"found {shown(name)}; rising names such as layers.4, below {num_layers}, are needed; "
                f"--ignore {key} splits evenly",
                file=files,
                key=key,
            )
        starts.append(int(match[1]))
    return starts


def _evenly(num_layers: int, num_stages: int) -> list[int]:
    """Split as before first_stage_less_layers: the first stage is never one of the larger."""
    each, more = divmod(num_layers, num_stages)
    return [each + (0 < stage <= more) for stage in range(num_stages)]


def _weighted(num_layers: int, num_stages: int, before: int, behind: int, files: str) -> list[int]:
    """Count the embedding and the head as layers, and give the remainder to the first stages."""
    each, more = divmod(num_layers + before + behind, num_stages)
    if each < max(before, behind):
        raise ScenarioError(
            f"{num_layers} layers on {num_stages} stages leave less than the embedding and the head count; "
            f"--set layers=[{','.join(map(str, spread(num_layers, num_stages)))}] splits them otherwise",
            file=files,
            key="layers",
        )
    layers = [each + (stage < more) for stage in range(num_stages)]
    layers[0] -= before
    layers[-1] -= behind
    return layers


def _batch(facts: Facts, settings: Settings, paths: _Paths) -> None:
    """Find m; without a statement it hangs on the version, which the name of the batch's key tells."""
    local = settings.required(
        "training.local_batch_size",
        "training.batch_size",
        what="sequences of one replica, or --set batch.micro=N with batch.microbatches",
    )
    total = settings.count("training.global_batch_size", sets="batch.global") if _positive(settings) else None
    number = settings.count(
        *paths("microbatches"), "parallelism.num_pp_microbatches", sets="batch.microbatches"
    )
    size = settings.count(*paths("microbatch_size"), sets="batch.micro")
    if facts.pipeline == 1:
        facts.micro, facts.microbatches = local, None if total else 1
        facts.global_size = total
        return
    if number is not None:
        why = "stated"
    elif size is not None:
        number, rest = divmod(local, size)
        if rest or not number:
            raise ScenarioError(
                f"microbatches of {size} do not divide the local batch of {local}; --set batch.micro=N "
                "states another size",
                file=facts.files,
                key="pipeline_parallel_microbatch_size",
            )
        why = f"local batch {local} / microbatches of {size}"
    elif "training.local_batch_size" in settings:
        number = local
        why = (
            f"not stated: torchtitan's default since 2025 is microbatches of 1 of the local batch {local}; "
            f"before, it was the pipeline degree, {facts.pipeline}"
        )
    else:
        number = facts.pipeline
        why = (
            f"not stated: torchtitan's default at that time, the pipeline degree {facts.pipeline}; later "
            f"versions take microbatches of 1, here {local}"
        )
    if settings.is_stated("batch.microbatches") and settings.is_stated("batch.micro"):
        local = number * facts.micro
    elif local % number:
        raise ScenarioError(
            f"the local batch of {local} does not fall into {number} microbatches ({why}); "
            "--set batch.microbatches=N states another number",
            file=facts.files,
            key="training.batch_size",
        )
    facts.micro = local // number
    facts.inferred["batch.microbatches"] = why
    facts.microbatches, facts.global_size = (None, total) if total else (number, None)
    if total and facts.data and total != local * facts.data:
        facts.not_used["training.global_batch_size"] = (
            f"{total} is reached by accumulating {total / (local * facts.data):g} passes of {number} "
            "microbatches; simulated as one pass of them all"
        )


def _positive(settings: Settings) -> bool:
    value = settings.raw("training.global_batch_size", sets="batch.global")[1]
    return value is not None and value != -1
