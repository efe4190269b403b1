"""One microbatch of a user's model, layer by layer, on tensors without values."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import pipesim
from pipesim.costs.traced.alike import shape_of, signature
from pipesim.costs.traced.layer_trace import NOTHING, LayerTrace, ModelTrace, Pass
from pipesim.costs.traced.pipeline_model import PipelineModel, import_factory, load_pipeline_model, searching
from pipesim.costs.traced.recorder import FusedAttention, Recorder, Storage, storage_id
from pipesim.costs.traced.valueless import NEEDS_VALUES, Valueless, without_log
from pipesim.errors import PipesimError, ScenarioError

_MOST_CHARACTERS = 300


@lru_cache(maxsize=16)
def trace_model(factory: str, directory: str | None, microbatch_size: int, dtype: str) -> ModelTrace:
    """Build a user's model without memory and trace forward and backward of one microbatch.

    Layers that are built alike and take alike input are traced once.

    Parameters
    ----------
    factory, directory, microbatch_size
        See `pipesim.costs.traced.pipeline_model.load_pipeline_model`.
    dtype : str
        Name of the torch dtype of parameters and floating-point inputs.

    Raises
    ------
    ScenarioError
        If the factory cannot be found or does not return a `PipelineModel`, its samples are of another size,
        or a layer fails.
    """
    valueless = Valueless(getattr(torch, dtype))
    with searching(directory), without_log():
        with _blaming(f"importing {factory} failed"):
            # On its own, for what a module makes when it is imported outlives this.
            import_factory(factory, directory)
        with _blaming(f"{factory} failed"):
            model = valueless.make(
                lambda: load_pipeline_model(factory, directory=directory, microbatch_size=microbatch_size)
            )
        tracer = _Tracer(factory, model, valueless)
        return tracer.trace(*tracer.sample(microbatch_size))


class _Tracer:
    """Traces one model."""

    def __init__(self, factory: str, model: PipelineModel, valueless: Valueless) -> None:
        self.factory = factory
        self.model = model
        self.valueless = valueless
        self._known: dict[Hashable, tuple[LayerTrace, Tensor]] = {}
        self._outputs: list[Tensor] = []

    def sample(self, microbatch_size: int) -> tuple[Tensor, Tensor]:
        """Draw a sample, which must be of the stated size."""
        with _blaming(f"the sample of {self.factory} failed"):
            inputs, targets = map(self.valueless.tensor, self.model.sample(torch.Generator()))
        dimension = 1 if self.model.sequence_dim == 0 else 0
        found = inputs.shape[dimension] if inputs.dim() > dimension else 0
        if found != microbatch_size:
            raise ScenarioError(
                f"found {microbatch_size}, but samples of {self.factory} hold {found} "
                f"({_shown(inputs)}); state {found}, or give the function a parameter microbatch_size",
                key="batch.micro",
            )
        return inputs, targets

    def trace(self, inputs: Tensor, targets: Tensor) -> ModelTrace:
        """Trace all layers and the loss."""
        model, layers = self.model, []
        if not model.layers:
            raise ScenarioError(f"{self.factory} gives a model without layers", key="model.torch")
        modules: list[nn.Module] = []
        x, needs_gradient = inputs, False
        for at in range(len(model.layers)):
            words = f"layer {at} of {self.factory}"
            with _blaming(f"building {words} failed"):
                module = self._build(at)
            # Kept, for what makes layers alike may be a part's identity.
            modules.append(module)
            inputs_like = [x, *(self._outputs[source] for source in model.taken_by(at))]
            needs = [needs_gradient, *(like.requires_grad for like in inputs_like[1:])]
            key = signature(module), tuple(map(shape_of, inputs_like)), tuple(needs)
            if key not in self._known:
                words += f" ({type(module).__name__})"
                with self._tracing():
                    self._known[key] = self._trace_layer(module, inputs_like, needs=needs, words=words)
            layer, y = self._known[key]
            layers.append(layer)
            self._outputs.append(y)
            x, needs_gradient = y, y.requires_grad
        words = f"the loss of {self.factory}"
        with self._tracing():
            loss, value = _trace(
                lambda y: model.loss(y, targets), [], [x], needs=[needs_gradient], words=words
            )
        if value.numel() != 1:
            raise ScenarioError(f"{words} is {_shown(value)}; one number is needed", key="model.torch")
        length = None if model.sequence_dim is None else model.length(inputs)
        return ModelTrace(tuple(layers), loss, length, len(self._known), tuple(model.skips))

    @contextmanager
    def _tracing(self) -> Iterator[None]:
        # The CPU's own recurrent kernels would hide their products.
        before = torch._C._get_mkldnn_enabled()
        torch._C._set_mkldnn_enabled(False)
        try:
            with self.valueless.mode, FusedAttention():
                yield
        finally:
            torch._C._set_mkldnn_enabled(before)

    def _build(self, at: int) -> nn.Module:
        layer = self.model.layers[at]
        return self.valueless.module(layer if isinstance(layer, nn.Module) else self.valueless.make(layer))

    def _trace_layer(
        self, module: nn.Module, inputs: list[Tensor], *, needs: list[bool], words: str
    ) -> tuple[LayerTrace, Tensor]:
        constants = [*module.parameters(), *module.buffers()]
        layer, y = _trace(module, constants, inputs, needs=needs, words=words)
        if needs[0] or not inputs[0].is_floating_point() or not layer.backward.ops:
            return layer, y
        # What the gradient of the input would add is known only with one.
        with_one, _ = _trace(module, constants, inputs, needs=[True, *needs[1:]], words=words)
        return layer.split_like(with_one), y


class _Entry(torch.autograd.Function):
    """Stands before a layer: gives an input that it may write over, and takes the gradient without a copy."""

    @staticmethod
    def forward(_: Any, leaf: Tensor) -> Tensor:
        """Give a tensor like the leaf."""
        return leaf.clone()

    @staticmethod
    def backward(_: Any, *gradients: Tensor) -> None:
        """Let the gradient go: the layer before takes it as it is."""


def _trace(
    run: Callable[..., Tensor],
    constants: list[Tensor],
    inputs: list[Tensor],
    *,
    needs: list[bool],
    words: str,
) -> tuple[LayerTrace, Tensor]:
    """Trace forward and backward of one layer; gives also what its output is like.

    The first input comes from the layer before, others through skip connections; `needs` says of each whether
    it gets a gradient.
    """
    trained = [tensor for tensor in constants if isinstance(tensor, nn.Parameter) and tensor.requires_grad]
    leaves = [torch.empty_like(one, requires_grad=need) for one, need in zip(inputs, needs, strict=True)]
    entered = [_Entry.apply(leaf) if leaf.requires_grad else leaf for leaf in leaves]  # type: ignore[no-untyped-call]
    x, further = entered[0], entered[1:]
    outside = [*constants, *leaves, *entered]
    saved: dict[int, Storage] = {}

    def keep(tensor: Tensor) -> Tensor:
        saved.setdefault(storage_id(tensor), Storage.of(tensor))
        # A saved output must not come back as itself: node and tensor would keep each other alive.
        return tensor if tensor.is_leaf else tensor.detach()

    with _blaming(f"{words} does not take {', '.join(map(_shown, inputs))}"):
        keeping = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
        with keeping, Recorder(outside) as recorder:
            y = run(*entered)
        if not isinstance(y, Tensor):
            raise ScenarioError(f"{words} gave a {type(y).__name__}; one tensor is needed", key="model.torch")
        forward = recorder.result(but=y)
    if not y.requires_grad and (any(needs) or trained):
        raise ScenarioError(
            f"{words} gives an output from which no gradient leads back to its "
            f"{'input' if any(needs) else 'parameters'}",
            key="model.torch",
        )
    for tensor in constants:
        saved.pop(storage_id(tensor), None)
    ends = {storage_id(x), storage_id(y), *map(storage_id, further)}
    inner = [storage for place, storage in saved.items() if place not in ends]
    backward, input_gradient = _trace_backward(y, leaves, trained, outside, inner, words)
    layer = LayerTrace(
        forward=forward,
        backward=backward,
        whole_backward=backward,
        input_gradient=input_gradient,
        parameters=tuple(tensor.numel() for tensor in trained),
        num_frozen=sum(t.numel() for t in constants if isinstance(t, nn.Parameter) and not t.requires_grad),
        input_bytes=x.untyped_storage().nbytes(),
        output_bytes=y.untyped_storage().nbytes(),
        message_bytes=y.numel() * y.element_size(),
        inner_bytes=sum(storage.nbytes for storage in inner),
        saves_input=storage_id(x) in saved,
        saves_output=storage_id(y) in saved,
        passes_on=storage_id(x) == storage_id(y),
        saves_further=tuple(storage_id(one) in saved for one in further),
    )
    return layer, torch.empty_like(y, requires_grad=y.requires_grad)


def _trace_backward(
    y: Tensor,
    leaves: list[Tensor],
    trained: list[nn.Parameter],
    outside: list[Tensor],
    inner: list[Storage],
    words: str,
) -> tuple[Pass, Pass]:
    """Trace the whole backward, and that of the gradients of the inputs alone."""
    if not y.requires_grad:
        return NOTHING, NOTHING
    wanted, input_gradient = [leaf for leaf in leaves if leaf.requires_grad], NOTHING
    with _blaming(f"the backward of {words} failed"):
        gradient = torch.empty_like(y)
        if wanted:
            with Recorder() as recorder:
                torch.autograd.grad(y, wanted, gradient, retain_graph=True, allow_unused=True)
            input_gradient = recorder.result()
        recorder = Recorder([*outside, y], [*inner, Storage.of(gradient)])
        with _dropping_gradients(trained), recorder:
            torch.autograd.backward([y], [gradient], inputs=[*trained, *wanted])
        return recorder.result(), input_gradient


@contextmanager
def _dropping_gradients(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Let gradients of parameters go as soon as they are there: they are added to the step's."""

    def drop(parameter: Tensor) -> None:
        parameter.grad = None

    hooks = [parameter.register_post_accumulate_grad_hook(drop) for parameter in parameters]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def _blaming(words: str) -> Iterator[None]:
    """Turn whatever a user's code raises into one message that says where."""
    try:
        yield
    except ScenarioError:
        raise
    except PipesimError as error:
        raise ScenarioError(str(error), key="model.torch") from error
    except Exception as error:
        text = f"{type(error).__name__}: {' '.join(str(error).split())}"
        if isinstance(error, NEEDS_VALUES):
            text = f"it asks for values of tensors, which a trace has none of: {error}"
        if len(text) > _MOST_CHARACTERS:
            text = text[: _MOST_CHARACTERS - 3] + "..."
        ours = tuple(str(Path(module.__path__[0])) for module in (torch, pipesim))
        frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(ours)]
        place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
        raise ScenarioError(f"{words}: {text}{place}", key="model.torch") from error


def _shown(tensor: Tensor) -> str:
    return f"{'x'.join(map(str, tensor.shape)) or 'a number'} {str(tensor.dtype).removeprefix('torch.')}"
