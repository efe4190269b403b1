"""How true predictions are on this machine's processors: emulated devices, and real computing on two ranks.

    python benchmarks/validation.py                     # all, and a dated result under benchmarks/results/
    python benchmarks/validation.py --only p4 cpu       # parts of it
    python benchmarks/validation.py -o result.json

Every part calibrates on GPipe alone (with short runs of all forwards, then all backwards, for what GPipe
never does), runs the other schedules and predicts them. Steps that other work on the machine disturbed are
set aside, and a run with fewer than three others is repeated twice, then listed but not counted: start it
on a machine with nothing else to do.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipesim.evidence.validation import ValidationRow, summary_of, validate
from pipesim.executor import RankPool
from pipesim.scenario import ResolvedScenario, scenario_from_mapping
from pipesim.schedules import families

RESULTS = Path(__file__).parent / "results"
SCHEDULES = tuple(name for name, one in families().items() if one.synchronous)
CHUNKED = tuple(name for name in SCHEDULES if families()[name].placement in ("loop", "wave"))
"""Run with two stages a rank, where others that leave the number open run with one."""


@dataclass(frozen=True)
class Part:
    """One calibration and what is predicted from it."""

    name: str
    words: str
    scenario: dict[str, Any]
    device: str
    microbatches: tuple[int, ...]
    names: tuple[str, ...] = SCHEDULES
    limits: dict[str, float] = field(default_factory=dict)
    runtime: str = "pipesim"
    chunked_costs: dict[str, Any] | None = None
    """Of schedules with two stages a rank, where costs differ from stage to stage."""

    def calls(self) -> Iterator[tuple[ResolvedScenario, dict[str, Any]]]:
        """Scenario and settings of each call of `validate`: schedules of one stage a rank, then of two."""
        of_two = {name for name in self.names if name in CHUNKED or families()[name].chunks == 2}
        names = tuple(name for name in self.names if name not in of_two)
        yield scenario_from_mapping(self.scenario), {"schedules": names, "chunks": (1,)}
        chunked = {"schedules": tuple(name for name in self.names if name in of_two), "chunks": (2,)}
        if self.chunked_costs is None:
            yield scenario_from_mapping(self.scenario), chunked
            return
        parallel = self.scenario["parallel"] | {"virtual_stages": 2}
        changed = {"parallel": parallel, "costs": self.chunked_costs, "schedule": "looped-bfs"}
        yield scenario_from_mapping(self.scenario | changed), chunked | {"calibrate_on": "looped-bfs"}


def emulated(num_ranks: int) -> Part:
    return Part(
        f"p{num_ranks}",
        f"emulated, {num_ranks} ranks, F 10 ms, B 20 ms, messages of 512 KiB",
        {
            "name": f"emulated, {num_ranks} ranks",
            "parallel": {"pipeline": num_ranks},
            "batch": {"microbatches": 8},
            "costs": {"forward": "10 ms", "backward": "20 ms", "boundary": "512 KiB"},
            "schedule": "gpipe",
        },
        "emulated",
        (4, 8, 16),
        limits={
            "median_step_time_error": 0.015,
            "median_bubble_error": 0.01,
            "median_replay_error_one_stage": 0.01,
            "median_replay_error_more_stages": 0.03,
        },
    )


def uneven(num_stages: int, forward_ms: float) -> dict[str, Any]:
    """Stages of which the slowest takes twice the fastest."""
    times = [forward_ms * (1 + (5 * stage % num_stages) / (num_stages - 1)) for stage in range(num_stages)]

    def of_stages(factor: float) -> list[str]:
        return [f"{factor * each} ms" for each in times]

    return {"forward": of_stages(1), "backward": of_stages(2), "boundary": "512 KiB"}


def in_torch(num_ranks: int) -> Part:
    return Part(
        f"torch-p{num_ranks}",
        f"emulated in torch's own runtime, {num_ranks} ranks, uneven stages of F 10 to 20 ms, B 20 to 40 ms",
        {
            "name": f"emulated in torch's runtime, {num_ranks} ranks",
            "parallel": {"pipeline": num_ranks},
            "batch": {"microbatches": 2 * num_ranks},
            "costs": uneven(num_ranks, 10),
            "schedule": "gpipe",
        },
        "emulated",
        (2 * num_ranks,),
        names=("gpipe", "1f1b", "zb-h1", "interleaved-1f1b", "zb-v", "dualpipe-v"),
        limits={
            "median_step_time_error": 0.01,
            "max_step_time_error": 0.035,
            "median_bubble_error": 0.005,
        },
        runtime="torch",
        chunked_costs=uneven(2 * num_ranks, 5),
    )


COMPUTED = Part(
    "cpu",
    "real computing, 2 ranks of one thread, transformer of 8 layers of 192, F about 15 ms",
    {
        "name": "transformer on 2 processes",
        "model": {
            "num_hidden_layers": 8,
            "hidden_size": 192,
            "num_attention_heads": 4,
            "vocab_size": 512,
            "seq_length": 256,
        },
        "cluster": {
            "accelerator": "a100-sxm-80",
            "num_nodes": 1,
            "gpus_per_node": 2,
            "intra_node": "nvlink3",
        },
        "parallel": {"pipeline": 2},
        "batch": {"microbatches": 8, "micro": 1},
        "schedule": "gpipe",
    },
    "cpu",
    (4, 8),
    names=("gpipe", "1f1b", "zb-h1", "interleaved-1f1b", "zb-v"),
    limits={
        "median_step_time_error": 0.05,
        "median_bubble_error": 0.03,
        "median_replay_error_one_stage": 0.01,
        "median_replay_error_more_stages": 0.03,
    },
)
PARTS = (emulated(4), emulated(8), in_torch(4), in_torch(8), COMPUTED)


def run(part: Part, num_steps: int) -> dict[str, Any]:
    """Run a part, schedules of one stage a rank and those of more from one set of processes."""
    begin = time.perf_counter()

    def progress(words: str) -> None:
        print(f"  {time.perf_counter() - begin:5.0f} s  {part.name}: {words}", file=sys.stderr)

    rows: list[ValidationRow] = []
    skipped: dict[str, str] = {}
    with RankPool(part.scenario["parallel"]["pipeline"]) as pool:
        for scenario, settings in part.calls():
            found = validate(
                scenario,
                device=part.device,
                runtime=part.runtime,
                **settings,
                microbatches=part.microbatches,
                num_steps=num_steps,
                pool=pool,
                progress=progress,
            )
            rows += found.rows
            skipped |= {one.schedule: one.reason for one in found.skipped}
            environment = found.environment
    return {
        "part": part.name,
        "words": part.words,
        "seconds": round(time.perf_counter() - begin),
        "rows": [row.to_dict() for row in rows],
        "skipped": skipped,
        "summary": summary_of(rows),
        "limits": part.limits,
        "environment": environment,
    }


def report(result: dict[str, Any]) -> bool:
    """Print a part, and say whether it keeps its limits; where no run counts, it does not."""
    print(f"\n{result['words']} ({result['seconds']} s)")
    for row in result["rows"]:
        marks = "*" if row["calibrated_on"] else "!" if row["disturbed"] else " "
        spread = (row["p90_step_time_s"] - row["p10_step_time_s"]) / row["measured_step_time_s"]
        print(
            f"{marks} {row['schedule']:<18} v{row['num_chunks']} m{row['num_microbatches']:<3}"
            f" {1e3 * row['measured_step_time_s']:8.1f} ms (spread {100 * spread:4.1f} %)"
            f"  predicted {1e3 * row['predicted_step_time_s']:8.1f} ms {100 * row['step_time_error']:+6.2f} %"
            f"  bubble {100 * row['measured_bubble_ratio']:5.1f} % {100 * row['bubble_error']:+5.2f} pp"
            f"  replay {100 * row['replay_error']:+5.2f} %"
            f"  disturbed {row['num_disturbed_steps']}/{row['num_steps']}"
        )
    kept = result["summary"]["num_rows"] > 0
    for key, value in result["summary"].items():
        limit = result["limits"].get(key)
        if value is None or not isinstance(value, float):
            print(f"{key}: {value}")
            continue
        kept &= limit is None or value <= limit
        print(f"{key}: {100 * value:.2f} %" + (f" (limit {100 * limit:g} %)" if limit is not None else ""))
    return kept


def main() -> None:
    """Run the parts asked for and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=[part.name for part in PARTS])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("-o", "--output", type=Path)
    asked = parser.parse_args()
    load = [round(value, 2) for value in os.getloadavg()]
    print(f"load before: {load}")
    today = datetime.now(UTC).date().isoformat()
    path = asked.output or RESULTS / f"validation-{today}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    document: dict[str, Any] = {"date": today, "load_before": load, "parts": []}
    kept = True
    for part in PARTS:
        if asked.only is None or part.name in asked.only:
            result = run(part, asked.steps)
            kept &= report(result)
            document["parts"].append(result)
            document["load_after"] = [round(value, 2) for value in os.getloadavg()]
            path.write_text(json.dumps(document, indent=1) + "\n")
    print(f"\n{path}; limits {'kept' if kept else 'NOT kept, or no run of a part counts'}")


if __name__ == "__main__":
    main()
