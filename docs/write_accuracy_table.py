"""Renew the accuracy table of README.md: what `pipesim accuracy` finds, for the sets shown there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipesim.evidence.published import SETS, Report, judge
from pipesim.evidence.published.judge import bands_summary, by_domain
from pipesim.evidence.published.row_pairs import pairs_summary
from pipesim.prediction import Programs
from pipesim.show.amounts import optional, percent, signed_percent

TARGET = Path(__file__).parents[1] / "README.md"
SHOWN = {
    "korthikanti": "Megatron-LM 22B-1T, A100 (2205.05198)",
    "sc21": "Megatron-LM 1.7B-1T, A100 (2104.04473)",
    "vtrain": "vTrain multi-node, A100",
    "bloom": "BLOOM topology grid, A100",
    "nvidia": "DGX Cloud Benchmarking, H100 and GB200",
    "bridge": "NeMo and Megatron-Bridge summaries, H100 to GB300",
    "mlperf": "MLPerf GPT-3 and Llama, H100",
    "simumax": "SimuMax dense Llama, B200",
    "zero-bubble": "zero-bubble, from printed pass times",
    "zero-bubble-hardware": "zero-bubble, from hardware alone",
    "vocabulary": "vocabulary-parallelism paper, A100",
    "torchtitan": "torchtitan, H100",
    "simumax-memory": "memory: SimuMax, B200",
    "zero-bubble-memory": "memory: zero-bubble",
    "vocabulary-memory": "memory: vocabulary-parallelism",
}


def renewed(readme: str, reports: Mapping[str, Report]) -> str:
    """Give the README with the table's rows, and the figure for collectives, of these reports."""
    rows = "".join(f"| {' | '.join(_cells(label, reports[name]))} |\n" for name, label in SHOWN.items())
    collectives = optional(reports["collectives"].errors().mape, lambda share: f"{100 * share:.1f} %")
    readme = re.sub(r"(\| published set \|.*\n\|[-|]+\|\n)(?:\|.*\n)+", rf"\g<1>{rows}", readme)
    readme = re.sub(r"(collectives of any size: )[\d.]+ %", rf"\g<1>{collectives}", readme)
    domains = "".join(f"| {' | '.join(_domain_cells(one))} |\n" for one in by_domain(list(reports.values())))
    readme = re.sub(r"(\| efficiency set \|.*\n\|[-|]+\|\n)(?:\|.*\n)+", rf"\g<1>{domains}", readme)
    found = bands_summary(list(reports.values()))
    share, width = optional(found["coverage"], lambda one: f"{100 * one:.0f} %"), found["half_width"]
    words = f"({share} of all {found['rows']}; median half-width {width:.3f})"
    readme = re.sub(r"\(\d+ % of all \d+; median half-width [\d.]+\)", words, readme)
    pairs = pairs_summary(list(reports.values()))
    right, inside = (f"{100 * pairs[key]:.0f} %" for key in ("ordered_right_of_unlike", "coverage"))
    readme = re.sub(r"shared: \S+(?: %)? of the pairs", f"shared: {right} of the pairs", readme)
    return re.sub(r"right, \S+(?: %)? lie within", f"right, {inside} lie within", readme)


def _domain_cells(one: Mapping[str, Any]) -> list[str]:
    errors = [optional(one[key], percent) for key in ("mape_not_fitted", "coverage_not_fitted")]
    return [one["efficiency"], one["models"], str(one["rows"]), *errors, f"{one['half_width']:.3f}"]


def _cells(label: str, report: Report) -> list[str]:
    errors, explained, judged = report.errors(), report.errors(explained=True), report.errors("judged")
    sizes = [errors.mape, errors.max_error], [explained.mape, judged.mape]
    before, after = ([optional(size, percent) for size in part] for part in sizes)
    return [label, str(errors.num_rows), *before, optional(errors.bias, signed_percent), *after]


if __name__ == "__main__":
    programs = Programs()
    found = {name: judge(one, programs=programs) for name, one in SETS.items()}
    TARGET.write_text(renewed(TARGET.read_text(), found))
