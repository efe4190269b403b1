"""The same schedules in torch's own pipeline runtime, timed action by action.

What torch does otherwise than our executor, and a prediction must know of:

- Each action first logs and starts its messages on the host, so a gap of host time lies before every action
  and a longer one before an action that waits; both are measured, not assumed.
- A receive is posted where it stands in the order, and gloo moves a message only then. Of 48 receives of
  GPipe (4 ranks, 8 microbatches) all stand right before what takes them, of 1F1B 30, of zb-h1 18. A rank that
  has more to do than its neighbours then pays for the message before each such action, although it was made
  long before. This is not modelled: over uneven stages GPipe ran 1.5 % longer than predicted, others did not.
- I of the first stage does nothing, as no gradient leaves it, and W does the whole backward.
- A pair (OVERLAP_F_B) runs as its F, then its B; both parts' sends come after it.
- Its `Schedule1F1B` sends and receives in one blocking batch, which the same order in its runtime of orders
  does not; its other named classes do what the orders do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
import torch.distributed.pipelining as pipelining
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage

from pipesim.errors import ExecutionError
from pipesim.executor.device import COLUMNS, CpuDevice, SleepingDevice
from pipesim.executor.environment import environment
from pipesim.executor.instructions import Instruction, RankProgram
from pipesim.executor.job import Job, RankResult
from pipesim.executor.models import build_model, build_stage, sample
from pipesim.executor.shared_parameters import refuse_untied
from pipesim.executor.stage import Boundary
from pipesim.executor.stream_device import StreamDevice
from pipesim.executor.streams import DeviceQueue
from pipesim.executor.torch_runtime import torch_schedule
from pipesim.executor.wire import boundaries_from_json, boundaries_to_json
from pipesim.executor.workload import EmulatedWorkload
from pipesim.ir.actions import RECEIVES, SENDS, Op, Schedule
from pipesim.scenario import split_layers

NAMED_CLASSES = {
    "gpipe": "ScheduleGPipe",
    "1f1b": "Schedule1F1B",
    "interleaved-1f1b": "ScheduleInterleaved1F1B",
    "looped-bfs": "ScheduleLoopedBFS",
    "interleaved-zb": "ScheduleInterleavedZeroBubble",
    "zb-v": "ScheduleZBVZeroBubble",
    "dualpipe-v": "ScheduleDualPipeV",
}
"""Torch's own classes (``torch.distributed.pipelining``) by the names of schedules; with "torch-named" they
run these, and torch's runtime of orders all others."""
_OF_ONE_STAGE = ("gpipe", "1f1b")
Timed = Callable[[Op, int, int], Any]
"""Of operation, stage and microbatch: a context in which it runs."""


class TimedStage(PipelineStage):
    """A stage that says when each of its computations starts and ends.

    Parameters
    ----------
    timed : Callable
        Asked for the context of each.
    **settings
        Of `torch.distributed.pipelining.PipelineStage`.
    """

    def __init__(self, timed: Timed, **settings: Any) -> None:
        super().__init__(**settings)
        self._timed = timed
        self.output_bytes = 0
        """Of one microbatch."""

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """Time F."""
        with self._timed(Op.F, self.stage_index, fwd_chunk_id):
            output = super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)
        self.output_bytes = output.nbytes if isinstance(output, Tensor) else output[0].nbytes
        return output

    def backward_one_chunk(
        self, bwd_chunk_id: int, loss: Any = None, full_backward: bool = True, last_backward: bool = False
    ) -> Any:
        """Time B, or I."""
        with self._timed(Op.B if full_backward else Op.I, self.stage_index, bwd_chunk_id):
            return super().backward_one_chunk(bwd_chunk_id, loss, full_backward, last_backward)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """Time W."""
        with self._timed(Op.W, self.stage_index, bwd_chunk_id):
            return super().backward_weight_one_chunk(bwd_chunk_id, *args, **kwargs)


