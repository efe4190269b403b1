"""A schedule and what it costs in a scenario: all that a prediction is made of but the times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from pipesim.costs import CostTable
from pipesim.device_memory import fits_headroom, fits_memory, peak_memory_by_rank
from pipesim.ir.actions import Schedule
from pipesim.prediction.programs import Laid
from pipesim.prediction.result import Asynchrony
from pipesim.scenario import ResolvedScenario
from pipesim.schedules import Shape
from pipesim.timing.longest_path import StepProgram


class PeakMemory(NamedTuple):
    """Bytes of the fullest device, and whether every rank's fit: None as in `pipesim.metrics.StepMetrics`."""

    most_bytes: float | None
    fits: bool | None
    fits_headroom: bool | None


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """All that a prediction is made of but the times.

    Parameters
    ----------
    scenario : ResolvedScenario
        What was asked.
    laid : Laid
        The schedule.
    costs : CostTable
        For the schedule: with every version of the weights and both copies of the model.
    shape : Shape, optional
        What the schedule was generated for; None of a CSV.
    asynchrony : Asynchrony, optional
        None where all microbatches see the same weights.
    notes : tuple of str
        Frameworks that would refuse the schedule at this shape.
    choices : Mapping of str to str
        What the schedule chose where the shape leaves it open, by key of the scenario.
    """

    scenario: ResolvedScenario
    laid: Laid
    costs: CostTable
    shape: Shape | None
    asynchrony: Asynchrony | None
    notes: tuple[str, ...]
    choices: Mapping[str, str] = field(default_factory=dict)

    @property
    def schedule(self) -> Schedule:
        """The schedule, compute only."""
        return self.laid.schedule

    @property
    def program(self) -> StepProgram:
        """All of a step that the schedule's order decides, for the compiled evaluator."""
        return self.laid.program(tied_embedding=self.costs.tied_embedding is not None)

    @property
    def peak_memory(self) -> PeakMemory:
        """What the fullest device takes, by the order alone."""
        by_rank, costs = peak_memory_by_rank(self.schedule, self.costs), self.costs
        most = None if by_rank is None else max(by_rank)
        return PeakMemory(most, fits_memory(by_rank, costs), fits_headroom(by_rank, costs))
