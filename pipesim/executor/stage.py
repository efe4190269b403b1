"""A stage: a contiguous part of the model on one rank, with what it keeps between forward and backward."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor, nn

from pipesim.costs.traced.pipeline_model import StageSkip
from pipesim.errors import ExecutionError
from pipesim.executor.models import Carried, PipelineModel, StageModule
from pipesim.executor.saved_bytes import ActivationMeter
from pipesim.executor.wgrad import WeightGradients, make_deferrable
from pipesim.ir.actions import Op

Key: TypeAlias = tuple[int, int]
"""Microbatch and slice."""


Output: TypeAlias = tuple[Tensor | None, dict[int, Tensor]]
"""What the neighbouring stage takes, if anything, and what goes through skip connections, by number."""


class AnyStage(Protocol):
    """What a rank asks of a stage, be it computed or emulated."""

    @property
    def module(self) -> nn.Module:
        """Its layers."""

    def run(
        self, op: Op, microbatch: int, part: int, received: Tensor | None, skips: Mapping[int, Tensor]
    ) -> Output:
        """Carry out F, B, I or W; give what other stages take.

        `received` comes from the neighbouring stage, `skips` through skip connections, by number.
        """


@dataclass(frozen=True, slots=True)
class Boundary:
    """Shape and dtype of what leaves a stage forward, for one slice; the gradient that returns is alike."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Size of the message."""
        return self.dtype.itemsize * torch.Size(self.shape).numel()


UNREACHED = (
    "stage {} has trainable parameters, and no gradient reaches them from its output; of "
    "torch.utils.checkpoint with use_reentrant=True none does where no input needs one, as in a first stage: "
    "use use_reentrant=False"
)
_LEAF = "leaf Variable that requires grad"
_EXPLANATIONS = {
    _LEAF: "it changes its input in place, which autograd refuses of what another stage gave; copy it first",
    "modified by an inplace operation": (
        "a forward changes in place what the backward of an earlier microbatch needs, such as a buffer, and "
        "several microbatches are in flight; let it work on a copy"
    ),
}


@contextmanager
def explained(stage: int) -> Iterator[None]:
    """Say what it means in a pipeline where autograd refuses an operation in place."""
    try:
        yield
    except RuntimeError as error:
        for words, meaning in _EXPLANATIONS.items():
            if words in str(error):
                raise ExecutionError(f"stage {stage}: {meaning} (torch says: {error})") from error
        raise


@dataclass(slots=True)
class _Live:
    """What a forward leaves for its backward."""

    x: Tensor
    past: Carried
    y: Tensor
    carried: Carried
    taken: dict[int, Tensor]
    made: dict[int, Tensor]
    """Through skip connections, by number."""


