"""Calibrate on one schedule, run the others, predict them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from pipesim.costs import build_costs
from pipesim.errors import InfeasibleError, PipesimError, ScenarioError, ScheduleError
from pipesim.evidence.calibration.fit import MeasuredCosts
from pipesim.evidence.validation.runner import Runner
from pipesim.evidence.validation.validation_row import ValidationRow, label
from pipesim.executor import RankPool
from pipesim.executor.rank_processes import STALL_S, STARTUP_S
from pipesim.executor.running import check_runtime, share_one_gpu
from pipesim.executor.workload import num_chunks_of
from pipesim.ir.actions import Op
from pipesim.prediction import shape_of
from pipesim.questions.compare import Skipped, chunk_counts
from pipesim.questions.execution import check_room, check_runnable
from pipesim.scenario import ResolvedScenario, need_scenario
from pipesim.schedules import Family, families_named, generate

if TYPE_CHECKING:
    import pandas as pd

_MAIN = ("run", "measured_step_time_s", "predicted_step_time_s", "step_time_error", "disturbed")
_SHORT = 12
"""Lines that a notebook shows of a table."""


@dataclass(frozen=True, slots=True, repr=False)
class Validation:
    """Predictions beside runs.

    Parameters
    ----------
    device, calibrated_on : str
        Where, and the schedule that the costs come from.
    rows : tuple of ValidationRow
        One a schedule and number of microbatches.
    skipped : tuple of Skipped
        Schedules that were not run.
    calibrations : dict of int to MeasuredCosts
        By number of stages.
    environment : dict
        What it ran on.
    disturbed_calibration : tuple of str
        Runs that costs were taken from and that other work on the machine disturbed: nothing is concluded.
    """

    device: str
    calibrated_on: str
    rows: tuple[ValidationRow, ...]
    skipped: tuple[Skipped, ...]
    calibrations: dict[int, MeasuredCosts]
    environment: dict[str, str]
    disturbed_calibration: tuple[str, ...] = ()

    @property
    def frame(self) -> pd.DataFrame:
        """One line a schedule and number of microbatches: measured, predicted, errors."""
        import pandas as pd

        return pd.DataFrame([{"run": row.label, **row.to_dict()} for row in self.rows])

    def __repr__(self) -> str:
        return f"{self._short().to_string(max_rows=_SHORT)}\n{self._title()}"

    def _repr_html_(self) -> str:
        return f"{self._short().to_html(max_rows=_SHORT)}<p>{self._title()}</p>"

    def _short(self) -> pd.DataFrame:
        return self.frame[list(_MAIN)]

    def _title(self) -> str:
        return f"{self.device}, calibrated on {self.calibrated_on}; {len(self.skipped)} skipped"

    def summary(self) -> dict[str, Any]:
        """Median and largest errors; see `summary_of`."""
        counted = () if self.disturbed_calibration else self.rows
        return summary_of(counted) | {"disturbed_calibration": list(self.disturbed_calibration)}

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "device": self.device,
            "calibrated_on": self.calibrated_on,
            "rows": [row.to_dict() for row in self.rows],
            "skipped": [{"schedule": s.schedule, "reason": s.reason} for s in self.skipped],
            "summary": self.summary(),
            "calibrations": {str(stages): found.evidence for stages, found in self.calibrations.items()},
            "environment": self.environment,
        }


def summary_of(rows: Sequence[ValidationRow]) -> dict[str, Any]:
    """Median and largest errors over the rows that count: predicted ones with undisturbed steps."""
    counted = [row for row in rows if not row.calibrated_on and not row.disturbed]
    found: dict[str, Any] = {
        "num_rows": len(counted),
        "num_disturbed_rows": sum(row.disturbed for row in rows),
    }
    for name, errors in (
        ("step_time_error", [row.step_time_error for row in counted]),
        ("bubble_error", [row.bubble_error for row in counted]),
        ("replay_error_one_stage", [r.replay_error for r in counted if r.stages_per_rank == 1]),
        ("replay_error_more_stages", [r.replay_error for r in counted if r.stages_per_rank > 1]),
    ):
        sizes = np.abs(errors)
        found[f"median_{name}"] = float(np.median(sizes)) if len(sizes) else None
        found[f"max_{name}"] = float(sizes.max()) if len(sizes) else None
    return found


def validate(
    scenario: ResolvedScenario,
    *,
    device: str,
    calibrate_on: str = "gpipe",
    schedules: str | Sequence[str] = (),
    chunks: int | Sequence[int] = (),
    microbatches: int | Sequence[int] = (),
    model: str | None = None,
    num_steps: int = 10,
    warmup: int = 3,
    threads_per_rank: int = 1,
    stall_timeout_s: float = STALL_S,
    startup_timeout_s: float = STARTUP_S,
    runtime: str = "pipesim",
    retries: int = 2,
    pool: RankPool | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Validation:
    """Run schedules for real and predict them from a calibration on one of them.

    The calibration is one run of `calibrate_on`. What that never does (I and W, more stages a rank, messages
    of other sizes) comes from short runs of all forwards, then all backwards. All of that comes first and is
    fitted once; where it was disturbed nothing is concluded. On devices that compute, a few steps of the
    calibration between the schedules tell by how much the device has become slower or faster since.

    Parameters
    ----------
    scenario : ResolvedScenario
        Its model or, on the emulated device, its costs.
    device : {"cpu", "cuda", "emulated"}
        Where.
    calibrate_on : str
        A schedule with one stage a rank or with the scenario's chunks.
    schedules : str or sequence of str
        Schedules to predict; by default all that are legal and synchronous.
    chunks : int or sequence of int
        Chunks a rank, for schedules that leave the choice; by default the scenario's.
    microbatches : int or sequence of int
        By default the scenario's m, and half of it.
    model : str, optional
        In place of the scenario's transformer: ``cnn``, or ``module:factory``.
    num_steps, warmup, threads_per_rank : int
        See `pipesim.executor.running`.
    stall_timeout_s, startup_timeout_s : float
        See `pipesim.executor.running`.
    runtime : {"pipesim", "torch", "torch-named"}
        What runs the schedules; see `pipesim.executor.running`.
    retries : int
        How often a run with fewer than three undisturbed steps is repeated.
    pool, progress : RankPool, optional; Callable
        Processes to use; told what runs next.

    Raises
    ------
    PipesimError
        If scenario, model and device do not go together, a run fails, or no schedule can run.
    """
    need_scenario(scenario)
    check_runnable(scenario, device)
    check_runtime(runtime)
    _refuse_skips(scenario)
    check_room(scenario, device, model, num_replicas=scenario.parallel.data, num_steps=num_steps)
    asked = _asked(scenario, schedules, chunks, microbatches)
    with ExitStack() as stack:
        num_processes = max(2, scenario.parallel.pipeline * scenario.parallel.data)
        if pool is None and not share_one_gpu(device, num_processes):
            pool = stack.enter_context(
                RankPool(
                    num_processes,
                    stall_timeout_s=stall_timeout_s,
                    startup_timeout_s=startup_timeout_s,
                    threads_per_rank=threads_per_rank,
                )
            )
        runner = Runner(scenario, device, model, num_steps, warmup, retries, pool, progress, runtime)
        base = calibrate_on, scenario.batch.num_microbatches
        counts = [n for one, _, n in asked if one.synchronous and (one.name, n) != base]
        runner.calibrate_on(calibrate_on, counts, _needed(scenario, asked))
        rows, skipped = _run(runner, asked)
    return Validation(
        device,
        runner.base.label,
        rows,
        skipped,
        runner.calibrations,
        runner.environment,
        tuple(runner.disturbed_calibration),
    )


def _needed(
    scenario: ResolvedScenario, asked: Sequence[tuple[Family, int, int]]
) -> Iterator[tuple[int, bool]]:
    """Give chunks a rank for which costs are needed, and whether split backwards are among them."""
    for one, num_chunks, count in asked:
        if not one.synchronous:
            continue
        if one.needs_costs:
            yield num_chunks, True
            continue
        shape = replace(shape_of(scenario, one, num_chunks=num_chunks), num_microbatches=count)
        try:
            schedule = generate(one.name, shape)
        except PipesimError:  # the row will say why
            continue
        yield num_chunks_of(schedule), bool(np.isin(schedule.op, (Op.I, Op.W)).any())


def _asked(
    scenario: ResolvedScenario,
    schedules: str | Sequence[str],
    chunks: int | Sequence[int],
    microbatches: int | Sequence[int],
) -> list[tuple[Family, int, int]]:
    """List families with the chunks and the microbatches to run them with."""
    m = scenario.batch.num_microbatches
    stated = [microbatches] if isinstance(microbatches, int) else list(microbatches)
    counts = dict.fromkeys(stated or (m, max(1, m // 2)))
    return [
        (one, num_chunks, count)
        for one in families_named(schedules)
        for num_chunks, count in product(chunk_counts(one, chunks, scenario), counts)
    ]


def _run(
    runner: Runner, asked: Sequence[tuple[Family, int, int]]
) -> tuple[tuple[ValidationRow, ...], tuple[Skipped, ...]]:
    """Predict families with so many chunks and microbatches, and say which of them cannot run."""
    rows, skipped = [], []
    for one, num_chunks, count in asked:
        try:
            rows.append(runner.row(one, num_chunks, count))
        except (ScheduleError, InfeasibleError) as error:
            skipped.append(Skipped(label(one.name, num_chunks, count), error.headline))
    if not rows:
        reasons = "".join(f"\n  {s.schedule}: {s.reason}" for s in skipped)
        raise InfeasibleError(f"no schedule can run in this scenario:{reasons}")
    return tuple(rows), tuple(skipped)


def _refuse_skips(scenario: ResolvedScenario) -> None:
    """Raise where stages hand something to others than the next: no calibration measures such messages."""
    stated = scenario.costs is not None and scenario.costs.skips
    if not stated and scenario.torch_model is None:
        return
    if build_costs(scenario, num_chunks=scenario.parallel.virtual_stages).skips:
        raise ScenarioError(
            "has skip connections, whose messages a calibration does not measure; pipesim execute runs it",
            file=scenario.file,
            key="costs.skips" if stated else "model.torch",
        )
