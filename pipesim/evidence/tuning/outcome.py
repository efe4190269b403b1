"""What tuning found: the order in use, the best named one, the best searched one, and which to run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipesim.evidence.tuning.candidates import CandidateOrder
from pipesim.evidence.tuning.paired_runs import PairedRuns
from pipesim.files import write_text
from pipesim.ir.actions import Schedule
from pipesim.prediction import load_csv

TIE = 0.01
"""A searched order must be faster than a named one by more, and any order than the one in use."""


@dataclass(frozen=True, slots=True, eq=False)
class RatedOrder:
    """One order, and its steps under drawn hops, shape (draws,), in seconds."""

    candidate: CandidateOrder
    drawn_s: npt.NDArray[np.float64]

    @property
    def label(self) -> str:
        """As `CandidateOrder.label`."""
        return self.candidate.label

    @property
    def step_time_s(self) -> float:
        """Mean over the draws."""
        return float(self.drawn_s.mean())

    @property
    def order(self) -> Schedule:
        """Compute only."""
        return self.candidate.order

    def gain_over(self, other: RatedOrder) -> npt.NDArray[np.float64]:
        """Give the share of the other's step that is saved, in each draw."""
        return np.asarray(1 - self.drawn_s / other.drawn_s)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        metrics = self.candidate.prediction.metrics
        return {
            "schedule": self.order.name,
            "num_chunks": self.order.num_stages // self.order.num_ranks,
            "searched": self.candidate.searched,
            "step_time_s": self.step_time_s,
            "step_time_without_spread_s": float(metrics.step_time_s),
            "bubble_ratio": float(metrics.bubble_ratio),
            "peak_memory_bytes": metrics.peak_memory_bytes,
            "peak_in_flight": [rank.peak_in_flight for rank in metrics.ranks],
            "stages_of_rank": [self.order.stages_of(rank) for rank in range(self.order.num_ranks)],
        }


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tuning:
    """Which order to run, and why.

    Parameters
    ----------
    in_use : RatedOrder
        The scenario's own schedule.
    choices : tuple of RatedOrder
        The finalists, the fastest first, without the one in use.
    best : RatedOrder
        What to run: a searched order only if it beats the best named one by more than `TIE`, and anything
        only if it beats the one in use by more.
    paired : PairedRuns, optional
        Both, measured.
    notes : tuple of str
        What was assumed.
    """

    in_use: RatedOrder
    choices: tuple[RatedOrder, ...]
    best: RatedOrder
    paired: PairedRuns | None
    notes: tuple[str, ...]

    @property
    def best_named(self) -> RatedOrder:
        """The fastest finalist that was not searched, maybe the one in use."""
        plain = [one for one in (self.in_use, *self.choices) if not one.candidate.searched]
        return min(plain, key=lambda one: one.step_time_s)

    @property
    def kept(self) -> RatedOrder:
        """What to run after all: the order in use where the new one lost to it."""
        return self.in_use if self.paired is not None and self.paired.lost else self.best

    @property
    def gain(self) -> tuple[float, float, float]:
        """Predicted share of a step that `best` saves: median, and the range of nine draws of ten."""
        low, middle, high = np.percentile(self.best.gain_over(self.in_use), [5, 50, 95])
        return float(middle), float(low), float(high)

    def write(self, path: str | Path) -> None:
        """Write the order to run as torch's CSV.

        Raises
        ------
        ScenarioError
            If the place cannot be written to.
        """
        write_text(path, self.kept.order.to_csv(), reader=load_csv)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        middle, low, high = self.gain
        return {
            "in_use": self.in_use.to_dict(),
            "best": self.best.to_dict(),
            "kept": self.kept.to_dict(),
            "best_named": self.best_named.to_dict(),
            "choices": [one.to_dict() for one in self.choices],
            "predicted_gain": middle,
            "predicted_gain_range": [low, high],
            "measured": None if self.paired is None else self.paired.to_dict(),
            "notes": list(self.notes),
        }

    def __repr__(self) -> str:
        middle, low, high = self.gain
        return (
            f"<Tuning: {self.in_use.label} {self.in_use.step_time_s:.6g} s, {self.best.label} "
            f"{self.best.step_time_s:.6g} s; gain {middle:.1%} ({low:.1%} to {high:.1%})>"
        )
