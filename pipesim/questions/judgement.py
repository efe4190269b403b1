"""What to run: the one judgement of results side by side that compare, plan and report speak."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal

from pipesim.prediction.differences import CLOSE, SHARE_OF_DIFFERENCE
from pipesim.schedules.frameworks import find_framework, runs_only_as_csv
from pipesim.show.held import held_at_most
from pipesim.show.protocols import R, TimedRun

SCHEDULE_BAND = LAYOUT_BAND = CLOSE
"""Nine of ten published pairs of schedules or of layouts that are close lie within this share of what is
predicted of them; see `pipesim.prediction.differences`."""
_ROUNDING = 1e-9
"""Step times that differ by less are one: the rounding of sums in another order."""

Standing = Literal["fits", "no headroom", "does not fit", "asynchronous"]
RunsBy = Literal["name", "csv", ""]
_RUN_ORDER: dict[RunsBy, int] = {"name": 0, "csv": 1, "": 2}
_LINES: dict[Standing, int] = {"fits": 0, "no headroom": 0, "does not fit": 1, "asynchronous": 2}
"""Which rows stand together in a table."""


@dataclass(frozen=True, slots=True)
class JudgedResult(Generic[R]):
    """A result, as advice sees it.

    Parameters
    ----------
    run : TimedRun
        The result.
    standing : {"fits", "no headroom", "does not fit", "asynchronous"}
        Whether it can be advised; what states no memory fits. An asynchronous schedule trains differently.
    runs_by : {"name", "csv", ""}
        How the framework that was asked for runs it, any framework if none was; torch loads orders as CSV.
    tie : bool
        Its step time differs from the recommended one's by no more than predictions can tell apart.
    """

    run: R
    standing: Standing
    runs_by: RunsBy
    tie: bool


@dataclass(frozen=True, slots=True)
class MemoryRoom:
    """Memory of the fullest device: what it has, what tensors can use of it, what the run takes."""

    peak_bytes: float
    limit_bytes: float
    usable_bytes: float

    @property
    def free_share(self) -> float:
        """Share of the usable memory that is left; negative where more is needed."""
        return 1 - self.peak_bytes / self.usable_bytes if self.usable_bytes else -1.0


@dataclass(frozen=True, slots=True)
class Judgement(Generic[R]):
    """Which of some results to run.

    Parameters
    ----------
    recommended : TimedRun
        The fastest that runs in the framework and leaves the headroom; of ties, one that a framework runs by
        name, then the one in use, then the fastest. Where nothing leaves the headroom, the fastest that fits;
        where nothing fits, what needs the least memory.
    own : TimedRun, optional
        What is in use, one of the results or not.
    rows : tuple of JudgedResult
        All results: what fits, the fastest first, then what does not and what is asynchronous.
    framework : str, optional
        The one asked for.
    band : float
        Share by which two step times must differ to be told apart.
    """

    recommended: R
    own: R | None
    rows: tuple[JudgedResult[R], ...]
    framework: str | None
    band: float

    @property
    def best(self) -> JudgedResult[R]:
        """The recommended row."""
        return next(row for row in self.rows if row.run is self.recommended)

    @property
    def ties(self) -> tuple[JudgedResult[R], ...]:
        """Rows that can be advised too and differ by no more than predictions can tell apart."""
        best = self.best
        alike = [row for row in self.rows if row.tie and row is not best and row.standing == best.standing]
        return tuple(row for row in alike if self.framework is None or row.runs_by or not best.runs_by)

    @property
    def gain(self) -> float | None:
        """Share of the own step time that the recommended one saves; negative where it takes longer."""
        if self.own is None:
            return None
        return 1 - _seconds(self.recommended) / _seconds(self.own)

    @property
    def gain_band(self) -> float:
        """Share by which nine of ten savings of this size are off; 0 where times are stated."""
        if self.gain is None or not self.band:
            return 0.0
        return math.hypot(self.band, SHARE_OF_DIFFERENCE * math.log(1 - self.gain))

    @property
    def gain_is_clear(self) -> bool:
        """Whether the saving is more than predictions can tell apart."""
        return self.gain is not None and abs(self.gain) > self.gain_band

    @property
    def runs_in_framework(self) -> bool:
        """Whether the framework asked for, any if none was, runs the recommended one."""
        return self.best.runs_by != ""

    @property
    def limits(self) -> tuple[tuple[str, float], ...]:
        """Parts of the recommended step by key, with their shares of it: computing, then the largest."""
        return _shares(self.recommended.breakdown)

    @property
    def memory(self) -> MemoryRoom | None:
        """Memory of the recommended one's fullest device; None where the scenario states none."""
        return memory_room(self.recommended)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        best, memory = self.best, self.memory
        return {
            "recommended": best.run.label,
            "step_time_s": _seconds(best.run),
            "standing": best.standing,
            "runs_by": best.runs_by,
            "framework": self.framework,
            "frameworks": list(best.run.frameworks),
            "scenario_schedule": None if self.own is None else self.own.label,
            "saved_share": self.gain,
            "saved_share_band": self.gain_band,
            "band": self.band,
            "ties": [row.run.label for row in self.ties],
            "limits": dict(self.limits),
            "usable_memory_bytes": None if memory is None else memory.usable_bytes,
            "free_memory_share": None if memory is None else memory.free_share,
        }


