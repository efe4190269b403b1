"""A run as a record: the measured timeline, what surrounds it, and the file it is kept in. No torch here."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipesim.errors import ExecutionError, PipesimError
from pipesim.files import write_text
from pipesim.ir import lower
from pipesim.ir.actions import BoolArray, Lowered, Schedule
from pipesim.ir.timeline import Timeline
from pipesim.reading import read_json

MAX_CONNECTIONS = "cuda_device_max_connections"
"""Of a run's environment: with 1, as Megatron-LM sets it, receives posted early may hold up computations."""
Floats = npt.NDArray[np.float64]
_FORMAT, _VERSION = "pipesim-run", 1
_SECONDS = 1e-9
_MEASURED = ("start", "end", "own", "wait_start", "wait_end", "cpu")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Run:
    """Steps of one schedule on real processes.

    Columns of the timeline and the arrays of shape (rows,) go together: row by row of the lowered schedule,
    rank by rank, replica by replica, step by step. Times are seconds on one clock from the first start on.

    A computation's row spans what it took, both parts of an overlapped pair the whole pair. A transfer's two
    rows span the message from the sender's call to the end of the receiver's wait: the latest it can have
    arrived, as nothing tells when a message comes while its receiver is busy. Waits stand apart, in
    `wait_start_s`.

    Parameters
    ----------
    schedule : Lowered
        Lowered.
    device : str
        ``cpu``, ``cuda`` or ``emulated``.
    num_replicas, num_steps, warmup : int
        Data-parallel replicas, steps recorded, and steps before them.
    timeline : Timeline
        Source "measured".
    own_s : array, shape (rows,)
        What the row alone took: of a part of a pair without the other, of a transfer the call on its rank.
    wait_start_s, wait_end_s : array, shape (rows,)
        When the rank waited for the row's input (the optimizer: for the other ranks); NaN where it takes none
        from elsewhere.
    cpu_s : array, shape (rows,)
        CPU time of the rank's thread during the row.
    step_s : array, shape (num_steps,)
        Wall time of each step, of the slowest rank.
    disturbed : array, shape (num_steps,)
        Whether something else on the machine got in the way; such steps are set aside.
    losses : array, shape (num_steps,)
        Mean over microbatches and replicas; NaN on the emulated device.
    peak_activation_bytes : array, shape (num_replicas, num_ranks)
        Most bytes held for a backward.
    peak_memory_bytes : array, shape (num_replicas, num_ranks)
        Most bytes that tensors of all kinds took on a rank's own GPU; 0 elsewhere.
    deferred_share : array, shape (num_stages,)
        Share of a stage's parameters whose gradient W computes; that of the others falls into I.
    clock_offset_s, clock_bound_s : array, shape (2, processes)
        Before and after the steps: offset of each process's clock (already taken off the times), and its
        bound; zero on one machine, whose processes share a clock.
    workload, environment : dict
        What was computed, and on what.
    """

    schedule: Lowered
    device: str
    num_replicas: int
    num_steps: int
    warmup: int
    timeline: Timeline
    own_s: Floats
    wait_start_s: Floats
    wait_end_s: Floats
    cpu_s: Floats
    step_s: Floats
    disturbed: BoolArray
    losses: Floats
    peak_activation_bytes: npt.NDArray[np.int64]
    peak_memory_bytes: npt.NDArray[np.int64]
    deferred_share: Floats
    clock_offset_s: Floats
    clock_bound_s: Floats
    workload: dict[str, Any]
    environment: dict[str, str]

    @property
    def undisturbed_steps(self) -> list[int]:
        """Steps that count."""
        return [int(step) for step in np.flatnonzero(~self.disturbed)]

    def rows(self, step: int, replica: int = 0) -> slice:
        """Rows of one step of one replica; their order is the lowered schedule's."""
        num_rows = len(self.schedule.op)
        first = (step * self.num_replicas + replica) * num_rows
        return slice(first, first + num_rows)

    def step(self, step: int, replica: int = 0) -> Timeline:
        """One step of one replica, as `pipesim.metrics.measure` takes it."""
        chosen = np.zeros(len(self.timeline), np.bool_)
        chosen[self.rows(step, replica)] = True
        return self.timeline.select(chosen)

    def write(self, path: str | Path) -> None:
        """Write the run as JSON: times as whole nanoseconds, the schedule as its CSV.

        Raises
        ------
        ScenarioError
            If the place cannot be written to.
        """
        times = {
            "start": self.timeline.start_s,
            "end": self.timeline.end_s,
            "own": self.own_s,
            "wait_start": self.wait_start_s,
            "wait_end": self.wait_end_s,
            "cpu": self.cpu_s,
        }
        document = {
            "format": _FORMAT,
            "version": _VERSION,
            "schedule": {
                "name": self.schedule.name,
                "csv": self.schedule.schedule.to_csv(),
                "skips": self.schedule.skips,
                "slice_shares": self.schedule.slice_shares,
            },
            "device": self.device,
            "num_replicas": self.num_replicas,
            "num_steps": self.num_steps,
            "warmup": self.warmup,
            "workload": self.workload,
            "environment": self.environment,
            "step_s": self.step_s.tolist(),
            "disturbed": self.disturbed.tolist(),
            "losses": [None if np.isnan(loss) else loss for loss in self.losses.tolist()],
            "peak_activation_bytes": self.peak_activation_bytes.tolist(),
            "peak_memory_bytes": self.peak_memory_bytes.tolist(),
            "deferred_share": self.deferred_share.tolist(),
            "clock_offset_s": self.clock_offset_s.tolist(),
            "clock_bound_s": self.clock_bound_s.tolist(),
            "row_bytes": self.timeline.nbytes[self.rows(0)].tolist(),
            "columns_ns": {name: _to_nanoseconds(values) for name, values in times.items()},
        }
        write_text(path, json.dumps(document, separators=(",", ":")) + "\n", reader=read_run)


