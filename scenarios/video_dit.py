"""A latent-video transformer (Latte, arXiv 2401.03048) as layers that a pipeline can be cut between.

Blocks that look within each frame and blocks that look along time take turns. As in `dit`, the timestep's
embedding travels as one more token.
"""

from __future__ import annotations

from functools import partial

import dit
import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from pipesim.executor.models import PipelineModel


def latte_xl_2(microbatch_size: int = 1) -> PipelineModel:
    """Latte-XL/2 for 16 frames of 256 x 256 pixels: 28 blocks of width 1152 on 16 x 256 tokens."""
    return latte(microbatch_size, num_frames=16, image_size=256)


def latte_xl_2_long(microbatch_size: int = 1) -> PipelineModel:
    """Latte-XL/2 for 64 frames of 512 x 512 pixels: 65,536 tokens."""
    return latte(microbatch_size, num_frames=64, image_size=512)


def latte(
    microbatch_size: int,
    *,
    num_frames: int,
    image_size: int,
    width: int = 1152,
    num_blocks: int = 28,
    num_heads: int = 16,
    patch: int = 2,
) -> PipelineModel:
    """Predict noise and its variance in the latents of frames, an eighth as wide and high as the frames."""
    latent = image_size // 8
    pair = [partial(Block, width, num_heads, num_frames, along_time=along) for along in (False, True)]
    layers = [
        partial(Embedding, num_frames, latent, width, patch),
        *pair * (num_blocks // 2),
        partial(Head, num_frames, latent, width, patch),
    ]

    def sample(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        size = (microbatch_size, num_frames, dit.CHANNELS, latent, latent)
        noise = torch.randn(size, generator=generator)
        steps = torch.randint(dit.NUM_STEPS, (microbatch_size, 1, 1, 1, 1), generator=generator)
        steps = steps.expand(-1, num_frames, 1, latent, latent).float()
        return torch.cat([torch.randn(size, generator=generator), steps], 2), noise

    return PipelineModel(layers, sample, loss)


def loss(output: Tensor, noise: Tensor) -> Tensor:
    """Mean square error of the predicted noise; the variance is trained by a term left out here."""
    return functional.mse_loss(output[:, :, : dit.CHANNELS], noise)


class Embedding(nn.Module):
    """Patches to tokens, with positions in frame and time; the timestep to the last token."""

    def __init__(self, num_frames: int, latent: int, width: int, patch: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(dit.CHANNELS, width, patch, stride=patch)
        self.register_buffer("positions", torch.zeros(1, 1, (latent // patch) ** 2, width))
        self.register_buffer("times", torch.zeros(1, num_frames, 1, width))
        self.steps = nn.Sequential(nn.Linear(dit.FREQUENCIES, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, frames, channels + 1, height, width) to (batch, frames * tokens + 1, width)."""
        batch, frames = x.shape[:2]
        tokens = self.patches(x[:, :, : dit.CHANNELS].flatten(0, 1)).flatten(2).transpose(1, 2)
        tokens = tokens.view(batch, frames, -1, tokens.shape[-1]) + self.positions + self.times
        condition = self.steps(dit.waves(x[:, 0, dit.CHANNELS, 0, 0], x.dtype))
        return torch.cat([tokens.flatten(1, 2), condition[:, None]], 1)


class Block(dit.Block):
    """A block whose tokens look at those of their frame, or at those of their place in all frames."""

    def __init__(self, width: int, num_heads: int, num_frames: int, *, along_time: bool) -> None:
        super().__init__(width, num_heads)
        self.num_frames = num_frames
        self.along_time = along_time

    def attend(self, x: Tensor) -> Tensor:
        """Let every token look at the others of its group."""
        groups = x.view(x.shape[0], self.num_frames, -1, x.shape[-1])
        if self.along_time:
            groups = groups.transpose(1, 2)
        mixed = super().attend(groups.flatten(0, 1)).view(groups.shape)
        if self.along_time:
            mixed = mixed.transpose(1, 2)
        return mixed.reshape(x.shape)


class Head(dit.Head):
    """Tokens back to latents of twice the channels."""

    def __init__(self, num_frames: int, latent: int, width: int, patch: int) -> None:
        super().__init__(latent, width, patch)
        self.num_frames = num_frames

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, frames * tokens + 1, width) to (batch, frames, 2 * channels, height, width)."""
        x, condition = x[:, :-1], x[:, -1:]
        shift, scale = self.modulation(condition).chunk(2, -1)
        patches = self.out(self.norm(x) * (1 + scale) + shift)
        images = self.images(patches.view(x.shape[0] * self.num_frames, -1, patches.shape[-1]))
        return images.view(x.shape[0], self.num_frames, *images.shape[1:])
