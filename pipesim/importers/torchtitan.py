"""torchtitan's TOML configurations, with the overrides of a launch script."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipesim.errors import ScenarioError
from pipesim.importers.facts import Facts, Imported, complete
from pipesim.importers.gpus_in_comments import take_gpus_from_comments
from pipesim.importers.megatron_arguments import flags_of
from pipesim.importers.shell import new_script, read_script
from pipesim.importers.torchtitan_cut import cut
from pipesim.importers.values import Settings, Unknown
from pipesim.reading import read_text
from pipesim.scenario.counts import MAX_LAYERS, shown
from pipesim.scenario.presets import get_preset

_PRESETS = {
    ("llama3", "8b"): "llama3-8b",
    ("llama3", "70b"): "llama3-70b",
    ("llama3", "405b"): "llama3-405b",
}
_WHERE = ("parallelism", "experimental", "training")
"""Sections that have held the parallel degrees, newest first."""


def read_torchtitan(
    paths: Sequence[str | Path],
    *,
    define: Mapping[str, str] | None = None,
    num_gpus: int | None = None,
    overrides: Iterable[str] = (),
) -> Imported:
    """Read a TOML file, and the launch scripts that override it.

    Parameters
    ----------
    paths : sequence of path
        One TOML file; further files are shell scripts with ``--section.key value`` arguments, which win.
    define : Mapping, optional
        Values of the scripts' variables.
    num_gpus : int, optional
        World size; a degree of -1 is filled from it. Without it, a comment that names the GPUs counts.
    overrides : iterable of str
        ``KEY=VALUE`` each, laid over the scenario.

    Returns
    -------
    Imported
        A scenario that loads.

    Raises
    ------
    ScenarioError
        Not TOML, an unknown model or schedule, degrees that do not multiply to the world size, or a batch
        that does not fall into microbatches.
    """
    files = ", ".join(Path(path).name for path in paths)
    text = read_text(paths[0])
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise ScenarioError(f"is not TOML: {str(error)[:200]}", file=str(paths[0])) from None
    if not isinstance(document.get("training"), dict) or not isinstance(document.get("model"), dict):
        raise ScenarioError("holds no [model] and [training], as torchtitan's files do", file=str(paths[0]))
    facts = Facts("torchtitan", files, Path(paths[0]).stem, {})
    replaced = _overridden(document, paths[1:], define or {}, facts)
    settings = Settings(replaced, files)
    _model(facts, settings)
    _sizes(facts, settings)
    facts.num_gpus = num_gpus
    if num_gpus is None:
        take_gpus_from_comments(facts, text)
    _data(facts, settings)
    cut(facts, settings, degree_sections=_WHERE, folder=Path(paths[0]).parent)
    _memory(facts, settings)
    facts.not_used |= settings.unused()
    return complete(facts, overrides=overrides)


def _overridden(
    document: dict[str, Any], scripts: Sequence[str | Path], define: Mapping[str, str], facts: Facts
) -> dict[str, Any]:
    """Lay ``--section.key value`` arguments of launch scripts over the TOML file."""
    script = new_script(facts.files, define)
    for path in scripts:
        read_script(read_text(path), script)
    flat = Settings(document, facts.files)
    values = flat.values()
    for words in script.commands:
        for name, value in flags_of(words).items():
            section, dot, key = name.replace("-", "_").partition(".")
            if not dot or section not in (*document, *_WHERE):
                continue
            path = f"{section}.{key}"
            text = value if isinstance(value, str) else None
            why = None if text is None else script.variables.doubt(text)
            new = True if value is True else Unknown(why) if why else _typed(value)
            if path in values and values[path] != new:
                facts.inferred[path] = (
                    f"{shown(new)} (the launch script; the file says {shown(values[path])})"
                )
            values[path] = new
    facts.inferred |= script.notes
    return values


def _typed(value: Any) -> Any:
    """Read an argument as the TOML file would hold it."""
    if isinstance(value, list):
        return [_typed(item) for item in value]
    plain = value.removeprefix("-")
    if plain.isdecimal() and len(plain) < 19:
        return int(value)
    return {"true": True, "false": False}.get(value.lower(), value)


def _model(facts: Facts, settings: Settings) -> None:
    name, flavor = settings.text("model.name"), settings.text("model.flavor")
    preset = _PRESETS.get(((name or "").lower(), (flavor or "").lower()))
    if preset is None:
        known = ", ".join(f"{model} {size.upper()}" for model, size in _PRESETS)
        raise ScenarioError(
            f"found {shown(name)} {shown(flavor)}, whose shape is in torchtitan's code and not in the file; "
            f"known here: {known}",
            file=facts.files,
            key="model.flavor",
        )
    facts.model = {"preset": preset}
    facts.inferred["model"] = f"preset {preset} (the file has only name and flavor)"
    length = settings.count("training.seq_len")
    if length is not None:
        facts.model["seq_length"] = length
    else:
        facts.inferred["model.seq_length"] = f"{get_preset('models', preset).fields['seq_length']} (preset)"


def _sizes(facts: Facts, settings: Settings) -> None:
    for size in ("tensor", "pipeline", "context", "expert"):
        paths = [f"{section}.{size}_parallel_degree" for section in _WHERE]
        setattr(facts, size, settings.count(*paths, maximum=MAX_LAYERS) or 1)
    facts.sequence_parallel = facts.tensor > 1
    facts.inferred["parallel.sequence_parallel"] = "torchtitan has it on with tensor parallelism"
    facts.expert_tensor = settings.count("parallelism.expert_tensor_parallel_degree") or (
        1 if facts.expert > 1 else None
    )


def _data(facts: Facts, settings: Settings) -> None:
    replicate = settings.count(*(f"{section}.data_parallel_replicate_degree" for section in _WHERE)) or 1
    path, shard = settings.raw(
        *(f"{section}.data_parallel_shard_degree" for section in _WHERE), "training.data_parallel_degree"
    )
    if shard in (None, -1):
        if facts.num_gpus is None:
            return
        inside = replicate * facts.tensor * facts.pipeline * facts.context
        shard, rest = divmod(facts.num_gpus, inside)
        if rest or not shard:
            raise ScenarioError(
                f"-1 cannot be filled: {inside} (replicate {replicate} x tensor {facts.tensor} x pipeline "
                f"{facts.pipeline} x context {facts.context}) does not divide {facts.num_gpus} GPUs",
                file=facts.files,
                key=path,
            )
        facts.inferred["data_parallel_shard_degree"] = f"{shard} (-1: {facts.num_gpus} GPUs / {inside})"
    else:
        shard = settings.count(path)
    facts.data = replicate * (shard or 1)
    facts.inferred["parallel.data"] = f"{facts.data} (replicate {replicate} x shard {shard})"


def _memory(facts: Facts, settings: Settings) -> None:
    mode = settings.text("activation_checkpoint.mode") or "selective"
    if mode not in ("none", "selective", "full"):
        raise ScenarioError(
            f"found {shown(mode)}; allowed: none, selective, full",
            file=facts.files,
            key="activation_checkpoint.mode",
        )
    facts.recompute = mode
    option = settings.raw("activation_checkpoint.selective_ac_option")[1]
    if mode == "selective":
        facts.not_used["activation_checkpoint.selective_ac_option"] = (
            f"{shown(option)}: selective is taken as recomputing attention"
        )
    facts.optimizer = "zero2"
    facts.inferred["optimizer"] = "zero2 (FSDP with a pipeline keeps gathered weights)"
    if facts.pipeline == 1:
        facts.optimizer = "zero3"
        facts.inferred["optimizer"] = "zero3 (FSDP gathers weights layer by layer)"
    converters = settings.raw("model.converters")[1]
    names = [converters] if isinstance(converters, str) else converters or []
    facts.precision = "fp8" if any("float8" in str(name) for name in names) else "bf16"
