"""What torch's pipeline runtime refuses of an order, or would misread without a word."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pipesim.ir.actions import ActionTable, Op


def torch_refusals(stated: ActionTable) -> Iterator[str]:
    """Say why torch's runtime would not run what somebody wrote; nothing if it would.

    Parameters
    ----------
    stated : ActionTable
        With or without communication; its computations are valid.
    """
    if words := far_skips(stated):
        yield f"torch sends between neighbouring stages only; skip connections go from {words}"
    if stated.num_slices > 1:
        yield "torch has no slices of a microbatch, and would read 0F1.2 as 0F1"
    if np.any(stated.op == Op.OPTIMIZER):
        yield "torch has no OPTIMIZER action; it steps the optimizer outside the schedule"
    computations = stated.select(stated.op <= Op.W)
    homes: dict[int, int] = {}
    for rank in range(computations.num_ranks):
        for stage in computations.stages_of(rank):
            if homes.setdefault(stage, rank) != rank:
                yield f"stage {stage} stands on ranks {homes[stage]} and {rank}; torch gives a stage one rank"
                return


def far_skips(stated: ActionTable) -> str:
    """Name the skip connections to others than the next stage; empty where there are none."""
    far = sorted({(source, target) for source, target in stated.skips if target > source + 1})
    words = ", ".join(f"{source} to {target}" for source, target in far[:3])
    more = "" if len(far) <= 3 else f" and {len(far) - 3} more"
    return f"stage {words}{more}" if far else ""
