"""What the process of one rank does with a job: build, warm up, run steps, bring back what was measured."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pipesim.errors import PipesimError
from pipesim.executor.board import Board
from pipesim.executor.clock_offset import ClockReading, host_name, read_clock
from pipesim.executor.device import CpuDevice, Device, EmulatedDevice, UntimedDevice
from pipesim.executor.environment import environment
from pipesim.executor.gpus import choose_gpu, refuse_shared
from pipesim.executor.gradient_sums import ProcessCollectives
from pipesim.executor.instructions import RankProgram, plan, post_receives_early
from pipesim.executor.job import BETWEEN_STEPS, BUILDING, Job, RankError, RankResult
from pipesim.executor.models import build_model, sample
from pipesim.executor.rank import RankExecutor
from pipesim.executor.stage import AnyStage, Boundary, EmulatedStage, Stage, probe
from pipesim.executor.steps import Steps, make_stage, row_bytes, trainable
from pipesim.executor.stream_device import StreamDevice
from pipesim.executor.streams import CudaStream
from pipesim.executor.transport import GlooTransport, OrderedTransport, Transport
from pipesim.executor.wire import boundaries_from_json, boundaries_to_json
from pipesim.executor.workload import EmulatedWorkload
from pipesim.ir.actions import SENDS

Progress = Callable[[int, int], None]
"""Told the step and the row that a rank is at."""


class Worker:
    """A process among others, for as many jobs as come.

    Parameters
    ----------
    process, num_processes : int
        This one, of all that are connected.
    board : Board
        Shared by all.
    progress : Callable
        Told where this rank stands.
    local_index : int
        Number among the processes of this machine: which GPU is its own.
    timeout_s : float
        After which a transfer or collective of a step that nobody joins fails.
    """

    def __init__(
        self,
        process: int,
        num_processes: int,
        board: Board,
        progress: Progress,
        *,
        local_index: int,
        timeout_s: float,
    ) -> None:
        self.process = process
        self.num_processes = num_processes
        self.board = board
        self.progress = progress
        self.local_index = local_index
        self._timeout = timedelta(seconds=timeout_s)
        self._groups: dict[tuple[str | int, ...], Any] = {}
        self._same_host: dict[int, bool] = {}
        self._num_jobs = 0

    def run(self, job: Job) -> RankResult | None:
        """Run a job; processes it has no rank for only help to form groups.

        Raises
        ------
        RankError
            Naming the rank, its action and what happened.
        """
        self._num_jobs += 1
        at = [0, BUILDING]

        def on_row(row: int) -> None:
            at[1] = row
            self.progress(at[0], row)

        def on_step(step: int) -> None:
            at[0] = step
            on_row(BETWEEN_STEPS)

        on_row(BUILDING)
        try:
            return self._run(job, on_step, on_row, on_piece=lambda: self.progress(*at))
        except Exception as error:
            where = (
                job.whereabouts(self.process, *at) if self.process < job.num_processes else "a spare process"
            )
            raise RankError(f"{where}: {_explain(error)}", lost_contact=_lost_contact(error)) from error

    def _run(
        self,
        job: Job,
        on_step: Callable[[int], None],
        on_row: Callable[[int], None],
        on_piece: Callable[[], None],
    ) -> RankResult | None:
        programs = plan(job.schedule)
        if job.device == "cuda":
            self._take_gpu(job)
        groups = self._form_groups(job, programs)
        if self.process >= job.num_processes:
            return None
        replica, rank = job.place(self.process)
        program = programs[rank]
        if job.runtime != "pipesim":
            return self._run_in_torch(job, program, groups, on_step, on_row)
        device = self._device(job, rank)
        transport = self._transport(job, replica, rank, device, groups)
        if transport.matches_by_number:
            program = post_receives_early(program, job.receives_ahead)
        stages, boundaries, skip_boundaries = self._stages(job, program, device.torch_device)
        parameters = trainable(stages.values())
        model = None if isinstance(job.workload, EmulatedWorkload) else build_model(job.workload)
        emulated = job.workload.gradient_bytes if isinstance(job.workload, EmulatedWorkload) else None
        collectives = ProcessCollectives(
            groups.reductions, groups.meeting, device.torch_device, emulated, on_piece
        )
        self._wait_until_all_are_built(job)
        collectives.warm_up()
        if isinstance(transport, OrderedTransport):
            transport.warm_up(_pairs(programs))
        steps = Steps(job, replica, stages, model)
        executor = RankExecutor(
            program,
            stages,
            boundaries,
            skip_boundaries,
            transport,
            collectives,
            device,
            optimizer=model.optimizer(parameters) if model and parameters else None,
            on_row=on_row,
            before_optimizer=steps.keep_gradients if job.keep_state else None,
        )
        clocks = self._run_steps(job, steps, executor, groups.everybody, on_step)
        on_row(BETWEEN_STEPS)
        return steps.result(
            self.process,
            row_bytes(program, boundaries, skip_boundaries, stages, emulated),
            environment(job.device, device.torch_device.index or 0),
            clocks=clocks,
        )

    def _run_in_torch(
        self,
        job: Job,
        program: RankProgram,
        groups: _Groups,
        on_step: Callable[[int], None],
        on_row: Callable[[int], None],
    ) -> RankResult:
        """Run the job in torch's own runtime of schedules."""
        from pipesim.executor.torch_replay import TorchRank

        stream = _current_stream() if job.device == "cuda" else None
        rank_of_torch = TorchRank(job, program, groups.meeting, on_row, self._output_of, stream)
        tell = partial(self._told_by_all, job)
        return rank_of_torch.run(self.process, on_step, tell, groups.everybody)

    def _run_steps(
        self,
        job: Job,
        steps: Steps,
        executor: RankExecutor,
        everybody: Any,
        on_step: Callable[[int], None],
    ) -> tuple[ClockReading, ClockReading]:
        """Run all steps, warm-up first; gives the clocks before and after them."""
        device = executor.device
        before = self._read_clock(job, everybody)
        for step in range(job.warmup + job.num_steps):
            on_step(step)
            steps.prepare(step, device.torch_device)
            device.begin_step()
            if everybody is not None:
                dist.barrier(group=everybody)
            begin = time.perf_counter()
            executor.run_step()
            columns, disturbed = device.end_step()
            steps.finish(step, time.perf_counter() - begin, columns, disturbed)
        if job.device == "cuda":
            steps.peak_memory_bytes = torch.cuda.max_memory_allocated()
        after = self._read_clock(job, everybody)
        return _with_bound(before, device), _with_bound(after, device)

    def _form_groups(self, job: Job, programs: list[RankProgram]) -> _Groups:
        """Form the groups of a job; everybody calls this in one order."""
        backend = "nccl" if job.device == "cuda" else "gloo"
        reductions = {}
        for stage in range(job.schedule.num_stages):
            holders = tuple(
                replica * job.schedule.num_ranks + program.rank
                for replica in range(job.num_replicas)
                for program in programs
                if stage in program.stages
            )
            reductions[stage] = self._group(holders, backend)
        everybody = tuple(range(job.num_processes))
        directions = None
        if job.by_order or job.device == "cuda":
            up, down = (self._group(everybody, backend, f"messages {way}") for way in ("up", "down"))
            directions = up, down
        return _Groups(
            reductions, self._group(everybody, "gloo"), self._group(everybody, backend), directions
        )

    def _group(self, members: tuple[int, ...], backend: str, use: str = "") -> Any:
        if len(members) == 1:
            return None
        key: tuple[str | int, ...] = (backend, use, *members)
        if key not in self._groups:
            self._groups[key] = dist.new_group(list(members), backend=backend, timeout=self._timeout)
        return self._groups[key]

    def abort(self) -> None:
        """End what is under way between GPUs: destroying groups would wait for it."""
        for group in (*self._groups.values(), dist.group.WORLD):
            if group is not None and group is not dist.GroupMember.NON_GROUP_MEMBER:
                group.abort()

    def _take_gpu(self, job: Job) -> None:
        """Make this process's GPU the current one, before anything is formed on it."""
        if self.process >= job.num_processes:
            return
        index = choose_gpu(self.local_index, torch.cuda.device_count())
        torch.cuda.set_device(index)
        mine = f"{host_name()} {torch.cuda.get_device_properties(index).uuid}"
        refuse_shared(self._told_by_all(job, "gpu", mine))

    def _told_by_all(self, job: Job, name: str, mine: Any) -> list[Any]:
        """Tell all processes of a job something, and hear it from each."""
        name = f"job {self._num_jobs} {name}"
        self.board.put(f"{name} of {self.process}", mine)
        return [self.board.get(f"{name} of {process}") for process in range(job.num_processes)]

    def _wait_until_all_are_built(self, job: Job) -> None:
        """Weights may take minutes, for which the time-out of steps is too short."""
        if job.num_processes > 1:
            self._told_by_all(job, "built", True)

    def _device(self, job: Job, rank: int) -> Device:
        rows = job.schedule.rows_of(rank)
        num_rows = rows.stop - rows.start
        if isinstance(job.workload, EmulatedWorkload):
            return EmulatedDevice(job.workload.row_s[rows], max(job.workload.boundary_bytes))
        if job.device == "cuda":
            return StreamDevice(num_rows, _current_stream())
        return CpuDevice(num_rows) if job.record else UntimedDevice(num_rows)

    def _transport(self, job: Job, replica: int, rank: int, device: Device, groups: _Groups) -> Transport:
        first = replica * job.schedule.num_ranks
        if groups.directions is not None:
            return OrderedTransport(first, rank, device.torch_device, groups.directions)
        return GlooTransport(first, groups.everybody)

    def _stages(
        self, job: Job, program: RankProgram, device: torch.device
    ) -> tuple[dict[int, AnyStage], dict[int, list[Boundary]], dict[int, Boundary]]:
        num_stages, num_slices = job.schedule.num_stages, job.schedule.num_slices
        if isinstance(job.workload, EmulatedWorkload):
            sizes = job.workload.boundary_bytes
            shares = job.schedule.slice_shares or [1 / num_slices] * num_slices
            boundaries = {
                stage: [Boundary((max(1, int(sizes[stage] * share)),), torch.uint8) for share in shares]
                for stage in range(num_stages)
            }
            along_skips = {
                number: Boundary((max(1, nbytes),), torch.uint8)
                for number, nbytes in enumerate(job.workload.skip_bytes)
            }
            emulated = {s: EmulatedStage(s, num_stages, boundaries, along_skips) for s in program.stages}
            return dict(emulated), boundaries, along_skips
        model = build_model(job.workload)
        stages: dict[int, AnyStage] = {s: make_stage(job, model, s, device) for s in program.stages}
        inputs, targets = (t.to(device) for t in sample(job.workload, model, 0, 0, 0))
        return stages, *self._probe(job, stages, (inputs, targets))

    def _probe(
        self, job: Job, stages: dict[int, AnyStage], example: tuple[Tensor, Tensor]
    ) -> tuple[dict[int, list[Boundary]], dict[int, Boundary]]:
        """Learn the shape of all that this rank's stages take and give, stage after stage along the model."""
        known: dict[int, list[Boundary]] = {}
        along_skips: dict[int, Boundary] = {}
        for index in sorted(stages):
            stage = stages[index]
            assert isinstance(stage, Stage)
            incoming = known.get(index - 1)
            if index > 0 and incoming is None:
                incoming = known[index - 1] = boundaries_from_json(
                    self.board.get(self._boundary_name(index - 1))
                )
            for number in stage.skips_in.keys() - along_skips.keys():
                [along_skips[number]] = boundaries_from_json(self.board.get(self._skip_name(number)))
            known[index], made = probe(stage, incoming, example, along_skips)
            self.board.put(self._boundary_name(index), boundaries_to_json(known[index]))
            for number, boundary in made.items():
                self.board.put(self._skip_name(number), boundaries_to_json([boundary]))
            along_skips |= made
        return known, along_skips

    def _output_of(self, stage: int, find: Callable[[], list[Any]] | None) -> Any:
        """Tell the others what leaves a stage, or hear it from them."""
        if find is not None:
            self.board.put(self._boundary_name(stage), find())
        return self.board.get(self._boundary_name(stage))

    def _boundary_name(self, stage: int) -> str:
        return f"job {self._num_jobs} boundary {stage}"

    def _skip_name(self, number: int) -> str:
        return f"job {self._num_jobs} skip {number}"

    def _read_clock(self, job: Job, everybody: Any) -> ClockReading:
        """Compare clocks with process 0; processes of one machine share theirs."""
        if everybody is None:
            return ClockReading(0, 0)
        if job.num_processes not in self._same_host:
            self.board.put(f"host of {self.process}", host_name())
            names = {self.board.get(f"host of {process}") for process in range(job.num_processes)}
            self._same_host[job.num_processes] = len(names) == 1
        if self._same_host[job.num_processes]:
            return ClockReading(0, 0)
        return read_clock(self.process, job.num_processes, everybody)


