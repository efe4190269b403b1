"""Rows of Megatron-LM and Megatron-DeepSpeed on A100: scenarios of four published tables.

What a table does not print is stated here, once for the whole table.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pipesim.evidence.published.published_row import PublishedRow
from pipesim.evidence.published.tables import TableLine

GPUS_PER_NODE = 8
_SELENE = {"intra_node": "nvlink3", "inter_node": "ib-hdr"}
# 800 Gb/s a node, an eighth of it a GPU.
_VTRAIN = {
    "intra_node": "nvlink3",
    "inter_node": {"preset": "ib-hdr", "name": "800 Gbit/s a node", "bandwidth": "100 Gbit/s"},
}
# Four Omni-Path 100 ports serve the eight GPUs of a node of Jean Zay.
_JEAN_ZAY = {
    "intra_node": "nvlink3",
    "inter_node": {
        "name": "4 x Omni-Path 100 a node",
        "bandwidth": "50 Gbit/s",
        "efficiency": 0.9,
        "p2p_latency": "20 us",
        "hop_latency": "14 us",
    },
}
_ASSUMED_VOCABULARY = 50257
_BLOOM_HEADS = 96
"""Of the one row without a number of heads, as in the section of the table above it."""
_SWEEP_HEADS = 64
"""Of the sweep over batches, which prints none; as in most other sections."""


def nodes(line: TableLine) -> dict[str, int]:
    """``cluster:`` keys for the sizes: nodes of eight GPUs, or one smaller node."""
    num_gpus = line.count("n_gpus")
    return {
        "num_nodes": max(1, num_gpus // GPUS_PER_NODE),
        "gpus_per_node": min(num_gpus, GPUS_PER_NODE),
    }


def gpt(layers: int, hidden: int, heads: int, *, seq: int, vocab: int) -> dict[str, Any]:
    """``model:`` keys of a GPT."""
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "vocab_size": vocab,
        "seq_length": seq,
    }


def gpt_scenario(
    line: TableLine,
    *,
    name: str,
    layers: int,
    heads: int,
    vocab: int,
    network: dict[str, Any],
    efficiency: str,
    **more: Any,
) -> dict[str, Any]:
    """Scenario keys of a line whose columns are n_gpus, TP, PP, MBS, GBS, hidden and, where present, VPP."""
    chunks = line.count("VPP", 1)
    return {
        "name": name,
        "model": gpt(layers, line.count("hidden"), heads, seq=line.count("seq"), vocab=vocab),
        "cluster": {"accelerator": "a100-sxm-80", **nodes(line), **network},
        "parallel": {
            "pipeline": line.count("PP"),
            "tensor": line.count("TP"),
            "data": line.count("DP"),
            "virtual_stages": chunks,
            "sequence_parallel": False,
        },
        "batch": {"global": line.count("GBS"), "micro": line.count("MBS")},
        "schedule": "interleaved-1f1b" if chunks > 1 else "1f1b",
        # Megatron-LM of those years waits for every send.
        "network": {"p2p": "send-blocking"},
        "efficiency": efficiency,
        **more,
    }


def korthikanti(lines: Iterable[TableLine]) -> list[PublishedRow]:
    """Table 5 of arXiv 2205.05198 and the row with data parallelism of its section 6.3."""
    rows = []
    for line in lines:
        recompute = line["recompute"].split()[0]
        name = f"{line['model']} DP{line['DP']} {line['recompute']}"
        scenario = gpt_scenario(
            line,
            name=name,
            layers=line.count("layers"),
            heads=line.count("heads"),
            vocab=line.count("vocab"),
            network=_SELENE,
            efficiency="a100-megatron-2022",
            recompute=recompute,
        )
        scenario["parallel"]["sequence_parallel"] = recompute == "selective"
        rows.append(PublishedRow(name, scenario, line.number_of("step_time_s"), line["source"]))
    return rows


def sc21(lines: Iterable[TableLine]) -> list[PublishedRow]:
    """Table 1 of arXiv 2104.04473; gradients are kept and reduced in 16 bits."""
    rows = []
    for line in lines:
        name = f"{line['params_B']}B on {line['n_gpus']} GPUs"
        scenario = gpt_scenario(
            line,
            name=name,
            layers=line.count("layers"),
            heads=line.count("heads"),
            vocab=line.count("vocab"),
            network=_SELENE,
            efficiency="a100-megatron-2021",
            recompute="full",
            precision={"compute": "fp16", "gradient_bytes": 2, "optimizer_bytes": 16},
        )
        rows.append(PublishedRow(name, scenario, line.number_of("step_time_s_derived"), line["source"]))
    return rows


def vtrain(lines: Iterable[TableLine]) -> list[PublishedRow]:
    """Multi-node runs of vTrain."""
    rows = []
    for line in lines:
        sizes = [f"{key}{line[key]}" for key in ("TP", "PP", "DP", "MBS")]
        name = f"{line['params_B']}B {' '.join(sizes)}"
        scenario = gpt_scenario(
            line,
            name=name,
            layers=line.count("layers"),
            heads=line.count("heads"),
            vocab=_ASSUMED_VOCABULARY,
            network=_VTRAIN,
            efficiency="a100-megatron-deepspeed-vtrain",
            recompute="full",
            precision={"compute": "fp16", "gradient_bytes": 2, "optimizer_bytes": 16},
        )
        rows.append(
            PublishedRow(
                name,
                scenario,
                line.number_of("step_time_ms") / 1e3,
                line["source"],
                unexplained=_vtrain_unexplained(line),
            )
        )
    return rows


def _vtrain_unexplained(line: TableLine) -> str | None:
    if line["params_B"] == "39.1" and line.count("TP") < GPUS_PER_NODE:
        return "39.1B with TP < 8: measured times jump back and forth with the micro-batch size"
    if line["params_B"] == "3.6" and line.count("MBS") == 64:
        return "micro-batch of 64 takes twice the time of 16, perhaps for want of memory"
    return None


def _bloom_layers(line: TableLine) -> int:
    """Layers where the table prints none: the TFLOP/s reported are 8 FLOPs a token of 12 L h^2 parameters."""
    flops = line.number_of("tflops_per_gpu_reported") * 1e12 * line.count("n_gpus")
    tokens = line.count("GBS") * line.count("seq")
    parameters = flops * line.number_of("step_time_s") / (8 * tokens)
    return round(parameters / (12 * line.count("hidden") ** 2))


def bloom(lines: Iterable[TableLine]) -> list[PublishedRow]:
    """BLOOM's topology grid on 384 A100, with ZeRO-1 and gradients of 2 bytes."""
    rows = []
    for line in lines:
        layers = line.count("layers", _bloom_layers(line))
        heads = line.count("heads", _BLOOM_HEADS)
        sizes = [f"{key}{line[key]}" for key in ("TP", "PP", "DP", "MBS")]
        name = f"{line['model_size']} h{line['hidden']} a{heads} {' '.join(sizes)} ({line['section']})"
        scenario = gpt_scenario(
            line,
            name=name,
            layers=layers,
            heads=heads,
            vocab=line.count("vocab"),
            network=_JEAN_ZAY,
            efficiency="a100-megatron-deepspeed-bloom",
            recompute="full",
            optimizer="sharded",
            precision={"compute": "fp16", "gradient_bytes": 2, "optimizer_bytes": 16},
        )
        odd_heads = "112 heads, 14 a GPU: every other number of heads is 11 % faster"
        rows.append(
            PublishedRow(
                name,
                scenario,
                line.number_of("step_time_s"),
                line["source"],
                unexplained=odd_heads if heads == 112 else None,
            )
        )
    return rows


def bloom_batches(lines: Iterable[TableLine]) -> list[PublishedRow]:
    """One configuration of BLOOM's grid, four global batches: 78 layers, 7 on a stage and 1 on the last."""
    rows = []
    for line in lines:
        name = f"batch {line['GBS']}"
        layers, pipeline = line.count("layers"), line.count("PP")
        each = -(-layers // pipeline)
        scenario = gpt_scenario(
            line,
            name=name,
            layers=layers,
            heads=_SWEEP_HEADS,
            vocab=line.count("vocab"),
            network=_JEAN_ZAY,
            efficiency="a100-megatron-deepspeed-bloom",
            layers_per_stage=[each] * (pipeline - 1) + [layers - each * (pipeline - 1)],
            recompute="full",
            optimizer="sharded",
            precision={"compute": "fp16", "gradient_bytes": 2, "optimizer_bytes": 16},
        )
        scenario["layers"] = scenario.pop("layers_per_stage")
        rows.append(PublishedRow(name, scenario, line.number_of("step_time_s"), line["source"]))
    return rows
