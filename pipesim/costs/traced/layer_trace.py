"""What tracing finds, as plain data: the kernels, parameters and bytes of every layer for one microbatch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeAlias

Kind: TypeAlias = Literal["gemm", "convolution", "attention", "memory_bound"]


class OpCost(NamedTuple):
    """One kernel: FLOPs that it runs, those of them that the model asks for, and bytes read and written.

    `wide` says that the values are of 32 bits or more.
    """

    kind: Kind
    flops: float
    model_flops: float
    nbytes: float
    wide: bool


@dataclass(frozen=True, slots=True)
class Pass:
    """The kernels of one pass over a layer, and the most bytes that it held at once.

    Parameters, the layer's input and its output are left out of these bytes. `unknown` are operations that
    are not torch's own, of whose FLOPs nobody says anything.
    """

    ops: tuple[OpCost, ...]
    peak_bytes: int
    unknown: frozenset[str] = frozenset()

    @property
    def model_flops(self) -> float:
        """FLOPs that the model asks for."""
        return sum(op.model_flops for op in self.ops)


NOTHING = Pass((), 0)


@dataclass(frozen=True, slots=True)
class LayerTrace:
    """What one layer, or the loss, does with one microbatch; bytes of one device.

    Parameters
    ----------
    forward, backward : Pass
        Whole passes; the first layer's backward has no gradient of its input.
    whole_backward, input_gradient : Pass
        A backward that has one, and a backward of it alone: what the first has more is the gradients of
        parameters.
    parameters : tuple of int
        Sizes of the parameters that are trained.
    num_frozen : int
        Parameters that are not.
    input_bytes, output_bytes : int
        Of the storages that come in and go out.
    message_bytes : int
        Of the output as it travels.
    inner_bytes : int
        Saved for the backward, input and output left out.
    saves_input, saves_output, passes_on : bool
        Whether the backward needs the input and the output, and whether they are one storage.
    saves_further : tuple of bool
        Whether it needs what comes through skip connections.
    """

    forward: Pass
    backward: Pass
    whole_backward: Pass
    input_gradient: Pass
    parameters: tuple[int, ...]
    num_frozen: int
    input_bytes: int
    output_bytes: int
    message_bytes: int
    inner_bytes: int
    saves_input: bool
    saves_output: bool
    passes_on: bool
    saves_further: tuple[bool, ...] = ()

    @property
    def num_parameters(self) -> int:
        """Parameters in all."""
        return sum(self.parameters) + self.num_frozen

    @property
    def model_flops(self) -> float:
        """FLOPs of forward and backward that the model asks for."""
        return self.forward.model_flops + self.backward.model_flops

    def split_like(self, other: LayerTrace) -> LayerTrace:
        """Take from another trace of the layer what the gradients of its parameters are."""
        return replace(self, whole_backward=other.whole_backward, input_gradient=other.input_gradient)


@dataclass(frozen=True, slots=True)
class ModelTrace:
    """The layers of a model and its loss.

    Parameters
    ----------
    layers : tuple of LayerTrace
        In order; alike ones are one object.
    loss : LayerTrace
        After the last layer.
    sequence_length : int, optional
        Positions of a sample; None without a sequence.
    num_distinct : int
        Layers that were traced.
    skips : tuple of (int, int)
        Between layers; see `PipelineModel`.
    """

    layers: tuple[LayerTrace, ...]
    loss: LayerTrace
    sequence_length: int | None
    num_distinct: int
    skips: tuple[tuple[int, int], ...] = ()

    @property
    def unknown(self) -> frozenset[str]:
        """Operations that are counted by their bytes alone."""
        blocks = (*self.layers, self.loss)
        return frozenset().union(*(each.unknown for one in blocks for each in (one.forward, one.backward)))

    @property
    def model_flops(self) -> float:
        """FLOPs of forward and backward of one microbatch that the model asks for.

        What a layer checkpoints and runs again by itself is among them.
        """
        return sum(block.model_flops for block in (*self.layers, self.loss))
