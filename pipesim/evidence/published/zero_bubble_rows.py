"""Rows of the zero-bubble paper (arXiv 2401.10241), from printed pass times and from the hardware alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pipesim.evidence.published.megatron_a100_rows import gpt, nodes
from pipesim.evidence.published.published_row import PublishedRow
from pipesim.evidence.published.tables import TableLine
from pipesim.schedules import families

PASS_TIME_FACTOR = 1.0745
"""What a step takes over its pass times: optimizer, embedding, host work. One number for the whole paper,
fitted on half of the rows (`pipesim calibrate --published zero-bubble`)."""
_SCHEDULES = {
    "1F1B": "1f1b",
    "1F1B-I": "interleaved-1f1b",
    "ZB-1p": "zb-1p",
    "ZB-2p": "zb-2p",
    "ZB-2p with all-reduce optimizer sync": "zb-2p",
}
_VALIDATED_AFTERWARDS = ("ZB-1p", "ZB-2p")
"""The paper's optimizer lets a rank begin its next step before the others have ended this one."""
_VOCABULARY = 50257
"""Not printed; that of GPT-2's tokenizer, which the code uses by default, before padding."""
_NOT_MEASURED = "the paper prints a calculated bubble rate for this schedule and no measurement"


def pass_times(lines: Iterable[TableLine]) -> list[PublishedRow]:
    """Tables 4, 5 and 9: step times from the printed times of the passes and one factor."""
    rows = []
    for line in lines:
        name = _name(line)
        if why := _why_not(line):
            rows.append(PublishedRow(name, None, _step_time_s(line), line["source"], left_out=why))
            continue
        rows.append(
            PublishedRow(
                name,
                pass_time_scenario(line, PASS_TIME_FACTOR),
                _step_time_s(line),
                line["source"],
                group=_group(line),
                extra=_extra(line),
            )
        )
    return rows


def pass_time_scenario(line: TableLine, factor: float) -> dict[str, Any]:
    """Scenario with direct costs: the printed times, each longer by `factor`."""

    def milliseconds(column: str) -> str:
        return f"{line.number_of(column) * factor:.6g} ms"

    schedule, chunks = _schedule(line)
    return {
        "name": _name(line),
        "parallel": {"pipeline": line.count("PP"), "virtual_stages": chunks},
        "batch": {"microbatches": line.count("n_microbatches")},
        "schedule": schedule,
        "network": _network(schedule),
        "costs": {
            "forward": milliseconds("T_F_ms"),
            "input_gradient": milliseconds("T_B_ms"),
            "weight_gradient": milliseconds("T_W_ms"),
            "p2p": milliseconds("T_comm_ms"),
        },
    }


def from_hardware(lines: Iterable[TableLine]) -> list[PublishedRow]:
    """Step times from shapes and hardware, no number of the paper's own used (also tables 10 and 12)."""
    return [_hardware_row(line) for line in lines]


def memory(lines: Iterable[TableLine]) -> list[PublishedRow]:
    """Peak memory of the same runs, printed in whole GB."""
    rows = []
    for line in lines:
        cell = line["mem_GB_measured"]
        left_out = _why_not(line)
        scenario = None if left_out else _hardware_scenario(line)
        measured = float(cell) * 1e9 if cell else float("nan")
        rows.append(PublishedRow(_name(line), scenario, measured, line["source"], left_out=left_out))
    return rows


def _hardware_row(line: TableLine) -> PublishedRow:
    name = _name(line)
    if why := _why_not(line):
        return PublishedRow(name, None, _step_time_s(line), line["source"], left_out=why)
    return PublishedRow(
        name,
        _hardware_scenario(line),
        _step_time_s(line),
        line["source"],
        group=_group(line),
        extra=_extra(line),
    )


def _why_not(line: TableLine) -> str | None:
    if not line["samples_per_gpu_per_s_measured"]:
        return _NOT_MEASURED
    name = _SCHEDULES[line["schedule"]]
    return None if name in families() else f"no schedule {name} here"


def _hardware_scenario(line: TableLine) -> dict[str, Any]:
    schedule, chunks = _schedule(line)
    layers, pipeline = line.count("layers"), line.count("PP")
    num_stages = pipeline * chunks
    # The first and the last stage have a layer less, for the embedding and the head.
    each = (layers + 2) // num_stages
    # As in the authors' examples/pretrain_zero_bubble.sh; only then can ranks end a step one by one.
    model = gpt(layers, line.count("hidden"), line.count("heads"), seq=line.count("seq"), vocab=_VOCABULARY)
    return {
        "name": _name(line),
        "model": {**model, "tie_word_embeddings": False},
        "cluster": {
            "accelerator": "a100-sxm-80",
            **nodes(line),
            "intra_node": "nvlink3",
            "inter_node": "roce-200",
        },
        "parallel": {"pipeline": pipeline, "tensor": line.count("TP"), "virtual_stages": chunks},
        "batch": {"microbatches": line.count("n_microbatches"), "micro": line.count("MBS")},
        "schedule": schedule,
        "network": _network(schedule),
        "layers": [each - 1, *[each] * (num_stages - 2), each - 1],
        "efficiency": "a100-megatron-2022",
    }


def _extra(line: TableLine) -> dict[str, bool]:
    return {"steps_overlap": True} if line["schedule"] in _VALIDATED_AFTERWARDS else {}


def _network(schedule: str) -> dict[str, str]:
    """Megatron-LM's own schedules wait for every send; the paper's run transfers beside computing."""
    return {"p2p": "overlapped" if schedule.startswith("zb") else "send-blocking"}


def _schedule(line: TableLine) -> tuple[str, int]:
    """Interleaved: one layer a chunk, embedding and head counted as one each; the printed rates agree."""
    chunks = (line.count("layers") + 2) // line.count("PP") if line["schedule"] == "1F1B-I" else 1
    return _SCHEDULES[line["schedule"]], chunks


def _step_time_s(line: TableLine) -> float:
    if not line["samples_per_gpu_per_s_measured"]:
        return float("nan")
    num_samples = line.count("MBS") * line.count("n_microbatches") * line.count("DP")
    return num_samples / (line.number_of("samples_per_gpu_per_s_measured") * line.count("n_gpus"))


def _group(line: TableLine) -> str:
    return f"{line['model']} p{line['PP']} m{line['n_microbatches']}"


def _name(line: TableLine) -> str:
    return f"{_group(line)} {line['schedule']}"
