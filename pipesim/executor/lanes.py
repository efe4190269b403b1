"""All ranks of a pipeline in one process: on one GPU each is a lane of its own, on a CPU they take turns.

The instructions and all that carries them out are those of ranks in processes; only the wire is a copy. One
thread walks all programs in an order in which every message is sent before it is waited for. On a GPU it only
queues: each lane is a stream (or a partition of the multiprocessors, see `green_streams`), and the streams
wait for each other by events.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from statistics import median
from typing import Any

import torch
from torch import nn

from pipesim.errors import ExecutionError
from pipesim.executor.clock_offset import ClockReading
from pipesim.executor.device import CpuDevice
from pipesim.executor.environment import environment
from pipesim.executor.gradient_sums import gradients_of
from pipesim.executor.instructions import RankProgram, Unit, plan
from pipesim.executor.job import Job, RankResult
from pipesim.executor.models import PipelineModel, build_model, sample
from pipesim.executor.rank import RankExecutor
from pipesim.executor.run import Run
from pipesim.executor.stage import AnyStage, Boundary, probe
from pipesim.executor.steps import Steps, make_stage, row_bytes, trainable
from pipesim.executor.stream_device import StreamDevice
from pipesim.executor.streams import DeviceQueue
from pipesim.executor.transport import LocalTransport
from pipesim.executor.workload import EmulatedWorkload
from pipesim.ir.actions import Op

MOST_HOST_SHARE = 0.5
"""Share of a step in which the host may be queuing: above it, lanes wait for it, not for each other."""
HOST_SHARE = "host_share_of_step"
"""Key of a run's environment."""


def run_in_lanes(
    job: Job, *, programs: Sequence[RankProgram] | None = None, streams: Sequence[DeviceQueue] | None = None
) -> list[RankResult]:
    """Run a job in this process.

    Parameters
    ----------
    job : Job
        One replica of a model.
    programs : sequence of RankProgram, optional
        What the ranks do, if not what the schedule says.
    streams : sequence of DeviceQueue, optional
        One a rank; without, ranks take turns on the CPU.

    Raises
    ------
    ExecutionError
        If there are replicas, nothing to compute, or nothing that can run next.
    """
    if isinstance(job.workload, EmulatedWorkload) or job.num_replicas != 1:
        raise ExecutionError("lanes run one replica of a model")
    lanes = Lanes(job, programs or plan(job.schedule), streams)
    for step in range(job.warmup + job.num_steps):
        lanes.run_step(step)
    return lanes.results()


class Lanes:
    """The ranks of one process, and what they share; see `run_in_lanes`."""

    def __init__(
        self, job: Job, programs: Sequence[RankProgram], streams: Sequence[DeviceQueue] | None
    ) -> None:
        assert not isinstance(job.workload, EmulatedWorkload)
        self.job = job
        self.streams = streams
        self.transport = LocalTransport()
        self.collectives = _LaneCollectives(streams)
        self.boundaries: dict[int, list[Boundary]] = {}
        self.skip_boundaries: dict[int, Boundary] = {}
        self.ranks: list[RankExecutor] = []
        self.steps: list[Steps] = []
        self._queuing_s: list[float] = []
        model = build_model(job.workload)
        for program in programs:
            self._add(program, model)
        where = self.ranks[0].device.torch_device
        inputs, targets = sample(job.workload, model, 0, 0, 0)
        everything = [stage for steps in self.steps for stage in steps.stages.values()]
        for stage in sorted(everything, key=lambda stage: stage.index):
            before = self.boundaries.get(stage.index - 1)
            example = inputs.to(where), targets.to(where)
            self.boundaries[stage.index], made = probe(stage, before, example, self.skip_boundaries)
            self.skip_boundaries |= made

    def _add(self, program: RankProgram, model: PipelineModel) -> None:
        device = (
            CpuDevice(program.num_rows)
            if self.streams is None
            else StreamDevice(program.num_rows, self.streams[program.rank])
        )
        stages: dict[int, AnyStage] = {
            s: make_stage(self.job, model, s, device.torch_device) for s in program.stages
        }
        steps = Steps(self.job, 0, stages, model)
        self.collectives.add(stages)
        parameters = trainable(stages.values())
        self.steps.append(steps)
        self.ranks.append(
            RankExecutor(
                program,
                stages,
                self.boundaries,
                self.skip_boundaries,
                self.transport,
                self.collectives,
                device,
                optimizer=model.optimizer(parameters) if parameters else None,
                before_optimizer=steps.keep_gradients if self.job.keep_state else None,
            )
        )

    def run_step(self, step: int) -> None:
        """Run all ranks through one step."""
        for steps, rank in zip(self.steps, self.ranks, strict=True):
            steps.prepare(step, rank.device.torch_device)
        if self.ranks[0].device.torch_device.type == "cuda":
            # Weights and data come by another stream than those that use them, and may still be on their way.
            torch.cuda.synchronize()
        for rank in self.ranks:
            rank.device.begin_step()
        begin = time.perf_counter()
        self._walk()
        queued = time.perf_counter()
        for stream in self.streams or ():
            stream.finish()
        seconds = time.perf_counter() - begin
        self._queuing_s.append((queued - begin) / seconds)
        measured = [rank.device.end_step() for rank in self.ranks]
        for steps, (columns, disturbed) in zip(self.steps, measured, strict=True):
            steps.finish(step, seconds, columns, disturbed)

    def results(self) -> list[RankResult]:
        """Give what each rank brings back."""
        device = self.ranks[0].device.torch_device
        facts = environment(self.job.device, device.index or 0)
        if self.streams is not None:
            facts |= {"transport": "copies between lanes of one process"}
            facts |= {HOST_SHARE: f"{median(self._queuing_s[self.job.warmup :]):.3f}"}
        results = []
        for steps, rank in zip(self.steps, self.ranks, strict=True):
            bound = ClockReading(0, getattr(rank.device, "clock_bound_ns", 0))
            sizes = row_bytes(rank.program, self.boundaries, self.skip_boundaries, rank.stages, None)
            results.append(steps.result(rank.program.rank, sizes, facts, clocks=(bound, bound)))
        return results

    def _walk(self) -> None:
        """Carry out all units, lane after lane where one can go on; optimizers run when all are at theirs."""
        heads = [0] * len(self.ranks)
        units = [rank.program.units for rank in self.ranks]

        def at_optimizer(lane: int) -> bool:
            return heads[lane] == len(units[lane]) or units[lane][heads[lane]][0].op is Op.OPTIMIZER

        def can_run(unit: Unit) -> bool:
            if unit[0].op is Op.OPTIMIZER:
                return all(map(at_optimizer, range(len(heads))))
            return all(self.transport.has(message) for part in unit for message in part.awaited)

        moved = True
        while moved:
            moved = False
            for at, rank in enumerate(self.ranks):
                if heads[at] < len(units[at]) and can_run(units[at][heads[at]]):
                    self._perform(rank, units[at][heads[at]])
                    heads[at] += 1
                    moved = True
        ended = [head == len(mine) for head, mine in zip(heads, units, strict=True)]
        if not all(ended):
            waiting = [f"rank {at} at {units[at][heads[at]][0]}" for at, done in enumerate(ended) if not done]
            raise ExecutionError(f"nothing can run next; waiting: {', '.join(waiting)}")

    def _perform(self, rank: RankExecutor, unit: Unit) -> None:
        stream = None if self.streams is None else self.streams[rank.program.rank]
        self.transport.stream = self.collectives.stream = stream
        with stream.active() if stream is not None else nullcontext():
            rank.perform(unit)


