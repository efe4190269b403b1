"""How true predictions are on one GPU, part by part, in about ten minutes; JSON is written after each part.

    python benchmarks/gpu_validation.py                  # a GPU if there is one, else CPUs at a small size
    python benchmarks/gpu_validation.py --only timeline memory
    python benchmarks/gpu_validation.py --device cpu -o result.json

With several GPUs ranks are processes, one a GPU, and messages travel by NCCL. With one, ranks are lanes of
one process: a stream each on a partition of the multiprocessors, messages are copies on the device, marks are
the dependencies. On CPUs ranks are processes and messages go by gloo; parts that need a GPU are left out.

Parts, in this order: facts, partitions, events, host, isolation, gradients, split, memory, timeline, nccl,
kineto. Each has its numbers and the limits that they should keep; a part that fails says why and the next
one goes on. The timeline's: two schedules are run to calibrate (GPipe or its looped form for F and B, a
zero-bubble schedule for I and W), the others are predicted, run and compared; the replay error, of the model
fed with the measured step's own durations, stands beside.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import gpu_hardware as hardware
import numpy as np
import torch
from torch import nn

from pipesim.costs import CostTable
from pipesim.costs.direct import direct_costs
from pipesim.errors import ScheduleError
from pipesim.executor import RankPool, Run, TransformerWorkload
from pipesim.executor.assemble import assemble
from pipesim.executor.gpus import partitioned_streams
from pipesim.executor.job import Job, RankResult
from pipesim.executor.lanes import HOST_SHARE, MOST_HOST_SHARE, run_in_lanes
from pipesim.executor.models import build_model, build_stage, sample
from pipesim.ir import dependencies, lower, peak_in_flight
from pipesim.ir.actions import Op, Schedule
from pipesim.metrics import measure
from pipesim.scenario.resolved import DirectCosts, Transformer
from pipesim.schedules import Shape, family, generate
from pipesim.timing.engine import simulate
from pipesim.timing.longest_path import evaluate

SCHEDULES = ("gpipe", "1f1b", "zb-h1", "interleaved-1f1b", "zb-v", "dualpipe-v")
CALIBRATE = {1: ("gpipe", "zb-h1"), 2: ("looped-bfs", "zb-v")}
TWICE_HELD = ("chimera", "dualpipe")
"""Schedules whose ranks hold copies of a stage, which sum its gradients on the device."""
LARGEST_GRADIENT_ERROR = 1e-12


@dataclass(frozen=True)
class Size:
    """What is run: layers a stage, width, tokens, and how often."""

    num_ranks: int
    layers_per_stage: int
    hidden: int
    tokens: int
    microbatches: tuple[int, ...]
    num_steps: int
    dtype: str


class Machine:
    """Runs jobs on whatever there is."""

    def __init__(self, device: str, num_ranks: int, stack: ExitStack) -> None:
        self.device = device
        self.in_lanes = device == "cuda" and torch.cuda.device_count() < num_ranks
        self.words = "processes, one GPU each, NCCL" if device == "cuda" else "processes on CPUs, gloo"
        self.pool = None
        self.streams: Any = None
        self.repeats = 5 if device == "cuda" else 1
        """Of the gradients' part, as a race need not show at once."""
        if self.in_lanes:
            self.streams, lanes = partitioned_streams(num_ranks)
            self.words = f"lanes of one process: {lanes}"
        else:
            self.pool = stack.enter_context(RankPool(num_ranks))

    def run(self, job: Job) -> list[RankResult]:
        """Run a job; results by rank."""
        if self.pool is not None:
            return self.pool.run(job)
        return run_in_lanes(job, streams=self.streams)


