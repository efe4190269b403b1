"""All ranks of a pipeline in one process: on one GPU each is a lane of its own, on a CPU they take turns.

The instructions and all that carries them out are those of ranks in processes; only the wire is a copy. One
thread walks all programs in an order in which every message is sent before it is waited for. On a GPU it only
queues: each lane is a stream (or a partition of the multiprocessors, see `green_streams`), and the streams
wait for each other by events.
"""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from pipesim.errors import ExecutionError
from pipesim.executor.device import CpuDevice, CudaDevice, Device
from pipesim.executor.environment import environment
from pipesim.executor.gradient_sums import gradients_of
from pipesim.executor.instructions import RankProgram, Unit, plan
from pipesim.executor.job import Job, RankResult
from pipesim.executor.models import build_model, sample
from pipesim.executor.rank import RankExecutor
from pipesim.executor.stage import AnyStage, Boundary, probe
from pipesim.executor.steps import Steps, make_stage, row_bytes
from pipesim.executor.transport import LocalTransport
from pipesim.executor.workload import EmulatedWorkload
from pipesim.ir.actions import Op


def run_in_lanes(
    job: Job, *, programs: Sequence[RankProgram] | None = None, streams: Sequence[Any] | None = None
) -> list[RankResult]:
    """Run a job in this process.

    Parameters
    ----------
    job : Job
        One replica of a model, on ``cpu`` or ``cuda``.
    programs : sequence of RankProgram, optional
        What the ranks do, if not what the schedule says.
    streams : sequence of torch.cuda.Stream, optional
        One a rank; by default a new stream each.

    Raises
    ------
    ExecutionError
        If there are replicas, nothing to compute, or nothing that can run next.
    """
    if isinstance(job.workload, EmulatedWorkload) or job.num_replicas != 1:
        raise ExecutionError("lanes run one replica of a model")
    on_gpu = job.device == "cuda"
    programs = programs or plan(job.schedule)
    if on_gpu and streams is None:
        streams = [torch.cuda.Stream() for _ in programs]
    model = build_model(job.workload)
    transport = LocalTransport(on_gpu=on_gpu)
    collectives = _LaneCollectives()
    boundaries: dict[int, list[Boundary]] = {}
    skip_boundaries: dict[int, Boundary] = {}
    lanes: list[RankExecutor] = []
    steps: list[Steps] = []
    for program in programs:
        device: Device = CpuDevice(program.num_rows)
        if on_gpu and streams is not None:
            device = CudaDevice(program.num_rows, torch.cuda.current_device(), streams[program.rank])
        stages: dict[int, AnyStage] = {
            s: make_stage(job, model, s, device.torch_device) for s in program.stages
        }
        steps.append(Steps(job, 0, stages, model))
        collectives.add(stages)
        parameters = [p for stage in stages.values() for p in stage.module.parameters() if p.requires_grad]
        lanes.append(
            RankExecutor(
                program,
                stages,
                boundaries,
                skip_boundaries,
                transport,
                collectives,
                device,
                optimizer=model.optimizer(parameters) if parameters else None,
                before_optimizer=steps[-1].keep_gradients if job.keep_state else None,
            )
        )
    where = lanes[0].device.torch_device
    inputs, targets = sample(job.workload, model, 0, 0, 0)
    everything = [stage for lane_steps in steps for stage in lane_steps.stages.values()]
    for stage in sorted(everything, key=lambda stage: stage.index):
        index = stage.index
        example = inputs.to(where), targets.to(where)
        boundaries[index], made = probe(stage, boundaries.get(index - 1), example, skip_boundaries)
        skip_boundaries |= made
    for step in range(job.warmup + job.num_steps):
        for lane_steps, lane in zip(steps, lanes, strict=True):
            lane_steps.prepare(step, where)
            lane.device.begin_step()
        begin = time.perf_counter()
        _walk(lanes, transport, on_gpu=on_gpu)
        measured = [lane.device.end_step() for lane in lanes]
        seconds = time.perf_counter() - begin
        for lane_steps, (columns, disturbed) in zip(steps, measured, strict=True):
            lane_steps.finish(step, seconds, columns, disturbed)
    facts = environment(job.device, where.index or 0)
    return [
        lane_steps.result(
            lane.program.rank, row_bytes(lane.program, boundaries, skip_boundaries, lane.stages, None), facts
        )
        for lane_steps, lane in zip(steps, lanes, strict=True)
    ]


