"""All schedules of a scenario side by side, and those that cannot run with the reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pipesim.errors import InfeasibleError, PipesimError, ScenarioError
from pipesim.prediction import (
    Prediction,
    Prepared,
    Programs,
    Repeats,
    Timing,
    predict,
    predict_prepared,
    prepare,
    repeat,
)
from pipesim.questions.chunk_advice import one_chunk_note
from pipesim.questions.judgement import Judgement, judge
from pipesim.scenario import ResolvedScenario, need_scenario
from pipesim.schedules import Family, families_named, family
from pipesim.schedules.frameworks import find_framework
from pipesim.second_process import SecondProcess

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_SAME_DIGITS = 12
_SHORT = 12
"""Lines that a notebook shows of a table."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A schedule that cannot run in the scenario."""

    schedule: str
    reason: str


@dataclass(frozen=True, slots=True, repr=False)
class Comparison:
    """Predictions, and what was left out.

    In the order asked for; where all ran, in that of `rank_in_table`.
    """

    results: tuple[Prediction, ...]
    skipped: tuple[Skipped, ...]
    judged: Judgement[Prediction]
    """Which to run."""
    repeats: tuple[Repeats, ...] = ()
    """Of each result, where the schedules were run over and over."""
    own_refusal: str = ""
    """Why the scenario's own schedule cannot run, where it cannot."""
    one_chunk_note: str = ""
    """Which schedules were compared with one chunk a rank only, and what to try; see `one_chunk_note`."""

    def same_timelines(self) -> list[list[Prediction]]:
        """Group the results whose ranks compute the same at the same times, and whose steps end together."""
        groups: dict[bytes, list[Prediction]] = {}
        for result in self.results:
            rows = result.events.select(result.events.compute)
            step_time_s = float(result.metrics.step_time_s)
            start, end = (times.astype(float) / step_time_s for times in (rows.start_s, rows.end_s))
            order = np.lexsort((start, rows.rank))
            columns = (rows.rank, rows.op, rows.stage, rows.microbatch, rows.slice, start, end)
            bits = [column[order].astype(float).round(_SAME_DIGITS).tobytes() for column in columns]
            groups.setdefault(b"".join([f"{step_time_s:.{_SAME_DIGITS}g}".encode(), *bits]), []).append(
                result
            )
        return list(groups.values())

    @property
    def frame(self) -> pd.DataFrame:
        """One line a schedule, in the order of `results`: times in s, memory in bytes."""
        import pandas as pd

        return pd.DataFrame([_line(result) for result in self.results])

    def gantt(self, at_most: int | None = 6, *, window: tuple[float, float] = (0.0, 1.0)) -> Figure:
        """Draw the first timelines that differ, one under the other.

        Parameters
        ----------
        at_most : int, optional
            So many; None: all of them.
        window : tuple of float
            Part of the longest step that is drawn, as shares of it.
        """
        from pipesim.show.figures import TimeWindow, plot_gantt

        return plot_gantt(*self.same_timelines()[:at_most], window=TimeWindow(*window))

    def __repr__(self) -> str:
        return f"{self.frame.to_string(max_rows=_SHORT)}\n{len(self.skipped)} skipped"

    def _repr_html_(self) -> str:
        return f"{self.frame.to_html(max_rows=_SHORT)}<p>{len(self.skipped)} skipped</p>"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        results = [result.to_dict() for result in self.results]
        for entry, repeats in zip(results, self.repeats, strict=False):
            entry["repeats"] = asdict(repeats)
        return {
            "results": results,
            "skipped": [{"schedule": s.schedule, "reason": s.reason} for s in self.skipped],
            "judgement": self.judged.to_dict(),
            "notes": [self.one_chunk_note] if self.one_chunk_note else [],
        }


def _line(result: Prediction) -> dict[str, Any]:
    return {
        "schedule": result.label,
        "step_time_s": float(result.step_time_s),
        "bubble_ratio": float(result.bubble_ratio),
        "memory": result.memory,
        "fits": result.fits,
        "tokens_per_s": result.metrics.tokens_per_s,
        "synchronous": result.synchronous,
    }


