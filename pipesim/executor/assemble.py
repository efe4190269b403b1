"""From what each rank measured to one record on one clock."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pipesim.executor.instructions import plan
from pipesim.executor.job import Job, RankResult
from pipesim.executor.run import Run, timeline_of
from pipesim.executor.workload import describe
from pipesim.ir import NONE
from pipesim.ir.actions import RECEIVES, SENDS, Lowered, Op

Nanoseconds = npt.NDArray[np.int64]
_SECONDS = 1e-9
_TIMES = ("start", "end", "wait_start", "wait_end")
_LENGTHS = ("own", "cpu")
_LONG_BEFORE_NS = 3_000_000
"""More than a message takes in torch's runtime between CPUs: 1.3 to 2 ms, most of it host time."""


def assemble(job: Job, results: Sequence[RankResult]) -> Run:
    """Put the results of all ranks into one record.

    Parameters
    ----------
    job : Job
        What ran.
    results : sequence of RankResult
        One a process.
    """
    schedule = job.schedule
    processes = sorted(results, key=lambda result: result.process)
    columns = {name: _joined(processes, name) for name in (*_TIMES, *_LENGTHS)}
    if job.runtime != "pipesim":
        _infer_waits(job, columns)
    _span_messages(job, columns)
    never = {name: columns[name] == 0 for name in _TIMES}
    recorded = columns["start"][~never["start"]]
    origin = recorded.min() if recorded.size else 0
    times = {name: (columns[name] - origin) * _SECONDS for name in _TIMES}
    for name in _TIMES:
        times[name][never[name]] = np.nan
    row_bytes = np.concatenate([result.row_bytes for result in processes[: schedule.num_ranks]])
    return Run(
        schedule=schedule,
        device=job.device,
        num_replicas=job.num_replicas,
        num_steps=job.num_steps,
        warmup=job.warmup,
        timeline=timeline_of(
            schedule, job.num_replicas, job.num_steps, times["start"], times["end"], row_bytes
        ),
        own_s=columns["own"].astype(np.float64) * _SECONDS,
        wait_start_s=times["wait_start"],
        wait_end_s=times["wait_end"],
        cpu_s=columns["cpu"].astype(np.float64) * _SECONDS,
        step_s=np.max([result.step_s for result in processes], axis=0),
        disturbed=np.any([result.disturbed for result in processes], axis=0),
        losses=_total_losses(processes),
        peak_activation_bytes=np.array([result.peak_activation_bytes for result in processes]).reshape(
            job.num_replicas, schedule.num_ranks
        ),
        peak_memory_bytes=np.array([result.peak_memory_bytes for result in processes]).reshape(
            job.num_replicas, schedule.num_ranks
        ),
        deferred_share=_deferred_share(schedule, processes),
        clock_offset_s=np.array([result.clock_offset_ns for result in processes]).T * _SECONDS,
        clock_bound_s=np.array([result.clock_bound_ns for result in processes]).T * _SECONDS,
        workload=describe(job.workload),
        environment=processes[0].environment,
    )


def _joined(processes: Sequence[RankResult], name: str) -> Nanoseconds:
    """One column of all ranks, step by step, on the clock of process 0; 0 stays "never"."""
    parts = []
    for result in processes:
        column = result.columns[name]
        if name in _TIMES:
            before, after = result.clock_offset_ns
            progress = (np.arange(len(column)) + 0.5) / len(column)
            offset = np.round(before + (after - before) * progress).astype(np.int64)
            column = np.where(column == 0, 0, column - offset[:, None])
        parts.append(column)
    return np.concatenate(parts, axis=1).reshape(-1)


def _infer_waits(job: Job, columns: dict[str, Nanoseconds]) -> None:
    """Say when ranks of torch's runtime waited, and when it sent, neither of which it tells.

    A rank waited from its computation before on if its message was made about then or later; and a message
    leaves when it is made. Where it was made `_LONG_BEFORE_NS` earlier, it was there.
    """
    send, _, taker = _message_rows(job.schedule)
    num_rows = len(job.schedule.op)
    before = _computation_before(job.schedule)
    maker = before[send]
    for first in range(0, len(columns["start"]), num_rows):
        start, end, wait_start, wait_end = (columns[name][first : first + num_rows] for name in _TIMES)
        start[send] = end[maker]
        wait_end[taker] = start[taker]
        came = np.where(before[taker] == NONE, start[taker], end[before[taker]])
        wait_start[taker] = np.where(end[maker] > came - _LONG_BEFORE_NS, came, start[taker])


def _computation_before(schedule: Lowered) -> npt.NDArray[np.intp]:
    """Row of the last computation before each row on its rank; `NONE` before a rank's first."""
    before = np.full(len(schedule.op), NONE, np.intp)
    for rank in range(schedule.num_ranks):
        last = NONE
        rows = schedule.rows_of(rank)
        for row in range(rows.start, rows.stop):
            before[row] = last
            if schedule.op[row] <= Op.W:
                last = row
    return before


def _span_messages(job: Job, columns: dict[str, Nanoseconds]) -> None:
    """Let a transfer's rows span the message, from the sender's call to the end of the receiver's wait."""
    send, receive, taker = _message_rows(job.schedule)
    num_rows = len(job.schedule.op)
    for first in range(0, len(columns["start"]), num_rows):
        start, end, wait_end = (
            columns[name][first : first + num_rows] for name in ("start", "end", "wait_end")
        )
        sent = start[send]
        # No computation starts before its input is there, though the emulated device hides the hand-over.
        there = np.maximum(np.minimum(wait_end[taker], start[taker]), sent)
        for rows in (send, receive):
            start[rows], end[rows] = sent, there


def _message_rows(schedule: Lowered) -> tuple[npt.NDArray[np.intp], ...]:
    """Rows that send, receive and take each message."""
    rows: dict[int, list[int]] = {}
    for program in plan(schedule):
        first = int(schedule.offsets[program.rank])
        for unit in program.units:
            for part in unit:
                kind = 0 if part.op in SENDS else 1 if part.op in RECEIVES else 2
                for message in part.awaited if kind == 2 else [part.message] * (part.message != NONE):
                    rows.setdefault(message, [NONE] * 3)[kind] = first + part.row
    table = np.array(list(rows.values()), np.intp).reshape(-1, 3)
    return table[:, 0], table[:, 1], table[:, 2]


def _total_losses(processes: Sequence[RankResult]) -> npt.NDArray[np.float64]:
    losses = np.array([result.losses for result in processes])
    total: npt.NDArray[np.float64] = np.where(np.isnan(losses).all(axis=0), np.nan, np.nansum(losses, axis=0))
    return total


def _deferred_share(schedule: Lowered, processes: Sequence[RankResult]) -> npt.NDArray[np.float64]:
    shares: dict[int, float] = {}
    for result in processes:
        shares |= result.deferred_share
    return np.array([shares[stage] for stage in range(schedule.num_stages)], np.float64)
