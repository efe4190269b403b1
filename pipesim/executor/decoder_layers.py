"""Decoder-only transformer layers of the shape a scenario states, GPT's or Llama's kind."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from pipesim.scenario.resolved import Transformer

_ROTARY_BASE = 10_000.0


def transformer_layers(shape: Transformer) -> list[Callable[[], nn.Module]]:
    """Give builders of the layers; the embedding goes with the first, norm and head with the last."""

    def builder(at: int) -> Callable[[], nn.Module]:
        return lambda: TransformerLayer(
            shape, has_embedding=at == 0, has_head=at == shape.num_hidden_layers - 1
        )

    return [builder(at) for at in range(shape.num_hidden_layers)]


class TransformerLayer(nn.Module):
    """Attention and MLP, norms before them; looks back to earlier slices by keys and values it carries."""

    num_carried = 2

    def __init__(self, shape: Transformer, *, has_embedding: bool, has_head: bool) -> None:
        super().__init__()
        hidden, biases = shape.hidden_size, shape.biases
        self.num_heads, self.num_groups = shape.num_attention_heads, shape.num_key_value_heads
        self.head_dim = shape.head_dim
        self.gated = shape.gated_mlp
        if has_embedding:
            self.tokens = nn.Embedding(shape.vocab_size, hidden)
            if shape.num_learned_positions:
                self.positions = nn.Embedding(shape.num_learned_positions, hidden)
        self.rotary = shape.num_learned_positions == 0
        self.attention_norm = _norm(hidden, biases)
        heads = self.num_heads + 2 * self.num_groups
        self.query_key_value = nn.Linear(hidden, heads * self.head_dim, bias=biases)
        self.attention_out = nn.Linear(self.num_heads * self.head_dim, hidden, bias=biases)
        self.mlp_norm = _norm(hidden, biases)
        wide = shape.intermediate_size
        self.mlp_in = nn.Linear(hidden, 2 * wide if self.gated else wide, bias=biases)
        self.mlp_out = nn.Linear(wide, hidden, bias=biases)
        if has_head:
            self.last_norm = _norm(hidden, biases)
            self.head = nn.Linear(hidden, shape.vocab_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Run on a whole sequence: tokens (batch, length) or hidden states (batch, length, hidden)."""
        return self.forward_slice(x, (), 0)[0]

    def forward_slice(
        self, x: Tensor, past: tuple[Tensor, ...], start: int
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Run on a slice that begins at position `start`; `past` holds keys and values of those before."""
        if hasattr(self, "tokens"):
            x = self.tokens(x)
            if hasattr(self, "positions"):
                x = x + self.positions(torch.arange(start, start + x.shape[1], device=x.device))
        attended, carried = self._attend(self.attention_norm(x), past, start)
        x = x + attended
        wide = self.mlp_in(self.mlp_norm(x))
        if self.gated:
            gate, up = wide.chunk(2, dim=-1)
            wide = functional.silu(gate) * up
        else:
            wide = functional.gelu(wide)
        x = x + self.mlp_out(wide)
        if hasattr(self, "head"):
            x = self.head(self.last_norm(x))
        return x, carried

    def _attend(self, x: Tensor, past: tuple[Tensor, ...], start: int) -> tuple[Tensor, tuple[Tensor, ...]]:
        batch, length, _ = x.shape
        split = self.query_key_value(x).view(batch, length, -1, self.head_dim).transpose(1, 2)
        query, key, value = split.split((self.num_heads, self.num_groups, self.num_groups), dim=1)
        if self.rotary:
            query, key = _rotated(query, start), _rotated(key, start)
        mask = None
        if past:
            key, value = torch.cat((past[0], key), dim=2), torch.cat((past[1], value), dim=2)
            mask = torch.ones(length, start + length, dtype=torch.bool, device=x.device).tril(start)
        mixed = functional.scaled_dot_product_attention(
            query, key, value, mask, is_causal=mask is None, enable_gqa=self.num_groups != self.num_heads
        )
        return self.attention_out(mixed.transpose(1, 2).reshape(batch, length, -1)), (key, value)


def _norm(hidden: int, biases: bool) -> nn.Module:
    return nn.LayerNorm(hidden) if biases else nn.RMSNorm(hidden)


def _rotated(x: Tensor, start: int) -> Tensor:
    """Rotate pairs of dimensions by an angle that grows with the position.

    The shape is (batch, heads, length, head_dim).
    """
    half = x.shape[-1] // 2
    positions = torch.arange(start, start + x.shape[2], device=x.device, dtype=torch.float64)
    rates = _ROTARY_BASE ** -(torch.arange(half, device=x.device, dtype=torch.float64) / half)
    angles = torch.outer(positions, rates)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)
