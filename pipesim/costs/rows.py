"""Costs laid out along the rows of a schedule: the one place where the engine and the evaluator ask."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pipesim.actions import Schedule
from pipesim.costs.table import CostTable
from pipesim.graph import Dependencies


def row_durations(schedule: Schedule, costs: CostTable) -> npt.NDArray[Any]:
    """Seconds of each row, shape (rows,); both rows of an overlapped pair hold the pair's duration."""
    durations = costs.durations(schedule.op, schedule.stage)
    for row in np.flatnonzero(schedule.joined):
        pair = costs.pair_s(int(schedule.stage[row]), int(schedule.stage[row + 1]))
        durations[row : row + 2] = pair
    return durations


def row_delays(schedule: Schedule, needs: Dependencies, costs: CostTable) -> npt.NDArray[Any]:
    """Seconds from a row's producer's end to the arrival of its message on an idle link, shape (rows,)."""
    rank = schedule.rank
    delays = np.zeros(len(rank), dtype=costs.forward_s.dtype)
    rows = np.flatnonzero(needs.crosses)
    known: dict[tuple[int, int, int], Any] = {}
    for row in rows.tolist():
        source = int(needs.producer[row])
        boundary = min(int(schedule.stage[row]), int(schedule.stage[source]))
        key = (int(rank[source]), int(rank[row]), boundary)
        if key not in known:
            known[key] = costs.p2p(key[0], key[1]).transfer_s(costs.boundary_bytes[boundary])
        delays[row] = known[key]
    return delays
