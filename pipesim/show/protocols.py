"""What is shown, whoever made it: a run of one schedule, and several side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

from pipesim.costs import CostTable
from pipesim.ir.actions import Schedule
from pipesim.ir.timeline import Timeline
from pipesim.metrics import StepMetrics
from pipesim.scenario import ResolvedScenario
from pipesim.schedules import Shape

# ruff: noqa: D102


class LateUpdates(Protocol):
    """What an asynchronous schedule trades for its idle time."""

    @property
    def weight_versions(self) -> tuple[int, ...]: ...
    @property
    def staleness(self) -> tuple[int, ...]: ...
    @property
    def steady_period_s(self) -> float | None: ...


class TimedRun(Protocol):
    """A schedule that was timed in a scenario."""

    @property
    def scenario(self) -> ResolvedScenario: ...
    @property
    def schedule(self) -> Schedule: ...
    @property
    def costs(self) -> CostTable: ...
    @property
    def events(self) -> Timeline: ...
    @property
    def metrics(self) -> StepMetrics: ...
    @property
    def label(self) -> str: ...
    @property
    def frameworks(self) -> tuple[str, ...]: ...
    @property
    def notes(self) -> tuple[str, ...]: ...
    @property
    def breakdown(self) -> Mapping[str, Any]: ...
    @property
    def band_s(self) -> tuple[float, float] | None: ...
    @property
    def synchronous(self) -> bool: ...
    @property
    def asynchrony(self) -> LateUpdates | None: ...
    @property
    def shape(self) -> Shape | None: ...


R = TypeVar("R", bound=TimedRun)
R_co = TypeVar("R_co", bound=TimedRun, covariant=True)


class CannotRun(Protocol):
    """A schedule that cannot run."""

    @property
    def schedule(self) -> str: ...
    @property
    def reason(self) -> str: ...


class ComparedRuns(Protocol[R_co]):
    """Runs side by side, and what cannot run."""

    @property
    def results(self) -> Sequence[R_co]: ...
    @property
    def skipped(self) -> Sequence[CannotRun]: ...
    @property
    def one_chunk_note(self) -> str: ...
    def to_dict(self) -> dict[str, Any]: ...


class MemoryChange(Protocol):
    """Another value of a key, as text, and the memory it leads to."""

    @property
    def peak_memory_bytes(self) -> float: ...
    @property
    def fits(self) -> bool: ...