class Stage:
    """Runs F, B, I and W of one stage with autograd.

    Parameters
    ----------
    index, num_stages : int
        Which stage of how many.
    module : StageModule
        Its layers, on the device.
    model : PipelineModel
        For the loss, and the dimension that slices cut.
    skips : mapping of int to StageSkip, optional
        Skip connections between stages, by number.
    num_slices : int
        Slices of a microbatch.
    slice_shares : tuple of float, optional
        Their shares of the sequence; None: all alike.
    loss_scale : float
        Factor on every microbatch's mean loss: one over the microbatches of the step over all replicas, so
        that gradients add up to those of the mean.
    has_copy : bool
        Another rank holds the stage too, for microbatches that go the other way.
    """

    def __init__(
        self,
        index: int,
        num_stages: int,
        module: StageModule,
        model: PipelineModel,
        *,
        skips: Mapping[int, StageSkip] | None = None,
        num_slices: int,
        slice_shares: tuple[float, ...] | None = None,
        loss_scale: float,
        has_copy: bool = False,
    ) -> None:
        self.index = index
        self.module = module
        self.model = model
        self.num_slices = num_slices
        self.slice_shares = slice_shares
        self.is_first = index == 0
        self.is_last = index == num_stages - 1
        self.meter: ActivationMeter | None = None
        self.losses: dict[Key, Tensor] = {}
        skips = skips or {}
        self.skips_in = {number: skip.layer for number, skip in skips.items() if skip.target == index}
        self.skips_out = {number: skip.layer for number, skip in skips.items() if skip.source == index}
        self.copies_input = False
        """Its first operation changes its input in place, which autograd refuses of a leaf."""
        self._loss_scale = loss_scale
        self._has_copy = has_copy
        self._trains = any(parameter.requires_grad for parameter in module.parameters())
        self._put_off = WeightGradients()
        self._live: dict[Key, _Live] = {}
        self._gradient_of_carried: dict[Key, tuple[Tensor | None, ...]] = {}
        self._inputs: dict[Key, Tensor] = {}
        self._targets: dict[Key, Tensor] = {}
        self._starts: dict[int, int] = {}
        make_deferrable(module, self._put_off)

    def load(self, samples: Mapping[int, tuple[Tensor, Tensor]]) -> None:
        """Take the step's inputs and targets, by microbatch; used by the first and the last stage."""
        self.losses.clear()
        for microbatch, (inputs, targets) in samples.items():
            cut = self.model.cut(inputs, self.num_slices, self.slice_shares)
            start = 0
            for part, (x, target) in enumerate(
                zip(cut, self.model.cut(targets, self.num_slices, self.slice_shares), strict=True)
            ):
                self._inputs[microbatch, part], self._targets[microbatch, part] = x, target
                self._starts[part] = start
                start += self.model.length(x)

    def run(
        self,
        op: Op,
        microbatch: int,
        part: int,
        received: Tensor | None,
        skips: Mapping[int, Tensor] | None = None,
    ) -> Output:
        """Carry out one computation; see `AnyStage`."""
        key = (microbatch, part)
        if op is Op.F:
            return self._forward(key, received, skips or {})
        if op is Op.W:
            self._put_off.apply(key)
            if self.meter:
                self.meter.release((self.index, *key, "put off"))
            return None, {}
        if op is Op.B:
            return self._backward(key, received, skips or {})
        with self._put_off.deferring(key):
            gradients = self._backward(key, received, skips or {})
        if self.meter:
            self.meter.hold((self.index, *key, "put off"), self._put_off.tensors(key))
        return gradients

    def _forward(self, key: Key, received: Tensor | None, skips: Mapping[int, Tensor]) -> Output:
        microbatch, part = key
        x = self._inputs[key] if received is None else received.requires_grad_()
        past: Carried = ()
        if part > 0:
            carried = self._live[microbatch, part - 1].carried
            past = tuple(tensor.detach().requires_grad_() for tensor in carried)
        taken = {number: tensor.requires_grad_() for number, tensor in skips.items()}
        by_layer = {self.skips_in[number]: tensor for number, tensor in taken.items()}
        held = (self.index, *key)
        entry = x.clone() if self.copies_input else x
        with self.meter.watching(held) if self.meter else nullcontext(), explained(self.index):
            with self._one_copy() if self._has_copy else nullcontext():
                y, carried, outputs = self.module(entry, past, self._starts[part], by_layer)
            if self.is_last:
                y = self._loss(y, key)
        if self._trains and not y.requires_grad:
            raise ExecutionError(UNREACHED.format(self.index))
        made = {number: outputs[layer] for number, layer in self.skips_out.items()}
        self._live[key] = _Live(x, past, y, carried, taken, made)
        if self.meter:
            self.meter.hold(held, (x, y, *past, *carried, *taken.values(), *made.values()))
        # Not one tensor for all: each taker makes a leaf of its own of it.
        handed_on = {number: tensor.detach() for number, tensor in made.items()}
        return None if self.is_last else y.detach(), handed_on

    def _loss(self, y: Tensor, key: Key) -> Tensor:
        target = self._targets[key]
        loss = self.model.loss(y, target) * self._loss_scale
        if self.num_slices > 1:
            length = sum(self.model.length(self._targets[key[0], part]) for part in range(self.num_slices))
            loss = loss * (self.model.length(target) / length)
        self.losses[key] = loss.detach()
        return loss

    def _backward(self, key: Key, gradient: Tensor | None, skips: Mapping[int, Tensor]) -> Output:
        microbatch, part = key
        live = self._live.pop(key)
        roots, gradients = [live.y], [gradient]
        of_carried = self._gradient_of_carried.pop(key, ())
        for tensor, value in zip(live.carried, of_carried, strict=bool(of_carried)):
            if value is not None:
                roots.append(tensor)
                gradients.append(value)
        for number, tensor in live.made.items():
            if tensor.requires_grad:
                roots.append(tensor)
                gradients.append(skips[number])
        if live.y.requires_grad:
            with explained(self.index):
                torch.autograd.backward(roots, gradients)
        if part > 0:
            self._gradient_of_carried[microbatch, part - 1] = tuple(leaf.grad for leaf in live.past)
        if self.meter:
            self.meter.release((self.index, *key))
        back = {
            number: torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
            for number, leaf in live.taken.items()
        }
        if self.is_first:
            return None, back
        return torch.zeros_like(live.x) if live.x.grad is None else live.x.grad, back

    @contextmanager
    def _one_copy(self) -> Iterator[None]:
        """Refuse buffers that the first forward changes: those of the other copy would be others."""
        before = {name: buffer.clone() for name, buffer in self.module.named_buffers()}
        yield
        for name, buffer in self.module.named_buffers():
            if not torch.equal(buffer, before[name]):
                raise ExecutionError(
                    f"stage {self.index} updates the buffer {name.removeprefix('layers.')!r} in its forward; "
                    f"this schedule keeps two copies of a stage, whose buffers would drift apart; choose one "
                    f"with one copy"
                )
        self._has_copy = False

    def check_boundary(self, key: Key, tensor: Tensor | None, boundary: Boundary | None) -> None:
        """Refuse an output whose shape is not what the next rank was told.

        Raises
        ------
        ExecutionError
            If shape or dtype differ.
        """
        if tensor is None or boundary is None:
            return
        if tuple(tensor.shape) != boundary.shape or tensor.dtype != boundary.dtype:
            raise ExecutionError(
                f"stage {self.index} gave {_shown(tuple(tensor.shape), tensor.dtype)} "
                f"for microbatch {key[0]}, "
                f"at the start of the run it gave {_shown(boundary.shape, boundary.dtype)}; "
                f"all microbatches must have one shape"
            )


