"""How true predictions are on the GPUs of this machine, in one command and under eight minutes.

    python benchmarks/gpu_validation.py                 # GPUs if there are any, else CPUs at a small size
    python benchmarks/gpu_validation.py --device cpu -o result.json

With several GPUs ranks are processes, one a GPU, and messages travel by NCCL. With one, ranks are lanes of
one process: a stream each on a partition of the multiprocessors where torch offers green contexts, messages
are copies on the device, events are the dependencies. On CPUs ranks are processes and messages go by gloo.

1. Gradients of every schedule are compared with those of the unsplit model, on the device.
2. Two schedules are run to calibrate: GPipe (its looped form with two stages a rank) for F and B, a
   zero-bubble schedule for I and W; medians of each operation of each stage are the cost table.
3. The other schedules and other numbers of microbatches are predicted, run and compared. The replay error, of
   the timeline model fed with the measured step's own durations, is printed beside.
4. With lanes: how long a forward takes with one lane at work, beside all of them.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

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
from pipesim.executor.lanes import run_in_lanes
from pipesim.executor.models import build_model, build_stage, sample
from pipesim.ir import dependencies, lower
from pipesim.ir.actions import Op, Schedule
from pipesim.metrics import measure
from pipesim.scenario.resolved import DirectCosts, Transformer
from pipesim.schedules import Shape, family, generate
from pipesim.timing.engine import simulate
from pipesim.timing.longest_path import evaluate

SCHEDULES = ("gpipe", "1f1b", "zb-h1", "interleaved-1f1b", "zb-v", "dualpipe-v")
CALIBRATE = {1: ("gpipe", "zb-h1"), 2: ("looped-bfs", "zb-v")}
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


def gradient_errors(machine: Machine, size: Size) -> dict[str, float]:
    """Largest relative difference of any gradient from the unsplit model's, by schedule."""
    small = replace(size, hidden=64, tokens=32)
    errors = {}
    for name in SCHEDULES:
        schedule = schedule_of(name, size.num_ranks, 2 * size.num_ranks)
        if schedule is None:
            continue
        workload = TransformerWorkload(transformer(2 * size.num_ranks, small), dtype="float64")
        job = Job(schedule, workload, machine.device, keep_state=True)
        expected = unsplit_gradients(job)
        worst = 0.0
        for result in machine.run(job):
            for parameter, value in result.gradients.items():
                wanted = expected[parameter]
                worst = max(worst, float(np.abs(value - wanted).max() / (np.abs(wanted).max() or 1.0)))
        errors[name] = worst
    return errors


def unsplit_gradients(job: Job) -> dict[str, Any]:
    """The whole model on one device, microbatch after microbatch."""
    device = torch.device(job.device)
    model = build_model(job.workload)
    stages = [
        nn.ModuleList(build_stage(job.workload, model, stage, job.schedule.num_stages)).to(device)
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


def alone_over_busy(machine: Machine, size: Size) -> float | None:
    """Time of a forward with one lane at work over that with all; None where ranks do not share a GPU."""
    if not machine.in_lanes:
        return None
    schedule = schedule_of("gpipe", size.num_ranks, 2 * size.num_ranks)
    assert schedule is not None
    # One microbatch passes the lanes one by one; many fill all of them.
    times = []
    for num_microbatches in (1, 2 * size.num_ranks):
        run = measured_run(machine, "gpipe", num_microbatches, size)
        assert run is not None
        forwards = (run.timeline.op == Op.F) & (run.timeline.stage == 0)
        times.append(float(np.median(run.own_s[forwards])))
    return times[0] / times[1]


def default_size(device: str, num_gpus: int) -> Size:
    if device == "cpu":
        return Size(2, 2, 192, 256, (4, 8), 10, "float32")
    if num_gpus > 1:
        return Size(min(8, num_gpus), 2, 2048, 2048, (8, 16, 32), 20, "bfloat16")
    return Size(4, 1, 1024, 1024, (4, 8, 16), 20, "bfloat16")


def validate(device: str, size: Size) -> dict[str, Any]:
    """Run everything; plain data for the result file."""
    begin = time.monotonic()
    with ExitStack() as stack:
        machine = Machine(device, size.num_ranks, stack)
        errors = gradient_errors(machine, size)
        for name, error in errors.items():
            print(f"gradients of {name}: largest relative error {error:.1e}")
            if not error < LARGEST_GRADIENT_ERROR:
                raise SystemExit(f"gradients of {name} differ by more than {LARGEST_GRADIENT_ERROR:.0e}")
        costs: dict[int, CostTable] = {}
        for chunks, names in CALIBRATE.items():
            runs = [measured_run(machine, name, 2 * size.num_ranks, size) for name in names]
            costs[chunks * size.num_ranks] = calibrate([run for run in runs if run is not None], size)
        rows = []
        print(f"{machine.words}; makespan in ms, bubble in %")
        head = ("measured", "predicted", "error", "replay", "bubble")
        print(f"{'schedule':18} {'m':>3} {' '.join(f'{word:>9}' for word in head)}")
        environment: dict[str, str] = {}
        for name in SCHEDULES:
            for num_microbatches in size.microbatches:
                run = measured_run(machine, name, num_microbatches, size)
                if run is None:
                    continue
                environment = run.environment
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
        sharing = alone_over_busy(machine, size)
    absolute = [abs(row["makespan_error"]) for row in rows]
    return {
        "date": date.today().isoformat(),
        "device": device,
        "ranks_are": machine.words,
        "size": {**size.__dict__},
        "environment": environment,
        "gradient_errors": errors,
        "forward_alone_over_busy": sharing,
        "median_makespan_error": float(np.median(absolute)),
        "max_makespan_error": max(absolute),
        "median_replay_error": float(np.median([abs(row["replay_error"]) for row in rows])),
        "rows": rows,
        "seconds": time.monotonic() - begin,
    }


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), help="by default cuda where there is a GPU")
    parser.add_argument("--ranks", type=int, help="by default 4 lanes, one rank a GPU, or 2 on CPUs")
    parser.add_argument("-o", "--output", type=Path, help="by default benchmarks/results/DATE_DEVICE.json")
    asked = parser.parse_args(arguments)
    num_gpus = torch.cuda.device_count()
    device = asked.device or ("cuda" if num_gpus else "cpu")
    if device == "cuda" and not num_gpus:
        raise SystemExit("there is no GPU here; use --device cpu")
    size = default_size(device, num_gpus)
    if asked.ranks:
        size = replace(size, num_ranks=asked.ranks)
    result = validate(device, size)
    name = result["environment"].get("gpu", device).replace(" ", "-").lower()
    output = asked.output or Path(__file__).parent / "results" / f"{result['date']}_{name}.json"
    output.parent.mkdir(exist_ok=True)
    output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(
        f"makespan error: median {100 * result['median_makespan_error']:.1f} %, "
        f"largest {100 * result['max_makespan_error']:.1f} %; "
        f"replay {100 * result['median_replay_error']:.1f} %; {result['seconds']:.0f} s; {output}"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
