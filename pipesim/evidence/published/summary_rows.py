"""Rows of NVIDIA's NeMo and Megatron-Bridge performance summaries: H100 to GB300, dense and with experts.

What the summaries do not print is in the recipes of the same repository (NVIDIA-NeMo/Megatron-Bridge,
scripts/performance/configs) and in the summaries' remarks: tokens are balanced over experts, and a number in
parentheses is the same run with scales for blocks of values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from pipesim.evidence.published.llama_rows import (
    BLACKWELL,
    layers_with_ends,
    nemo_cluster,
    nemo_preset,
    shape,
)
from pipesim.evidence.published.published_row import PublishedRow
from pipesim.evidence.published.tables import TableLine

_FORMATS = {
    "NVFP4": "nvfp4",
    "MXFP8": "mxfp8",
    "FP8-MX": "mxfp8",
    "FP8-CS": "fp8",
    "FP8": "fp8",
    "BF16": "bf16",
}
_UNPRINTED_FORMAT = "FP8-CS (FP8-MX)"
"""Of the summary of 25.09, by its remark on parentheses."""
_UNPRINTED_CHUNKS = {"GPT3-175B": 6, "LLAMA2-70B": 20, "LLAMA3-70B": 5}
"""Of the summary of 24.03 to 24.05: those of the same rows in 24.07."""
_RECIPES_CHUNKS = {"LLAMA3_70B": 5}
"""Where the summary has none though there is a pipeline: those of all recipes of the model with one."""
_INNER = {"LLAMA2-7B": 11008, "LLAMA2-70B": 28672, "LLAMA3-8B": 14336, "LLAMA3-70B": 28672}
"""Width of the MLPs, which the summaries do not print: the models' Hugging Face configurations."""
_WITH_EXPERTS = {
    "DeepSeekV3": "deepseek-v3",
    "Qwen3_30B_a3B": "qwen3-30b-a3b",
    "GPT OSS 120B": "gpt-oss-120b",
}
_FIRST_GRAPHS_OF_ALL = 26.06
"""From this release on the recipes for Blackwell capture whole steps and run exchanges beside computing."""
_CELL = re.compile(r"([^()]+?)(?:\s*\(([^()]*)\))?")
_COLUMNS_OF_ONE_RUN = ("FSDP", "TP", "PP", "VPP", "CP", "EP", "DP", "MBS", "tokens_per_s_per_gpu")


def summaries(lines: Iterable[TableLine]) -> list[PublishedRow]:
    """Every line, and once more for what stands in parentheses."""
    return [row for line in lines for row in _rows(line)]


def _rows(line: TableLine) -> Iterator[PublishedRow]:
    printed = line["precision"] or _UNPRINTED_FORMAT
    for second, number_format in enumerate(_cell(printed)):
        if number_format is None:
            continue
        run = _Run(line, second, number_format)
        if second and not run.has_own_time:
            continue
        name, format_known = run.name, number_format in _FORMATS
        if not format_known:
            reason = f"no number format {number_format}"
            yield PublishedRow(name, None, run.step_time_s, line["source"], left_out=reason)
            continue
        stratum = f"{run.model} {run.gpu}"
        yield PublishedRow(name, run.scenario(), run.step_time_s, line["source"], stratum=stratum)


def _cell(text: str) -> tuple[str, str | None]:
    found = _CELL.fullmatch(text)
    return (text, None) if found is None else (found[1], found[2])


