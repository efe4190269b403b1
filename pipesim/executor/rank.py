"""One rank replays its program, instruction by instruction."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from pipesim.executor.device import Device
from pipesim.executor.gradient_sums import Collectives
from pipesim.executor.instructions import Instruction, RankProgram, Unit
from pipesim.executor.stage import AnyStage, Boundary, Stage
from pipesim.executor.transport import Transport
from pipesim.ir import NONE
from pipesim.ir.actions import RECEIVES, SENDS, SKIP_TRANSFERS, Op


class RankExecutor:
    """Carries out the units of a rank's program in the order they are given.

    Everything a schedule decides is in the program, so there is one loop for all schedules.

    Parameters
    ----------
    program : RankProgram
        What to do.
    stages : mapping of int to stage
        The rank's stages.
    boundaries : mapping of int to list of Boundary
        What leaves each stage forward, slice by slice.
    skip_boundaries : mapping of int to Boundary
        What goes through each skip connection.
    transport, collectives, device
        How to talk to other ranks, and where to compute.
    optimizer : torch.optim.Optimizer, optional
        Of all stages of the rank; None where there is nothing to train.
    on_row : Callable, optional
        Told the row that begins; so that others can say where a rank stands.
    before_optimizer : Callable, optional
        Called when all gradients are reduced.
    """

    def __init__(
        self,
        program: RankProgram,
        stages: Mapping[int, AnyStage],
        boundaries: Mapping[int, list[Boundary]],
        skip_boundaries: Mapping[int, Boundary],
        transport: Transport,
        collectives: Collectives,
        device: Device,
        *,
        optimizer: torch.optim.Optimizer | None = None,
        on_row: Callable[[int], None] = lambda row: None,
        before_optimizer: Callable[[], None] | None = None,
    ) -> None:
        self.program = program
        self.stages = stages
        self.device = device
        self.optimizer = optimizer
        self.before_optimizer = before_optimizer
        self._boundaries = boundaries
        self._skip_boundaries = skip_boundaries
        self._transport = transport
        self._collectives = collectives
        self._on_row = on_row
        self._here: dict[int, Tensor] = {}
        """Outputs that a stage of this rank will take, or that wait to be sent, by message."""

    def run_step(self) -> None:
        """Replay the whole program, and wait until everything sent is gone."""
        for unit in self.program.units:
            self.perform(unit)
        self._transport.flush()

    def perform(self, unit: Unit) -> None:
        """Carry out one unit; input that it needs from other ranks is waited for."""
        first = unit[0]
        self._on_row(first.row)
        if first.op <= Op.W:
            self._compute(unit)
        elif first.op in SENDS:
            self.device.before(first)
            self._transport.send(first.message, first.peer, self._here.pop(first.message))
            self.device.after(first)
        elif first.op in RECEIVES:
            if first.op in SKIP_TRANSFERS:
                boundary = self._skip_boundaries[first.slice]
            else:
                boundary = self._boundaries[first.stage - (first.op is Op.RECV_F)][first.slice]
            self.device.before(first)
            self._transport.receive(first.message, first.peer, boundary)
            self.device.after(first)
        elif first.op is Op.REDUCE_GRAD:
            self.device.before(first)
            self._collectives.reduce(first.stage, self.stages[first.stage].module)
            self.device.after(first)
        else:
            self._optimize(first)

    def _compute(self, unit: Unit) -> None:
        inputs = [self._take(part) for part in unit]
        self.device.begin_unit(unit)
        for part, (received, skips) in zip(unit, inputs, strict=True):
            stage = self.stages[part.stage]
            self._on_row(part.row)
            self.device.before(part)
            output, made = stage.run(part.op, part.microbatch, part.slice, received, skips)
            self.device.after(part)
            if part.gives != NONE and output is not None:
                if isinstance(stage, Stage):
                    boundary = part.stage - (part.op is not Op.F)
                    stage.check_boundary(
                        (part.microbatch, part.slice), output, self._boundaries[boundary][part.slice]
                    )
                self._here[part.gives] = output
            for tensor in part.skips_out:
                self._here[tensor.message] = made[tensor.skip]
        self.device.end_unit(unit)

    def _take(self, part: Instruction) -> tuple[Tensor | None, dict[int, Tensor]]:
        """Take what a computation needs: from the neighbouring stage, and through skip connections."""
        if part.awaited:
            self.device.before_wait(part)
        received: Tensor | None = None
        if part.message != NONE:
            received = self._tensor(part.message, waits=part.waits)
        skips = {one.skip: self._tensor(one.message, waits=one.crosses) for one in part.skips_in}
        if part.awaited:
            self.device.after_wait(part)
        return received, skips

    def _tensor(self, message: int, *, waits: bool) -> Tensor:
        return self._transport.wait(message) if waits else self._here.pop(message)

    def _optimize(self, instruction: Instruction) -> None:
        self.device.before_wait(instruction)
        self._collectives.meet()
        self.device.after_wait(instruction)
        if self.before_optimizer is not None:
            self.before_optimizer()
        self.device.before(instruction)
        if self.optimizer is not None:
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.device.after(instruction)
