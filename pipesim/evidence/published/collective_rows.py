"""Rows of nccl-tests: how long a collective alone takes, from the ring formula and the link presets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pipesim.costs.network.alpha_beta import all_gather_s, all_reduce_s, reduce_scatter_s
from pipesim.costs.network.topology import data_ring
from pipesim.evidence.published.megatron_a100_rows import gpt
from pipesim.evidence.published.published_row import PublishedRow
from pipesim.evidence.published.tables import TableLine
from pipesim.scenario import ResolvedScenario

_HARDWARE = {
    "A100 (NVLink/NVSwitch, single node)": ("a100-sxm-80", "nvlink3"),
    "8x A100 SXM, NVLink3/NVSwitch": ("a100-sxm-80", "nvlink3"),
    "8x H100 SXM 80GB HBM3, NVSwitch (DGX)": ("h100-sxm", "nvlink4"),
    "8x H200 SXM, NVLink4/NVSwitch": ("h200-sxm", "nvlink4"),
    "8x B200 p6-b200, NVLink5/NVSwitch": ("b200-sxm", "nvlink5"),
    "B200 p6-b200.48xlarge, NVLink5, 8x50GBps EFA v4": ("b200-sxm", "nvlink5"),
}
_INTER_NODE = "efa-v4-p6b200-400"
_FORMULAS = {"all_reduce": all_reduce_s, "all_gather": all_gather_s, "reduce_scatter": reduce_scatter_s}


def collectives(lines: Iterable[TableLine]) -> list[PublishedRow]:
    """Every sweep; those on hardware without a preset are listed."""
    return [_row(line) for line in lines]


def _row(line: TableLine) -> PublishedRow:
    name = (
        f"{line['hardware']} x{line['n_gpus']} {line['collective']} {line['bytes']} B {line['algo']}".strip()
    )
    left_out = _why_not(line)
    seconds = line.number_of("time_us") * 1e-6 if line["time_us"] else float("nan")
    if left_out:
        return PublishedRow(name, None, seconds, line["source"], left_out=left_out)
    extra = {"collective": line["collective"], "nbytes": line.number_of("bytes")}
    return PublishedRow(name, _scenario(line, name), seconds, line["source"], extra=extra)


def _why_not(line: TableLine) -> str | None:
    if not line["time_us"] or not line["bytes"]:
        return "size or time is not printed"
    if line["collective"] not in _FORMULAS:
        return "a point-to-point latency, no collective"
    if line["hardware"].startswith("V100"):
        return "V100 nodes have no switch: bandwidth depends on which of the GPUs take part"
    return None if line["hardware"] in _HARDWARE else "the hardware is not named"


def _scenario(line: TableLine, name: str) -> dict[str, Any]:
    """Data-parallel replicas of any small model: their ring is the one that is measured."""
    accelerator, link = _HARDWARE[line["hardware"]]
    num_nodes = line.count("n_nodes")
    return {
        "name": name,
        "model": gpt(1, 1024, 16, seq=1024, vocab=50257),
        "cluster": {
            "accelerator": accelerator,
            "num_nodes": num_nodes,
            "gpus_per_node": line.count("n_gpus") // num_nodes,
            "intra_node": link,
            "inter_node": _INTER_NODE,
        },
        "parallel": {"pipeline": 1},
        "batch": {"microbatches": 1},
        "schedule": "1f1b",
    }


def collective_s(scenario: ResolvedScenario, row: PublishedRow) -> float:
    """Seconds of a row's collective over the scenario's data-parallel replicas."""
    assert scenario.cluster is not None
    ring = data_ring(scenario.cluster, scenario.parallel)
    assert ring is not None
    return float(_FORMULAS[row.extra["collective"]](row.extra["nbytes"], ring))
