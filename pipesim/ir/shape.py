"""The sizes a schedule is generated for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias


@dataclass(frozen=True, slots=True)
class Shape:
    """What a schedule is generated for.

    Parameters
    ----------
    num_ranks, num_chunks, num_microbatches : int
        p, v and m.
    options : Mapping
        Settings of one family, such as ``microbatch_group_size``.
    """

    num_ranks: int
    num_chunks: int
    num_microbatches: int
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_stages(self) -> int:
        """Stages S = p * v."""
        return self.num_ranks * self.num_chunks

    def __str__(self) -> str:
        text = f"p={self.num_ranks} v={self.num_chunks} m={self.num_microbatches}"
        return text + "".join(f" {key}={value}" for key, value in sorted(self.options.items()))


Placement: TypeAlias = Literal["linear", "loop", "v", "wave", "bidirectional"]
"""Rank of stage s: s; s mod p; there and back; there and back again; s and p - 1 - s of two replicas."""


def stage_holders(placement: Placement, num_ranks: int, num_chunks: int) -> tuple[tuple[int, ...], ...]:
    """Ranks that hold each stage, as a placement has it."""
    holders = []
    for stage in range(num_ranks * num_chunks):
        chunk, rank = divmod(stage, num_ranks)
        mirrored = num_ranks - 1 - rank
        if placement == "bidirectional":
            holders.append(tuple(sorted({rank, mirrored})))
        else:
            holders.append((mirrored if placement in ("v", "wave") and chunk % 2 else rank,))
    return tuple(holders)
