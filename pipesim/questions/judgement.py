"""What to run: the one judgement of results side by side that compare, plan and report speak."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal

from pipesim.prediction import Difference, difference_of
from pipesim.schedules.frameworks import find_framework, runs_only_as_csv
from pipesim.show.held import held_at_most
from pipesim.show.protocols import R, TimedRun

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
    difference : Difference
        Its step time against the recommended one's, with the error of that.
    """

    run: R
    standing: Standing
    runs_by: RunsBy
    difference: Difference

    @property
    def tie(self) -> bool:
        """Whether its step time is no further from the recommended one's than predictions can tell apart."""
        return not self.difference.is_certain


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
    """

    recommended: R
    own: R | None
    rows: tuple[JudgedResult[R], ...]
    framework: str | None

    @property
    def best(self) -> JudgedResult[R]:
        """The recommended row."""
        return next(row for row in self.rows if row.run is self.recommended)

    @property
    def others(self) -> tuple[JudgedResult[R], ...]:
        """All rows but the recommended one, which differs from itself by nothing."""
        return tuple(row for row in self.rows if row.run is not self.recommended)

    @property
    def ties(self) -> tuple[JudgedResult[R], ...]:
        """Rows that can be advised too and differ by no more than predictions can tell apart."""
        best = self.best
        alike = [row for row in self.rows if row.tie and row is not best and row.standing == best.standing]
        return tuple(row for row in alike if self.framework is None or row.runs_by or not best.runs_by)

    @property
    def tie_band(self) -> float:
        """Share by which a tie may differ from the recommended one, the widest of them; 0 without ties."""
        return max((math.expm1(row.difference.half_width or 0.0) for row in self.ties), default=0.0)

    @property
    def gain(self) -> float | None:
        """Share of the own step time that the recommended one saves; negative where it takes longer."""
        return None if self.gain_difference is None else 0.0 - self.gain_difference.share

    @property
    def gain_difference(self) -> Difference | None:
        """The recommended step time against the own one."""
        return None if self.own is None else _difference(self.recommended, self.own)

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
        """Plain data for JSON; ``differences`` are of all others, in the order of `rows`."""
        best, memory, found = self.best, self.memory, self.gain_difference
        return {
            "recommended": best.run.label,
            "step_time_s": _seconds(best.run),
            "standing": best.standing,
            "runs_by": best.runs_by,
            "framework": self.framework,
            "frameworks": list(best.run.frameworks),
            "scenario_schedule": None if self.own is None else self.own.label,
            "saved_share": self.gain,
            "difference": None if found is None or self.own is best.run else found.to_dict(),
            "ties": [row.run.label for row in self.ties],
            "differences": [{"schedule": row.run.label, **row.difference.to_dict()} for row in self.others],
            "limits": dict(self.limits),
            "usable_memory_bytes": None if memory is None else memory.usable_bytes,
            "free_memory_share": None if memory is None else memory.free_share,
        }


def judge(runs: Sequence[R], *, own: R | None = None, framework: str | None = None) -> Judgement[R]:
    """Choose what to run.

    Parameters
    ----------
    runs : sequence of TimedRun
        At least one, all of one scenario or of cuts of one.
    own : TimedRun, optional
        What is in use.
    framework : str, optional
        In which it is to run; what it does not run is advised only where it runs none of them.

    Raises
    ------
    ScheduleError
        If the framework is unknown.
    """
    wanted = None if framework is None else find_framework(framework)
    by = {id(run): _runs_by(run, wanted) for run in runs}
    standing = {id(run): _standing(run) for run in runs}
    pool: Sequence[R] = [run for run in runs if run.synchronous] or runs
    if wanted is not None:
        by_name = [run for run in pool if by[id(run)] == "name"]
        pool = by_name or [run for run in pool if by[id(run)] == "csv"] or pool
    fitting = [run for run in pool if run.metrics.fits_memory is not False]
    roomy = [run for run in fitting if run.metrics.fits_headroom is not False]
    if candidates := roomy or fitting:
        fastest = min(candidates, key=_seconds)
        tied = [run for run in candidates if not _difference(run, fastest).is_certain]
        best = min(tied, key=lambda run: (_RUN_ORDER[by[id(run)]], run is not own, *_speed(run)))
    else:
        best = min(pool, key=held_at_most)
    rows = [JudgedResult(run, standing[id(run)], by[id(run)], _difference(run, best)) for run in runs]
    rows.sort(key=lambda row: (_LINES[row.standing], _seconds(row.run)))
    return Judgement(best, own, tuple(rows), wanted)


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


def _difference(first: TimedRun, second: TimedRun) -> Difference:
    log_ratio = math.log(_seconds(first) / _seconds(second))
    if first.scenario.costs is not None or second.scenario.costs is not None:
        return Difference(log_ratio, None)
    names = first.schedule.name, second.schedule.name
    return difference_of((first.scenario, names[0]), (second.scenario, names[1]), log_ratio)


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