def _shown(shape: tuple[int, ...], dtype: torch.dtype) -> str:
    return f"{'x'.join(map(str, shape))} {str(dtype).removeprefix('torch.')}"


def probe(
    stage: Stage,
    incoming: list[Boundary] | None,
    sample: tuple[Tensor, Tensor],
    skips: Mapping[int, Boundary] | None = None,
) -> tuple[list[Boundary], dict[int, Boundary]]:
    """Run a stage once, without a trace, to learn what leaves it: slice by slice, and by skip connection.

    Also whether its first operation changes its input in place: then it is given a copy.

    Raises
    ------
    ExecutionError
        If the stage does not take what other stages give.
    """
    stage.load({0: sample})
    outgoing = []
    carried: Carried = ()
    device = next((p.device for p in stage.module.parameters()), sample[0].device)

    def empty(boundary: Boundary) -> Tensor:
        return torch.zeros(boundary.shape, dtype=boundary.dtype, device=device)

    outputs: dict[int, Tensor] = {}
    by_layer = {layer: empty((skips or {})[number]) for number, layer in stage.skips_in.items()}
    stage.module.eval()
    buffers = {name: buffer.clone() for name, buffer in stage.module.named_buffers()}
    stage.copies_input = incoming is not None and _changes_its_input(stage, empty(incoming[0]), by_layer)
    with torch.no_grad(), warnings.catch_warnings():
        # Of checkpoints without gradients, for one.
        warnings.simplefilter("ignore")
        for part in range(stage.num_slices):
            x: Any = stage._inputs[0, part] if incoming is None else empty(incoming[part])
            what = f"the output of stage {stage.index - 1}" if incoming is not None else "the model's input"
            try:
                y, carried, outputs = stage.module(x, carried, stage._starts[part], by_layer)
                if stage.is_last:
                    what = "its targets"
                    stage._loss(y, (0, part))
            except (RuntimeError, ValueError, IndexError, TypeError) as error:
                raise ExecutionError(
                    f"stage {stage.index} does not take {what}, {_shown(tuple(x.shape), x.dtype)}: {error}"
                ) from error
            outgoing.append(Boundary(tuple(y.shape), y.dtype))
        for name, buffer in stage.module.named_buffers():
            buffer.copy_(buffers[name])
    stage.module.train()
    made = {number: outputs[layer] for number, layer in stage.skips_out.items()}
    return outgoing, {number: Boundary(tuple(y.shape), y.dtype) for number, y in made.items()}


def _changes_its_input(stage: Stage, x: Tensor, by_layer: Mapping[int, Tensor]) -> bool:
    if not x.is_floating_point():
        return False
    try:
        with torch.enable_grad():
            stage.module(x.requires_grad_(), (), stage._starts[0], by_layer)
    except RuntimeError as error:
        return _LEAF in str(error)
    except (ValueError, IndexError, TypeError):
        pass  # the probe proper says it
    return False


class EmulatedStage:
    """Hands on tensors of the right size; the device takes the time."""

    def __init__(
        self,
        index: int,
        num_stages: int,
        boundaries: Mapping[int, list[Boundary]],
        skips: Mapping[int, Boundary],
    ) -> None:
        self.index = index
        self._num_stages = num_stages
        self._boundaries = boundaries
        self._skips = skips
        self._outputs: dict[Boundary, Tensor] = {}
        self.module = nn.Module()

    def run(
        self, op: Op, microbatch: int, part: int, received: Tensor | None, skips: Mapping[int, Tensor]
    ) -> Output:
        """Give tensors of the sizes that this computation hands on; see `AnyStage`."""
        if op is Op.W:
            return None, {}
        along_skips = {number: self._tensor(facts) for number, facts in self._skips.items()}
        boundary = self.index if op is Op.F else self.index - 1
        if not 0 <= boundary < self._num_stages - 1:
            return None, along_skips
        return self._tensor(self._boundaries[boundary][part]), along_skips

    def _tensor(self, facts: Boundary) -> Tensor:
        # What was sent is kept until the step's end; as nobody reads it, one tensor serves every message.
        if facts not in self._outputs:
            self._outputs[facts] = torch.zeros(facts.shape, dtype=facts.dtype)
        return self._outputs[facts]
