"""Rows of NVIDIA's NeMo and Megatron-Bridge performance summaries, with what their public recipes add.

The summaries state layouts, batches and throughput; what is recomputed or offloaded, formats, dispatchers and
uneven layers stand in the recipes of the same repository, which ``nvidia_bridge_recipes.csv`` lists.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pipesim.evidence.published.megatron_a100_rows import gpt
from pipesim.evidence.published.published_row import PublishedRow
from pipesim.evidence.published.tables import TableLine, read_table

_HARDWARE = {
    "DGX-H100": ("dgx-h100", "h100-sxm", 8),
    "DGX-B200": ("hgx-b200", "b200-sxm", 8),
    "DGX-B300": ("hgx-b200", "b300-sxm", 8),
    "DGX-GB200": ("gb200-nvl72", "gb200", 64),
    "DGX-GB300": ("gb200-nvl72", "gb300", 64),
}
"""Machine, accelerator, and devices of a node: of a rack of 72 the runs take 64."""
_MODELS = {
    "LLAMA2-7B": "llama2-7b",
    "LLAMA2-70B": "llama2-70b",
    "LLAMA3-8B": "llama3-8b",
    "LLAMA3-70B": "llama3-70b",
    "GPT3-175B": "gpt3-175b",
    "DEEPSEEKV3": "deepseek-v3",
    "QWEN3-30B-A3B": "qwen3-30b-a3b",
    "GPT OSS 120B": "gpt-oss-120b",
}
_FORMATS = {
    "BF16": ("bf16", "16-bit"),
    "FP8": ("fp8", "fp8"),
    "FP8-CS": ("fp8", "fp8"),
    "FP8-MX": ("fp8", "mxfp8"),
    "MXFP8": ("fp8", "mxfp8"),
    "NVFP4": ("nvfp4", "nvfp4"),
}
"""Compute format, and that of the inputs of products kept for the backward."""


def bridge(lines: Iterable[TableLine]) -> list[PublishedRow]:
    """Step times of NeMo and Megatron-Bridge on H100, B200, GB200, B300 and GB300.

    Rows that do not state their number format, or the chunks of a pipeline, have no scenario.
    """
    recipes = read_table("nvidia_bridge_recipes.csv")
    rows = []
    for line in lines:
        sizes = [f"{key}{line[key]}" for key in ("FSDP", "TP", "PP", "VPP", "CP", "EP", "MBS") if line[key]]
        name = f"{line['model']} {line['system']} {line['n_gpus']} {line['precision']} {' '.join(sizes)}"
        missing = _missing(line)
        scenario = None if missing else _scenario(line, recipe_of(line, recipes))
        rows.append(
            PublishedRow(
                f"{name} ({line['release']})",
                scenario,
                line.number_of("step_time_s_derived"),
                line["source"],
                left_out=missing,
            )
        )
    return rows


def recipe_of(line: TableLine, recipes: Iterable[TableLine]) -> TableLine:
    """Find the first recipe of a row's release, model, system, format and sharding; * goes for all."""
    asked = {
        "model": line["model"].split(" (")[0],
        "system": line["system"],
        "precision": _format(line),
        "fsdp": "yes" if line["FSDP"] not in ("", "0") else "no",
    }
    return next(
        recipe
        for recipe in recipes
        if recipe["release"] in ("*", line["release"][: len(recipe["release"])])
        and all(recipe[key] in ("*", value) for key, value in asked.items())
    )


def _missing(line: TableLine) -> str | None:
    if not _format(line):
        return "the table does not state the number format"
    if line.count("PP") > 1 and not line["VPP"]:
        return "the table does not state the chunks of a rank"
    return None


def _format(line: TableLine) -> str:
    """Of ``FP8-CS (FP8-MX)`` the first, of which the numbers outside parentheses are."""
    return line["precision"].split(" ")[0]


def _size(line: TableLine, column: str) -> int:
    return 1 if line[column] in ("", "n/a") else line.count(column)


def _scenario(line: TableLine, recipe: TableLine) -> dict[str, Any]:
    machine, accelerator, per_node = _HARDWARE[line["system"]]
    devices = line.count("n_gpus")
    per_node = min(per_node, devices)
    compute, kept = _FORMATS[_format(line)]
    chunks = _size(line, "VPP")
    model = _model(line)
    scenario: dict[str, Any] = {
        "model": model,
        "cluster": {
            "machine": machine,
            "accelerator": accelerator,
            "num_nodes": devices // per_node,
            "gpus_per_node": per_node,
            "nics_per_node": per_node,
        },
        "parallel": _parallel(line, recipe),
        "batch": {"global": line.count("GBS"), "micro": line.count("MBS")},
        "schedule": "interleaved-1f1b" if chunks > 1 else "1f1b",
        "optimizer": "zero3" if recipe["fsdp"] == "yes" else "sharded",
        "efficiency": _efficiency(accelerator, recipe),
        "precision": {
            "compute": compute,
            "activation_format": kept,
            **{f"{what}_bytes": recipe.number_of(f"{what}_bytes") for what in ("weight", "gradient")},
            "optimizer_bytes": recipe.number_of("optimizer_bytes"),
        },
    }
    if recipe["recompute_modules"]:
        scenario |= {"recompute": "selective", "recompute_modules": recipe["recompute_modules"].split()}
    if recipe["offloaded_layers"]:
        scenario["offload"] = {"activations": recipe.count("offloaded_layers") / line.count("layers")}
    if recipe["layers"]:
        scenario["layers"] = [int(number) for number in recipe["layers"].split()]
    return scenario


def _model(line: TableLine) -> dict[str, Any]:
    name = line["model"].split(" (")[0].upper().replace("_", "-")
    seq = line.count("seq")
    if name == "GPT3-5B":
        return gpt(
            line.count("layers"),
            line.count("hidden"),
            line.count("heads"),
            seq=seq,
            vocab=line.count("vocab"),
        )
    keys = {"preset": _MODELS[name], "seq_length": seq}
    if not line["layers"]:
        keys["expert_imbalance"] = 1
    if name == "DEEPSEEKV3" and "w/o MTP" not in line["model"]:
        # recipes/deepseek/deepseek_v3.py: mtp_num_layers
        keys["num_nextn_predict_layers"] = 1
    return keys


def _parallel(line: TableLine, recipe: TableLine) -> dict[str, Any]:
    tensor, context, expert = (_size(line, column) for column in ("TP", "CP", "EP"))
    keys: dict[str, Any] = {
        "pipeline": line.count("PP"),
        "tensor": tensor,
        "virtual_stages": _size(line, "VPP"),
        "sequence_parallel": tensor > 1,
    }
    if context > 1:
        keys["context"] = context
    if expert > 1:
        keys |= {"expert": expert, "expert_tensor": 1, "expert_dispatch": recipe["dispatcher"]}
    return keys


def _efficiency(accelerator: str, recipe: TableLine) -> dict[str, Any]:
    return {
        "preset": "h100-nemo" if accelerator == "h100-sxm" else "b200-megatron",
        "loss_kernel": recipe["loss_kernel"],
        "weight_gradient_placeholders": recipe["weight_gradient_placeholders"] == "yes",
    }
