"""Models that tests name as ``traced_models:function``; some go wrong on purpose."""

from __future__ import annotations

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from pipesim.executor.decoder_layers import transformer_layers
from pipesim.executor.models import PipelineModel
from pipesim.scenario.resolved import Transformer

WIDTH, CLASSES = 128, 16
GPT = Transformer(
    name="small GPT",
    num_hidden_layers=4,
    hidden_size=256,
    num_attention_heads=4,
    num_key_value_heads=4,
    head_dim=64,
    intermediate_size=1024,
    vocab_size=512,
    seq_length=128,
    gated_mlp=False,
    tie_word_embeddings=False,
    biases=True,
    num_learned_positions=128,
    source="the test",
)


def gpt(microbatch_size: int = 2) -> PipelineModel:
    """pipesim's own layers, as a user might name them."""

    def sample(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        text = torch.randint(GPT.vocab_size, (microbatch_size, GPT.seq_length + 1), generator=generator)
        return text[:, :-1], text[:, 1:]

    return PipelineModel(transformer_layers(GPT), sample, _token_loss, sequence_dim=1)


def _token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def linear(microbatch_size: int = 8) -> PipelineModel:
    """Nothing but matrices."""
    return _of_layers([lambda: nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(6)], microbatch_size)


def built() -> PipelineModel:
    """Layers that exist already, one frozen, one only another view; samples of a size of their own."""
    frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
    return _of_layers([nn.Linear(WIDTH, WIDTH), frozen, nn.Flatten(), nn.Linear(WIDTH, CLASSES)], 5)


def cnn(microbatch_size: int = 2) -> PipelineModel:
    """Convolutions that write over their input, normalise, and drop out."""

    def sample(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        images = torch.randn(microbatch_size, 3, 16, 16, generator=generator)
        return images, torch.randint(CLASSES, (microbatch_size,), generator=generator)

    def block(channels: int) -> nn.Module:
        convolution = nn.Conv2d(channels, 8, 3, padding=1)
        return nn.Sequential(convolution, nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Dropout(0.1))

    def head() -> nn.Module:
        return nn.Sequential(nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(8 * 16 * 16, CLASSES))

    layers = [lambda: block(3), lambda: block(8), lambda: block(8), head]
    return PipelineModel(layers, sample, functional.cross_entropy)


def grouped(microbatch_size: int = 2) -> PipelineModel:
    """Convolutions of groups, one and its transpose, and an operation of the user's own."""

    def sample(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        images = torch.randn(microbatch_size, 8, 6, 6, generator=generator)
        return images, torch.zeros(microbatch_size)

    layers = [
        lambda: nn.Conv2d(8, 16, 3, padding=1, groups=4, bias=False),
        lambda: nn.ConvTranspose2d(16, 8, 3, stride=2, groups=2, bias=False),
        _Doubled,
    ]
    return PipelineModel(layers, sample, lambda y, _: y.square().mean())


def asking(microbatch_size: int = 8) -> PipelineModel:
    """A function and layers that ask for values while they are made, and convert what they made."""
    rates = [float(rate.item()) for rate in torch.linspace(0, 0.1, 6)]
    layers = [lambda rate=rate: _Asking(rate) for rate in rates]
    return _of_layers(layers, microbatch_size)


def number() -> int:
    """No model."""
    return 5


def breaks() -> PipelineModel:
    """Fail."""
    raise RuntimeError("no such weights")


def no_layers() -> PipelineModel:
    """Nothing to cut."""
    return _of_layers([], 8)


def misfit() -> PipelineModel:
    """The second layer takes another width than the first gives."""
    return _of_layers([lambda: nn.Linear(WIDTH, 64), lambda: nn.Linear(WIDTH, 64)], 8)


def pair() -> PipelineModel:
    """A layer that gives two tensors."""
    return _of_layers([lambda: nn.LSTM(WIDTH, 8)], 8)


def cut_off() -> PipelineModel:
    """A layer through which no gradient comes back."""
    return _of_layers([lambda: nn.Linear(WIDTH, WIDTH), _CutOff], 8)


def by_value() -> PipelineModel:
    """A layer that asks for values, which a trace has none of."""
    return _of_layers([_ByValue], 8)


def no_number() -> PipelineModel:
    """A loss that is not one number."""
    model = linear()
    return PipelineModel(model.layers, model.sample, lambda y, _: y)


class _Asking(nn.Module):
    def __init__(self, rate: float) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH).double()
        self.rate = float(torch.tensor([rate]).sum().item())

    def forward(self, x: Tensor) -> Tensor:
        return functional.dropout(self.inner(x), self.rate)


@torch.library.custom_op("traced_models::double", mutates_args=())
def _double(x: Tensor) -> Tensor:
    return 2 * x


_double.register_fake(torch.empty_like)
_double.register_autograd(lambda context, gradient: 2 * gradient)


class _Doubled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return _double(x)


class _CutOff(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.detach()


class _ByValue(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) if x.sum().item() > 0 else x


def _of_layers(layers: list, microbatch_size: int) -> PipelineModel:
    def sample(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        inputs = torch.randn(microbatch_size, WIDTH, generator=generator)
        return inputs, torch.randint(CLASSES, (microbatch_size,), generator=generator)

    return PipelineModel(layers, sample, functional.cross_entropy)