@dataclass(frozen=True, slots=True)
class _Groups:
    """Those who hold a copy of each stage; all, on the host and on the devices; and for ordered messages."""

    reductions: dict[int, Any]
    everybody: Any
    meeting: Any
    directions: tuple[Any, Any] | None


def _current_stream() -> CudaStream:
    gpu = torch.device("cuda", torch.cuda.current_device())
    return CudaStream(torch.cuda.current_stream(gpu), gpu)


def _pairs(programs: list[RankProgram]) -> set[tuple[int, int]]:
    """Sender and receiver of every message."""
    sends = [
        (program.rank, unit[0].peer) for program in programs for unit in program.units if unit[0].op in SENDS
    ]
    return set(sends)


def _with_bound(reading: ClockReading, device: Device) -> ClockReading:
    """Add how far the device's own clock may be off the host's."""
    return replace(reading, bound_ns=reading.bound_ns + getattr(device, "clock_bound_ns", 0))


def connect(store: Any, process: int, num_processes: int, *, timeout_s: float, cuda: bool) -> None:
    """Join the other processes."""
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if cuda else "gloo",
        store=store,
        rank=process,
        world_size=num_processes,
        timeout=timedelta(seconds=timeout_s),
    )


def _lost_contact(error: BaseException) -> bool:
    text = str(error)
    return isinstance(error, RuntimeError) and any(
        word in text for word in ("gloo", "Connection", "NCCL", "peer", "Timed out", "TCPStore", "recvVector")
    )


def _explain(error: BaseException) -> str:
    if isinstance(error, PipesimError):
        return str(error)
    text = f"{type(error).__name__}: {error}"
    frames = traceback.extract_tb(error.__traceback__)
    if frames:
        text += f" ({frames[-1].filename}:{frames[-1].lineno})"
    return text
