"""Steps of one rank, wherever it runs: stages made for it, data before a step, results after it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from pipesim.costs.traced.pipeline_model import stage_skips
from pipesim.errors import ExecutionError
from pipesim.executor.clock_offset import ClockReading
from pipesim.executor.device import COLUMNS
from pipesim.executor.instructions import RankProgram
from pipesim.executor.job import Job, RankResult
from pipesim.executor.models import PipelineModel, StageModule, build_stage, sample
from pipesim.executor.saved_bytes import ActivationMeter
from pipesim.executor.shared_parameters import refuse_untied
from pipesim.executor.stage import AnyStage, Boundary, Stage
from pipesim.executor.wgrad import deferred_share
from pipesim.executor.workload import EmulatedWorkload
from pipesim.ir.actions import RECEIVES, SENDS, SKIP_TRANSFERS, Op
from pipesim.scenario import split_layers


def make_stage(job: Job, model: PipelineModel, index: int, device: torch.device) -> Stage:
    """Build one stage of a job's model on a device."""
    assert not isinstance(job.workload, EmulatedWorkload)
    schedule = job.schedule
    layers = build_stage(job.workload, model, index, schedule.num_stages, device)
    sizes = split_layers(len(model.layers), schedule.num_stages, job.workload.split)
    crossing = stage_skips(model.skips, sizes)
    if schedule.skips != tuple((skip.source, skip.target) for skip in crossing):
        found = ", ".join(f"{skip.source} to {skip.target}" for skip in crossing) or "none"
        raise ExecutionError(
            f"cut into these stages the model has the skip connections {found}; the schedule carries "
            f"{', '.join(f'{source} to {target}' for source, target in schedule.skips) or 'none'}"
        )
    refuse_untied(model.layers, sizes, schedule.schedule.holders, num_replicas=job.num_replicas)
    first = sum(sizes[:index])
    inside = [model.taken_by(first + at) for at in range(len(layers))]
    needed = {skip.layer for skip in crossing if skip.source == index}
    return Stage(
        index,
        schedule.num_stages,
        StageModule(layers, sliced=schedule.num_slices > 1, first=first, taken=inside, needed=needed),
        model,
        skips=dict(enumerate(crossing)),
        num_slices=schedule.num_slices,
        slice_shares=schedule.slice_shares,
        loss_scale=1 / (schedule.num_microbatches * job.num_replicas),
        has_copy=schedule.schedule.holds_stages_twice,
    )


def trainable(stages: Iterable[AnyStage]) -> list[nn.Parameter]:
    """List the parameters of stages that an optimizer steps, each once."""
    found = (p for stage in stages for p in stage.module.parameters() if p.requires_grad)
    return list(dict.fromkeys(found))


