"""What is left of a step after each computation: the longest path, followed from the end."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pipesim.costs import CostTable
from pipesim.costs.rows import row_durations, skip_delays
from pipesim.ir.dependencies import NONE
from pipesim.timing.longest_path.reusable_program import Further, PreparedSchedule

FloatArray = npt.NDArray[np.float64]


def least_left_s(prepared: PreparedSchedule, costs: CostTable, step_end_s: FloatArray) -> FloatArray:
    """Seconds from the end of each row to the end of the step if nothing contends, shape (rows,).

    Parameters
    ----------
    prepared : PreparedSchedule
        The computations.
    costs : CostTable
        For the schedule's number of stages.
    step_end_s : array, shape (num_ranks,)
        Seconds from the end of each rank's computations to the end of the step.
    """
    from pipesim.timing.longest_path.kernels import DELAY, DURATION, END, ORDER, new_rows, time_rows

    schedule, needs = prepared.schedule, prepared.needs
    num_rows, num_ranks = len(schedule.op), schedule.num_ranks
    duration_s = np.array(row_durations(schedule, costs), np.float64)
    # Everything the other way round: a rank begins with the end of the step, then comes its last row, and
    # who waits for a row comes before it.
    place = num_rows - 1 - np.arange(num_rows) + num_ranks - schedule.rank
    ends = num_rows - schedule.offsets[1:] + num_ranks - 1 - np.arange(num_ranks)
    size = num_rows + num_ranks
    producer, joined, given = np.full(size, NONE, np.int32), np.zeros(size, np.bool_), np.zeros((2, size))
    waited_for = np.flatnonzero(needs.consumer != NONE)
    consumer = needs.consumer[waited_for]
    producer[place[waited_for]] = place[consumer]
    given[DELAY, place[waited_for]] = np.where(needs.crosses[consumer], prepared.delays(costs)[consumer], 0)
    joined[place[1:]] = schedule.joined[:-1]
    given[DURATION, place], given[DURATION, ends] = duration_s, step_end_s
    units = place[prepared.order + schedule.joined[prepared.order]][::-1]
    further = Further.of(place[needs.skips.consumer], place[needs.skips.producer], size)
    along_skips = further.sorted(skip_delays(schedule, needs, costs))
    rows, found = new_rows(producer, joined, ends, further.next_input), np.empty((2, size))
    num_units = len(ends) + len(units)
    rows[ORDER, :num_units] = np.concatenate([ends, units])
    time_rows(rows, num_units, further.giver, along_skips, given, found)
    left_s: FloatArray = found[END, place] - duration_s
    return left_s
