"""Rows of arXiv 2205.05198 that are parts of a step: one layer's time, and activations of the first rank."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pipesim.evidence.published.megatron_a100_rows import GPUS_PER_NODE, gpt
from pipesim.evidence.published.published_row import PublishedRow
from pipesim.evidence.published.tables import TableLine, read_table

_CONFIGURATIONS = "korthikanti22_table5.csv"
_VOCABULARY = 51200


def layer_rows(lines: Iterable[TableLine]) -> list[PublishedRow]:
    """Table 4: forward and backward of one layer together.

    The scenario has three stages so that the one in the middle holds a single layer and nothing else.
    """
    rows = []
    for line in lines:
        words = line["experiment"].lower()
        full = "full" if "with recompute" in words else "none"
        recompute = "selective" if "selective" in words else full
        name = f"{line['model']} {line['experiment']}"
        scenario = _scenario(
            gpt(3, line.count("hidden"), line.count("heads"), seq=line.count("seq"), vocab=_VOCABULARY),
            name,
            tensor=line.count("TP"),
            pipeline=3,
            micro=line.count("MBS"),
            recompute=recompute,
            sequence_parallel="sequence" in words,
        )
        rows.append(PublishedRow(name, scenario, line.number_of("combined_ms") / 1e3, line["source"]))
    return rows


def activation_rows(lines: Iterable[TableLine]) -> list[PublishedRow]:
    """Figures 1 and 7: activations of a device of the first rank, and the share that a technique keeps."""
    configurations = {line["model"]: line for line in read_table(_CONFIGURATIONS)}
    rows = []
    for line in lines:
        # Shares are of the activations without any technique.
        none_bytes = line.number_of("act_none_GiB") * 2**30
        techniques = [
            ("none", False, none_bytes),
            ("none", True, none_bytes * line.number_of("pct_seq") / 100),
            ("selective", False, none_bytes * line.number_of("pct_sel") / 100),
            ("selective", True, line.number_of("act_seqsel_GiB") * 2**30),
            ("full", False, none_bytes * line.number_of("pct_full") / 100),
        ]
        for recompute, sequence_parallel, measured in techniques:
            rows.append(_activation_row(line, configurations, recompute, sequence_parallel, measured))
    return rows


def _activation_row(
    line: TableLine,
    configurations: dict[str, TableLine],
    recompute: str,
    sequence_parallel: bool,
    measured: float,
) -> PublishedRow:
    run = configurations[line["model"]]
    name = f"{line['model']} recompute {recompute}{', sequence parallel' if sequence_parallel else ''}"
    chunks = run.count("VPP", 1)
    scenario = _scenario(
        gpt(
            run.count("layers"),
            run.count("hidden"),
            run.count("heads"),
            seq=run.count("seq"),
            vocab=run.count("vocab"),
        ),
        name,
        tensor=run.count("TP"),
        pipeline=run.count("PP"),
        micro=run.count("MBS"),
        microbatches=run.count("n_microbatches"),
        chunks=chunks,
        recompute=recompute,
        sequence_parallel=sequence_parallel,
    )
    return PublishedRow(name, scenario, measured, line["source"])


def _scenario(
    model: dict[str, Any],
    name: str,
    *,
    tensor: int,
    pipeline: int,
    micro: int,
    recompute: str,
    sequence_parallel: bool,
    microbatches: int = 1,
    chunks: int = 1,
) -> dict[str, Any]:
    return {
        "name": name,
        "model": model,
        "cluster": {
            "accelerator": "a100-sxm-80",
            "num_nodes": tensor * pipeline // GPUS_PER_NODE,
            "gpus_per_node": GPUS_PER_NODE,
            "intra_node": "nvlink3",
            "inter_node": "ib-hdr",
        },
        "parallel": {
            "pipeline": pipeline,
            "tensor": tensor,
            "virtual_stages": chunks,
            "sequence_parallel": sequence_parallel,
        },
        "batch": {"microbatches": microbatches, "micro": micro},
        "schedule": "interleaved-1f1b" if chunks > 1 else "1f1b",
        "recompute": recompute,
        "efficiency": "a100-megatron-2022",
    }
