"""Renew the accuracy table of README.md: what `pipesim accuracy` finds, for the sets shown there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from pipesim.evidence.published import SETS, Report, judge
from pipesim.prediction import Programs
from pipesim.show.amounts import optional, percent, signed_percent

TARGET = Path(__file__).parents[1] / "README.md"
SHOWN = {
    "korthikanti": "Megatron-LM 22B-1T, A100 (2205.05198)",
    "sc21": "Megatron-LM 1.7B-1T, A100 (2104.04473)",
    "vtrain": "vTrain multi-node, A100",
    "bloom": "BLOOM topology grid, A100",
    "nvidia": "NVIDIA Llama step times, H100",
    "mlperf": "MLPerf GPT-3 and Llama, H100",
    "simumax": "SimuMax dense Llama, B200",
    "zero-bubble": "zero-bubble, from printed pass times",
    "zero-bubble-hardware": "zero-bubble, from hardware alone",
    "vocabulary": "vocabulary-parallelism paper, A100",
    "torchtitan": "torchtitan, H100 (no fitted set)",
    "simumax-memory": "memory: SimuMax, B200",
    "zero-bubble-memory": "memory: zero-bubble",
    "vocabulary-memory": "memory: vocabulary-parallelism",
}


def renewed(readme: str, reports: Mapping[str, Report]) -> str:
    """Give the README with the table's rows, and the figure for collectives, of these reports."""
    rows = "".join(f"| {' | '.join(_cells(label, reports[name]))} |\n" for name, label in SHOWN.items())
    collectives = optional(reports["collectives"].errors().mape, lambda share: f"{100 * share:.1f} %")
    readme = re.sub(r"(\| published set \|.*\n\|[-|]+\|\n)(?:\|.*\n)+", rf"\g<1>{rows}", readme)
    return re.sub(r"(collectives of any size: )[\d.]+ %", rf"\g<1>{collectives}", readme)


def _cells(label: str, report: Report) -> list[str]:
    errors, explained, judged = report.errors(), report.errors(explained=True), report.errors("judged")
    sizes = [errors.mape, errors.max_error], [explained.mape, judged.mape]
    before, after = ([optional(size, percent) for size in part] for part in sizes)
    return [label, str(errors.num_rows), *before, optional(errors.bias, signed_percent), *after]


if __name__ == "__main__":
    programs = Programs()
    found = {name: judge(SETS[name], programs=programs) for name in (*SHOWN, "collectives")}
    TARGET.write_text(renewed(TARGET.read_text(), found))
