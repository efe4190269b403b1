"""Two orders run in turn, so that a machine that drifts is as unkind to the one as to the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import comb
from typing import Any

import numpy as np
import numpy.typing as npt

from pipesim.executor import Run

LEAST_ROUNDS = 10
MOST_DISTURBED = 0.5
"""Share of rounds with disturbed steps from which on only clear wins or losses are concluded."""
CLEAR = 0.05
"""Chance that a coin falls on one side so often or more: below, the rounds agree."""


@dataclass(frozen=True, slots=True)
class PairedRuns:
    """Median steps of each round.

    Parameters
    ----------
    before_s, after_s : array, shape (rounds,)
        Of the order in use and of the new one, in seconds.
    num_disturbed : int
        Rounds in which other work on the machine disturbed all steps of one of them.
    """

    before_s: npt.NDArray[np.float64]
    after_s: npt.NDArray[np.float64]
    num_disturbed: int

    @property
    def gain(self) -> float:
        """Median over the rounds of the share of a step that the new order saves."""
        return float(np.median(1 - self.after_s / self.before_s))

    @property
    def wins(self) -> int:
        """Rounds that the new order won."""
        return int((self.after_s < self.before_s).sum())

    @property
    def conclusive(self) -> bool:
        """Whether the machine left enough rounds alone to tell, or they agree for all that (sign test)."""
        rounds = len(self.before_s)
        more = max(self.wins, rounds - self.wins)
        by_chance = 2 * sum(comb(rounds, number) for number in range(more, rounds + 1)) / 2**rounds
        return self.num_disturbed <= MOST_DISTURBED * rounds or by_chance < CLEAR

    @property
    def lost(self) -> bool:
        """Whether the new order was no faster."""
        return self.gain <= 0 or 2 * self.wins <= len(self.before_s)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "rounds": len(self.before_s),
            "before_s": float(np.median(self.before_s)),
            "after_s": float(np.median(self.after_s)),
            "gain": self.gain,
            "wins": self.wins,
            "disturbed_rounds": self.num_disturbed,
            "conclusive": self.conclusive,
            "lost": self.lost,
        }


def run_in_turn(
    before: Callable[[], Run],
    after: Callable[[], Run],
    *,
    num_rounds: int,
    progress: Callable[[str], None] = lambda _: None,
) -> PairedRuns:
    """Run both in every round, the one that goes first by turns.

    Parameters
    ----------
    before, after : Callable
        Run the order in use, and the new one, for a few steps.
    num_rounds : int
        At least `LEAST_ROUNDS` tell gains from noise.
    progress : Callable
        Told which round runs.
    """
    rows, num_disturbed = [], 0
    for number in range(num_rounds):
        progress(f"round {number + 1} of {num_rounds}")
        both = [before, after] if number % 2 == 0 else [after, before]
        runs = [one() for one in both]
        num_disturbed += any(not run.undisturbed_steps for run in runs)
        seconds = [_median_step_s(run) for run in runs]
        rows.append(seconds if number % 2 == 0 else seconds[::-1])
    before_s, after_s = np.array(rows).T
    return PairedRuns(before_s, after_s, num_disturbed)


def _median_step_s(run: Run) -> float:
    """From the first start to the last end of a computation, over the steps that count."""
    lasted = []
    for step in run.undisturbed_steps or range(run.num_steps):
        timeline = run.step(step)
        computing = timeline.select(timeline.compute)
        lasted.append(float(computing.end_s.max() - computing.start_s.min()))
    return float(np.median(lasted))
