"""What a rank holds between a forward and the release of its activations; a property of the order alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pipesim.ir.actions import ActionTable, IntArray, Op


def held(
    schedule: ActionTable,
    amounts: npt.NDArray[Any],
    deferred: npt.NDArray[Any] | None = None,
    of_slices: npt.NDArray[Any] | None = None,
) -> npt.NDArray[Any]:
    """Amount of activations a rank holds right after each row.

    Parameters
    ----------
    schedule : ActionTable
        Compute only, or lowered.
    amounts : array, shape (num_stages,)
        What one microbatch (one slice) holds on each stage, from F to B or I.
    deferred : array, shape (num_stages,), optional
        What it holds from I to W; None: as much.
    of_slices : array, shape (num_slices,), optional
        What to multiply these with for each slice.

    Returns
    -------
    array, shape (rows,)
    """
    op, amount = schedule.op, amounts[schedule.stage]
    left = amount if deferred is None else deferred[schedule.stage]
    if of_slices is not None:
        amount, left = amount * of_slices[schedule.slice], left * of_slices[schedule.slice]
    change = np.zeros(len(op), np.result_type(amount, left))
    change[op == Op.F] = amount[op == Op.F]
    change[op == Op.B] = -amount[op == Op.B]
    change[op == Op.I] = (left - amount)[op == Op.I]
    change[op == Op.W] = -left[op == Op.W]
    total = np.cumsum(change)
    starts = schedule.offsets[:-1]
    before = np.where(starts > 0, total[starts - 1], 0 * total[:1])
    result: npt.NDArray[Any] = total - np.repeat(before, np.diff(schedule.offsets))
    return result


def peak_in_flight(schedule: ActionTable) -> IntArray:
    """Most (stage, microbatch, slice) that each rank holds at once, shape (num_ranks,)."""
    counts = held(schedule, np.ones(schedule.num_stages, np.int64))
    return np.array([counts[schedule.rows_of(rank)].max() for rank in range(schedule.num_ranks)], np.int32)
