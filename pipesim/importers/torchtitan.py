"""torchtitan's TOML and Python configurations, with the overrides of a launch script."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pipesim.errors import ScenarioError
from pipesim.importers.facts import Facts
from pipesim.importers.gpus_in_comments import take_gpus_from_comments
from pipesim.importers.megatron_arguments import flags_of
from pipesim.importers.megatron_formats import (
    bytes_of,
)
from pipesim.importers.model_names import fields_of
from pipesim.importers.python_configuration import ARGUMENTS, CALLED, PythonConfiguration, chosen_function
from pipesim.importers.request import Request, read_sizes
from pipesim.importers.shell import new_script, read_script
from pipesim.importers.torchtitan_cut import LIMITS, cut
from pipesim.reading import read_text
from pipesim.scenario.counts import shown
from pipesim.scenario.loading import read_yaml_mapping
from pipesim.scenario.settings import Settings, Unknown

_EXCHANGES = {
    "allgather": "all-gather",
    "alltoall": "ring",
    "kv_allgather": "all-gather",
    "ulysses": "ulysses",
}
"""``alltoall`` hands shards on from device to device , says torch's experimental context_parallel."""
_KERNEL = re.compile(r"_(flex|varlen)(_attn)?$")
"""What a flavour's name says of its attention kernel."""
_SETS = {"h100-sxm": "h100-torchtitan"}
"""Efficiency sets fitted on torchtitan's published runs, by accelerator."""
WHERE = ("parallelism", "experimental", "training")
"""Sections that have held the parallel degrees, newest first."""
_SIZES = {
    size: [f"{section}.{size}_parallel_degree" for section in WHERE]
    for size in ("tensor", "pipeline", "context", "expert")
}


def read(request: Request) -> Facts:
    """Read a TOML file or a Python configuration, and the launch scripts that override it.

    Further files are shell scripts with ``--section.key value`` arguments, which win. A degree of -1 is
    filled from the world size; where nothing states that, a comment that names the GPUs counts.

    Raises
    ------
    ScenarioError
        Neither, an unknown model or schedule, degrees that do not multiply to the world size, or a batch that
        does not fall into microbatches.
    """
    path = request.paths[0]
    text = read_text(path)
    facts = request.facts("torchtitan")
    facts.limits, facts.sets = LIMITS, _SETS
    document = _of_python(request, text) if path.suffix == ".py" else _of_toml(text, str(path))
    settings = request.settings(_overridden(document, request, facts))
    _model(facts, settings)
    read_sizes(settings, facts, _SIZES)
    facts.sequence_parallel = facts.tensor > 1
    facts.inferred["parallel.sequence_parallel"] = "torchtitan has it on with tensor parallelism"
    facts.expert_tensor = settings.count("parallelism.expert_tensor_parallel_degree") or (
        1 if facts.expert > 1 else None
    )
    if facts.num_gpus is None:
        take_gpus_from_comments(facts, text)
    _data(facts, settings)
    cut(facts, settings, degree_sections=WHERE, folder=path.parent)
    _memory(facts, settings)
    return facts


def _of_toml(text: str, file: str) -> dict[str, Any]:
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise ScenarioError(f"is not TOML: {str(error)[:200]}", file=file) from None
    if not isinstance(document.get("training"), dict) or not isinstance(document.get("model"), dict):
        raise ScenarioError("holds no [model] and [training], as torchtitan's files do", file=file)
    return document


def _of_python(request: Request, text: str) -> dict[str, Any]:
    """Write what a function of a ``config_registry.py`` returns as the TOML of before would hold it."""
    path = request.paths[0]
    configuration = PythonConfiguration(text, file=str(path))
    name = chosen_function(request, configuration)
    values = configuration.result_of(name)
    spec = values.pop("model_spec", None)
    if not isinstance(spec, dict) or not isinstance(values.get("training"), dict):
        raise ScenarioError(
            "sets no model_spec and training, as torchtitan's configurations do", file=str(path), key=name
        )
    families = [family for family in _flavors() if name.startswith(family) or family in path.absolute().parts]
    flavor = next((text for text in spec.pop(ARGUMENTS, []) if isinstance(text, str)), None)
    used = [*(spec.pop("converters", None) or []), *_listed(values.pop("model_converters", None))]
    converters = [item.get(CALLED) if isinstance(item, dict) else item for item in used]
    of_converters = {
        f"converter {number}": _plain(item) for number, item in enumerate(used) if isinstance(item, dict)
    }
    spec.pop(CALLED, None)
    model = {"name": families[0] if families else None, "flavor": spec.pop("flavor", flavor), **spec}
    request.settings(configuration.not_followed, str(path))
    plain = {key: _plain(value) for key, value in values.items() if key not in (CALLED, ARGUMENTS)}
    return plain | {"model": model | of_converters | {"converters": converters}}


