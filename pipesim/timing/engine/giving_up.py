"""Ending a simulation early: once it is certain to take too long, nothing else about it matters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipesim.ir.actions import Lowered, Op

_NUM_LOOKS = 32


class TooLongError(Exception):
    """The step takes at least `least_s`, which is more than was asked for."""

    def __init__(self, least_s: float) -> None:
        super().__init__(least_s)
        self.least_s = least_s


@dataclass(frozen=True, slots=True)
class GiveUp:
    """When to stop.

    Parameters
    ----------
    limit_s : float
        A step that takes longer need not be simulated to its end.
    left_s : array, shape (computations,)
        Seconds from the end of each computation to the end of the step at least, rank by rank.
    """

    limit_s: float
    left_s: npt.NDArray[np.float64]

    def looks_s(self) -> list[float]:
        """List the times at which to look."""
        return [self.limit_s * number / _NUM_LOOKS for number in range(1, _NUM_LOOKS)]

    def look(self, schedule: Lowered, end_s: Sequence[Any], now_s: float) -> None:
        """See how far each rank is.

        Parameters
        ----------
        schedule : Lowered
            What is simulated.
        end_s : sequence
            End of each of its rows; 0 of those that are still to come.
        now_s : float
            When it is.

        Raises
        ------
        TooLongError
            If it is certain to take longer than `limit_s`.
        """
        computing = np.flatnonzero(schedule.op <= Op.W)
        ends = np.array(end_s, np.float64)[computing]
        bounds = np.searchsorted(computing, schedule.offsets)
        least_s: float = 0
        for first, after in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            done = np.flatnonzero(ends[first:after] > 0)
            if len(done):
                last = first + int(done[-1])
                least_s = max(least_s, ends[last] + self.left_s[last])
                if last + 1 < after:
                    least_s = max(least_s, now_s + self.left_s[last + 1])
        if least_s > self.limit_s:
            raise TooLongError(least_s)
