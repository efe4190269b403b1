"""What an evaluation returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Spans:
    """Start and end of every row of a compute-only schedule, in the unit and number type of the durations."""

    start: list[Any] | npt.NDArray[np.float64]
    end: list[Any] | npt.NDArray[np.float64]

    @property
    def makespan(self) -> Any:
        """From the first start to the last end over all ranks."""
        if isinstance(self.start, np.ndarray):
            return float(np.max(self.end)) - float(self.start.min())
        return max(self.end) - min(self.start)