def _listed(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return _listed(value.get("converters"))
    return value if isinstance(value, list) else []


def _plain(value: Any) -> Any:
    """Leave out the names of what was called, but for the kinds of the components at the top."""
    if not isinstance(value, dict):
        return value
    return {key: _plain(item) for key, item in value.items() if key not in (CALLED, ARGUMENTS)}


def _overridden(document: dict[str, Any], request: Request, facts: Facts) -> dict[str, Any]:
    """Lay ``--section.key value`` arguments of launch scripts over the file."""
    script = new_script(facts.files, request.define)
    for file in request.paths[1:]:
        read_script(read_text(file), script)
    values = Settings(document, facts.files).values()
    for words in script.commands:
        given = flags_of(words)
        if not any("." in name for name in given):
            continue
        nodes, per_node = given.pop("nnodes", None), given.pop("nproc-per-node", None)
        if facts.num_gpus is None and all(str(number).isdecimal() for number in (nodes, per_node)):
            facts.num_gpus = int(str(nodes)[:9]) * int(str(per_node)[:9])
        for name, value in given.items():
            path = name.replace("-", "_")
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


@cache
def _flavors() -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    return read_yaml_mapping(Path(__file__).parent / "known" / "torchtitan_flavors.yaml")


def _model(facts: Facts, settings: Settings) -> None:
    name, flavor = settings.text("model.name"), settings.text("model.flavor")
    length = settings.count("training.seq_len", sets="model.seq_length")
    stated = facts.stated.get("model", facts.stated.get("model.preset"))
    plain = _KERNEL.sub("", (flavor or "").lower())
    shape = _flavors().get((name or "").lower(), {}).get(plain)
    if stated is not None:
        facts.model = dict(stated) if isinstance(stated, Mapping) else {"preset": stated}
    elif shape is None:
        known = ", ".join(f"{model} {size.upper()}" for model, sizes in _flavors().items() for size in sizes)
        raise settings.refuse(
            "model.flavor",
            f"found {shown(name)} {shown(flavor)}, whose shape is in torchtitan's code and not in the file; "
            f"known here: {known}; --set model=PRESET states another",
        )
    elif "preset" in shape:
        facts.model = dict(shape)
        facts.inferred["model"] = f"preset {shape['preset']} (the file has only name and flavor)"
    else:
        facts.model = {"name": f"{name} {flavor}", **shape, "source": "torchtitan's table of flavours"}
        facts.inferred["model"] = f"{name} {flavor} of torchtitan's own table"
    if length is not None:
        facts.model["seq_length"] = length
    else:
        facts.inferred["model.seq_length"] = f"{fields_of(facts.model)['seq_length']} (preset)"


def _data(facts: Facts, settings: Settings) -> None:
    replicate = settings.count(*(f"{section}.data_parallel_replicate_degree" for section in WHERE)) or 1
    path, shard = settings.raw(
        *(f"{section}.data_parallel_shard_degree" for section in WHERE), "training.data_parallel_degree"
    )
    if shard in (None, -1):
        if facts.num_gpus is None:
            return
        inside = replicate * facts.tensor * facts.pipeline * facts.context
        shard, rest = divmod(facts.num_gpus, inside)
        if rest or not shard:
            raise settings.refuse(
                path,
                f"-1 cannot be filled: {inside} (replicate {replicate} x tensor {facts.tensor} x pipeline "
                f"{facts.pipeline} x context {facts.context}) does not divide {facts.num_gpus} GPUs; --gpus "
                "N states another number",
            )
        facts.inferred["data_parallel_shard_degree"] = f"{shard} (-1: {facts.num_gpus} GPUs / {inside})"
    else:
        shard = settings.count(path)
    facts.data = replicate * (shard or 1)
    facts.inferred["parallel.data"] = f"{facts.data} (replicate {replicate} x shard {shard})"
    facts.num_mirrors = replicate


def _memory(facts: Facts, settings: Settings) -> None:
    mode = settings.text("activation_checkpoint.mode") or "selective"
    if mode not in ("none", "selective", "full"):
        raise settings.refuse(
            "activation_checkpoint.mode",
            f"found {shown(mode)}; allowed: none, selective, full; --ignore activation_checkpoint.mode reads "
            "on with selective",
        )
    facts.recompute = mode
    option = settings.raw("activation_checkpoint.selective_ac_option")[1]
    if mode == "selective":
        facts.not_used["activation_checkpoint.selective_ac_option"] = (
            f"{shown(option)}: selective is taken as recomputing attention"
        )
    facts.optimizer = "fsdp"
    facts.inferred["optimizer"] = "fsdp (" + (
        "under a pipeline gathered weights and whole gradients stay, and are reduced once)"
        if facts.pipeline > 1
        else "without a pipeline weights are gathered and gradients reduced in every pass)"
    )
    _reshard(facts, settings)
    _formats(facts, settings)
    _dispatch(facts, settings)
    _context(facts, settings)
    if settings.flag("training.enable_cpu_offload", "experimental.enable_cpu_offload"):
        facts.offload["optimizer"] = 1.0
        facts.not_used["training.enable_cpu_offload"] = (
            "true: the optimizer's state waits in the host's memory; weights and gradients stay on the device"
        )
    _, converters = settings.words("model.converters")
    facts.precision["compute"] = "fp8" if any("float8" in name.lower() for name in converters) else "bf16"


def _reshard(facts: Facts, settings: Settings) -> None:
    """Read whether gathered weights are dropped after a forward: by default only without a pipeline."""
    paths = [f"{section}.fsdp_reshard_after_forward" for section in WHERE]
    policy = settings.text(*paths) or "default"
    if policy not in ("default", "always", "never"):
        raise settings.refuse(
            paths[0],
            f"found {shown(policy)}; allowed: default, always, never; --ignore {paths[0]} takes default",
        )
    facts.reshard_after_forward = policy == "always"
    if policy == "never" and facts.pipeline == 1:
        facts.not_used[paths[0]] = "never: not modelled without a pipeline, weights are gathered twice a pass"


def _formats(facts: Facts, settings: Settings) -> None:
    """Set bytes of a parameter: ``training.dtype`` has what is sharded, mixed precision what is gathered.

    Raises
    ------
    ScenarioError
        A format that is not known.
    """
    kinds = {}
    for name, default in (
        ("dtype", "float32"),
        ("mixed_precision_param", "bfloat16"),
        ("mixed_precision_reduce", "float32"),
    ):
        key = f"training.{name}"
        kinds[name] = bytes_of(settings, key, settings.text(key) or default)
    if kinds["dtype"] == 2:
        facts.precision |= {"gradient_bytes": 2, "optimizer_bytes": 4}
        facts.inferred["precision.optimizer_bytes"] = (
            "4 (training.dtype: weights and both moments in 2 bytes)"
        )
    elif kinds["mixed_precision_reduce"] == 2:
        facts.precision["gradient_bytes"] = 2
        facts.inferred["precision.gradient_bytes"] = "2 (training.mixed_precision_reduce)"
    if kinds["mixed_precision_param"] == 4:
        facts.precision["weight_bytes"] = 4
        facts.not_used["training.mixed_precision_param"] = "float32: products in fp32 are not modelled"


def _dispatch(facts: Facts, settings: Settings) -> None:
    key = "parallelism.expert_parallel_comm_backend"
    backend = settings.text(key) or "standard"
    if backend not in ("standard", "deepep", "hybridep"):
        raise settings.refuse(
            key,
            f"found {shown(backend)}; allowed: standard, deepep, hybridep; --ignore {key} takes standard",
        )
    facts.expert_dispatch = None if backend == "standard" else backend


def _context(facts: Facts, settings: Settings) -> None:
    """Read how keys and values are exchanged: all gathered by default, or sent around."""
    rotation = [f"{section}.context_parallel_rotate_method" for section in WHERE]
    strategy = [f"{section}.context_parallel_strategy" for section in WHERE]
    key, stated = settings.raw(*rotation)
    if settings.raw(*strategy)[1] is not None:
        key, stated = settings.raw(*strategy)
    stated = stated or "allgather"
    if not isinstance(stated, str) or stated not in _EXCHANGES:
        raise settings.refuse(
            key,
            f"found {shown(stated)}; allowed: {', '.join(_EXCHANGES)}; --ignore {key} takes allgather",
        )
    facts.context_exchange = _EXCHANGES[stated]