class _Run:
    """One of the up to two runs that a line prints."""

    def __init__(self, line: TableLine, second: int, number_format: str) -> None:
        self.number_format = number_format
        cells = {column: line.get(column) for column in line}
        for column in _COLUMNS_OF_ONE_RUN:
            first, other = _cell(cells[column])
            cells[column] = other if second and other else first
            if cells[column] in ("n/a", "0"):
                cells[column] = ""
        self.line = TableLine(cells, file=line.file, number=line.number)
        self.has_own_time = _cell(line["tokens_per_s_per_gpu"])[1] is not None
        self.gpu = line["system"].removeprefix("DGX-")
        self.model = re.sub(r"\s*\(.*\)", "", line["model"])
        self.predicts_two = "w/o MTP" not in line["model"]

    @property
    def release(self) -> str:
        return self.line["release"].split(" ")[0].split("-")[-1].split("/")[-1]

    @property
    def name(self) -> str:
        line = self.line
        sizes = [f"{key}{line[key]}" for key in ("FSDP", "TP", "PP", "VPP", "CP", "EP", "MBS") if line[key]]
        where = f"{line['n_gpus']} {self.gpu} {self.number_format} GBS{line['GBS']}"
        return f"{self.line['model']} {where} {' '.join(sizes)} ({line['release']})"

    @property
    def step_time_s(self) -> float:
        tokens = self.line.count("GBS") * self.line.count("seq")
        return tokens / (self.line.number_of("tokens_per_s_per_gpu") * self.line.count("n_gpus"))

    def scenario(self) -> dict[str, Any]:
        line, chunks = self.line, self._chunks()
        pipeline, preset = line.count("PP"), nemo_preset(self.gpu, self.release)
        parallel: dict[str, Any] = {
            "pipeline": pipeline,
            "tensor": line.count("TP"),
            "virtual_stages": chunks,
            "sequence_parallel": line.count("TP") > 1,
            "context": line.count("CP", 1),
        }
        scenario: dict[str, Any] = {
            "name": self.name,
            "model": self._dense(),
            "cluster": nemo_cluster(line, self.gpu),
            "parallel": parallel,
            "batch": {"global": line.count("GBS"), "micro": line.count("MBS")},
            "schedule": "interleaved-1f1b" if chunks > 1 else "1f1b",
            "optimizer": "zero3" if line["FSDP"] else "sharded",
            "efficiency": {"preset": preset, "release": self.release},
            "precision": {"compute": _FORMATS[self.number_format], "gradient_bytes": 2},
        }
        if pipeline > 1 and chunks == 1:
            # Megatron-core's 1F1B waits for its messages; interleaved they run beside computing.
            scenario["network"] = {"p2p": "send-blocking"}
        if self.model in _WITH_EXPERTS:
            scenario |= self._with_experts(parallel, preset)
        elif layers := layers_with_ends(line.count("layers"), parallel):
            scenario["layers"] = layers
        return scenario

    def _chunks(self) -> int:
        if self.line["VPP"] or self.line.count("PP") == 1:
            return self.line.count("VPP", 1)
        of_release = _UNPRINTED_CHUNKS if self.line["release"].startswith("24.03") else _RECIPES_CHUNKS
        return of_release.get(self.model, 1)

    def _dense(self) -> dict[str, Any]:
        name = self.model.upper().replace("_", "-")
        if self.model in _WITH_EXPERTS:
            return {}
        cells = {column: self.line.get(column) for column in self.line}
        inner = str(_INNER.get(name, 4 * self.line.count("hidden")))
        return shape(TableLine({**cells, "ffn": inner}, file=self.line.file, number=self.line.number))

    def _with_experts(self, parallel: dict[str, Any], preset: str) -> dict[str, Any]:
        line, new = self.line, float(self.release[:5]) >= _FIRST_GRAPHS_OF_ALL
        graphs = new and preset == BLACKWELL
        one_copy = self.model != "GPT OSS 120B" or self.gpu == "B300"
        keys: dict[str, Any] = {
            "model": {"preset": _WITH_EXPERTS[self.model], "expert_imbalance": 1},
            "parallel": {
                **parallel,
                "expert": line.count("EP"),
                "expert_tensor": 1,
                "expert_dispatch": "hybridep" if one_copy else "alltoall",
            },
            "cuda_graphs": "full" if graphs else "partial",
        }
        if graphs:
            keys["parallel"]["expert_overlap"] = 0.9
            keys["efficiency"] = {"preset": f"{preset}-graphs", "release": self.release}
        if "tokendrop" in line["model"]:
            # Rows of a fixed number need no count from the device: the host does not wait in every layer.
            keys["efficiency"] = {"preset": preset, "release": self.release, "expert_layer_floor": "0 s"}
        if self.model == "DeepSeekV3":
            keys |= self._deepseek(keys["model"], parallel)
        elif self.model == "GPT OSS 120B" and not self.gpu.endswith("300"):
            keys |= {"recompute": "selective", "recompute_modules": ["layernorm", "moe_act"]}
        return keys

    def _deepseek(self, model: dict[str, Any], parallel: dict[str, Any]) -> dict[str, Any]:
        """Its module for a second token counts as a layer; stages are filled from the front."""
        num_layers = 61 + self.predicts_two
        num_stages = parallel["pipeline"] * parallel["virtual_stages"]
        each = -(-num_layers // num_stages)
        layers = [each] * (num_stages - 1) + [num_layers - each * (num_stages - 1)]
        if num_stages == 32:
            # As the recipe: the embedding with one layer, the module with the loss.
            layers = [1] + [2] * 30 + [int(self.predicts_two)]
        modules = ["mla_up_proj", "mlp"] if self.gpu == "H100" else ["mla_up_proj"]
        return {
            "model": {**model, "num_hidden_layers": num_layers},
            "layers": layers,
            "recompute": "selective",
            "recompute_modules": modules,
        }
