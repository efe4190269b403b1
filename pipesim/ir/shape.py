"""The sizes a schedule is generated for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from pipesim.errors import ScheduleError

MAX_FORWARDS = 1_000_000
"""p * v * m, times the slices, of the largest schedule: 2 GB and half a minute; more is meant by nobody."""
MAX_STAGES = 100_000
MAX_ACTIONS = 10_000_000
"""Of all replicas that are simulated together, with what is derived."""


def check_replicas(num_replicas: int, num_actions: int) -> None:
    """Refuse more replicas than memory holds.

    Raises
    ------
    ScheduleError
        With the count and the limit.
    """
    if num_replicas * num_actions > MAX_ACTIONS:
        raise ScheduleError(
            f"{num_replicas:,} unlike replicas of {num_actions:,} actions make "
            f"{num_replicas * num_actions:,}; at most {MAX_ACTIONS:,} can be simulated together"
        )


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
