"""Rows of NeMo on H100 and of Megatron-LM on B200: scenarios of three published tables."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from pipesim.errors import ScenarioError
from pipesim.evidence.published.megatron_a100_rows import gpt, nodes
from pipesim.evidence.published.published_row import PublishedRow
from pipesim.evidence.published.tables import TableLine

_HARDWARE = {
    "H100": {"accelerator": "h100-sxm", "intra_node": "nvlink4", "inter_node": "ib-ndr"},
    "H200": {"accelerator": "h200-sxm", "intra_node": "nvlink4", "inter_node": "ib-ndr"},
    "B200": {"accelerator": "b200-sxm", "intra_node": "nvlink5", "inter_node": "ib-ndr"},
    "B300": {"accelerator": "b300-sxm", "intra_node": "nvlink5", "inter_node": "ib-ndr"},
    "GB200": {"accelerator": "gb200", "intra_node": "nvlink5", "inter_node": "ib-ndr"},
    "GB300": {"accelerator": "gb300", "intra_node": "nvlink5", "inter_node": "ib-ndr"},
}
_RACK = 64
"""GPUs of a rack of 72 that such runs use."""
_FIRST_OF_LATER_HOPPER = "24.08"
"""Releases before this one are a generation of their own: slower with small models."""
HOPPER, BLACKWELL = "h100-nemo", "b200-nemo"
_GROK_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "expert_imbalance": 1}
"""Every expert gets as many tokens as fit, a capacity factor of 1 (dgxc-benchmarking, grok1_314b.yaml)."""
_PLAIN_MLP = ("gpt", "nemotron")
"""Names of models without a gate; all others are of Llama's kind."""


def shape(line: TableLine) -> dict[str, Any]:
    """``model:`` keys of a GPT, or of a Llama: gated MLP, grouped keys and values, nothing tied."""
    if line["model"].lower().startswith(_PLAIN_MLP):
        model = gpt(
            line.count("layers"),
            line.count("hidden"),
            line.count("heads"),
            seq=line.count("seq"),
            vocab=line.count("vocab"),
        )
        inner = line.count("ffn", 4 * model["hidden_size"])
        if inner != 4 * model["hidden_size"]:
            model["intermediate_size"] = inner
        if line["model"].lower().startswith("nemotron"):
            model |= {"num_learned_positions": 0, "tie_word_embeddings": False, "biases": False}
            model["num_key_value_heads"] = line.count("kv_heads")
        return model
    model = {
        "num_hidden_layers": line.count("layers"),
        "hidden_size": line.count("hidden"),
        "num_attention_heads": line.count("heads"),
        "num_key_value_heads": line.count("kv_heads"),
        "intermediate_size": line.count("ffn"),
        "vocab_size": line.count("vocab"),
        "seq_length": line.count("seq"),
        "gated_mlp": True,
    }
    if line["model"].lower().startswith("grok"):
        return {**model, **_GROK_EXPERTS, "moe_intermediate_size": model["intermediate_size"]}
    return model


def parallel_keys(line: TableLine) -> dict[str, Any]:
    """``parallel:`` keys from TP, PP, VPP, CP, DP; sequence parallel where there is tensor parallel."""
    keys = {
        "pipeline": line.count("PP"),
        "tensor": line.count("TP"),
        "data": line.count("DP"),
        "virtual_stages": line.count("VPP", 1),
        **({"expert": line.count("EP")} if "EP" in line and line.count("EP", 1) > 1 else {}),
        "sequence_parallel": line.count("TP") > 1,
    }
    context = line.count("CP", 1)
    return {**keys, "context": context} if context > 1 else keys


