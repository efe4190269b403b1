"""Refuse a schedule that is incomplete, doubled, misplaced, out of order or that deadlocks."""

from __future__ import annotations

import numpy as np

from pipesim.errors import ScheduleError
from pipesim.ir.actions import Op, Schedule
from pipesim.ir.dependencies import BACKWARDS, NONE, RowTable, dependencies, linear_extension
from pipesim.ir.text_grid import format_grid


def validate(schedule: Schedule) -> None:
    """Check that a compute-only schedule is complete, consistent and can run.

    Raises
    ------
    ScheduleError
        An action is missing, doubled, misplaced or out of order on its rank; the message shows the grid of
        actions with an arrow at the one at fault.
    DeadlockError
        Every rank's next action waits for one that no rank reaches.
    """
    for rank in range(schedule.num_ranks):
        if schedule.offsets[rank] == schedule.offsets[rank + 1]:
            raise ScheduleError(f"rank {rank} has no action; expected every rank to hold a stage")
    _check_sizes(schedule)
    _check_operations(schedule)
    table = RowTable(schedule)
    _check_complete(schedule, table)
    _check_placement(schedule, table)
    _check_rank_order(schedule, table)
    linear_extension(schedule, dependencies(schedule))


def _check_sizes(schedule: Schedule) -> None:
    """Refuse a stray large number before tables of that size are made."""
    num_forwards = schedule.num_stages * schedule.num_microbatches * schedule.num_slices
    if num_forwards > len(schedule.op):
        columns = (schedule.stage, schedule.microbatch, schedule.slice)
        row = int(max(columns, key=lambda column: int(column.max())).argmax())
        raise _at(
            schedule,
            row,
            f"{schedule.action(row)} calls for at least {2 * num_forwards} actions (every stage runs every "
            f"microbatch), found {len(schedule.op)}",
        )


def _check_operations(schedule: Schedule) -> None:
    for row in np.flatnonzero(schedule.op > Op.W)[:1]:
        raise _at(schedule, int(row), f"{schedule.action(row)} is not a computation; expected F, B, I or W")
    key = np.ravel_multi_index(
        (
            np.where(schedule.op == Op.I, Op.B, schedule.op),
            schedule.stage,
            schedule.microbatch,
            schedule.slice,
        ),
        (len(Op), schedule.num_stages, schedule.num_microbatches, schedule.num_slices),
    )
    _, first = np.unique(key, return_index=True)
    repeated = np.ones(len(key), np.bool_)
    repeated[first] = False
    for row in np.flatnonzero(repeated)[:1]:
        action = schedule.action(row)
        twice = "a second backward" if action.op in BACKWARDS else "a second time"
        raise _at(schedule, int(row), f"{action} runs {twice} for this stage and microbatch")


def _check_complete(schedule: Schedule, table: RowTable) -> None:
    split = np.zeros(table.shape, np.bool_)
    split[table.backward != NONE] = schedule.op[table.backward[table.backward != NONE]] == Op.I
    missing_words = (
        (table.forward == NONE, "F"),
        (table.backward == NONE, "B (or I and W)"),
        (split & (table.weight == NONE), "W, which its I calls for"),
    )
    for missing, words in missing_words:
        for stage, microbatch, part in np.argwhere(missing)[:1]:
            where = f"stage {stage}, microbatch {microbatch}"
            where += f", slice {part}" if schedule.num_slices > 1 else ""
            candidates = (table.backward[stage, microbatch, part], table.forward[stage, microbatch, part])
            counterpart = next((int(row) for row in candidates if row != NONE), None)
            raise ScheduleError(
                f"{where} has no {words}; every stage runs microbatches 0..{schedule.num_microbatches - 1}"
                f"\n{format_grid(schedule, counterpart)}"
            )
    extra = (table.weight != NONE) & ~split
    for row in table.weight[extra][:1]:
        raise _at(schedule, int(row), f"{schedule.action(row)} follows a full B, which computes W already")


def _check_placement(schedule: Schedule, table: RowTable) -> None:
    rank = schedule.rank
    home = rank[table.forward]
    for rows in (table.backward, table.weight):
        strayed = (rows != NONE) & (rank[rows] != home)
        for row in rows[strayed][:1]:
            raise _at(schedule, int(row), f"{schedule.action(row)} is not on the rank that ran its F")
    placement = home[:, :, 0]
    mirrored = schedule.num_ranks - 1 - placement[:, :1]
    strayed = (home != placement[:, :1, None]) & ~(home == mirrored[:, :, None]).all(axis=(0, 2))[
        None, :, None
    ]
    for row in table.forward[strayed][:1]:
        action = schedule.action(row)
        raise _at(
            schedule,
            int(row),
            f"{action} runs on rank {rank[row]}, stage {action.stage} of microbatch 0 on rank "
            f"{placement[action.stage, 0]}; a stage stays on one rank (or, with two model replicas, "
            f"a whole microbatch takes the mirrored ranks)",
        )


def _check_rank_order(schedule: Schedule, table: RowTable) -> None:
    pairs = [
        (table.forward, table.backward, "its own F"),
        (table.backward, table.weight, "its own I"),
        (table.forward[..., :-1], table.forward[..., 1:], "the F of the slice before"),
        (table.backward[..., 1:], table.backward[..., :-1], "the backward of the slice after"),
    ]
    for earlier, later, words in pairs:
        early = (later != NONE) & (later < earlier)
        for row in later[early][:1]:
            raise _at(schedule, int(row), f"{schedule.action(row)} stands before {words}")


def _at(schedule: Schedule, row: int, message: str) -> ScheduleError:
    return ScheduleError(f"rank {schedule.rank[row]}: {message}\n{format_grid(schedule, row)}")
