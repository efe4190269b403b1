"""Models as lists of layers: the scenario's transformer, a small CNN, a user's own."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from pipesim.errors import ExecutionError
from pipesim.executor.transformer import transformer_layers
from pipesim.executor.workload import CnnWorkload, FactoryWorkload, ModelWorkload, TransformerWorkload
from pipesim.scenario import split_layers

Carried: TypeAlias = tuple[Tensor, ...]
"""What a stage passes from one slice of a microbatch to the next."""

Layer: TypeAlias = nn.Module | Callable[[], nn.Module]


def sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Stochastic gradient descent with momentum, the default."""
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


@dataclass(frozen=True, slots=True)
class PipelineModel:
    """A model that can be cut anywhere between its layers.

    Parameters
    ----------
    layers : sequence
        Each a function that builds the layer (only the rank that holds it calls it), or the layer itself. A
        layer maps one tensor to one tensor. One that looks back along the sequence also has
        ``forward_slice(x, past, start)``, for schedules that cut the sequence: `past` is what it carried out
        of the slice before (empty for the first), `start` the slice's first position; it returns its output
        and what it carries on, a tuple of ``num_carried`` tensors.
    sample : Callable
        From a `torch.Generator` to inputs and targets of one microbatch.
    loss : Callable
        From output and targets to the mean loss of the microbatch (or of a slice of it).
    sequence_dim : int, optional
        Dimension of inputs and targets that slices cut; None if there is none.
    optimizer : Callable
        From the parameters of a rank to their optimizer.
    """

    layers: Sequence[Layer]
    sample: Callable[[torch.Generator], tuple[Tensor, Tensor]]
    loss: Callable[[Tensor, Tensor], Tensor]
    sequence_dim: int | None = None
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] = sgd

    def cut(self, tensor: Tensor, num_slices: int) -> Sequence[Tensor]:
        """Cut inputs or targets along the sequence into nearly equal slices."""
        if num_slices == 1:
            return (tensor,)
        return torch.tensor_split(tensor, num_slices, dim=self._sequence_dim())

    def length(self, tensor: Tensor) -> int:
        """Positions of a slice; 1 where the model has no sequence."""
        return 1 if self.sequence_dim is None else tensor.shape[self.sequence_dim]

    def _sequence_dim(self) -> int:
        if self.sequence_dim is None:
            raise ExecutionError(
                "the schedule cuts the sequence into slices, and the model has none; state sequence_dim"
            )
        return self.sequence_dim


class StageModule(nn.Module):
    """The layers of one stage."""

    def __init__(self, layers: Iterable[nn.Module], *, sliced: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.sliced = sliced

    def forward(self, x: Tensor, past: Carried = (), start: int = 0) -> tuple[Tensor, Carried]:
        """Run the layers; `past` is what this stage carried out of the slice before."""
        carried: list[Tensor] = []
        for layer in self.layers:
            if self.sliced and hasattr(layer, "forward_slice"):
                looks_back: Any = layer
                own_past = past[len(carried) : len(carried) + looks_back.num_carried] if past else ()
                x, own = looks_back.forward_slice(x, own_past, start)
                carried.extend(own)
            else:
                x = layer(x)
        return x, tuple(carried)


def build_model(workload: ModelWorkload) -> PipelineModel:
    """Describe the model of a workload; no weights are made yet.

    Raises
    ------
    ExecutionError
        If a user's factory cannot be found or does not return a `PipelineModel`.
    """
    if isinstance(workload, TransformerWorkload):
        shape, size = workload.shape, (workload.microbatch_size, workload.shape.seq_length)

        def tokens(generator: torch.Generator) -> tuple[Tensor, Tensor]:
            text = torch.randint(shape.vocab_size, (size[0], size[1] + 1), generator=generator)
            return text[:, :-1].contiguous(), text[:, 1:].contiguous()

        return PipelineModel(transformer_layers(shape), tokens, _cross_entropy, sequence_dim=1)
    if isinstance(workload, CnnWorkload):
        return _cnn(workload)
    return _user_model(workload)


def build_stage(
    workload: ModelWorkload, model: PipelineModel, stage: int, num_stages: int
) -> list[nn.Module]:
    """Make the layers of one stage on the CPU.

    Their weights depend on the seed and on their place in the model only.

    Raises
    ------
    ExecutionError
        If there are fewer layers than stages.
    ScenarioError
        If a listed split has other numbers of layers or stages.
    """
    if len(model.layers) < num_stages:
        raise ExecutionError(
            f"the model has {len(model.layers)} layers, fewer than the schedule's {num_stages} stages; "
            f"every stage needs at least one"
        )
    sizes = split_layers(len(model.layers), num_stages, workload.split, [1.0] * len(model.layers))
    first = sum(sizes[:stage])
    dtype = dtype_of(workload)
    layers = []
    for at in range(first, first + sizes[stage]):
        torch.manual_seed(workload.seed * 100_003 + at)
        built = model.layers[at]
        layer = built if isinstance(built, nn.Module) else built()
        layers.append(layer.to(dtype))
    return layers


def sample(
    workload: ModelWorkload, model: PipelineModel, step: int, replica: int, microbatch: int
) -> tuple[Tensor, Tensor]:
    """Draw inputs and targets of one microbatch; other numbers give other data, equal numbers the same."""
    generator = torch.Generator()
    generator.manual_seed(((workload.seed * 4_096 + step) * 4_096 + replica) * 65_536 + microbatch)
    dtype = dtype_of(workload)
    inputs, targets = (t.to(dtype) if t.is_floating_point() else t for t in model.sample(generator))
    return inputs, targets


def dtype_of(workload: ModelWorkload) -> torch.dtype:
    """Look the dtype up by its name.

    Raises
    ------
    ExecutionError
        If there is none of that name.
    """
    dtype = getattr(torch, workload.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise ExecutionError(f"torch has no dtype {workload.dtype!r}; expected one as float32 or bfloat16")
    return dtype


def _cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))


class _ConvolutionBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.second(functional.relu(self.first(x)))
        return result


class _Classifier(nn.Module):
    def __init__(self, channels: int, num_classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(channels, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(x.mean((2, 3)))
        return result


def _cnn(workload: CnnWorkload) -> PipelineModel:
    channels, size = workload.channels, workload.image_size

    def layer(at: int) -> Callable[[], nn.Module]:
        def build() -> nn.Module:
            parts: list[nn.Module] = [_ConvolutionBlock(channels)]
            if at == 0:
                parts.insert(0, nn.Conv2d(3, channels, 3, padding=1))
            if at == workload.num_layers - 1:
                parts.append(_Classifier(channels, workload.num_classes))
            return nn.Sequential(*parts)

        return build

    def images(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        batch = workload.microbatch_size
        labels = torch.randint(workload.num_classes, (batch,), generator=generator)
        return torch.randn(batch, 3, size, size, generator=generator), labels

    return PipelineModel([layer(at) for at in range(workload.num_layers)], images, _cross_entropy)


def _user_model(workload: FactoryWorkload) -> PipelineModel:
    module, name = workload.parts()
    try:
        factory: Any = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ExecutionError(f"the model {workload.factory!r} cannot be loaded: {error}") from error
    model = factory()
    if not isinstance(model, PipelineModel):
        raise ExecutionError(
            f"{workload.factory} returned {type(model).__name__}; "
            f"expected a pipesim.executor.models.PipelineModel"
        )
    return model
