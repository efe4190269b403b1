"""What one GPU does by itself, for `gpu_validation.py`: each part gives numbers and limits they should keep.

A part takes the streams of the lanes and gives plain data; ``limits`` holds, by the name of a number, the
least and the greatest that it may be.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn

from pipesim.executor.environment import environment
from pipesim.executor.streams import CudaStream, tie
from pipesim.executor.wgrad import WeightGradients, make_deferrable

Found = dict[str, Any]
GEMM = 8192
WHERE = """
extern "C" __global__ void where(int* out, int spin) {
    unsigned int processor;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(processor));
    long long begin = clock64();
    while (clock64() - begin < spin) {}
    if (threadIdx.x == 0) out[blockIdx.x] = (int)processor;
}
"""


def facts_and_gemm(streams: Sequence[CudaStream]) -> Found:
    """Part 1: what it is, and how fast a product of large matrices in bfloat16."""
    a, b = (torch.randn(GEMM, GEMM, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    seconds = min(_event_times(lambda: a @ b, 20))
    return {
        "environment": environment("cuda", torch.cuda.current_device()),
        "tflops": 2 * GEMM**3 / seconds / 1e12,
        "limits": {"tflops": [100.0, 2500.0]},
    }


def partitions(streams: Sequence[CudaStream]) -> Found:
    """Part 2: multiprocessors on which each lane's blocks run, which must have none in common."""
    compile_kernel: Any = torch.cuda._compile_kernel  # type: ignore[attr-defined]
    kernel = compile_kernel(WHERE, "where")
    seen = []
    for stream in streams:
        out = torch.full((2048,), -1, device="cuda", dtype=torch.int32)
        torch.cuda.synchronize()
        with stream.active():
            kernel((2048, 1, 1), (32, 1, 1), (out, 200_000))
        stream.finish()
        seen.append(set(out.tolist()))
    shared = sum(map(len, seen)) - len(set().union(*seen))
    return {
        "multiprocessors": [len(found) for found in seen],
        "shared": shared,
        "limits": {"shared": [0, 0]},
    }


def events(streams: Sequence[CudaStream]) -> Found:
    """Part 3: events against a spinning kernel and the host's clock."""
    stream = streams[0]
    with stream.active():
        long, short = (_spin_s(stream, cycles) for cycles in (200_000_000, 100_000_000))
        begin = tie(stream)
        time.sleep(2.0)
        end = tie(stream)
    device_ns = stream.elapsed_ns(begin.mark, end.mark)
    host_ns = end.host_ns - begin.host_ns
    return {
        "twice_as_long": long / short,
        "bracket_us": max(begin.bound_ns, end.bound_ns) / 1e3,
        "drift_us_per_s": abs(device_ns - host_ns) / 1e3 / (host_ns / 1e9),
        "limits": {"twice_as_long": [1.98, 2.02], "bracket_us": [0, 20], "drift_us_per_s": [0, 5]},
    }


def isolation(streams: Sequence[CudaStream]) -> Found:
    """Part 5: how much slower a chain of products is on one lane when the others run theirs too."""
    matrices = [torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16) for _ in streams]
    torch.cuda.synchronize()

    def chain(lanes: Sequence[int]) -> float:
        begin = [streams[lane].mark() for lane in lanes]
        for _ in range(200):
            for lane in lanes:
                with streams[lane].active():
                    matrices[lane] @ matrices[lane]
        end = [streams[lane].mark() for lane in lanes]
        for lane in lanes:
            streams[lane].finish()
        return streams[0].elapsed_ns(begin[0], end[0])

    chain([0])
    alone = float(np.median([chain([0]) for _ in range(5)]))
    beside = float(np.median([chain(range(len(streams))) for _ in range(5)]))
    return {"beside_over_alone": beside / alone, "limits": {"beside_over_alone": [0.99, 1.15]}}


def split_backward(device: torch.device) -> Found:
    """Part 7: I and W together against B, of a linear layer and a convolution."""
    small = device.type == "cpu"
    width, tokens = (128, 256) if small else (4096, 4096)
    channels, size = (8, 16) if small else (128, 64)
    kind = torch.float32 if small else torch.bfloat16
    cases = {
        "linear": (nn.Linear(width, width), torch.randn(tokens, width)),
        "conv2d": (nn.Conv2d(channels, channels, 3, padding=1), torch.randn(16, channels, size, size)),
    }
    found: Found = {"limits": {}}
    for name, (layer, x) in cases.items():
        layer, x = layer.to(device=device, dtype=kind), x.to(device=device, dtype=kind)
        store = WeightGradients()
        make_deferrable(layer, store)
        found[f"{name}_split_over_whole"] = _split_over_whole(layer, x, store)
        if not small:
            found["limits"][f"{name}_split_over_whole"] = [0.95, 1.05]
    return found


