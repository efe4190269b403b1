"""What a prediction is: numbers as floats, tables as frames, pictures as figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Literal

from pipesim.costs import CostTable
from pipesim.ir import Shape
from pipesim.ir.actions import Schedule
from pipesim.ir.timeline import Timeline
from pipesim.metrics import StepMetrics, rank_frame
from pipesim.prediction.step_breakdown import step_breakdown
from pipesim.scenario import ResolvedScenario
from pipesim.scenario.domain import Band, band_of
from pipesim.scenario.layers import uneven_words
from pipesim.schedules.frameworks import FRAMEWORKS, check_schedule, skip_refusals, verdict

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

TimedBy = Literal["engine", "compiled", "compiled alone"]
"""What timed a prediction; alone: as if nothing shared a wire, though something does."""


@dataclass(frozen=True, slots=True)
class Asynchrony:
    """What an asynchronous schedule trades: each rank's weight versions, and updates a gradient is late.

    `steady_period_s` is the time of m microbatches in the middle of a long run; the result's makespan is that
    of a first and only step, pipeline empty to pipeline empty.
    """

    weight_versions: tuple[int, ...]
    staleness: tuple[int, ...]
    steady_period_s: float | None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Prediction:
    """One step of one schedule in one scenario.

    Parameters
    ----------
    scenario : ResolvedScenario
        What was asked.
    schedule : Schedule
        Compute only.
    costs : CostTable
        For the schedule's number of stages.
    events : Timeline
        One replica; alike replicas run alike.
    metrics : StepMetrics
        Numbers of the timeline.
    asynchrony : Asynchrony, optional
        None where all microbatches see the same weights.
    notes : tuple of str
        Frameworks that would refuse the schedule at this shape.
    shape : Shape, optional
        What the schedule was generated for; None of a CSV.
    timed_by : {"engine", "compiled", "compiled alone"}
        What timed it.
    choices : Mapping of str to str
        What the schedule chose where the shape leaves it open, by key of the scenario.
    """

    scenario: ResolvedScenario
    schedule: Schedule
    costs: CostTable
    events: Timeline
    metrics: StepMetrics
    asynchrony: Asynchrony | None
    notes: tuple[str, ...]
    shape: Shape | None
    timed_by: TimedBy
    choices: Mapping[str, str]

    @property
    def step_time_s(self) -> float:
        """Seconds of a step: makespan, exposed gradient synchronisation and optimizer."""
        return self.metrics.step_time_s

    @property
    def makespan_s(self) -> float:
        """Seconds from the first start to the last end of a computation."""
        return self.metrics.makespan_s

    @property
    def bubble_ratio(self) -> float:
        """Idle time over ranks x makespan, in [0, 1)."""
        return self.metrics.bubble_ratio

    @property
    def memory(self) -> float | None:
        """Bytes that the fullest device needs; None where the scenario states none of activations."""
        return self.metrics.peak_memory_bytes

    @property
    def fits(self) -> bool | None:
        """Whether every rank's peak fits its devices; None where the scenario does not tell."""
        return self.metrics.fits_memory

    @property
    def band_s(self) -> tuple[float, float] | None:
        """Least and greatest step time of nine in ten; None where nobody measured."""
        return None if self.band is None else self.band.around(float(self.step_time_s))

    @property
    def band(self) -> Band | None:
        """How sure the step time is, and what that rests on; None where nobody measured."""
        return band_of(self.scenario, self.schedule.name)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is legal and yet probably not what was meant, or rests on borrowed numbers."""
        alone = ("timed as if nothing shared a wire",) if self.timed_by == "compiled alone" else ()
        band = self.band
        is_beyond = band is not None and (band.extrapolated or band.is_new_schedule)
        beyond = (band.warning,) if band is not None and is_beyond else ()
        uneven = uneven_words(self.scenario, self.costs.num_stages)
        return (*self.scenario.warnings, *([uneven] if uneven else []), *beyond, *alone)

    @property
    def inferred(self) -> dict[str, str]:
        """What was inferred or taken by default on the way, by key, in words."""
        return {**self.scenario.echo, **self.choices, **self.costs.provenance}

    @property
    def frameworks(self) -> tuple[str, ...]:
        """Frameworks that run the schedule when asked for it by name; of a CSV, those that run that order."""
        if self.shape is None:
            return tuple(name for name in FRAMEWORKS if not check_schedule(self.schedule, name))
        known = (n for n in FRAMEWORKS if verdict(self.schedule.name, self.shape, n).accepts)
        return tuple(name for name in known if not skip_refusals(self.schedule, name))

    @property
    def synchronous(self) -> bool:
        """All microbatches see the same weights."""
        return self.asynchrony is None

    @property
    def label(self) -> str:
        """Name of the schedule, with its chunks where it has more than one."""
        chunks = self.metrics.num_chunks
        return self.schedule.name if chunks == 1 else f"{self.schedule.name} v{chunks}"

    @property
    def breakdown(self) -> dict[str, Any]:
        """Parts of the step time, and what of a measured one they leave; see `step_breakdown`."""
        return step_breakdown(self.metrics, self.schedule, self.costs, self.scenario)

    @property
    def ranks(self) -> pd.DataFrame:
        """One line a rank: busy, idle and its causes in seconds, bubble ratio, peaks."""
        return rank_frame(self.metrics)

    @property
    def timeline(self) -> pd.DataFrame:
        """One line an action of a rank; see `pipesim.ir.timeline.Timeline`."""
        return self.events.to_frame()

    def gantt(self, *, window: tuple[float, float] = (0.0, 1.0)) -> Figure:
        """Draw who computes what, when, in a part of the step given as shares of it."""
        from pipesim.show.figures import TimeWindow, plot_gantt

        return plot_gantt(self, window=TimeWindow(*window))

    def memory_plot(self) -> Figure:
        """Draw the memory of each rank over the step."""
        from pipesim.show.figures import plot_memory

        return plot_memory(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: the metrics, and what was inferred on the way."""
        return {
            **_plain(asdict(self.metrics)),
            "step_time_band_s": _plain(self.band_s),
            "step_time_band": None if self.band is None else _plain(asdict(self.band)),
            "step_breakdown": _plain(self.breakdown),
            "synchronous": self.synchronous,
            "asynchrony": None if self.asynchrony is None else _plain(asdict(self.asynchrony)),
            "frameworks": list(self.frameworks),
            "timed_by": self.timed_by,
            "notes": list(self.notes),
            "inferred": self.inferred,
            "warnings": list(self.warnings),
        }

    def _repr_html_(self) -> str:
        from pipesim.show.result_tables import short_table

        said = "".join(f"<p>{escape(words)}</p>" for words in (*self.warnings, *self.notes))
        return short_table(self).to_html() + said

    def __repr__(self) -> str:
        memory = "" if self.memory is None else f", {self.memory / 1e9:.4g} GB"
        return (
            f"<Prediction {self.scenario.name}: {self.label}, step {float(self.step_time_s):.6g} s, "
            f"bubble ratio {float(self.bubble_ratio):.4f}{memory}>"
        )


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if value is None or isinstance(value, str | bool | int):
        return value
    return float(value)