class TorchRank:
    """One rank of a job in torch's runtime.

    Parameters
    ----------
    job : Job
        One replica, whose `runtime` is torch's.
    program : RankProgram
        The rank's rows.
    group : process group
        Of the job's ranks.
    on_row : Callable
        Told the row that begins.
    output_of : Callable
        Gives what `boundaries_to_json` makes of a stage's output, of which a rank that holds the stage
        finds it out.
    stream : DeviceQueue, optional
        Where a GPU's computations are queued.

    Raises
    ------
    ExecutionError, ScheduleError
        If torch's runtime cannot run the job.
    """

    def __init__(
        self,
        job: Job,
        program: RankProgram,
        group: Any,
        on_row: Callable[[int], None],
        output_of: Callable[[int, Callable[[], list[Any]] | None], Any] = lambda stage, find: find and find(),
        stream: DeviceQueue | None = None,
    ) -> None:
        self.job = job
        self.program = program
        self.device: CpuDevice | StreamDevice = (
            _device(job, program) if stream is None else StreamDevice(program.num_rows, stream)
        )
        self._on_row = on_row
        self._rows = {
            (part.op, part.stage, part.microbatch): part
            for unit in program.units
            for part in unit
            if part.op <= Op.W
        }
        self._model = None if isinstance(job.workload, EmulatedWorkload) else build_model(job.workload)
        self.modules = {stage: self._module(stage) for stage in program.stages}
        self._group = group
        self._output_of = output_of
        self.stages = {stage: self._stage(stage, module, group) for stage, module in self.modules.items()}
        self._schedule = _schedule(job, list(self.stages.values()), self._loss)
        parameters = dict.fromkeys(p for module in self.modules.values() for p in module.parameters())
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        self._optimizer = self._model.optimizer(trained) if self._model and trained else None

    def run(
        self,
        process: int,
        on_step: Callable[[int], None],
        told_by_all: Callable[[str, Any], list[Any]],
        barrier_group: Any,
    ) -> RankResult:
        """Run all steps.

        Parameters
        ----------
        process : int
            This one.
        on_step : Callable
            Told the step that begins.
        told_by_all : Callable
            Of a name and what this process says under it: gives what each process says.
        barrier_group : process group
            Of all ranks, on the host.
        """
        told_by_all("built", True)
        kept = []
        for step in range(self.job.warmup + self.job.num_steps):
            on_step(step)
            dist.barrier(group=barrier_group)
            kept.append(self.run_step(step))
        columns, disturbed, seconds, losses = zip(*kept[self.job.warmup :], strict=True)
        sizes: dict[str, int] = {}
        for said in told_by_all("bytes", {str(s): stage.output_bytes for s, stage in self.stages.items()}):
            sizes |= said
        return RankResult(
            process=process,
            columns={name: np.array([each[name] for each in columns]) for name in COLUMNS},
            step_s=np.array(seconds),
            disturbed=np.array(disturbed),
            losses=np.array(losses),
            row_bytes=self._row_bytes({int(stage): nbytes for stage, nbytes in sizes.items()}),
            peak_activation_bytes=0,
            deferred_share=dict.fromkeys(self.modules, 0.0),
            clock_offset_ns=(0, 0),
            clock_bound_ns=(getattr(self.device, "clock_bound_ns", 0),) * 2,
            environment=environment(self.job.device, self.device.torch_device.index or 0)
            | {"runtime": self.job.runtime},
        )

    def _row_bytes(self, sizes: dict[int, int]) -> npt.NDArray[np.int64]:
        nbytes = np.zeros(self.program.num_rows, np.int64)
        for instruction, *_ in self.program.units:
            if instruction.op in SENDS or instruction.op in RECEIVES:
                earlier = instruction.op in (Op.RECV_F, Op.SEND_B)
                nbytes[instruction.row] = sizes[instruction.stage - earlier]
        return nbytes

    def run_step(self, step: int) -> tuple[dict[str, Any], bool, float, float]:
        """Run a step; give its record, whether it was disturbed, its seconds and its loss."""
        is_first = 0 in self.modules
        is_last = self.job.schedule.num_stages - 1 in self.modules
        inputs, targets = self._data(step)
        losses: list[Tensor] = []
        self.device.begin_step()
        begin = time.perf_counter()
        self._schedule.step(
            *((inputs,) if is_first else ()),
            **({"target": targets, "losses": losses} if is_last else {}),
            **({} if self.job.runtime == "torch" else {"return_outputs": False}),
        )
        self._end_step()
        columns, disturbed = self.device.end_step()
        seconds = time.perf_counter() - begin
        loss = sum(loss.item() for loss in losses) if is_last and self._model else float("nan")
        return columns, disturbed, seconds, loss

    @contextmanager
    def timed(self, op: Op, stage: int, microbatch: int) -> Iterator[None]:
        """Time a computation; on the emulated device its time passes here."""
        instruction = self._rows[op, stage, microbatch]
        self._on_row(instruction.row)
        self.device.before(instruction)
        yield
        self.device.after(instruction)

    def _end_step(self) -> None:
        for unit in self.program.units:
            instruction = unit[0]
            if instruction.op in (Op.REDUCE_GRAD, Op.OPTIMIZER):
                self.device.before(instruction)
                if instruction.op is Op.OPTIMIZER and self._optimizer is not None:
                    self._optimizer.step()
                    self._optimizer.zero_grad()
                self.device.after(instruction)
            elif len(unit) == 2:
                self.device.end_unit(unit)

    def _module(self, stage: int) -> nn.Module:
        schedule, workload = self.job.schedule, self.job.workload
        if isinstance(workload, EmulatedWorkload):
            sizes = workload.boundary_bytes
            return _Sender(max(1, sizes[stage] // 4) if stage < schedule.num_stages - 1 else 1)
        assert self._model is not None
        sizes = split_layers(len(self._model.layers), schedule.num_stages, workload.split)
        refuse_untied(self._model.layers, sizes, schedule.schedule.holders, num_replicas=1)
        device = self.device.torch_device
        return nn.Sequential(*build_stage(workload, self._model, stage, schedule.num_stages, device))

    def _stage(self, stage: int, module: nn.Module, group: Any) -> TimedStage:
        schedule, workload = self.job.schedule, self.job.workload
        if isinstance(workload, EmulatedWorkload):
            before = torch.zeros(1, max(1, workload.boundary_bytes[stage - 1] // 4) if stage else 1)
            assert isinstance(module, _Sender)
            after = torch.zeros(1, module.width)
        else:
            before, after = self._shapes(stage, module)
        # Stated shapes spare torch's ranks from telling each other, which they do in pickles.
        settings = {
            "input_args": before.requires_grad_(stage > 0),
            "output_args": after.requires_grad_(after.is_floating_point()),
        }
        return TimedStage(
            self.timed,
            submodule=module,
            stage_index=stage,
            num_stages=schedule.num_stages,
            device=self.device.torch_device,
            group=group,
            **settings,
        )

    def _shapes(self, stage: int, module: nn.Module) -> tuple[Tensor, Tensor]:
        """Tensors like the stage's input and output, found out stage after stage along the model."""
        assert self._model is not None
        workload = self.job.workload
        assert not isinstance(workload, EmulatedWorkload)
        device = self.device.torch_device
        before = sample(workload, self._model, 0, 0, 0)[0].to(device)
        if stage:
            [boundary] = boundaries_from_json(self._output_of(stage - 1, None))
            before = torch.zeros(boundary.shape, dtype=boundary.dtype, device=device)

        def find() -> list[Any]:
            module.eval()
            with torch.no_grad():
                after = module(before)
            module.train()
            return boundaries_to_json([Boundary(tuple(after.shape), after.dtype)])

        [found] = boundaries_from_json(self._output_of(stage, find))
        return before, torch.zeros(found.shape, dtype=found.dtype, device=device)

    def _loss(self, output: Tensor, target: Tensor) -> Tensor:
        if self._model is None:
            return output.sum()
        return self._model.loss(output, target) / self.job.schedule.num_microbatches

    def _data(self, step: int) -> tuple[Tensor, Tensor]:
        num_microbatches = self.job.schedule.num_microbatches
        if self._model is None:
            return torch.zeros(num_microbatches, 1), torch.zeros(num_microbatches, 1)
        workload = self.job.workload
        assert not isinstance(workload, EmulatedWorkload)
        samples = [sample(workload, self._model, step, 0, k) for k in range(num_microbatches)]
        device = self.device.torch_device
        inputs, targets = (torch.cat(tensors).to(device) for tensors in zip(*samples, strict=True))
        return inputs, targets


class _Sender(nn.Module):
    """Gives a tensor of the right size, through which gradients flow."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width: int = width
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return x.new_zeros(x.shape[0], self.width) + x[:, :1] * self.weight


def check_runnable(job: Job) -> None:
    """Refuse what torch's runtime does not do, before anything starts.

    Raises
    ------
    ExecutionError
        With the reason.
    """
    schedule = job.schedule
    if job.num_replicas > 1 or schedule.num_slices > 1 or schedule.skips:
        raise ExecutionError("--runtime torch runs one replica, without slices and skip connections")


def _device(job: Job, program: RankProgram) -> CpuDevice:
    if not isinstance(job.workload, EmulatedWorkload):
        return CpuDevice(program.num_rows)
    rows = job.schedule.rows_of(program.rank)
    return SleepingDevice(_as_torch_does(program, list(job.workload.row_s[rows])))


def _as_torch_does(program: RankProgram, row_s: list[float]) -> list[float]:
    """Let the first stage's W take the time of its I too, and each part of a pair half of the pair's."""
    done_in_i: dict[int, Instruction] = {}
    for unit in program.units:
        for part in unit:
            row_s[part.row] /= len(unit)
            if part.stage == 0 and part.op is Op.I:
                done_in_i[part.microbatch] = part
            elif part.stage == 0 and part.op is Op.W:
                put_off = done_in_i[part.microbatch].row
                row_s[part.row] += row_s[put_off]
                row_s[put_off] = 0.0
    return row_s


def _schedule(job: Job, stages: list[TimedStage], loss: Callable[..., Tensor]) -> Any:
    settings: Mapping[str, Any] = {"loss_fn": loss, "scale_grads": False}
    compute: Schedule = job.schedule.schedule
    if job.runtime == "torch" or job.schedule.name not in NAMED_CLASSES:
        return torch_schedule(compute, stages, **settings)
    given = stages[0] if job.schedule.name in _OF_ONE_STAGE else stages
    return getattr(pipelining, NAMED_CLASSES[job.schedule.name])(given, compute.num_microbatches, **settings)