def nemo_cluster(line: TableLine, gpu: str) -> dict[str, Any]:
    """``cluster:`` keys of NVIDIA's systems; a rack of GB200 or GB300 is one node.

    Raises
    ------
    ScenarioError
        For a system without presets.
    """
    if gpu not in _HARDWARE:
        raise ScenarioError(
            f"found {gpu!r}; needed: {', '.join(_HARDWARE)}", file=line.file, key=f"line {line.number}"
        )
    sizes, num_gpus = nodes(line), line.count("n_gpus")
    if gpu.startswith("GB"):
        sizes = {"num_nodes": -(-num_gpus // _RACK), "gpus_per_node": min(num_gpus, _RACK)}
    return {**_HARDWARE[gpu], **sizes}


def nemo_preset(gpu: str, release: str) -> str:
    """Efficiency preset of a release of NeMo or Megatron-Bridge on a card."""
    if gpu not in ("H100", "H200"):
        return BLACKWELL
    return f"{HOPPER}-2024" if release < _FIRST_OF_LATER_HOPPER else HOPPER


def _nemo_scenario(line: TableLine, name: str, release: str) -> dict[str, Any]:
    parallel, model = parallel_keys(line), shape(line)
    gpu = line["gpu"].split()[0]
    scenario = {
        "name": name,
        "model": model,
        "cluster": nemo_cluster(line, gpu),
        "parallel": parallel,
        "batch": {"global": line.count("GBS"), "micro": line.count("MBS")},
        "schedule": "interleaved-1f1b" if parallel["virtual_stages"] > 1 else "1f1b",
        "optimizer": "sharded",
        "efficiency": {"preset": HOPPER if gpu == "H100" else BLACKWELL, "release": release},
        "precision": {"compute": line["precision"].lower(), "gradient_bytes": 2},
    }
    layers = layers_with_ends(model["num_hidden_layers"], parallel)
    return {**scenario, "layers": layers} if layers else scenario


def layers_with_ends(num_layers: int, parallel: dict[str, Any]) -> list[int] | None:
    """Layers of each stage where embedding and loss take a layer's place each, as 2 + 126 = 8 x 8 x 2."""
    num_stages = parallel["pipeline"] * parallel["virtual_stages"]
    if num_stages == 1 or num_layers % num_stages == 0 or (num_layers + 2) % num_stages:
        return None
    each = (num_layers + 2) // num_stages
    return [each - 1, *[each] * (num_stages - 2), each - 1]


def nvidia(lines: Iterable[TableLine]) -> list[PublishedRow]:
    """NVIDIA's step times of Llama 3.1 in releases of DGX Cloud Benchmarking."""
    rows = []
    for line in lines:
        sizes = [f"{key}{line[key]}" for key in ("TP", "PP", "VPP", "CP", "DP") if line[key]]
        release = line["set"].split()[-1]
        name = f"{line['model']} L{line['layers']} {line['precision']} {' '.join(sizes)} ({release})"
        scenario = _nemo_scenario(line, name, release.removeprefix("v"))
        seconds, stratum = line.number_of("step_time_s"), f"{line['model']} {line['gpu']}"
        rows.append(PublishedRow(name, scenario, seconds, line["source"], stratum=stratum))
    return rows


_SLOW_FP8 = "the only row of NeMo 23.04, whose fp8 layers were slower than later ones; one row is no set"
_OTHER_VENDOR = (
    "3,072 GPUs of another vendor's cloud, 15 % slower than NVIDIA's own systems with the same software"
)


def _container_release(system: str) -> str:
    """Release of NGC's container in the name of a submission; others ran that of the same round."""
    found = re.search(r"ngc(\d\d\.\d\d)", system)
    return found[1] if found else "24.09"


def mlperf(lines: Iterable[TableLine]) -> list[PublishedRow]:
    """GPT-3 175B (and Llama 3.1 405B) in MLPerf training, from the official logs."""
    rows = []
    for line in lines:
        name = f"{line['system']} {line['set'].removeprefix('mlperf_training_')}"
        unexplained = None
        if line["set"].endswith("v3.0"):
            unexplained = _SLOW_FP8
        elif "Oracle" in line["source"]:
            unexplained = _OTHER_VENDOR
        rows.append(
            PublishedRow(
                name,
                _nemo_scenario(line, name, _container_release(line["system"])),
                line.number_of("step_time_s"),
                line["source"],
                unexplained=unexplained,
            )
        )
    return rows


def simumax(lines: Iterable[TableLine]) -> list[PublishedRow]:
    """SimuMax's measured step times on 8 B200."""
    return [
        PublishedRow(
            line["case"], _simumax_scenario(line), line.number_of("real_step_ms") / 1e3, line["source"]
        )
        for line in lines
    ]


def simumax_memory(lines: Iterable[TableLine]) -> list[PublishedRow]:
    """Peak allocation of the same runs."""
    return [
        PublishedRow(
            line["case"], _simumax_scenario(line), line.number_of("real_alloc_GiB") * 2**30, line["source"]
        )
        for line in lines
    ]


def _simumax_scenario(line: TableLine) -> dict[str, Any]:
    return {
        "name": line["case"],
        "model": shape(line),
        "cluster": {"accelerator": "b200-sxm", **nodes(line), "intra_node": "nvlink5"},
        "parallel": parallel_keys(line),
        "batch": {"microbatches": line.count("n_microbatches"), "micro": line.count("MBS")},
        "schedule": "1f1b",
        "optimizer": "sharded",
        "efficiency": "b200-megatron",
    }
