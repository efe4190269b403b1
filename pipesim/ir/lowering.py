"""Derive communication and the end of the step from the computations."""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import replace
from typing import Literal

import numpy as np

from pipesim.ir.actions import BoolArray, IntArray, Op, Schedule
from pipesim.ir.dependencies import NONE, Dependencies, dependencies, linear_extension


def lower(
    schedule: Schedule, *, receive: Literal["early", "late"] = "early", tied_embedding: bool = False
) -> Schedule:
    """Add what follows from the computations: sends, receives, gradient reduction, optimizer.

    Parameters
    ----------
    schedule : Schedule
        Valid and compute only.
    receive : {"early", "late"}
        ``early`` puts a receive where the peer stands when its message is sent, as torch does: safe for
        transports that match messages by order. ``late`` puts it right before its consumer, where a blocking
        transfer is called for.
    tied_embedding : bool
        The first and the last stage have one embedding in common; see `embedding_copies`.

    Returns
    -------
    Schedule
        A rank's gradients are reduced after its own last backward, stage by stage; then its optimizer runs.

    Raises
    ------
    DeadlockError
        With early receives, if the schedule cannot run.
    """
    needs = dependencies(schedule)
    place = _receives_early if receive == "early" else _receives_late
    orders = place(schedule, needs)
    copies = embedding_copies(schedule) if tied_embedding else {}
    tables = [_with_step_end(schedule, rank, rows, copies.get(rank)) for rank, rows in enumerate(orders)]
    op, stage, microbatch, part, joined = (np.ascontiguousarray(c) for c in np.concatenate(tables).T)
    return replace(
        schedule,
        offsets=np.cumsum([0, *map(len, tables)], dtype=np.int32),
        op=op,
        stage=stage,
        microbatch=microbatch,
        slice=part,
        joined=joined.astype(np.bool_),
    )


def embedding_copies(schedule: Schedule) -> dict[int, int]:
    """Ranks with a copy of a tied embedding, and the stage, first or last, that has it.

    None where every one of them holds both stages, as in V placements: they need one copy only.
    """
    ends = {0, schedule.num_stages - 1}
    held = {rank: ends.intersection(schedule.stages_of(rank)) for rank in range(schedule.num_ranks)}
    if all(stages in (ends, set()) for stages in held.values()):
        return {}
    return {rank: min(stages) for rank, stages in held.items() if stages}


_COMPUTE, _SEND, _RECEIVE = 0, 1, 2


def _receives_late(schedule: Schedule, needs: Dependencies) -> list[list[tuple[int, int]]]:
    crosses, joined = needs.crosses.tolist(), schedule.joined.tolist()
    sends = _sends(needs).tolist()
    orders = []
    for rank in range(schedule.num_ranks):
        order: list[tuple[int, int]] = []
        for unit in _units(schedule.rows_of(rank), joined):
            order += [(_RECEIVE, row) for row in unit if crosses[row]]
            order += [(_COMPUTE, row) for row in unit]
            order += [(_SEND, row) for row in unit if sends[row]]
        orders.append(order)
    return orders


def _receives_early(schedule: Schedule, needs: Dependencies) -> list[list[tuple[int, int]]]:
    producer, consumer = needs.producer.tolist(), needs.consumer.tolist()
    sends, joined, rank_of = _sends(needs).tolist(), schedule.joined.tolist(), schedule.rank.tolist()
    orders: list[list[tuple[int, int]]] = [[] for _ in range(schedule.num_ranks)]
    units = [_units(schedule.rows_of(rank), joined) for rank in range(schedule.num_ranks)]
    heads = [0] * schedule.num_ranks
    done = bytearray(len(producer))
    waiting: dict[int, list[int]] = defaultdict(
        list
    )  # row that is not done yet -> ranks that stand before it
    remaining = sum(map(len, units))
    # Rounds of one unit a rank, in the order of the ranks; one that cannot go on sleeps until it can.
    ranks = list(range(schedule.num_ranks))
    while ranks:
        later: list[int] = []
        heapq.heapify(ranks)
        while ranks:
            rank = heapq.heappop(ranks)
            if heads[rank] == len(units[rank]):
                continue
            unit = units[rank][heads[rank]]
            missing = next((p for row in unit if (p := producer[row]) != NONE and not done[p]), NONE)
            if missing != NONE:
                waiting[missing].append(rank)
                continue
            for row in unit:
                done[row] = 1
                orders[rank].append((_COMPUTE, row))
            for row in unit:
                if sends[row]:
                    orders[rank].append((_SEND, row))
                    orders[rank_of[consumer[row]]].append((_RECEIVE, consumer[row]))
                for other in waiting.pop(row, ()):
                    if other > rank:
                        heapq.heappush(ranks, other)
                    else:
                        later.append(other)
            heads[rank] += 1
            remaining -= 1
            later.append(rank)
        ranks = later
    if remaining:
        linear_extension(schedule, needs)  # raises, and names what each rank waits for
    return orders


def _sends(needs: Dependencies) -> BoolArray:
    sends = np.zeros(len(needs.consumer), np.bool_)
    has_consumer = np.flatnonzero(needs.consumer != NONE)
    sends[has_consumer] = needs.crosses[needs.consumer[has_consumer]]
    return sends


def _units(rows: slice, joined: list[bool]) -> list[tuple[int, ...]]:
    units: list[tuple[int, ...]] = []
    row = rows.start
    while row < rows.stop:
        width = 2 if joined[row] else 1
        units.append(tuple(range(row, row + width)))
        row += width
    return units


def _with_step_end(
    schedule: Schedule, rank: int, order: list[tuple[int, int]], embedding_stage: int | None
) -> IntArray:
    kind, row = np.array(order, dtype=np.int32).T
    op = schedule.op[row]
    op = np.where(kind == _SEND, np.where(op == Op.F, Op.SEND_F, Op.SEND_B), op)
    op = np.where(kind == _RECEIVE, np.where(op == Op.F, Op.RECV_F, Op.RECV_B), op)
    joined = schedule.joined[row] & (kind == _COMPUTE)
    body = np.stack([op, schedule.stage[row], schedule.microbatch[row], schedule.slice[row], joined], axis=1)
    stages = schedule.stages_of(rank)
    reductions = [(Op.REDUCE_GRAD, stage, NONE, 0, 0) for stage in reversed(stages)]
    if embedding_stage is not None:
        reductions.append((Op.REDUCE_EMBEDDING, embedding_stage, NONE, 0, 0))
    step_end = [*reductions, (Op.OPTIMIZER, stages[0], NONE, 0, 0)]
    return np.concatenate([body, np.array(step_end, dtype=np.int32)])
