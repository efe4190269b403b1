"""Models as lists of layers: the scenario's transformer, a small CNN, a user's own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from pipesim.costs.traced.pipeline_model import PipelineModel, load_pipeline_model
from pipesim.errors import ExecutionError
from pipesim.executor.decoder_layers import transformer_layers
from pipesim.executor.workload import CnnWorkload, ModelWorkload, TransformerWorkload
from pipesim.scenario import split_layers

__all__ = ["Carried", "PipelineModel", "StageModule", "build_model", "build_stage", "dtype_of", "sample"]

Carried: TypeAlias = tuple[Tensor, ...]
"""What a stage passes from one slice of a microbatch to the next."""


class StageModule(nn.Module):
    """The layers of one stage.

    Parameters
    ----------
    layers : iterable of nn.Module
        In order.
    sliced : bool
        Whether the sequence is cut.
    first : int
        Number of the first layer in the model.
    taken : sequence of list of int
        For each layer, those whose outputs it takes beside that of the one before it.
    needed : collection of int
        Layers of this stage whose outputs other stages take through skip connections.
    """

    def __init__(
        self,
        layers: Iterable[nn.Module],
        *,
        sliced: bool,
        first: int = 0,
        taken: Sequence[list[int]] = (),
        needed: Collection[int] = (),
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.sliced = sliced
        self.first = first
        self.taken = taken or [[]] * len(self.layers)
        self.needed = needed
        self._kept = {source for sources in self.taken for source in sources} | set(needed)

    def forward(
        self, x: Tensor, past: Carried = (), start: int = 0, skips: Mapping[int, Tensor] | None = None
    ) -> tuple[Tensor, Carried, dict[int, Tensor]]:
        """Run the layers.

        `past` is what this stage carried out of the slice before, `skips` outputs of layers of earlier
        stages. Gives the output, what is carried on, and the outputs of layers that later stages take.
        """
        carried: list[Tensor] = []
        outputs = dict(skips or {})
        for at, layer in enumerate(self.layers):
            if self.sliced and hasattr(layer, "forward_slice"):
                looks_back: Any = layer
                own_past = past[len(carried) : len(carried) + looks_back.num_carried] if past else ()
                x, own = looks_back.forward_slice(x, own_past, start)
                carried.extend(own)
            else:
                x = layer(x, *(outputs[source] for source in self.taken[at]))
            if self.first + at in self._kept:
                outputs[self.first + at] = x
        return x, tuple(carried), {layer: outputs[layer] for layer in self.needed}


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
    return load_pipeline_model(
        workload.factory, directory=workload.directory, microbatch_size=workload.microbatch_size
    )


def build_stage(
    workload: ModelWorkload,
    model: PipelineModel,
    stage: int,
    num_stages: int,
    device: torch.device | None = None,
) -> list[nn.Module]:
    """Make the layers of one stage on their device (the CPU unless stated), converting one after the other.

    On a device their weights depend on the seed and on their place in the model only.

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
    sizes = split_layers(len(model.layers), num_stages, workload.split)
    first = sum(sizes[:stage])
    dtype = dtype_of(workload)
    layers = []
    for at in range(first, first + sizes[stage]):
        torch.manual_seed(workload.seed * 100_003 + at)
        built = model.layers[at]
        with device or torch.device("cpu"):
            layer = built if isinstance(built, nn.Module) else built()
        layers.append(layer.to(device=device, dtype=dtype))
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
