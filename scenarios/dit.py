"""Diffusion transformers (DiT, arXiv 2212.09748) as layers that a pipeline can be cut between.

A layer of a pipeline takes one tensor and gives one. Timestep and class therefore come in as two more
channels of the latent image, and their embedding, which every block needs, travels as one more token behind
the others.
"""

from __future__ import annotations

import math
from functools import partial

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from pipesim.executor.models import PipelineModel

CHANNELS, NUM_CLASSES, NUM_STEPS, FREQUENCIES = 4, 1000, 1000, 256


def dit_xl_2(microbatch_size: int = 4) -> PipelineModel:
    """DiT-XL/2 for images of 256 x 256 pixels: 28 blocks of width 1152 on 256 tokens."""
    return dit(microbatch_size)


def dit_xl_2_512(microbatch_size: int = 4) -> PipelineModel:
    """DiT-XL/2 for images of 512 x 512 pixels: 1024 tokens."""
    return dit(microbatch_size, image_size=512)


def dit(
    microbatch_size: int,
    *,
    image_size: int = 256,
    width: int = 1152,
    num_blocks: int = 28,
    num_heads: int = 16,
    patch: int = 2,
) -> PipelineModel:
    """Predict noise and its variance in the latents of images, an eighth as wide and high as the images."""
    latent = image_size // 8
    layers = [
        partial(Embedding, latent, width, patch),
        *[partial(Block, width, num_heads)] * num_blocks,
        partial(Head, latent, width, patch),
    ]

    def sample(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        size = (microbatch_size, CHANNELS, latent, latent)
        noise = torch.randn(size, generator=generator)
        steps = torch.randint(NUM_STEPS, (microbatch_size, 1, 1, 1), generator=generator)
        classes = torch.randint(NUM_CLASSES, (microbatch_size, 1, 1, 1), generator=generator)
        channels = [number.expand(-1, 1, latent, latent).float() for number in (steps, classes)]
        return torch.cat([torch.randn(size, generator=generator), *channels], 1), noise

    return PipelineModel(layers, sample, loss)


def loss(output: Tensor, noise: Tensor) -> Tensor:
    """Mean square error of the predicted noise; the variance is trained by a term left out here."""
    return functional.mse_loss(output[:, :CHANNELS], noise)


def waves(steps: Tensor, dtype: torch.dtype) -> Tensor:
    """Timesteps, (batch,), as cosines and sines of 128 frequencies."""
    half = FREQUENCIES // 2
    rates = torch.exp(-math.log(10_000) * torch.arange(half, device=steps.device) / half)
    angles = steps.float()[:, None] * rates
    return torch.cat([angles.cos(), angles.sin()], -1).to(dtype)


class Embedding(nn.Module):
    """Patches to tokens, with positions; timestep and class to the last token."""

    def __init__(self, latent: int, width: int, patch: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(CHANNELS, width, patch, stride=patch)
        self.register_buffer("positions", torch.zeros(1, (latent // patch) ** 2, width))
        self.steps = nn.Sequential(nn.Linear(FREQUENCIES, width), nn.SiLU(), nn.Linear(width, width))
        self.classes = nn.Embedding(NUM_CLASSES + 1, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, channels + 2, height, width) to (batch, tokens + 1, width)."""
        steps, classes = x[:, CHANNELS, 0, 0], x[:, CHANNELS + 1, 0, 0]
        tokens = self.patches(x[:, :CHANNELS]).flatten(2).transpose(1, 2) + self.positions
        condition = self.steps(waves(steps, x.dtype)) + self.classes(classes.long())
        return torch.cat([tokens, condition[:, None]], 1)


class Block(nn.Module):
    """Attention and MLP, each shifted, scaled and gated by the condition (adaLN-Zero)."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))
        self.norms = nn.ModuleList(nn.LayerNorm(width, eps=1e-6, elementwise_affine=False) for _ in range(2))
        self.query_key_value = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens + 1, width) to the same; the last token, the condition, stays as it is."""
        x, condition = x[:, :-1], x[:, -1:]
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = self.modulation(condition).chunk(6, -1)
        x = x + gate * self.attend(self.norms[0](x) * (1 + scale) + shift)
        x = x + mlp_gate * self.mlp(self.norms[1](x) * (1 + mlp_scale) + mlp_shift)
        return torch.cat([x, condition], 1)

    def attend(self, x: Tensor) -> Tensor:
        """Let every token look at all others."""
        batch, length, width = x.shape
        heads = self.query_key_value(x).view(batch, length, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*heads.unbind())
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Head(nn.Module):
    """Tokens back to a latent image of twice the channels: noise and variance."""

    def __init__(self, latent: int, width: int, patch: int) -> None:
        super().__init__()
        self.side, self.patch = latent // patch, patch
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width))
        self.norm = nn.LayerNorm(width, eps=1e-6, elementwise_affine=False)
        self.out = nn.Linear(width, patch * patch * 2 * CHANNELS)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens + 1, width) to (batch, 2 * channels, height, width)."""
        x, condition = x[:, :-1], x[:, -1:]
        shift, scale = self.modulation(condition).chunk(2, -1)
        return self.images(self.out(self.norm(x) * (1 + scale) + shift))

    def images(self, patches: Tensor) -> Tensor:
        """Put patches, (batch, tokens, values), in their places."""
        grid = patches.view(-1, self.side, self.side, self.patch, self.patch, 2 * CHANNELS)
        return torch.einsum("nhwpqc->nchpwq", grid).reshape(
            -1, 2 * CHANNELS, self.side * self.patch, self.side * self.patch
        )