def _walk(lanes: Sequence[RankExecutor], transport: LocalTransport, *, on_gpu: bool) -> None:
    """Carry out all units, lane after lane where one can go on; optimizers run when all are at theirs."""
    heads = [0] * len(lanes)
    units = [lane.program.units for lane in lanes]

    def at_optimizer(lane: int) -> bool:
        return heads[lane] == len(units[lane]) or units[lane][heads[lane]][0].op is Op.OPTIMIZER

    def can_run(unit: Unit) -> bool:
        if unit[0].op is Op.OPTIMIZER:
            return all(map(at_optimizer, range(len(lanes))))
        return all(transport.has(message) for part in unit for message in part.awaited)

    moved = True
    while moved:
        moved = False
        for at, lane in enumerate(lanes):
            stream = getattr(lane.device, "stream", None)
            with torch.cuda.stream(stream) if on_gpu else contextlib.nullcontext():
                if heads[at] < len(units[at]) and can_run(units[at][heads[at]]):
                    lane.perform(units[at][heads[at]])
                    heads[at] += 1
                    moved = True
    ended = [head == len(mine) for head, mine in zip(heads, units, strict=True)]
    if not all(ended):
        waiting = [f"rank {at} at {units[at][heads[at]][0]}" for at, done in enumerate(ended) if not done]
        raise ExecutionError(f"nothing can run next; waiting: {', '.join(waiting)}")


class _LaneCollectives:
    """Sums the gradients of a stage over the lanes that hold a copy, when the last of them asks."""

    def __init__(self) -> None:
        self._copies: dict[int, list[nn.Module]] = {}
        self._asked: dict[int, int] = {}

    def add(self, stages: dict[int, AnyStage]) -> None:
        """Get to know a lane's stages."""
        for index, stage in stages.items():
            self._copies.setdefault(index, []).append(stage.module)
            self._asked[index] = 0

    def reduce(self, stage: int, module: nn.Module) -> None:
        """Count who asked; the last makes the sum."""
        copies = self._copies[stage]
        self._asked[stage] = (self._asked[stage] + 1) % len(copies)
        if len(copies) == 1 or self._asked[stage]:
            return
        if next(module.parameters()).is_cuda:
            torch.cuda.synchronize()
        for parameters in zip(*(gradients_of(copy.parameters()) for copy in copies), strict=True):
            total = sum(parameters[1:], start=parameters[0].clone())
            for gradient in parameters:
                gradient.copy_(total)

    def meet(self) -> None:
        """Nothing to wait for: optimizers run last anyway."""


def green_streams(num_lanes: int) -> tuple[list[Any], list[Any], str]:
    """Give a stream for each lane, on a partition of the GPU's multiprocessors where torch offers it.

    Returns
    -------
    streams, contexts : list
        The contexts must live as long as the streams are used; empty where there are none.
    words : str
        What the lanes are.
    """
    multiprocessors = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
    # Partitions come in units of eight multiprocessors.
    size = multiprocessors // num_lanes // 8 * 8
    try:
        green: Any = importlib.import_module("torch.cuda.green_contexts").GreenContext
        contexts = [green.create(num_sms=size) for _ in range(num_lanes)]
        streams = [context.Stream() for context in contexts]
    except (ImportError, AttributeError, RuntimeError, TypeError) as error:
        plain = [torch.cuda.Stream() for _ in range(num_lanes)]
        return plain, [], f"plain streams; no green contexts: {type(error).__name__}: {error}"
    return streams, contexts, f"green contexts of {size} of {multiprocessors} multiprocessors"