def transformer(num_layers: int, size: Size) -> Transformer:
    return Transformer(
        name=f"{num_layers} layers of {size.hidden}",
        num_hidden_layers=num_layers,
        hidden_size=size.hidden,
        num_attention_heads=max(1, size.hidden // 64),
        num_key_value_heads=max(1, size.hidden // 64),
        head_dim=min(64, size.hidden),
        intermediate_size=4 * size.hidden,
        vocab_size=1024,
        seq_length=size.tokens,
        gated_mlp=False,
        tie_word_embeddings=False,
        biases=False,
        num_learned_positions=0,
        source="this benchmark",
    )


def schedule_of(name: str, num_ranks: int, num_microbatches: int) -> Schedule | None:
    """Lowered, or None where the schedule does not take that many microbatches."""
    chunks = family(name).chunks or (2 if name in ("interleaved-1f1b", "looped-bfs") else 1)
    try:
        return lower(generate(name, Shape(num_ranks, chunks, num_microbatches)))
    except ScheduleError:
        return None


def gradients(machine: Machine, size: Size) -> dict[str, Any]:
    """Part 6: largest relative difference of any gradient from the unsplit model's, in float64."""
    small = replace(size, hidden=64, tokens=32)
    errors = {}
    for name in (*SCHEDULES, *TWICE_HELD):
        schedule = schedule_of(name, size.num_ranks, 2 * size.num_ranks)
        if schedule is None:
            continue
        workload = TransformerWorkload(transformer(2 * size.num_ranks, small), dtype="float64")
        job = Job(schedule, workload, machine.device, keep_state=True)
        expected = unsplit_gradients(job)
        worst = 0.0
        for _ in range(machine.repeats):
            for result in machine.run(job):
                for parameter, value in result.gradients.items():
                    wanted = expected[parameter]
                    worst = max(worst, float(np.abs(value - wanted).max() / (np.abs(wanted).max() or 1.0)))
        errors[name] = worst
    return {
        "errors": errors,
        "largest_error": max(errors.values()),
        "limits": {"largest_error": [0, LARGEST_GRADIENT_ERROR]},
    }


def unsplit_gradients(job: Job) -> dict[str, Any]:
    """The whole model on one device, microbatch after microbatch."""
    device = torch.device(job.device)
    model = build_model(job.workload)
    stages = [
        nn.ModuleList(build_stage(job.workload, model, stage, job.schedule.num_stages, device))
        for stage in range(job.schedule.num_stages)
    ]
    for microbatch in range(job.schedule.num_microbatches):
        x, targets = (t.to(device) for t in sample(job.workload, model, 0, 0, microbatch))
        for stage in stages:
            for layer in stage:
                x = layer(x)
        (model.loss(x, targets) / job.schedule.num_microbatches).backward()
    return {
        f"{index}.{name}": parameter.grad.cpu().numpy()
        for index, stage in enumerate(stages)
        for name, parameter in stage.named_parameters()
    }


def measured_run(machine: Machine, name: str, num_microbatches: int, size: Size) -> Run | None:
    schedule = schedule_of(name, size.num_ranks, num_microbatches)
    if schedule is None:
        return None
    num_layers = size.layers_per_stage * schedule.num_stages
    workload = TransformerWorkload(transformer(num_layers, size), dtype=size.dtype)
    job = Job(schedule, workload, machine.device, num_steps=size.num_steps, warmup=3)
    return assemble(job, machine.run(job))


def calibrate(runs: list[Run], size: Size) -> CostTable:
    """Medians of F, B, I, W of each stage over undisturbed steps, and the least that a message took."""
    num_stages = runs[0].schedule.num_stages
    table: dict[Op, list[float]] = {op: [0.0] * num_stages for op in (Op.F, Op.B, Op.I, Op.W)}
    transit: list[float] = []
    for run in runs:
        timeline = run.timeline
        counted = ~run.disturbed if not run.disturbed.all() else np.ones(run.num_steps, np.bool_)
        kept = counted[timeline.step]
        for op, times in table.items():
            for stage in range(num_stages):
                rows = kept & (timeline.op == op) & (timeline.stage == stage)
                if rows.any() and not times[stage]:
                    times[stage] = float(np.median(run.own_s[rows]))
        sends = kept & np.isin(timeline.op, (Op.SEND_F, Op.SEND_B))
        if sends.any():
            transit.append(float(np.percentile((timeline.end_s - timeline.start_s)[sends], 10)))
    stated = DirectCosts(
        forward_s=tuple(table[Op.F]),
        backward_s=tuple(b or i + w for b, i, w in zip(table[Op.B], table[Op.I], table[Op.W], strict=True)),
        input_gradient_s=tuple(table[Op.I]),
        weight_gradient_s=tuple(table[Op.W]),
        p2p_latency_s=min(transit, default=0.0),
        p2p_bytes_per_s=None,
        boundary_bytes=0,
        overlapped_pair_s=None,
        gradient_sync_s=0,
        optimizer_s=0,
        activation_bytes=0,
    )
    return direct_costs(stated, num_ranks=size.num_ranks, num_chunks=num_stages // size.num_ranks)


def compare(run: Run, costs: CostTable) -> dict[str, Any]:
    """One row: a schedule measured, predicted and replayed."""
    schedule, compute = run.schedule, run.schedule.schedule
    predicted = measure(simulate(schedule, costs), compute, costs)
    steps = run.undisturbed_steps or list(range(run.num_steps))
    seen = [measure(run.step(step), compute, costs) for step in steps]
    makespans = [float(step.makespan_s) for step in seen]
    makespan, bubble = float(np.median(makespans)), float(np.median([step.bubble_ratio for step in seen]))
    delays = np.where(dependencies(compute).crosses, float(costs.p2p(0, 1).latency_s), 0.0)
    replays = []
    for step, span in zip(steps, makespans, strict=True):
        timeline = run.step(step)
        lasted = (timeline.end_s - timeline.start_s)[timeline.compute]
        replays.append((evaluate(compute, lasted, delays).makespan - span) / span)
    return {
        "schedule": schedule.name,
        "num_microbatches": schedule.num_microbatches,
        "measured_makespan_s": makespan,
        "predicted_makespan_s": float(predicted.makespan_s),
        "makespan_error": (float(predicted.makespan_s) - makespan) / makespan,
        "measured_bubble_ratio": bubble,
        "predicted_bubble_ratio": float(predicted.bubble_ratio),
        "replay_error": float(np.median(replays)),
        "spread": float((np.percentile(makespans, 90) - np.percentile(makespans, 10)) / makespan),
        "num_disturbed_steps": int(run.disturbed.sum()),
        "num_steps": run.num_steps,
    }


def host(machine: Machine, size: Size) -> dict[str, Any]:
    """Part 4: share of a step in which the host was queuing, at two widths."""
    found: dict[str, Any] = {"limits": {"at_4096": [0, MOST_HOST_SHARE]}}
    for width in (1024, 4096):
        run = measured_run(machine, "1f1b", 2 * size.num_ranks, replace(size, hidden=width, tokens=width))
        assert run is not None
        found[f"at_{width}"] = float(run.environment[HOST_SHARE])
    return found


def memory(machine: Machine, size: Size) -> dict[str, Any]:
    """Part 8: the allocator's growth in a step beside the meter's peaks and microbatches in flight.

    What one microbatch holds is the meter's peak with one microbatch alone; the prediction is that times the
    microbatches in flight. All lanes share one allocator, which also holds weights and gradients.
    """
    rows = []
    for name in ("gpipe", "1f1b", "zb-v"):
        one = measured_run(machine, name, 1, size) or measured_run(machine, name, size.num_ranks, size)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        many = measured_run(machine, name, 2 * size.num_ranks, size)
        grown = torch.cuda.max_memory_allocated() - before
        assert one is not None
        assert many is not None
        flying, alone = (np.array(peak_in_flight(run.schedule.schedule)) for run in (many, one))
        metered = many.peak_activation_bytes[0]
        predicted = one.peak_activation_bytes[0] * flying / alone
        weights = many.timeline.nbytes[many.rows(0)][many.schedule.op == Op.REDUCE_GRAD].sum()
        rows.append(
            {
                "schedule": name,
                "metered_bytes": metered.tolist(),
                "predicted_bytes": predicted.tolist(),
                "largest_error": float(np.abs(predicted / metered - 1).max()),
                "allocator_bytes": grown,
                "allocator_over_all_peaks": grown / float(2 * weights + metered.sum()),
            }
        )
    largest = max(row["largest_error"] for row in rows)
    return {"rows": rows, "largest_error": largest, "limits": {"largest_error": [0, 0.05]}}


def default_size(device: str, num_gpus: int) -> Size:
    if device == "cpu":
        return Size(2, 2, 192, 256, (4, 8), 10, "float32")
    if num_gpus > 1:
        return Size(min(8, num_gpus), 2, 2048, 2048, (8, 16, 32), 20, "bfloat16")
    return Size(4, 1, 4096, 4096, (4, 8, 16), 20, "bfloat16")


def timeline(machine: Machine, size: Size) -> dict[str, Any]:
    """Part 9: calibrate on two schedules, predict the others."""
    costs: dict[int, CostTable] = {}
    for chunks, names in CALIBRATE.items():
        runs = [measured_run(machine, name, 2 * size.num_ranks, size) for name in names]
        costs[chunks * size.num_ranks] = calibrate([run for run in runs if run is not None], size)
    rows = []
    head = ("measured", "predicted", "error", "replay", "bubble")
    print(f"{'schedule':18} {'m':>3} {' '.join(f'{word:>9}' for word in head)}   ms, %")
    for name in SCHEDULES:
        for num_microbatches in size.microbatches:
            run = measured_run(machine, name, num_microbatches, size)
            if run is None:
                continue
            rows.append(row := compare(run, costs[run.schedule.num_stages]))
            shown = (
                f"{1e3 * row['measured_makespan_s']:9.2f}",
                f"{1e3 * row['predicted_makespan_s']:9.2f}",
                f"{100 * row['makespan_error']:8.1f}%",
                f"{100 * row['replay_error']:8.1f}%",
                f"{100 * row['measured_bubble_ratio']:9.1f}",
                f"{100 * row['predicted_bubble_ratio']:.1f}",
            )
            print(f"{name:18} {num_microbatches:3} {' '.join(shown)}", flush=True)
    absolute = [abs(row["makespan_error"]) for row in rows]
    return {
        "rows": rows,
        "median_makespan_error": float(np.median(absolute)),
        "max_makespan_error": max(absolute),
        "median_replay_error": float(np.median([abs(row["replay_error"]) for row in rows])),
        "limits": {"median_makespan_error": [0, 0.03], "median_replay_error": [0, 0.01]},
    }


Part = Callable[[Machine, Size], dict[str, Any]]


def of_streams(part: Callable[[Any], dict[str, Any]]) -> Part:
    return lambda machine, size: part(machine.streams)


PARTS: dict[str, tuple[Part, bool]] = {
    "facts": (of_streams(hardware.facts_and_gemm), True),
    "partitions": (of_streams(hardware.partitions), True),
    "events": (of_streams(hardware.events), True),
    "host": (host, True),
    "isolation": (of_streams(hardware.isolation), True),
    "gradients": (gradients, False),
    "split": (lambda machine, size: hardware.split_backward(torch.device(machine.device)), False),
    "memory": (memory, True),
    "timeline": (timeline, False),
    "nccl": (of_streams(hardware.one_rank_nccl), True),
    "kineto": (of_streams(hardware.kineto), True),
}
"""By name: what it does, and whether it needs the lanes of one GPU."""


def run_parts(
    machine: Machine, size: Size, names: list[str], keep: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Run parts one by one; `keep` is given all that is known after each."""
    document: dict[str, Any] = {
        "date": date.today().isoformat(),
        "device": machine.device,
        "ranks_are": machine.words,
        "size": {**size.__dict__},
        "parts": {},
    }
    for name in names:
        part, needs_lanes = PARTS[name]
        if needs_lanes and not machine.in_lanes:
            document["parts"][name] = {"left_out": "needs one GPU that all ranks share"}
            keep(document)
            continue
        begin = time.monotonic()
        try:
            found = part(machine, size)
            limits = found.get("limits", {})
            found["kept"] = all(least <= found[key] <= most for key, (least, most) in limits.items())
        except Exception as error:
            found = {"failed": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
        found["seconds"] = time.monotonic() - begin
        document["parts"][name] = found
        keep(document)
        print(f"{name}: {_said(found)}, {found['seconds']:.0f} s", flush=True)
    return document


def _said(found: dict[str, Any]) -> str:
    if "failed" in found:
        return f"FAILED: {found['failed']}"
    numbers = ", ".join(f"{key} {found[key]:.3g}" for key in found.get("limits", {}))
    return f"{'limits kept' if found['kept'] else 'limits NOT kept'} ({numbers})" if numbers else "done"


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), help="by default cuda where there is a GPU")
    parser.add_argument("--ranks", type=int, help="by default 4 lanes, one rank a GPU, or 2 on CPUs")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("-o", "--output", type=Path, help="by default benchmarks/results/DATE_DEVICE.json")
    asked = parser.parse_args(arguments)
    num_gpus = torch.cuda.device_count()
    device = asked.device or ("cuda" if num_gpus else "cpu")
    if device == "cuda" and not num_gpus:
        raise SystemExit("there is no GPU here; use --device cpu")
    size = default_size(device, num_gpus)
    if asked.ranks:
        size = replace(size, num_ranks=asked.ranks)
    name = torch.cuda.get_device_name().replace(" ", "-").lower() if device == "cuda" else device
    default = Path(__file__).parent / "results" / f"{date.today().isoformat()}_{name}.json"
    output: Path = asked.output or default
    output.parent.mkdir(exist_ok=True)

    def keep(document: dict[str, Any]) -> None:
        output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")

    with ExitStack() as stack:
        machine = Machine(device, size.num_ranks, stack)
        print(machine.words)
        document = run_parts(machine, size, asked.only, keep)
    kept = [found.get("kept", True) and "failed" not in found for found in document["parts"].values()]
    print(f"{output}; {'all limits kept' if all(kept) else 'some limits NOT kept, or parts failed'}")


if __name__ == "__main__":
    main(sys.argv[1:])
