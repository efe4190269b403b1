"""T5 version 1.1 (arXiv 1910.10683, 2002.05202), an encoder and a decoder, as layers of a pipeline.

Every layer of the decoder looks at the encoder's output, and the first also takes the embeddings of its own
tokens, which the first layer of all made with the encoder's: skip connections. Each attention has a table of
relative positions of its own, as in UMT5, where T5 shares the first one's of encoder and decoder: 46 tables
of 32 x 64 more in the largest.
"""

from __future__ import annotations

import math
from functools import partial

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from pipesim.executor.models import PipelineModel

VOCABULARY, BUCKETS, FURTHEST = 32_128, 32, 128


def t5_xxl(microbatch_size: int = 1) -> PipelineModel:
    """T5 v1.1 XXL: 24 + 24 layers of width 4096, 512 tokens in and 128 out."""
    return t5(microbatch_size, width=4096, inner=10_240, num_heads=64, num_layers=24, lengths=(512, 128))


def t5(
    microbatch_size: int,
    *,
    width: int,
    inner: int,
    num_heads: int,
    num_layers: int,
    lengths: tuple[int, int],
) -> PipelineModel:
    """Predict the next of the decoder's tokens; the inputs hold the encoder's and then the decoder's."""
    begin, after = lengths
    encoder = [
        partial(EncoderLayer, width, inner, num_heads, begin, last=at == num_layers - 1)
        for at in range(num_layers)
    ]
    decoder = [
        partial(DecoderLayer, width, inner, num_heads, after, begins_at=begin if at == 0 else None)
        for at in range(num_layers)
    ]
    embedding = partial(nn.Embedding, VOCABULARY, width)
    memory = num_layers
    skips = [(0, memory + 1), *((memory, memory + 1 + at) for at in range(1, num_layers))]

    def sample(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        size = (microbatch_size, begin + after + 1)
        tokens = torch.randint(VOCABULARY, size, generator=generator)
        return tokens[:, :-1], tokens[:, begin + 1 :]

    return PipelineModel([embedding, *encoder, *decoder, partial(Head, width)], sample, loss, skips=skips)


def loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of the decoder's tokens."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


class EncoderLayer(nn.Module):
    """Attention in both directions and a gated MLP; the last layer normalises what it gives."""

    def __init__(self, width: int, inner: int, num_heads: int, length: int, *, last: bool) -> None:
        super().__init__()
        self.length = length
        self.attention = Attention(width, num_heads, length, both_ways=True)
        self.mlp = GatedMlp(width, inner)
        self.norm = Norm(width) if last else None

    def forward(self, x: Tensor) -> Tensor:
        """Keep (batch, length, width); of embeddings, those of the encoder's tokens."""
        x = self.mlp(self.attention(x[:, : self.length]))
        return x if self.norm is None else self.norm(x)


class DecoderLayer(nn.Module):
    """Causal attention, attention to the encoder's output, and a gated MLP."""

    def __init__(self, width: int, inner: int, num_heads: int, length: int, *, begins_at: int | None) -> None:
        super().__init__()
        self.begins_at = begins_at
        self.attention = Attention(width, num_heads, length, both_ways=False)
        self.to_encoder = Attention(width, num_heads)
        self.mlp = GatedMlp(width, inner)

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        """Keep (batch, length, width); the first layer comes behind the encoder and takes embeddings."""
        x, memory = (x, other) if self.begins_at is None else (other[:, self.begins_at :], x)
        return self.mlp(self.to_encoder(self.attention(x), memory))


class Head(nn.Module):
    """Logits of the vocabulary."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = Norm(width)
        self.out = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, length, width) to (batch, length, vocabulary)."""
        return self.out(self.norm(x))


class Norm(nn.Module):
    """Root mean square, with a scale."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape."""
        return functional.rms_norm(x, self.scale.shape, self.scale)


class Attention(nn.Module):
    """Attention with relative positions in its scores, or to another sequence without."""

    def __init__(self, width: int, num_heads: int, length: int = 0, *, both_ways: bool = False) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.causal = bool(length) and not both_ways
        self.norm = Norm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.table = nn.Embedding(BUCKETS, num_heads) if length else None
        if length:
            self.register_buffer("buckets", buckets(length, both_ways=both_ways))

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        """Add to (batch, length, width) what it sees."""
        y = self.norm(x)
        source = y if memory is None else memory
        query, key, value = (
            part.view(part.shape[0], part.shape[1], self.num_heads, -1).transpose(1, 2)
            for part in (self.query(y), self.key(source), self.value(source))
        )
        scores = query @ key.transpose(-1, -2)
        if self.table is not None:
            scores = scores + self.table(self.buckets).permute(2, 0, 1)
        if self.causal:
            future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
            scores = scores.masked_fill(future, -math.inf)
        mixed = scores.softmax(-1) @ value
        return x + self.out(mixed.transpose(1, 2).reshape(x.shape))


class GatedMlp(nn.Module):
    """GEGLU."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.norm = Norm(width)
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Add to (batch, length, width)."""
        y = self.norm(x)
        return x + self.down(functional.gelu(self.gate(y), approximate="tanh") * self.up(y))


def buckets(length: int, *, both_ways: bool) -> Tensor:
    """Sort distances, (length, length), into buckets: near ones each in its own, far ones by logarithm."""
    place = torch.arange(length)
    ahead = place[None, :] - place[:, None]
    number = BUCKETS // 2 if both_ways else BUCKETS
    first = torch.where(ahead > 0, number, 0) if both_ways else torch.zeros_like(ahead)
    distance = ahead.abs() if both_ways else (-ahead).clamp(min=0)
    near = number // 2
    by_log = torch.log(distance.clamp(min=1) / near) / math.log(FURTHEST / near) * (number - near)
    far = (near + by_log.long()).clamp(max=number - 1)
    return first + torch.where(distance < near, distance, far)
