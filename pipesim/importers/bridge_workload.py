"""Megatron-Bridge's workloads of its performance tests: ``NAME = replace(OTHER, key=value, ...)``."""

from __future__ import annotations

import ast
import re
from typing import Any

from pipesim.errors import ScenarioError
from pipesim.importers.literals import or_unknown, parsed
from pipesim.importers.model_names import fields_of, preset_named
from pipesim.importers.request import Request
from pipesim.scenario.settings import Unknown

_BASE, _COPY = "WorkloadBaseConfig", "replace"
_TASK = re.compile(r"_(PRETRAIN|SFT|LORA|FINETUNE)_CONFIG_")
_FORMATS = (
    ("NVFP4", "bf16_with_nvfp4_mixed"),
    ("FP8_MX", "bf16_with_mxfp8_mixed"),
    ("FP8", "bf16_with_fp8_current_scaling_mixed"),
    ("BF16", "bf16_mixed"),
)
_BATCH = ("micro_batch_size", "global_batch_size")
MAX_DEPTH = 50


def has_workloads(text: str) -> bool:
    """Whether a Python file is such a module."""
    return f"{_BASE}(" in text


def workload_settings(request: Request, text: str) -> tuple[dict[str, Any], str, int | None]:
    """Give a workload's settings as a recipe would hold them.

    Parameters
    ----------
    request : Request
        Names the workload by its row.
    text : str
        The module.

    Returns
    -------
    tuple
        The settings, nested; the system in the workload's name; its GPUs.

    Raises
    ------
    ScenarioError
        No such workload; the message lists those that there are.
    """
    file = str(request.paths[0])
    nodes = {
        target.id: statement.value
        for statement in parsed(text, file=file).body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name)
    }
    names = [name for name in nodes if _TASK.search(name)]
    wanted = request.row if request.row is not None else names[0] if len(names) == 1 else None
    if wanted not in names:
        found = f"found {wanted[:80]!r}; there are" if wanted else "choose a workload by --row NAME:"
        raise ScenarioError(f"{found} {', '.join(names)[:3000] or 'none'}", file=file, key="--row")
    fields = _fields(nodes, ast.Name(wanted), file, 0)
    gpus = fields.pop("num_gpus", None)
    system, _, kind = _TASK.split(wanted)[2].partition("_")
    return _nested(fields, wanted, kind), system, gpus if type(gpus) is int and gpus > 0 else None


def _fields(nodes: dict[str, ast.expr], node: ast.expr, file: str, depth: int) -> dict[str, Any]:
    """Follow names and copies down to the base, the nearest value of a key first."""
    if depth > MAX_DEPTH:
        raise ScenarioError("copies of workloads run in a circle", file=file)
    if isinstance(node, ast.Name) and node.id in nodes:
        return _fields(nodes, nodes[node.id], file, depth + 1)
    called = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
    if not isinstance(node, ast.Call) or called not in (_BASE, _COPY):
        raise ScenarioError(f"cannot be followed: {ast.unparse(node)[:80]}", file=file)
    before = _fields(nodes, node.args[0], file, depth + 1) if called == _COPY and node.args else {}
    return before | {word.arg: or_unknown(word.value, {}) for word in node.keywords if word.arg}


def _count_ends(model: dict[str, Any]) -> None:
    """Count embedding and head as layers where the layers alone do not fall to the stages, as recipes do."""
    if isinstance(model["preset"], Unknown):
        return
    sizes = [
        model.get(key) or 1
        for key in ("pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size")
    ]
    if any(type(size) is not int or size < 1 for size in sizes):
        return
    layers, stages = int(fields_of(model)["num_hidden_layers"]), sizes[0] * sizes[1]
    if layers % stages and not (layers + 2) % stages:
        for end in ("embedding", "loss"):
            model.setdefault(f"account_for_{end}_in_pipeline_split", True)


def _nested(fields: dict[str, Any], name: str, kind: str) -> dict[str, Any]:
    """Hang the fields where a recipe has them; source: scripts/performance/utils/overrides.py."""
    shape, task = _TASK.split(name)[:2]
    preset = preset_named(shape)
    model: dict[str, Any] = {key: value for key, value in fields.items() if key not in _BATCH}
    model["preset"] = preset or Unknown(f"the shape of {shape}, which is in Megatron-Bridge's code")
    tensor = model.get("tensor_model_parallel_size", 1)
    model.setdefault("sequence_parallel", type(tensor) is int and tensor > 1)
    if model.get("recompute_modules"):
        model.setdefault("recompute_granularity", "selective")
    if model.get("recompute_num_layers"):
        model |= {"recompute_granularity": "full", "recompute_method": "block"}
    if model.get("cpu_offloading_num_layers"):
        model["cpu_offloading"] = True
    if model.get("moe_flex_dispatcher_backend"):
        model["moe_token_dispatcher_type"] = "flex"
    _count_ends(model)
    fsdp = model.pop("use_megatron_fsdp", None)
    ddp: dict[str, Any] = {"use_distributed_optimizer": True, "overlap_grad_reduce": True}
    if fsdp:
        ddp |= {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim_grads_params"}
    recipe = next((recipe for word, recipe in _FORMATS if kind.startswith(word)), "bf16_mixed")
    settings: dict[str, Any] = {
        "model": model,
        "train": {key: fields.get(key, 1) for key in _BATCH},
        "ddp": ddp,
        "mixed_precision": {"recipe": recipe, "grad_reduce_in_fp32": False},
    }
    return settings if task in ("PRETRAIN", "SFT") else settings | {"peft": task.lower()}
