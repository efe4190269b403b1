"""Rows of the vocabulary-parallelism paper (arXiv 2411.05288): a large vocabulary on the last stage."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from pipesim.evidence.published.megatron_a100_rows import gpt, nodes
from pipesim.evidence.published.published_row import PublishedRow
from pipesim.evidence.published.tables import TableLine

_A100_PEAK_FLOPS = 312e12
_SPLITS = {"Baseline": "even", "Redis": "balanced"}
_LEFT_OUT = "cuts the vocabulary over the pipeline's ranks, which no scenario expresses"
_SPLIT_UNKNOWN = "the layers of each stage, which decide the peak, are not printed for Redis"


def step_times(lines: Iterable[TableLine]) -> list[PublishedRow]:
    """Step times that the printed MFU stands for."""
    return [_row(line, _step_time_s(line)) for line in lines]


def memory(lines: Iterable[TableLine]) -> list[PublishedRow]:
    """Peak memory of the same runs; their GB are torch's, 2**30 bytes."""
    rows = []
    for line in lines:
        row = _row(line, line.number_of("peak_mem_GB") * 2**30)
        rows.append(replace(row, left_out=_SPLIT_UNKNOWN) if line["method"] == "Redis" else row)
    return rows


def _row(line: TableLine, measured: float) -> PublishedRow:
    size = f"L{line['layers']} h{line['hidden']} p{line['PP']} s{line['seq']} V{line['vocab_label']}"
    name = f"{size} {line['method']}"
    if line["method"] not in _SPLITS:
        return PublishedRow(name, None, measured, line["source"], left_out=_LEFT_OUT)
    return PublishedRow(name, _scenario(line, name), measured, line["source"], group=size)


def _scenario(line: TableLine, name: str) -> dict[str, Any]:
    model = gpt(
        line.count("layers"),
        line.count("hidden"),
        line.count("heads"),
        seq=line.count("seq"),
        vocab=line.count("vocab"),
    )
    return {
        "name": name,
        "model": {**model, "tie_word_embeddings": False},
        "cluster": {
            "accelerator": "a100-sxm-80",
            **nodes(line),
            "intra_node": "nvlink3",
            "inter_node": "roce-200",
        },
        "parallel": {"pipeline": line.count("PP"), "tensor": line.count("TP")},
        "batch": {"microbatches": line.count("n_microbatches"), "micro": line.count("MBS")},
        "schedule": "1f1b",
        "network": {"p2p": "send-blocking"},
        "layers": _SPLITS[line["method"]],
        "efficiency": "a100-megatron-2024",
        # 16 bytes a parameter: what the peaks grow by from one vocabulary to the next.
        "precision": {"gradient_bytes": 2},
    }


def _step_time_s(line: TableLine) -> float:
    """Model FLOPs of a step over MFU times peak, FLOPs as in arXiv 2104.04473: 72 B s L h^2 (1 + ...)."""
    batch = line.count("MBS") * line.count("n_microbatches") * line.count("DP")
    layers, hidden, seq, vocab = (line.count(key) for key in ("layers", "hidden", "seq", "vocab"))
    flops = 72.0 * batch * seq * layers * hidden**2
    flops *= 1 + seq / (6 * hidden) + vocab / (12 * layers * hidden)
    mfu = line.number_of("MFU_pct") / 100
    return flops / (mfu * _A100_PEAK_FLOPS * line.count("n_gpus"))
