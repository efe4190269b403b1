"""The U-Net of Stable Diffusion XL (arXiv 2307.01952, table 1) as layers that a pipeline can be cut between.

Every layer of the way down also hands its output to a layer of the way up: a skip connection. Text and
timestep, which most layers need, take the same way: the first layer packs them with the latents into one
tensor, and hands it to all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from pipesim.executor.models import PipelineModel

CHANNELS, TOKENS, TEXT_WIDTH, POOLED_WIDTH, NUM_STEPS = 4, 77, 2048, 2816, 1000
WIDTH, WIDE, WIDEST = 320, 640, 1280
TIME_WIDTH, HEAD_WIDTH = 1280, 64


def sdxl_1024(microbatch_size: int = 1) -> PipelineModel:
    """SDXL's U-Net for images of 1024 x 1024 pixels: latents of 128 x 128."""
    return sdxl(microbatch_size, side=128)


def sdxl_512(microbatch_size: int = 1) -> PipelineModel:
    """SDXL's U-Net for images of 512 x 512 pixels: latents of 64 x 64."""
    return sdxl(microbatch_size, side=64)


def sdxl(microbatch_size: int, *, side: int) -> PipelineModel:
    """Predict the noise in latents of `side` x `side`, given text and timestep."""
    unet = UNet(side)
    high = [unet.add(partial(Entrance, side)), unet.unit(WIDTH, WIDTH), unet.unit(WIDTH, WIDTH)]
    high.append(unet.add(partial(Halved, WIDTH)))
    middle = [unet.unit(WIDTH, WIDE, depth=2), unet.unit(WIDE, WIDE, depth=2)]
    middle.append(unet.add(partial(Halved, WIDE)))
    low = [unet.unit(WIDE, WIDEST, depth=10), unet.unit(WIDEST, WIDEST, depth=10)]
    unet.unit(WIDEST, WIDEST, depth=10)
    unet.unit(WIDEST, WIDEST)
    for inputs in (2 * WIDEST, 2 * WIDEST):
        unet.unit(inputs, WIDEST, depth=10, down=low.pop())
    unet.unit(WIDEST + WIDE, WIDEST, depth=10, down=middle.pop())
    unet.add(partial(Doubled, WIDEST))
    for inputs in (WIDEST + WIDE, 2 * WIDE):
        unet.unit(inputs, WIDE, depth=2, down=middle.pop())
    unet.unit(WIDE + WIDTH, WIDE, depth=2, down=high.pop())
    unet.add(partial(Doubled, WIDE))
    for inputs in (WIDE + WIDTH, 2 * WIDTH, 2 * WIDTH):
        unet.unit(inputs, WIDTH, down=high.pop())
    unet.add(Exit)

    def sample(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        noise = torch.randn(microbatch_size, CHANNELS, side, side, generator=generator)
        steps = torch.randint(NUM_STEPS, (microbatch_size, 1), generator=generator)
        text = torch.randn(microbatch_size, TOKENS * TEXT_WIDTH + POOLED_WIDTH, generator=generator)
        latents = torch.randn(microbatch_size, CHANNELS * side * side, generator=generator)
        return torch.cat([latents, text, steps.float()], 1), noise

    return PipelineModel(unet.layers, sample, functional.mse_loss, skips=unet.skips)


class UNet:
    """Collects layers, and the skip connections between them; the first makes the conditions."""

    def __init__(self, side: int) -> None:
        self.num_latents = side * side * CHANNELS
        self.layers: list[Callable[[], nn.Module]] = [partial(Conditions, side)]
        self.skips: list[tuple[int, int]] = []

    def add(self, layer: Callable[[], nn.Module], *sources: int) -> int:
        """Append a layer that also takes the outputs of others; give its number."""
        self.layers.append(layer)
        at = len(self.layers) - 1
        self.skips += [(source, at) for source in sources]
        return at

    def unit(self, inputs: int, outputs: int, *, depth: int = 0, down: int | None = None) -> int:
        """Append a residual block and `depth` transformer blocks; on the way up it takes a layer's output."""
        at = self.add(partial(Residual, inputs, outputs), 0, *([] if down is None else [down]))
        if depth:
            self.add(partial(ToPositions, outputs))
            for _ in range(depth):
                self.add(partial(Block, outputs, self.num_latents), 0)
            at = self.add(partial(ToImage, outputs), at)
        return at


class Conditions(nn.Module):
    """Latents and text as they are, and one embedding of timestep and pooled text."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.kept = side * side * CHANNELS + TOKENS * TEXT_WIDTH
        self.time = nn.Sequential(nn.Linear(WIDTH, TIME_WIDTH), nn.SiLU(), nn.Linear(TIME_WIDTH, TIME_WIDTH))
        self.pooled = nn.Sequential(
            nn.Linear(POOLED_WIDTH, TIME_WIDTH), nn.SiLU(), nn.Linear(TIME_WIDTH, TIME_WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, latents + text + pooled text + 1) to (batch, latents + text + 1280)."""
        half = WIDTH // 2
        rates = torch.exp(-math.log(10_000) * torch.arange(half, device=x.device) / half)
        angles = x[:, -1:].float() * rates
        waves = torch.cat([angles.cos(), angles.sin()], -1).to(x.dtype)
        embedding = self.time(waves) + self.pooled(x[:, self.kept : -1])
        return torch.cat([x[:, : self.kept], embedding], 1)


class Entrance(nn.Module):
    """Latents to 320 channels."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side
        self.convolution = nn.Conv2d(CHANNELS, WIDTH, 3, padding=1)

    def forward(self, packed: Tensor) -> Tensor:
        """Map what `Conditions` gives to (batch, 320, side, side)."""
        size = CHANNELS * self.side * self.side
        return self.convolution(packed[:, :size].reshape(-1, CHANNELS, self.side, self.side))


class Halved(nn.Module):
    """Half the resolution."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(width, width, 3, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, width, height, width) to half the height and width."""
        return self.convolution(x)


class Doubled(nn.Module):
    """Twice the resolution."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, width, height, width) to twice the height and width."""
        return self.convolution(functional.interpolate(x, scale_factor=2.0))


class Exit(nn.Module):
    """320 channels back to latents."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(32, WIDTH)
        self.convolution = nn.Conv2d(WIDTH, CHANNELS, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 320, side, side) to (batch, 4, side, side)."""
        return self.convolution(functional.silu(self.norm(x)))


class Residual(nn.Module):
    """Two convolutions, the embedding added between."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(32, inputs), nn.GroupNorm(32, outputs)])
        self.first = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.embedding = nn.Linear(TIME_WIDTH, outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, packed: Tensor, *down: Tensor) -> Tensor:
        """Map (batch, inputs, height, width), the way down's channels last, to (batch, outputs, ...)."""
        x = torch.cat([x, *down], 1) if down else x
        y = self.first(functional.silu(self.norms[0](x)))
        y = y + self.embedding(functional.silu(packed[:, -TIME_WIDTH:]))[:, :, None, None]
        return self.shortcut(x) + self.second(functional.silu(self.norms[1](y)))


class ToPositions(nn.Module):
    """An image to its positions, as transformer blocks take them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(32, width)
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, width, height, width) to (batch, positions, width)."""
        return self.linear(self.norm(x).flatten(2).transpose(1, 2))


class ToImage(nn.Module):
    """Positions back to an image, added to what it was before the transformer blocks."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor, image: Tensor) -> Tensor:
        """Map (batch, positions, width) to (batch, width, height, width)."""
        return image + self.linear(x).transpose(1, 2).reshape(image.shape)


class Block(nn.Module):
    """Attention to all positions, to the text, and a gated MLP."""

    def __init__(self, width: int, num_latents: int) -> None:
        super().__init__()
        self.num_latents = num_latents
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.to_itself = Attention(width, width)
        self.to_text = Attention(width, TEXT_WIDTH)
        self.gated = nn.Linear(width, 8 * width)
        self.out = nn.Linear(4 * width, width)

    def forward(self, x: Tensor, packed: Tensor) -> Tensor:
        """Keep the shape of (batch, positions, width)."""
        text = packed[:, self.num_latents : -TIME_WIDTH].reshape(-1, TOKENS, TEXT_WIDTH)
        y = self.norms[0](x)
        x = x + self.to_itself(y, y)
        x = x + self.to_text(self.norms[1](x), text)
        values, gates = self.gated(self.norms[2](x)).chunk(2, -1)
        return x + self.out(values * functional.gelu(gates))


class Attention(nn.Module):
    """Heads of width 64; queries, keys and values without biases."""

    def __init__(self, width: int, source_width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(source_width, width, bias=False)
        self.value = nn.Linear(source_width, width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, source: Tensor) -> Tensor:
        """Let (batch, positions, width) look at (batch, others, source_width)."""
        heads = (
            part.view(part.shape[0], part.shape[1], -1, HEAD_WIDTH).transpose(1, 2)
            for part in (self.query(x), self.key(source), self.value(source))
        )
        mixed = functional.scaled_dot_product_attention(*heads)
        return self.out(mixed.transpose(1, 2).reshape(x.shape))