def judge(
    runs: Sequence[R], *, own: R | None = None, framework: str | None = None, band: float = SCHEDULE_BAND
) -> Judgement[R]:
    """Choose what to run.

    Parameters
    ----------
    runs : sequence of TimedRun
        At least one, all of one scenario or of cuts of one.
    own : TimedRun, optional
        What is in use.
    framework : str, optional
        In which it is to run; what it does not run is advised only where it runs none of them.
    band : float
        Share within which predicted step times are not told apart; narrowed to the error band of the
        scenario's efficiency, and to nothing for times that a scenario states.

    Raises
    ------
    ScheduleError
        If the framework is unknown.
    """
    wanted = None if framework is None else find_framework(framework)
    band = _band_of(runs[0], band)
    by = {id(run): _runs_by(run, wanted) for run in runs}
    standing = {id(run): _standing(run) for run in runs}
    pool: Sequence[R] = [run for run in runs if run.synchronous] or runs
    if wanted is not None:
        by_name = [run for run in pool if by[id(run)] == "name"]
        pool = by_name or [run for run in pool if by[id(run)] == "csv"] or pool
    fitting = [run for run in pool if run.metrics.fits_memory is not False]
    roomy = [run for run in fitting if run.metrics.fits_headroom is not False]
    if candidates := roomy or fitting:
        limit_s = min(map(_seconds, candidates)) * (1 + max(band, _ROUNDING))
        tied = [run for run in candidates if _seconds(run) <= limit_s]
        best = min(tied, key=lambda run: (_RUN_ORDER[by[id(run)]], run is not own, *_speed(run)))
    else:
        best = min(pool, key=held_at_most)
    rows = [JudgedResult(run, standing[id(run)], by[id(run)], _tie(run, best, band)) for run in runs]
    rows.sort(key=lambda row: (_LINES[row.standing], _seconds(row.run)))
    return Judgement(best, own, tuple(rows), wanted, band)


def memory_room(run: TimedRun) -> MemoryRoom | None:
    """Memory of a run's device that has the smallest share left; None where the scenario states none."""
    kept_free, rooms = run.scenario.kept_free, []
    for rank in run.metrics.ranks:
        limit_bytes = run.costs.of_ranks.get(rank.rank, run.costs).memory_limit_bytes
        if rank.peak_memory_bytes is not None and limit_bytes is not None:
            usable_bytes = kept_free.usable_bytes(limit_bytes)
            rooms.append(MemoryRoom(float(rank.peak_memory_bytes), limit_bytes, usable_bytes))
    return min(rooms, key=lambda room: room.free_share, default=None)


def _runs_by(run: TimedRun, wanted: str | None) -> RunsBy:
    if run.frameworks if wanted is None else wanted in run.frameworks:
        return "name"
    loads_csv = wanted in (None, "torch") and run.shape is not None and runs_only_as_csv(run.schedule)
    return "csv" if loads_csv else ""


def _standing(run: TimedRun) -> Standing:
    if not run.synchronous:
        return "asynchronous"
    if run.metrics.fits_memory is False:
        return "does not fit"
    return "no headroom" if run.metrics.fits_headroom is False else "fits"


def _band_of(run: TimedRun, band: float) -> float:
    if run.scenario.costs is not None:
        return 0.0
    efficiency = run.scenario.efficiency
    known = None if efficiency is None else efficiency.error_band
    return band if known is None else min(band, known)


def _tie(run: TimedRun, best: TimedRun, band: float) -> bool:
    return abs(_seconds(run) / _seconds(best) - 1) <= max(band, _ROUNDING)


def _speed(run: TimedRun) -> tuple[float, float]:
    """Sort key: the fastest first, of equal ones that of least memory; sums in another order are equal."""
    return float(f"{_seconds(run):.9g}"), held_at_most(run)


def _seconds(run: TimedRun) -> float:
    return float(run.metrics.step_time_s)


def _shares(breakdown: Mapping[str, Any]) -> tuple[tuple[str, float], ...]:
    parts = {key: float(value) for key, value in breakdown.items() if value and key != "not_explained_s"}
    total = sum(parts.values())
    order = sorted(parts, key=lambda key: (key != "compute_s", -parts[key]))
    return tuple((key, parts[key] / total) for key in order)