def read_run(path: str | Path) -> Run:
    """Read a run that `Run.write` wrote.

    Raises
    ------
    PipesimError
        If the file cannot be read, or is no run of a version that is known.
    """
    document = read_json(path)
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise ExecutionError(f"{path}: is not a run; expected a file that `pipesim execute -o` wrote")
    if document.get("version") != _VERSION:
        raise ExecutionError(f"{path}: has version {document.get('version')}, this pipesim reads {_VERSION}")
    try:
        return _from_document(document)
    except KeyError as error:
        raise ExecutionError(f"{path}: lacks the key {error.args[0]!r}") from None
    except OverflowError:
        raise ExecutionError(f"{path}: holds a number beyond 64 bits") from None
    except (PipesimError, TypeError, ValueError) as error:
        raise ExecutionError(f"{path}: {error}") from None


def _schedule(stated: dict[str, Any]) -> Schedule:
    """Read an order with what its CSV cannot say."""
    schedule = Schedule.from_csv(stated["csv"], name=stated["name"])
    skips, shares = stated.get("skips", ()), stated.get("slice_shares")
    for source, target in skips:
        if not 0 <= int(source) < int(target) < schedule.num_stages:
            raise ValueError(f"a skip connection from stage {source} to {target} is none")
    if shares is not None and len(shares) != schedule.num_slices:
        raise ValueError(f"{len(shares)} shares for {schedule.num_slices} slices")
    return replace(
        schedule,
        skips=tuple((int(source), int(target)) for source, target in skips),
        slice_shares=None if shares is None else tuple(map(float, shares)),
    )


def _from_document(document: dict[str, Any]) -> Run:
    schedule = lower(_schedule(document["schedule"]))
    num_replicas, num_steps = int(document["num_replicas"]), int(document["num_steps"])
    columns = {name: _to_seconds(document["columns_ns"][name]) for name in _MEASURED}
    num_rows = len(schedule.op) * num_replicas * num_steps
    for name, values in columns.items():
        if len(values) != num_rows:
            raise ValueError(
                f"columns_ns.{name} has {len(values)} entries, the schedule and steps make {num_rows}"
            )
    peak_activation_bytes = np.array(document["peak_activation_bytes"], np.int64)
    losses = [np.nan if loss is None else loss for loss in document["losses"]]
    return Run(
        schedule=schedule,
        device=document["device"],
        num_replicas=num_replicas,
        num_steps=num_steps,
        warmup=int(document["warmup"]),
        timeline=timeline_of(
            schedule, num_replicas, num_steps, columns["start"], columns["end"], document["row_bytes"]
        ),
        own_s=columns["own"],
        wait_start_s=columns["wait_start"],
        wait_end_s=columns["wait_end"],
        cpu_s=columns["cpu"],
        step_s=np.array(document["step_s"]),
        disturbed=np.array(document["disturbed"], np.bool_),
        losses=np.array(losses, np.float64),
        peak_activation_bytes=peak_activation_bytes,
        peak_memory_bytes=np.array(document.get("peak_memory_bytes", peak_activation_bytes * 0), np.int64),
        deferred_share=np.array(document["deferred_share"]),
        clock_offset_s=np.array(document["clock_offset_s"]),
        clock_bound_s=np.array(document["clock_bound_s"]),
        workload=document["workload"],
        environment=document["environment"],
    )


def timeline_of(
    schedule: Lowered, num_replicas: int, num_steps: int, start_s: Floats, end_s: Floats, row_bytes: Any
) -> Timeline:
    """Lay measured times along the rows of a lowered schedule, replica by replica and step by step."""
    num_rows = len(schedule.op)

    def repeated(column: Any) -> Any:
        return np.tile(column, num_replicas * num_steps)

    return Timeline(
        source="measured",
        rank=repeated(schedule.rank),
        replica=np.tile(np.repeat(np.arange(num_replicas, dtype=np.int32), num_rows), num_steps),
        op=repeated(schedule.op),
        stage=repeated(schedule.stage),
        microbatch=repeated(schedule.microbatch),
        slice=repeated(schedule.slice),
        step=np.repeat(np.arange(num_steps, dtype=np.int32), num_rows * num_replicas),
        start_s=start_s,
        end_s=end_s,
        nbytes=repeated(np.asarray(row_bytes, np.int64)),
    )


def _to_nanoseconds(seconds: Any) -> list[int | None]:
    """Whole nanoseconds; None for NaN."""
    return [None if value != value else round(value * 1e9) for value in seconds.tolist()]


def _to_seconds(nanoseconds: list[int | None]) -> Floats:
    return np.array([np.nan if value is None else value * _SECONDS for value in nanoseconds], np.float64)
