"""Rows of torchtitan and of the Llama 3 paper, on H100 of other kinds."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from pipesim.evidence.published.megatron_a100_rows import nodes
from pipesim.evidence.published.published_row import PublishedRow
from pipesim.evidence.published.tables import TableLine

_CARD = {
    "name": "H100 96 GB HBM2e 500 W",
    "peak": {"bf16": "989 TFLOP/s", "fp8": "1979 TFLOP/s"},
    "memory": "96 GB",
    "memory_bandwidth": "2400 GB/s",
    "intra_node": "nvlink4",
    "efficiency": "h100-torchtitan",
}
_RECOMPUTE = {"selective AC": "selective", "full AC": "full", "per-op SAC": "selective"}
_NO_MICRO_BATCH = "micro-batch and chunks are not printed"


def torchtitan(lines: Iterable[TableLine]) -> list[PublishedRow]:
    """Throughput of torchtitan's benchmark pages, as step times."""
    return [_row(line) for line in lines]


def meta(lines: Iterable[TableLine]) -> list[PublishedRow]:
    """Table 4 of arXiv 2407.21783."""
    rows = []
    for line in lines:
        name = f"{line['model']} on {line['n_gpus']} GPUs seq {line['seq']}"
        tokens = line.number_of("tokens_per_batch")
        flops = line.number_of("tflops_per_gpu") * 1e12 * line.count("n_gpus")
        # 6 FLOPs a parameter and token, and causal attention counted in full.
        attention = 12 * line.count("layers") * line.count("hidden") * line.count("seq")
        step_time_s = tokens * (6 * 405.85e9 + attention) / flops
        rows.append(PublishedRow(name, None, step_time_s, line["source"], left_out=_NO_MICRO_BATCH))
    return rows


def _row(line: TableLine) -> PublishedRow:
    name = " ".join(
        [
            line["model"],
            f"{line['n_gpus']} GPUs",
            f"TP{line['TP']} CP{line['CP']}",
            f"s{line['seq']}",
            line["technique"],
        ]
    )
    if line.count("PP") > 1:
        return PublishedRow(name, None, float("nan"), line["source"], left_out=_NO_MICRO_BATCH)
    replicas = line.count("FSDP")
    local = line.count("local_batch")
    tokens = replicas * local * line.count("seq")
    step_time_s = tokens / (line.number_of("tokens_per_s_per_gpu") * line.count("n_gpus"))
    scenario = _scenario(line, name)
    return PublishedRow(name, scenario, step_time_s, line["source"], stratum=scenario["efficiency"]["preset"])


def _scenario(line: TableLine, name: str) -> dict[str, Any]:
    size = re.search(r"(\d+)B", line["model"])
    tensor, context = line.count("TP"), line.count("CP")
    parallel: dict[str, Any] = {"pipeline": 1, "tensor": tensor, "data": line.count("FSDP")}
    parallel["sequence_parallel"] = tensor > 1
    if context > 1:
        parallel["context"] = context
    return {
        "name": name,
        "model": {"preset": f"llama3-{size[1] if size else ''}b", "seq_length": line.count("seq")},
        "cluster": {
            "accelerator": _CARD,
            **nodes(line),
            "inter_node": "roce-400",
        },
        "parallel": parallel,
        "batch": {"microbatches": 1, "micro": line.count("local_batch")},
        "schedule": "1f1b",
        "recompute": _RECOMPUTE[line["recompute"]],
        "optimizer": "zero3",
        "efficiency": {
            "preset": "h100-torchtitan" if "compile" in line["technique"] else "h100-torchtitan-eager",
            "release": re.sub(r".*(20\d\d)-?(\d\d).*", r"\1-\2", line["source"]),
        },
        "precision": {"compute": "fp8" if "float8" in line["technique"].lower() else "bf16"},
    }