def compare(
    scenario: ResolvedScenario,
    *,
    schedules: str | Sequence[str] = (),
    chunks: int | Sequence[int] = (),
    num_repeats: int | None = None,
    framework: str | None = None,
    timing: Timing = "engine",
    second: SecondProcess | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Comparison:
    """Simulate schedules of the registry in one scenario.

    Parameters
    ----------
    scenario : ResolvedScenario
        Sizes and costs. A CSV schedule that it names is compared too.
    schedules : str or sequence of str
        Names of the registry; all by default.
    chunks : int or sequence of int
        Chunks a rank for schedules that leave the choice; by default the scenario's.
    num_repeats : int, optional
        Steps to draw of each schedule, where the scenario has jitter; see `pipesim.prediction.repeat`.
    framework : str, optional
        In which the advised schedule is to run: megatron, torch or deepspeed. How much memory it leaves free
        is the scenario's `headroom`.
    timing : {"engine", "fast", "compiled"}
        What times them; see `pipesim.prediction.predict`.
    second : SecondProcess, optional
        Where an order is searched for while the others run.
    progress : Callable
        Told the name of each run before it starts.

    Raises
    ------
    ScheduleError
        If a name is unknown, of a schedule or a framework.
    ScenarioError
        If a number of chunks is not positive.
    InfeasibleError
        If not one schedule can run.
    """
    need_scenario(scenario)
    chosen = families_named(schedules)
    wanted = None if framework is None else find_framework(framework)
    ran: list[tuple[Prediction, Prepared]] = []
    skipped: list[Skipped] = []
    open_to_chunks: list[str] = []
    programs = Programs()
    if scenario.schedule.csv is not None:
        prepared = prepare(scenario)
        ran.append((predict_prepared(prepared, timing=timing), prepared))
    runs = [(one, count) for one in chosen for count in chunk_counts(one, chunks, scenario)]
    elsewhere = {
        place: second.prepare(scenario, one.name, count)
        for place, (one, count) in enumerate(runs)
        if second and one.searches
    }
    outcomes: dict[int, tuple[Prediction, Prepared] | Skipped] = {}
    for place in sorted(range(len(runs)), key=lambda place: place in elsewhere):
        one, num_chunks = runs[place]
        label = one.name if num_chunks == 1 else f"{one.name} v{num_chunks}"
        progress(label)
        try:
            found = elsewhere[place]() if place in elsewhere else None
            prepared = found or prepare(scenario, one.name, num_chunks=num_chunks, programs=programs)
            outcomes[place] = predict_prepared(prepared, timing=timing), prepared
        except PipesimError as error:
            outcomes[place] = Skipped(label, error.headline)
    for place, (one, num_chunks) in enumerate(runs):
        outcome = outcomes[place]
        if isinstance(outcome, Skipped):
            skipped.append(outcome)
            continue
        ran.append(outcome)
        if one.chunks is None and num_chunks == 1:
            open_to_chunks.append(one.name)
    if not ran:
        reasons = "".join(f"\n  {s.schedule}: {s.reason}" for s in skipped)
        raise InfeasibleError(f"no schedule can run in this scenario:{reasons}")
    if not schedules:
        ran.sort(key=lambda one: rank_in_table(one[0]))
    note = "" if chunks else one_chunk_note(scenario, open_to_chunks, [result for result, _ in ran])
    repeats = []
    for result, prepared in ran if num_repeats is not None else ():
        progress(f"{result.label}, {num_repeats} times")
        repeats.append(repeat(prepared, num_repeats or 0))
    results = [result for result, _ in ran]
    own, refusal = _own(scenario, results, timing)
    judged = judge(results, own=own, framework=wanted)
    return Comparison(tuple(results), tuple(skipped), judged, tuple(repeats), refusal, note)


def _own(
    scenario: ResolvedScenario, results: Sequence[Prediction], timing: Timing
) -> tuple[Prediction | None, str]:
    """Find the scenario's own schedule among results, or predict it; else say why it cannot run."""
    name, options = scenario.schedule.name, scenario.schedule.options
    if name is None:
        return next(result for result in results if result.shape is None), ""
    fixed = family(name).chunks
    num_chunks = scenario.parallel.virtual_stages if fixed is None else fixed
    for result in results if not options else ():
        if result.schedule.name == family(name).name and result.metrics.num_chunks == num_chunks:
            return result, ""
    try:
        return predict(scenario, timing=timing), ""
    except PipesimError as error:
        if options:  # stated for this very schedule, so a mistake rather than an answer
            raise
        return None, error.headline


def rank_in_table(result: Prediction) -> tuple[bool, bool, Any]:
    """Sort key: what fits in memory first, asynchronous at the end of both, the fastest first."""
    return result.metrics.fits_memory is False, not result.synchronous, result.metrics.step_time_s


def chunk_counts(one: Family, asked: int | Sequence[int], scenario: ResolvedScenario) -> list[int]:
    """Chunks a rank to try: the schedule's own number, else those asked for, else the scenario's.

    Raises
    ------
    ScenarioError
        If a number is not positive.
    """
    counts = list(dict.fromkeys([asked] if isinstance(asked, int) else asked))
    if odd := [value for value in counts if value < 1]:
        raise ScenarioError(f"found {odd[0]}; a rank holds at least one chunk", key="--chunks")
    if one.chunks is not None:
        return [one.chunks]
    return counts or [scenario.parallel.virtual_stages]
