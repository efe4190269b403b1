"""Memory of a rank's devices over a step, and what it is full of; all of it follows from order and costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipesim.costs import CostTable
from pipesim.costs.rows import activations_held, logits_held, skip_bytes
from pipesim.ir import dependencies, lower
from pipesim.ir.actions import Op, Schedule
from pipesim.ir.timeline import Timeline

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class MemoryParts:
    """What a rank's memory is full of where it is fullest, in bytes; the parts add up to the peak.

    Parameters
    ----------
    weights, gradients, optimizer
        Held for the whole step.
    activations
        Of the microbatches in flight, without logits.
    logits
        What the last stage keeps of them, the loss's state with them.
    buffers
        Working set of the action that runs: a recomputed layer, gradients of a sublayer, gathered weights;
        and what came through skip connections before it is needed.
    """

    weights: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    buffers: float


def memory_by_row(schedule: Schedule, costs: CostTable) -> Array:
    """Bytes that a rank uses while each row of a compute-only schedule runs, shape (rows,).

    Weights, gradients and optimizer state of all its stages, activations in flight (a backward still holds
    what it is about to release), what waits of skip connections, and the row's working set.
    """
    after = activations_held(schedule, costs)
    before = np.empty_like(after)
    before[1:] = after[:-1]
    before[schedule.offsets[:-1]] = 0
    during = np.where(schedule.op == Op.F, after, before) + costs.working_bytes[schedule.stage]
    # An I that leaves more than it found has used its working set up for that by its end.
    total: Array = np.maximum(during, after)
    total += np.repeat(_static_bytes(schedule, costs), np.diff(schedule.offsets))
    return total + skips_waiting(schedule, costs) if schedule.skips else total


def skips_waiting(schedule: Schedule, costs: CostTable) -> Array:
    """Bytes that came to a rank through skip connections and wait while each row runs, shape (rows,).

    A message lies at its taker from where `pipesim.ir.lower` puts its receive. A tensor is counted until the
    forward that takes it begins, when it becomes an activation; a gradient to the end of its backward.
    """
    lowered, skips = lower(schedule), dependencies(schedule).skips
    nbytes = skip_bytes(schedule, costs)
    took = np.flatnonzero(np.isin(lowered.op, (Op.RECV_SKIP_F, Op.RECV_SKIP_B)))
    # The computations stand in both in one order, so those before a receive say where it stands.
    before = np.cumsum(lowered.op <= Op.W)[took]
    forward = lowered.op[took] == Op.RECV_SKIP_F
    taker = {
        (number, bool(schedule.op[row] == Op.F), int(schedule.microbatch[row])): row
        for number, row in zip(skips.skip.tolist(), skips.consumer.tolist(), strict=True)
    }
    change = np.zeros(len(schedule.op) + 1)
    for row, begins, forth in zip(took.tolist(), before.tolist(), forward.tolist(), strict=True):
        number = int(lowered.slice[row])
        change[begins] += nbytes[number]
        change[taker[number, forth, int(lowered.microbatch[row])] + (not forth)] -= nbytes[number]
    return np.cumsum(change)[:-1]


def memory_parts(schedule: Schedule, costs: CostTable) -> list[MemoryParts]:
    """Split each rank's memory at the first row where it is fullest."""
    by_row, logits = memory_by_row(schedule, costs), logits_held(schedule, costs)
    after, found = activations_held(schedule, costs), []
    for rank, rows in enumerate(_rows_by_rank(schedule)):
        row = rows.start + int(np.argmax(by_row[rows]))
        stages = schedule.stages_of(rank)
        weights, gradients, optimizer = (
            float(of_stage[stages].sum())
            for of_stage in (costs.weight_bytes, costs.gradient_bytes, costs.optimizer_bytes)
        )
        total = float(by_row[row]) - weights - gradients - optimizer
        # An action holds what it found, or what it leaves where that is all.
        at = row if schedule.op[row] == Op.F or total <= float(after[row]) or row == rows.start else row - 1
        kept, of_logits = float(after[at]), float(logits[at])
        found.append(
            MemoryParts(weights, gradients, optimizer, kept - of_logits, of_logits, max(0.0, total - kept))
        )
    return found


def _static_bytes(schedule: Schedule, costs: CostTable) -> Array:
    """Weights, gradients and optimizer state of each rank, shape (num_ranks,)."""
    of_stage = costs.weight_bytes + costs.gradient_bytes + costs.optimizer_bytes
    return np.array([of_stage[schedule.stages_of(rank)].sum() for rank in range(schedule.num_ranks)])


def peak_memory_by_rank(schedule: Schedule, costs: CostTable) -> list[float] | None:
    """Peak bytes of a device of each rank, by the order alone; None without bytes of activations."""
    # Of gradients alone, which a calibration knows for what it takes to reduce them, nothing follows.
    if not costs.activation_bytes.any():
        return None
    by_row = memory_by_row(schedule, costs)
    return [float(by_row[rows].max()) for rows in _rows_by_rank(schedule)]


def fits_memory(memory: list[float] | None, costs: CostTable) -> bool | None:
    """Whether every rank's peak fits its own devices; None where peaks or devices are not known."""
    return _all_within(memory, costs, lambda of_rank: of_rank.memory_limit_bytes)


def fits_headroom(memory: list[float] | None, costs: CostTable) -> bool | None:
    """Whether every rank's peak leaves free what is to be left free on its devices; None as `fits_memory`."""
    return _all_within(memory, costs, lambda of_rank: of_rank.memory_budget_bytes)


def _all_within(
    memory: list[float] | None, costs: CostTable, limit_of: Callable[[CostTable], float | None]
) -> bool | None:
    if memory is None:
        return None
    limits = [limit_of(costs.of_ranks.get(rank, costs)) for rank in range(len(memory))]
    known = [limit for limit in limits if limit is not None]
    if len(known) < len(limits):
        return None
    return all(peak <= limit for peak, limit in zip(memory, known, strict=True))


def memory_over_time(
    timeline: Timeline, schedule: Schedule, costs: CostTable, rank: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Memory of a rank as steps: seconds, and bytes in use from then on, each shape (2 * rows of the rank,).

    While an action runs it uses its working set too; between actions only what is held.
    """
    rows = schedule.rows_of(rank)
    compute = timeline.select(timeline.compute)
    busy = memory_by_row(schedule, costs)[rows]
    after = activations_held(schedule, costs)[rows]
    if schedule.skips:
        after = after + skips_waiting(schedule, costs)[rows]
    seconds = np.stack([compute.start_s[rows], compute.end_s[rows]], axis=1).reshape(-1)
    used = np.stack([busy, after + _static_bytes(schedule, costs)[rank]], axis=1).reshape(-1)
    return seconds.astype(np.float64), used.astype(np.float64)


def _rows_by_rank(schedule: Schedule) -> list[slice]:
    return [schedule.rows_of(rank) for rank in range(schedule.num_ranks)]
