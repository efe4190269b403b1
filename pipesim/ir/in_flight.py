"""What a rank holds between a forward and the release of its activations; a property of the order alone."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from pipesim.ir.actions import ActionTable, IntArray, Op


def held(
    schedule: ActionTable, amounts: npt.NDArray[Any], released_at_input_gradient: float | Fraction = 0
) -> npt.NDArray[Any]:
    """Amount of activations a rank holds right after each row.

    Parameters
    ----------
    schedule : ActionTable
        Compute only, or lowered.
    amounts : array, shape (num_stages,)
        What one microbatch (one slice) holds on each stage, from F to B or W.
    released_at_input_gradient : float
        Share that I gives back before W gives back the rest.

    Returns
    -------
    array, shape (rows,)
    """
    op, amount = schedule.op, amounts[schedule.stage]
    given_back_early = amount * released_at_input_gradient
    change = np.zeros(len(op), np.result_type(amount, given_back_early))
    change[op == Op.F] = amount[op == Op.F]
    change[op == Op.B] = -amount[op == Op.B]
    change[op == Op.I] = -given_back_early[op == Op.I]
    change[op == Op.W] = (given_back_early - amount)[op == Op.W]
    total = np.cumsum(change)
    starts = schedule.offsets[:-1]
    before = np.where(starts > 0, total[starts - 1], 0 * total[:1])
    result: npt.NDArray[Any] = total - np.repeat(before, np.diff(schedule.offsets))
    return result


def peak_in_flight(schedule: ActionTable) -> IntArray:
    """Most (stage, microbatch, slice) that each rank holds at once, shape (num_ranks,)."""
    counts = held(schedule, np.ones(schedule.num_stages, np.int64))
    return np.array([counts[schedule.rows_of(rank)].max() for rank in range(schedule.num_ranks)], np.int32)