def _split_over_whole(layer: nn.Module, x: torch.Tensor, store: WeightGradients) -> float:
    y = layer(x.requires_grad_())
    gradient = torch.ones_like(y)

    def whole() -> None:
        torch.autograd.backward(y, gradient, retain_graph=True)

    def split() -> None:
        with store.deferring(0):
            torch.autograd.backward(y, gradient, retain_graph=True)
        store.apply(0)

    timed = _event_times if x.is_cuda else _host_times
    times: dict[Callable[[], None], list[float]] = {whole: [], split: []}
    for _ in range(5):
        for run, found in times.items():
            found += timed(run, 10)
    return float(np.median(times[split]) / np.median(times[whole]))


def one_rank_nccl(streams: Sequence[CudaStream]) -> Found:
    """Part 10: NCCL starts, sums over one rank, and ends."""
    import torch.distributed as dist

    begin = time.perf_counter()
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    value = torch.ones(1, device="cuda")
    dist.all_reduce(value)
    torch.cuda.synchronize()
    dist.destroy_process_group()
    return {"sum": value.item(), "seconds": time.perf_counter() - begin, "limits": {"sum": [1, 1]}}


def kineto(streams: Sequence[CudaStream]) -> Found:
    """Part 11: torch's own runtime, two stages on one rank: a Kineto trace's kernels against events."""
    import json
    import tempfile
    from pathlib import Path

    import torch.distributed as dist
    from torch.profiler import ProfilerActivity, profile

    from pipesim.evidence.calibration.from_traces import samples_of_traces
    from pipesim.evidence.calibration.kineto import read_trace
    from pipesim.executor.torch_replay import TimedStage
    from pipesim.executor.torch_runtime import torch_schedule
    from pipesim.ir.actions import Op
    from pipesim.schedules import Shape, generate

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    stream = CudaStream(torch.cuda.current_stream(), torch.device("cuda", torch.cuda.current_device()))
    marks: dict[tuple[Op, int], list[tuple[Any, Any]]] = {}

    @contextmanager
    def timed(op: Op, stage: int, microbatch: int) -> Any:
        begin = stream.mark()
        yield
        marks.setdefault((op, stage), []).append((begin, stream.mark()))

    order = generate("interleaved-1f1b", Shape(1, 2, 8))
    stages = [
        TimedStage(
            timed,
            submodule=nn.Sequential(*[nn.Linear(4096, 4096) for _ in range(4)]).cuda(),
            stage_index=stage,
            num_stages=2,
            device=stream.device,
        )
        for stage in range(2)
    ]
    schedule = torch_schedule(order, stages, loss_fn=lambda y, target: (y - target).square().mean())
    x = torch.randn(8 * 2048, 4096, device="cuda")
    schedule.step(x, target=x)
    marks.clear()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        schedule.step(x, target=x)
        torch.cuda.synchronize()
    dist.destroy_process_group()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rank0.json"
        profiler.export_chrome_trace(str(path))
        samples, _ = samples_of_traces([read_trace(path, json.loads(path.read_text()))])
    errors = {}
    for key, pairs in marks.items():
        by_events = float(np.median([stream.elapsed_ns(begin, end) * 1e-9 for begin, end in pairs]))
        errors[f"{key[1]}{key[0].name}"] = float(np.median(samples.op_s[key])) / by_events - 1
    largest = max(map(abs, errors.values()))
    return {"errors": errors, "largest_error": largest, "limits": {"largest_error": [0, 0.03]}}


def _spin_s(stream: CudaStream, cycles: int) -> float:
    torch.cuda._sleep(cycles)
    begin = stream.mark()
    torch.cuda._sleep(cycles)
    end = stream.mark()
    stream.finish()
    return stream.elapsed_ns(begin, end) * 1e-9


def _event_times(run: Callable[[], Any], count: int) -> list[float]:
    """Seconds of calls on the current stream, by events, after three to warm up."""
    stream = CudaStream(torch.cuda.current_stream(), torch.device("cuda", torch.cuda.current_device()))
    for _ in range(3):
        run()
    marks = [stream.mark()]
    for _ in range(count):
        run()
        marks.append(stream.mark())
    stream.finish()
    return [stream.elapsed_ns(*pair) * 1e-9 for pair in pairwise(marks)]


def _host_times(run: Callable[[], Any], count: int) -> list[float]:
    """Seconds of calls on a CPU."""
    times = []
    for _ in range(count):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return times
