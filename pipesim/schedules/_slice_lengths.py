"""How long the slices of a sequence are: alike, as long as takes equal time, or as stated."""

from __future__ import annotations

from itertools import pairwise
from math import sqrt
from typing import Any

from pipesim.costs import CostTable
from pipesim.errors import ScheduleError

SLICE_LENGTHS = "slice_lengths"
"""Name of the option."""


def lengths_are_legal(stated: Any, num_slices: Any) -> bool:
    """Whether an option is ``even``, ``balanced``, or a positive number for each slice."""
    if isinstance(stated, list | tuple):
        legal = [isinstance(n, int | float) and not isinstance(n, bool) and 0 < n < 1e15 for n in stated]
        return len(legal) == num_slices and all(legal)
    return stated in ("even", "balanced")


def slice_shares(stated: Any, num_slices: int, costs: CostTable | None) -> tuple[float, ...] | None:
    """Share of the sequence of each slice; None where all are alike.

    Balanced slices take equal time over all stages, forward and backward: of E seconds that go with the
    length and A of causal attention, which goes with its square, the first q of k slices have
    ``E x + A x^2 = q / k (E + A)``. The layers' overhead, which every slice pays, is left out.

    Raises
    ------
    ScheduleError
        If they are to be balanced without costs.
    """
    if stated == "even":
        return None
    if stated != "balanced":
        return tuple(length / sum(stated) for length in stated)
    if costs is None:
        raise ScheduleError("balanced slice_lengths follow from the stages' times; name a scenario")
    parts = costs.forward_parts_s, costs.backward_parts_s
    attention_s, overhead_s = (
        sum(float(one[part].sum()) for one in parts if part in one) for part in ("attention", "overhead")
    )
    even_s = float(costs.forward_s.sum() + costs.backward_s.sum()) - attention_s - overhead_s
    if not attention_s:
        return None
    ends = [
        (sqrt(even_s**2 + 4 * attention_s * share * (even_s + attention_s)) - even_s) / (2 * attention_s)
        for share in (q / num_slices for q in range(num_slices + 1))
    ]
    return tuple(end - begin for begin, end in pairwise(ends))
