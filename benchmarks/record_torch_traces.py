"""Record profiler traces of torch's own pipeline schedules, with stages that take stated times.

    python benchmarks/record_torch_traces.py tests/data/torch_traces

Ranks are processes on CPUs (gloo, torch's profiler); a stage sleeps its time inside an operator, so that a
trace shows it as work. Four stages, of which the slowest takes twice the fastest, and I + W 5 % more than B:
on four ranks under GPipe (torch's class) and zb-h1 (a CSV in torch's runtime), on two under torch's
interleaved 1F1B and ZB-V. What `pipesim calibrate` does not read is left out of the files: operators inside
operators, and arguments but the shapes of what is sent. Afterwards every run is predicted from pairs of the
others, of which one ran B and one I and W.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import tempfile
import time
from datetime import timedelta
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from pipesim.costs.direct import direct_costs
from pipesim.evidence.calibration.fit import calibrate
from pipesim.evidence.calibration.from_traces import samples_of_traces
from pipesim.evidence.calibration.kineto import read_trace
from pipesim.evidence.calibration.traced_check import check_traced
from pipesim.executor import device as devices
from pipesim.executor.board import loopback_store
from pipesim.executor.instructions import plan
from pipesim.executor.job import Job
from pipesim.executor.torch_replay import TorchRank
from pipesim.executor.workload import emulated_workload
from pipesim.ir import lower
from pipesim.reading import read_json
from pipesim.scenario.resolved import DirectCosts
from pipesim.schedules import Shape, generate

RUNS = {
    "gpipe": (4, "torch-named"),
    "interleaved-1f1b": (2, "torch-named"),
    "zb-v": (2, "torch-named"),
    "zb-h1": (4, "torch"),
}
"""Ranks, and what of torch runs them."""
NUM_STAGES, NUM_MICROBATCHES, NUM_STEPS, WARMUP = 4, 6, 4, 2
FORWARD_S = tuple(0.02 * factor for factor in (1, 4 / 3, 5 / 3, 2))
BOUNDARY_BYTES = 256 * 1024
_TIMEOUT = timedelta(seconds=60)


@torch.library.custom_op("pipesim::sleep", mutates_args=())
def sleep(x: torch.Tensor, seconds: float) -> torch.Tensor:
    """Sleep as an operator."""
    time.sleep(seconds)
    return x.clone()


def job_of(name: str) -> Job:
    """An emulated run in torch."""
    num_ranks, runtime = RUNS[name]
    chunks = NUM_STAGES // num_ranks
    stated = DirectCosts(
        forward_s=FORWARD_S,
        backward_s=tuple(2 * each for each in FORWARD_S),
        input_gradient_s=tuple(1.1 * each for each in FORWARD_S),
        weight_gradient_s=FORWARD_S,
        p2p_latency_s=0.0,
        p2p_bytes_per_s=None,
        boundary_bytes=BOUNDARY_BYTES,
        overlapped_pair_s=None,
        gradient_sync_s=0.0,
        optimizer_s=0.0,
        activation_bytes=0,
    )
    schedule = lower(generate(name, Shape(num_ranks, chunks, NUM_MICROBATCHES)))
    costs = direct_costs(stated, num_ranks=num_ranks, num_chunks=chunks)
    return Job(schedule, emulated_workload(schedule, costs), "emulated", runtime=runtime)


def record(name: str, folder: Path) -> None:
    """Run a schedule on processes of its own; each writes its trace."""
    job = job_of(name)
    reading, writing = os.pipe()
    children = []
    for rank in range(1, job.schedule.num_ranks):
        child = os.fork()
        if child == 0:
            port = int.from_bytes(os.read(reading, 4), "big")
            store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=_TIMEOUT)
            _run(job, rank, store, folder)
            os._exit(0)
        children.append(child)
    store = loopback_store(0, _TIMEOUT)
    os.write(writing, store.port.to_bytes(4, "big") * len(children))
    _run(job, 0, store, folder)
    for child in children:
        os.waitpid(child, 0)


def _run(job: Job, rank: int, store: Any, folder: Path) -> None:
    torch.set_num_threads(1)
    num_ranks = job.schedule.num_ranks
    store = dist.PrefixStore(job.schedule.name, store)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=num_ranks, timeout=_TIMEOUT)
    group = dist.new_group(list(range(num_ranks)))
    mine = TorchRank(job, plan(job.schedule)[rank], group, lambda row: None)
    for _ in range(WARMUP):
        mine.run_step(0)
    dist.barrier(group=group)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        for _ in range(NUM_STEPS):
            dist.barrier(group=group)
            mine.run_step(0)
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profiler.export_chrome_trace(file.name)
        document = json.loads(Path(file.name).read_text())
    kept = {key: document[key] for key in ("distributedInfo", "baseTimeNanoseconds")}
    kept |= {"host_name": "host", "traceEvents": _needed(document["traceEvents"])}
    with gzip.GzipFile(folder / f"rank{rank}.json.gz", "wb", mtime=0) as packed:
        packed.write(json.dumps(kept, separators=(",", ":")).encode())
    dist.barrier(group=group)
    dist.destroy_process_group()


def _needed(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Annotations, outermost operators and shapes of what is sent; times from the first on."""
    spans = [e for e in events if e.get("ph") == "X" and e.get("cat") in ("user_annotation", "cpu_op")]
    spans.sort(key=lambda event: (event["ts"], -event["dur"]))
    kept = []
    covered_to = 0.0
    for event in spans:
        is_operator = event["cat"] == "cpu_op"
        if is_operator and event["ts"] + event["dur"] <= covered_to:
            continue
        if is_operator:
            covered_to = event["ts"] + event["dur"]
        slim = {key: event[key] for key in ("ph", "cat", "name", "pid", "tid", "ts", "dur")}
        if event["name"] == "gloo:send":
            slim["args"] = {key: event["args"][key] for key in ("Input Dims", "Input type")}
        kept.append(slim)
    return kept


def judge(folder: Path) -> None:
    """Predict each run from pairs of the others that together measured F, B, I and W."""
    found = {}
    for name in RUNS:
        paths = sorted((folder / name).glob("*.json.gz"))
        found[name] = samples_of_traces([read_trace(path, read_json(path)) for path in paths])
    for known in product(("gpipe", "interleaved-1f1b"), ("zb-v", "zb-h1")):
        costs = calibrate([found[name][0] for name in known]).costs
        for name in RUNS.keys() - set(known):
            run = found[name][1]
            assert run is not None
            check = check_traced(run, costs)
            print(
                f"{' + '.join(known):30} -> {name:18} {check.measured_s:7.4f} s {100 * check.error:+6.2f} %"
            )


def main() -> None:
    """Record all runs and judge them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--judge", action="store_true", help="only judge what is there")
    asked = parser.parse_args()
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    zero = torch.zeros(1)
    devices.time = SimpleNamespace(  # type: ignore[assignment]
        sleep=lambda seconds: torch.ops.pipesim.sleep(zero, seconds),
        perf_counter_ns=time.perf_counter_ns,
        thread_time_ns=time.thread_time_ns,
    )
    for name in () if asked.judge else RUNS:
        (asked.folder / name).mkdir(parents=True, exist_ok=True)
        # A process for each, as a group's threads do not outlive a fork.
        if os.fork() == 0:
            record(name, asked.folder / name)
            os._exit(0)
        os.wait()
    judge(asked.folder)


if __name__ == "__main__":
    main()