class Steps:
    """What surrounds the replay of each step on one rank: data before it, results after it.

    Parameters
    ----------
    job : Job
        What runs.
    replica : int
        Whose data.
    stages : mapping of int to stage
        Of the rank.
    model : PipelineModel, optional
        None on the emulated device.
    """

    def __init__(
        self, job: Job, replica: int, stages: dict[int, AnyStage], model: PipelineModel | None
    ) -> None:
        self.job = job
        self.replica = replica
        self.model = model
        self.all_stages = stages
        self.stages: dict[int, Stage] = {
            index: stage for index, stage in stages.items() if isinstance(stage, Stage)
        }
        self.columns: list[dict[str, Any]] = []
        self.seconds: list[float] = []
        self.disturbed: list[bool] = []
        self.losses: list[float] = []
        self.gradients: dict[str, Any] = {}
        self.peak_activation_bytes = 0
        self.peak_memory_bytes = 0
        self._metered_step = max(0, job.warmup - 1)

    def prepare(self, step: int, device: torch.device) -> None:
        """Load the step's microbatches; in the last warm-up step also count activations."""
        ends = [stage for stage in self.stages.values() if stage.is_first or stage.is_last]
        if ends and self.model is not None:
            workload = self.job.workload
            assert not isinstance(workload, EmulatedWorkload)
            samples = {}
            for microbatch in range(self.job.schedule.num_microbatches):
                inputs, targets = sample(workload, self.model, step, self.replica, microbatch)
                samples[microbatch] = inputs.to(device), targets.to(device)
            for stage in ends:
                stage.load(samples)
        meter = None
        if step == self._metered_step and self.stages:
            meter = ActivationMeter(stage.module for stage in self.stages.values())
        for stage in self.stages.values():
            stage.meter = meter

    def finish(self, step: int, seconds: float, columns: dict[str, Any], disturbed: bool) -> None:
        """Check the losses, and keep what was measured unless it was a warm-up step."""
        loss = float("nan")
        for stage in self.stages.values():
            if stage.is_last and stage.losses:
                loss = 0.0
                for (microbatch, part), value in stage.losses.items():
                    number = value.item()
                    if not np.isfinite(number):
                        action = f"{stage.index}F{microbatch}" + (f".{part}" if part else "")
                        raise ExecutionError(
                            f"the loss of microbatch {microbatch} is {number} (action {action})"
                        )
                    loss += number
            if stage.meter is not None:
                self.peak_activation_bytes = stage.meter.peak_bytes
        if step >= self.job.warmup:
            self.columns.append(columns)
            self.seconds.append(seconds)
            self.disturbed.append(disturbed)
            self.losses.append(loss)

    def keep_gradients(self) -> None:
        """Copy the gradients of the first step."""
        if not self.gradients:
            self.gradients = self._arrays(lambda p: None if p.grad is None else p.grad)

    def result(
        self,
        process: int,
        row_bytes: npt.NDArray[np.int64],
        environment: dict[str, str],
        clocks: tuple[ClockReading, ClockReading] = (ClockReading(0, 0), ClockReading(0, 0)),
    ) -> RankResult:
        """Put together what the rank brings back; see `RankResult`."""
        before, after = clocks
        return RankResult(
            process=process,
            columns={name: np.array([c[name] for c in self.columns]) for name in COLUMNS},
            step_s=np.array(self.seconds),
            disturbed=np.array(self.disturbed),
            losses=np.array(self.losses),
            row_bytes=row_bytes,
            peak_activation_bytes=self.peak_activation_bytes,
            peak_memory_bytes=self.peak_memory_bytes,
            deferred_share={index: deferred_share(stage.module) for index, stage in self.all_stages.items()},
            clock_offset_ns=(before.offset_ns, after.offset_ns),
            clock_bound_ns=(before.bound_ns, after.bound_ns),
            environment=environment,
            gradients=self.gradients,
            weights=self._arrays(lambda p: p) if self.job.keep_state else {},
        )

    def _arrays(self, pick: Callable[[nn.Parameter], Tensor | None]) -> dict[str, Any]:
        found = {}
        for index, stage in self.stages.items():
            for name, parameter in stage.module.named_parameters():
                tensor = pick(parameter)
                if tensor is not None:
                    found[f"{index}.{name.removeprefix('layers.')}"] = tensor.detach().cpu().numpy().copy()
        return found


def row_bytes(
    program: RankProgram,
    boundaries: Mapping[int, list[Boundary]],
    skip_boundaries: Mapping[int, Boundary],
    stages: Mapping[int, AnyStage],
    emulated_gradient_bytes: tuple[int, ...] | None,
) -> npt.NDArray[np.int64]:
    """Size of each message and reduction of a rank, shape (rows of the rank,)."""
    nbytes = np.zeros(program.num_rows, np.int64)
    for instruction, *_ in program.units:
        if instruction.op in SKIP_TRANSFERS:
            nbytes[instruction.row] = skip_boundaries[instruction.slice].nbytes
        elif instruction.op in SENDS or instruction.op in RECEIVES:
            earlier = instruction.op in (Op.RECV_F, Op.SEND_B)
            nbytes[instruction.row] = boundaries[instruction.stage - earlier][instruction.slice].nbytes
        elif instruction.op is Op.REDUCE_GRAD and emulated_gradient_bytes is not None:
            nbytes[instruction.row] = emulated_gradient_bytes[instruction.stage]
        elif instruction.op is Op.REDUCE_GRAD:
            parameters = stages[instruction.stage].module.parameters()
            nbytes[instruction.row] = sum(p.numel() * p.element_size() for p in parameters if p.requires_grad)
    return nbytes