class _LaneCollectives:
    """What lanes do together: sum a stage's gradients over its copies, and come to the optimizer."""

    def __init__(self, streams: Sequence[DeviceQueue] | None) -> None:
        self.stream: DeviceQueue | None = None
        """Of the lane whose turn it is."""
        self._streams = streams or ()
        self._copies: dict[int, list[nn.Module]] = {}
        self._asked: dict[int, list[tuple[DeviceQueue, Any]]] = {}
        self._num_asked: dict[int, int] = {}
        self._num_met = 0

    def add(self, stages: dict[int, AnyStage]) -> None:
        """Get to know a lane's stages."""
        for index, stage in stages.items():
            self._copies.setdefault(index, []).append(stage.module)
            self._asked[index] = []
            self._num_asked[index] = 0

    def reduce(self, stage: int, module: nn.Module) -> None:
        """Note who asked; the last makes the sum when all gradients are there, and the others wait for it."""
        copies, asked = self._copies[stage], self._asked[stage]
        if len(copies) == 1:
            return
        if self.stream is not None:
            asked.append((self.stream, self.stream.mark()))
        self._num_asked[stage] = (self._num_asked[stage] + 1) % len(copies)
        if self._num_asked[stage]:
            return
        for stream, mark in asked:
            if self.stream is not None and stream is not self.stream:
                self.stream.wait_for(mark)
        for parameters in zip(*(gradients_of(copy.parameters()) for copy in copies), strict=True):
            total = sum(parameters[1:], start=parameters[0].clone())
            for gradient in parameters:
                gradient.copy_(total)
                if self.stream is not None:
                    self.stream.keep(gradient)
        if self.stream is not None:
            summed = self.stream.mark()
            for stream, _ in asked:
                if stream is not self.stream:
                    stream.wait_for(summed)
        asked.clear()

    def meet(self) -> None:
        """Let every lane wait until all have come to their optimizer; the first to ask does it for all."""
        if self._num_met == 0:
            marks = [(stream, stream.mark()) for stream in self._streams]
            for stream in self._streams:
                for other, mark in marks:
                    if other is not stream:
                        stream.wait_for(mark)
        self._num_met = (self._num_met + 1) % max(1, len(self._streams))


def refuse_host_bound(run: Run) -> None:
    """Refuse a run whose lanes waited for the host that queues their work.

    Raises
    ------
    ExecutionError
        With the share of the step, and what makes it smaller.
    """
    share = float(run.environment.get(HOST_SHARE, 0))
    if share > MOST_HOST_SHARE:
        raise ExecutionError(
            f"the host was queuing work for {share:.0%} of a step; above {MOST_HOST_SHARE:.0%} times tell of "
            f"it, not of the GPU; needed: more work in each action (a larger hidden size, sequence or "
            f"microbatch)"
        )
