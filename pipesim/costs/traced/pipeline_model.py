"""A model as a list of layers that can be cut anywhere between them, and how a user's own is found."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import PathFinder
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from pipesim.errors import ExecutionError

Layer: TypeAlias = nn.Module | Callable[[], nn.Module]

_MICROBATCH = "microbatch_size"


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
    skips : sequence of (int, int)
        Skip connections: the output of one layer is given to a later one too, which takes these tensors as
        further arguments, in the order in which they stand here.
    """

    layers: Sequence[Layer]
    sample: Callable[[torch.Generator], tuple[Tensor, Tensor]]
    loss: Callable[[Tensor, Tensor], Tensor]
    sequence_dim: int | None = None
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] = sgd
    skips: Sequence[tuple[int, int]] = ()

    def __post_init__(self) -> None:
        for source, target in self.skips:
            if not 0 <= source < target < len(self.layers):
                raise ExecutionError(
                    f"the skip connection from layer {source} to layer {target} is none: layers are 0 to "
                    f"{len(self.layers) - 1}, and its target comes later"
                )

    def taken_by(self, layer: int) -> list[int]:
        """Layers whose outputs a layer takes beside that of the one before it."""
        return [source for source, target in self.skips if target == layer]

    def cut(self, tensor: Tensor, num_slices: int, shares: Sequence[float] | None = None) -> Sequence[Tensor]:
        """Cut inputs or targets along the sequence into nearly equal slices, or of stated shares.

        Raises
        ------
        ExecutionError
            If there is no sequence, or a slice would be empty.
        """
        if num_slices == 1:
            return (tensor,)
        dimension = self._sequence_dim()
        if shares is None:
            return torch.tensor_split(tensor, num_slices, dim=dimension)
        ends = [round(end * tensor.shape[dimension]) for end in accumulate(shares)]
        if any(end <= begin for begin, end in pairwise([0, *ends])):
            raise ExecutionError(f"{tensor.shape[dimension]} positions are too few for slices of {shares}")
        return torch.tensor_split(tensor, ends[:-1], dim=dimension)

    def length(self, tensor: Tensor) -> int:
        """Positions of a slice; 1 where the model has no sequence."""
        return 1 if self.sequence_dim is None else tensor.shape[self.sequence_dim]

    def _sequence_dim(self) -> int:
        if self.sequence_dim is None:
            raise ExecutionError(
                "the schedule cuts the sequence into slices, and the model has none; state sequence_dim"
            )
        return self.sequence_dim


class StageSkip(NamedTuple):
    """What crosses from one stage to a later one because of skip connections: the output of a layer, once."""

    source: int
    target: int
    layer: int


def stage_skips(skips: Iterable[tuple[int, int]], layers_per_stage: Sequence[int]) -> list[StageSkip]:
    """Skip connections between stages of a model's, numbered as they stand.

    Parameters
    ----------
    skips : iterable of (int, int)
        Between layers.
    layers_per_stage : sequence of int
        How layers fall to stages.
    """
    stage_of = [stage for stage, count in enumerate(layers_per_stage) for _ in range(count)]
    between = {(source, stage_of[target]) for source, target in skips if stage_of[source] < stage_of[target]}
    return [StageSkip(stage_of[layer], target, layer) for layer, target in sorted(between)]


def load_pipeline_model(
    factory: str, *, directory: str | None = None, microbatch_size: int | None = None
) -> PipelineModel:
    """Import a user's factory and call it.

    Parameters
    ----------
    factory, directory
        See `import_factory`. The function is called without arguments, or with `microbatch_size` where it has
        a parameter of that name.
    microbatch_size : int, optional
        Samples of a microbatch.

    Raises
    ------
    ExecutionError
        If the factory cannot be found, or returns anything but a `PipelineModel`.
    """
    function = import_factory(factory, directory)
    with searching(directory):
        model = function(**_arguments(function, microbatch_size))
    if not isinstance(model, PipelineModel):
        raise ExecutionError(
            f"{factory} returned {type(model).__name__}; expected a pipesim.executor.models.PipelineModel"
        )
    return model


def import_factory(factory: str, directory: str | None) -> Callable[..., Any]:
    """Find the function that ``module:function`` names.

    Parameters
    ----------
    factory : str
        The name.
    directory : str, optional
        A folder to look for the module in first; then as Python does.

    Raises
    ------
    ExecutionError
        If there is none.
    """
    module, _, name = factory.partition(":")
    if not module or not name:
        raise ExecutionError(f"found {factory!r}; expected module:factory")
    with searching(directory):
        _refuse_namesake(module, directory)
        try:
            function: Any = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise ExecutionError(f"the model {factory!r} cannot be loaded: {error}") from error
    if not callable(function):
        raise ExecutionError(f"{factory} is of type {type(function).__name__}; expected a function")
    found: Callable[..., Any] = function
    return found


@contextmanager
def searching(directory: str | None) -> Iterator[None]:
    """Let imports in this block look into a folder first, then into the working folder as ranks do."""
    if directory is None:
        yield
        return
    places = [directory, str(Path.cwd())]
    sys.path[:0] = places
    try:
        yield
    finally:
        for place in places:
            sys.path.remove(place)


def _refuse_namesake(module: str, directory: str | None) -> None:
    """Python imports a name once: another module of the same name must not pass for the one in the folder."""
    top = module.partition(".")[0]
    beside = None if directory is None else PathFinder.find_spec(top, [directory])
    loaded = getattr(sys.modules.get(top), "__spec__", None)
    if beside is not None and loaded is not None and loaded.origin != beside.origin:
        raise ExecutionError(
            f"{beside.origin} cannot be imported: {loaded.origin} is, under the same name; rename one of them"
        )


def _arguments(function: Callable[..., Any], microbatch_size: int | None) -> dict[str, int]:
    try:
        takes_size = _MICROBATCH in inspect.signature(function).parameters
    except (TypeError, ValueError):
        takes_size = False
    return {_MICROBATCH: microbatch_size} if takes_size and microbatch_size is not None else {}
