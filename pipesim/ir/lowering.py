"""Derive communication and the end of the step from the computations."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from heapq import heappop, heappush
from typing import Literal, NamedTuple

import numpy as np

from pipesim.errors import ScheduleError
from pipesim.ir.actions import BoolArray, IntArray, Lowered, Op, Schedule
from pipesim.ir.dependencies import (
    BACKWARDS,
    NONE,
    Dependencies,
    SkipInputs,
    dependencies,
    linear_extension,
)
from pipesim.ir.rendezvous import find_hang


def lower(
    schedule: Schedule,
    *,
    receive: Literal["early", "late", "batched"] = "early",
    tied_embedding: bool = False,
) -> Lowered:
    """Add what follows from the computations: sends, receives, gradient reduction, optimizer.

    Parameters
    ----------
    schedule : Schedule
        Valid and compute only.
    receive : {"early", "late", "batched"}
        ``early`` puts a receive where the peer stands when its message is sent, as torch does: safe for
        transports that match messages by order. ``late`` puts it right before its consumer. ``batched`` is
        for transfers that block: late as long as no ranks wait for each other for ever, which they do with
        several chunks a rank; then in batches, see `in_batches`.
    tied_embedding : bool
        The first and the last stage have one embedding in common; see `embedding_copies`.

    Returns
    -------
    Lowered
        A rank's gradients are reduced after its own last backward, stage by stage; then its optimizer runs.

    Raises
    ------
    ScheduleError
        If the schedule is none, or holds more than computations.
    DeadlockError
        With early receives, if the schedule cannot run.
    """
    check_compute_only(schedule)
    needs = dependencies(schedule)
    if receive == "early":
        return _laid_out(schedule, _receives_early(schedule, needs), tied_embedding)
    lowered = _laid_out(schedule, _receives_late(schedule, needs), tied_embedding)
    if receive == "batched" and find_hang(lowered, "grouped") is not None:
        return _laid_out(schedule, in_batches(schedule, needs), tied_embedding)
    return lowered


def with_step_end(stated: Schedule, *, tied_embedding: bool = False) -> Lowered:
    """Add gradient reduction and optimizer to a schedule that states its sends and receives, in its order."""
    orders = [
        [(_AS_IT_IS, row) for row in range(rows.start, rows.stop) if stated.op[row] <= Op.RECV_B]
        for rows in map(stated.rows_of, range(stated.num_ranks))
    ]
    return _laid_out(stated, orders, tied_embedding)


def _laid_out(schedule: Schedule, orders: list[list[tuple[int, int]]], tied_embedding: bool) -> Lowered:
    copies = embedding_copies(schedule) if tied_embedding else {}
    skips = dependencies(schedule).skips if schedule.skips else None
    tables = [
        _with_step_end(schedule, rank, rows, copies.get(rank), skips) for rank, rows in enumerate(orders)
    ]
    op, stage, microbatch, part, joined = (np.ascontiguousarray(c) for c in np.concatenate(tables).T)
    return Lowered(
        name=schedule.name,
        num_stages=schedule.num_stages,
        num_microbatches=schedule.num_microbatches,
        num_slices=schedule.num_slices,
        offsets=np.cumsum([0, *map(len, tables)], dtype=np.int32),
        op=op,
        stage=stage,
        microbatch=microbatch,
        slice=part,
        joined=joined.astype(np.bool_),
        schedule=schedule,
        skips=schedule.skips,
        slice_shares=schedule.slice_shares,
    )


def check_compute_only(schedule: object) -> None:
    """Refuse what is not a compute-only `Schedule`.

    Raises
    ------
    ScheduleError
        Saying what was found and what makes it right.
    """
    if isinstance(schedule, Lowered):
        raise ScheduleError(f"{schedule.name} is lowered already; its computations are its .schedule")
    if not isinstance(schedule, Schedule):
        raise ScheduleError(f"found {type(schedule).__name__}; a Schedule is needed")
    if (schedule.op > Op.W).any():
        raise ScheduleError(f"{schedule.name} holds communication; drop it with .compute_only()")


def embedding_copies(schedule: Schedule) -> dict[int, int]:
    """Ranks with a copy of a tied embedding, and the stage, first or last, that has it.

    None where every one of them holds both stages, as in V placements: they need one copy only.
    """
    ends = {0, schedule.num_stages - 1}
    held = {rank: ends.intersection(schedule.stages_of(rank)) for rank in range(schedule.num_ranks)}
    if all(stages in (ends, set()) for stages in held.values()):
        return {}
    return {rank: min(stages) for rank, stages in held.items() if stages}


_COMPUTE, _SEND, _RECEIVE, _AS_IT_IS, _SEND_SKIP, _RECEIVE_SKIP = range(6)
"""What is done with a row of the schedule or, of a skip connection, with one of its inputs."""


def _by_row(rows: IntArray, crosses: BoolArray) -> dict[int, list[int]]:
    """Group the inputs that cross ranks by one of their two rows."""
    found: dict[int, list[int]] = defaultdict(list)
    for number in np.flatnonzero(crosses).tolist():
        found[int(rows[number])].append(number)
    return found


def _receives_late(schedule: Schedule, needs: Dependencies) -> list[list[tuple[int, int]]]:
    crosses, joined = needs.crosses.tolist(), schedule.joined.tolist()
    sends = _sends(needs).tolist()
    given = _by_row(needs.skips.producer, needs.skips.crosses)
    taken = _by_row(needs.skips.consumer, needs.skips.crosses)
    orders = []
    for rank in range(schedule.num_ranks):
        order: list[tuple[int, int]] = []
        for unit in _units(schedule.rows_of(rank), joined):
            order += [(_RECEIVE, row) for row in unit if crosses[row]]
            order += [(_RECEIVE_SKIP, number) for row in unit for number in taken.get(row, ())]
            order += [(_COMPUTE, row) for row in unit]
            order += [(_SEND, row) for row in unit if sends[row]]
            order += [(_SEND_SKIP, number) for row in unit for number in given.get(row, ())]
        orders.append(order)
    return orders


def in_batches(schedule: Schedule, needs: Dependencies) -> list[list[tuple[int, int]]]:
    """Put every message into one batch of each of its ranks, as Megatron-LM does without overlap.

    A rank posts a batch between two turns and goes on when all of it is done. A turn is a forward with the
    backward behind it, where that can run at all, or one of them. If all turns lasted equally long, each
    message would have a moment, from its producer's end to its consumer's start, at which neither rank
    computes; both ranks post it with their last batch up to then. No ranks can wait for each other in a
    circle: each would have to come to its next batch before the one before it does.
    """
    turns = _timed_turns(schedule, needs, paired=True) or _timed_turns(schedule, needs, paired=False) or []
    producer, crosses, rank_of = needs.producer.tolist(), needs.crosses.tolist(), schedule.rank.tolist()
    starts = {row: turn.start for of_rank in turns for turn in of_rank for row in turn.rows}
    gaps = [
        _Gaps([0, *(turn.start + 1 for turn in of_rank)], [turn.start for turn in of_rank])
        for of_rank in turns
    ]
    batches: list[list[list[tuple[int, int]]]] = [[[] for _ in of_rank.opens] for of_rank in gaps]

    def post(source: int, row: int, send: tuple[int, int], receive: tuple[int, int]) -> None:
        receiver, sender = rank_of[row], rank_of[source]
        moment = _moment(gaps[sender], gaps[receiver], starts[source] + 1, starts[row])
        batches[receiver][gaps[receiver].at(moment)].append(receive)
        batches[sender][gaps[sender].at(moment)].append(send)

    for row, source in enumerate(producer):
        if crosses[row]:
            post(source, row, (_SEND, source), (_RECEIVE, row))
    for number in np.flatnonzero(needs.skips.crosses).tolist():
        source, row = int(needs.skips.producer[number]), int(needs.skips.consumer[number])
        post(source, row, (_SEND_SKIP, number), (_RECEIVE_SKIP, number))
    orders = []
    for of_rank, of_batches in zip(turns, batches, strict=True):
        order: list[tuple[int, int]] = []
        for batch, rows in zip(of_batches, [*(turn.rows for turn in of_rank), ()], strict=True):
            order += sorted(batch) + [(_COMPUTE, row) for row in rows]
        orders.append(order)
    return orders


class _Turn(NamedTuple):
    """What a rank computes between two batches, and when it starts if all turns last 1."""

    rows: tuple[int, ...]
    start: int


def _timed_turns(schedule: Schedule, needs: Dependencies, *, paired: bool) -> list[list[_Turn]] | None:
    """Give each rank its turns, as early as they can be; None if they cannot run."""
    producer, joined, op = needs.producer.tolist(), schedule.joined.tolist(), schedule.op.tolist()
    todo: list[list[tuple[int, ...]]] = []
    for rank in range(schedule.num_ranks):
        of_rank: list[tuple[int, ...]] = []
        for unit in _units(schedule.rows_of(rank), joined):
            before = of_rank[-1] if of_rank else ()
            if paired and len(before) == 1 and op[before[0]] == Op.F and op[unit[0]] in BACKWARDS:
                of_rank[-1] = before + unit
            else:
                of_rank.append(unit)
        todo.append(of_rank)
    ends: dict[int, int] = {}
    turns: list[list[_Turn]] = [[] for _ in todo]
    moved = True
    while moved:
        moved = False
        for of_rank, done in zip(todo, turns, strict=True):
            while len(done) < len(of_rank):
                rows = of_rank[len(done)]
                sources = [
                    producer[row] for row in rows if producer[row] != NONE and producer[row] not in rows
                ]
                if any(source not in ends for source in sources):
                    break
                start = max([done[-1].start + 1 if done else 0, *(ends[source] for source in sources)])
                done.append(_Turn(rows, start))
                ends.update(dict.fromkeys(rows, start + 1))
                moved = True
    return turns if all(map(len, turns)) and sum(map(len, turns)) == sum(map(len, todo)) else None


class _Gaps(NamedTuple):
    """Where a rank may post messages: before each computation and after the last."""

    opens: list[int]
    ends: list[int]

    def at(self, moment: int) -> int:
        """Last gap that is open by a moment."""
        return bisect_right(self.opens, moment) - 1

    def is_idle(self, moment: int) -> bool:
        """Whether the rank does not compute then."""
        gap = self.at(moment)
        return gap == len(self.ends) or moment <= self.ends[gap]


def _moment(sender: _Gaps, receiver: _Gaps, sent: int, needed: int) -> int:
    """First moment in a span at which both ranks are idle; else when the receiver first is."""
    opening = sorted(
        moment
        for gaps in (sender, receiver)
        for moment in gaps.opens[bisect_left(gaps.opens, sent) : bisect_right(gaps.opens, needed)]
    )
    moments = [sent, *opening, needed]
    both = (moment for moment in moments if sender.is_idle(moment) and receiver.is_idle(moment))
    return next(both, next(moment for moment in moments if receiver.is_idle(moment)))


def _receives_early(schedule: Schedule, needs: Dependencies) -> list[list[tuple[int, int]]]:
    producer, consumer = needs.producer.tolist(), needs.consumer.tolist()
    sends, joined, rank_of = _sends(needs).tolist(), schedule.joined.tolist(), schedule.rank.tolist()
    skips_of, taker = _by_row(needs.skips.producer, needs.skips.crosses), needs.skips.consumer.tolist()
    orders: list[list[tuple[int, int]]] = [[] for _ in range(schedule.num_ranks)]
    units = [_units(schedule.rows_of(rank), joined) for rank in range(schedule.num_ranks)]
    heads = [0] * schedule.num_ranks
    done = bytearray(len(producer))
    # Ranks take turns, round by round; one that waits comes back when what it waits for is done.
    this_round, next_round = [rank for rank, of_rank in enumerate(units) if of_rank], list[int]()
    waiting: dict[int, list[int]] = defaultdict(list)
    while this_round or next_round:
        if not this_round:
            this_round, next_round = sorted(next_round), []
        rank = heappop(this_round)
        unit, order = units[rank][heads[rank]], orders[rank]
        missing = [producer[row] for row in unit if producer[row] != NONE and not done[producer[row]]]
        if missing:
            waiting[missing[0]].append(rank)
            continue
        for row in unit:
            done[row] = 1
            order.append((_COMPUTE, row))
            for other in waiting.pop(row, ()):
                if other > rank:
                    heappush(this_round, other)
                else:
                    next_round.append(other)
        for row in unit:
            if sends[row]:
                order.append((_SEND, row))
                orders[rank_of[consumer[row]]].append((_RECEIVE, consumer[row]))
            for number in skips_of.get(row, ()):
                order.append((_SEND_SKIP, number))
                orders[rank_of[taker[number]]].append((_RECEIVE_SKIP, number))
        heads[rank] += 1
        if heads[rank] < len(units[rank]):
            next_round.append(rank)
    if not all(done):
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
    schedule: Schedule,
    rank: int,
    order: list[tuple[int, int]],
    embedding_stage: int | None,
    skips: SkipInputs | None,
) -> IntArray:
    kind, row = np.array(order, dtype=np.int32).T
    part = schedule.slice[np.where(kind < _SEND_SKIP, row, 0)]
    if skips is not None:
        sent, received = np.flatnonzero(kind == _SEND_SKIP), np.flatnonzero(kind == _RECEIVE_SKIP)
        part[sent], part[received] = skips.skip[row[sent]], skips.skip[row[received]]
        row[sent], row[received] = skips.producer[row[sent]], skips.consumer[row[received]]
    forward, op = schedule.op[row] == Op.F, schedule.op[row]
    for of_kind, forth, back in (
        (_SEND, Op.SEND_F, Op.SEND_B),
        (_RECEIVE, Op.RECV_F, Op.RECV_B),
        (_SEND_SKIP, Op.SEND_SKIP_F, Op.SEND_SKIP_B),
        (_RECEIVE_SKIP, Op.RECV_SKIP_F, Op.RECV_SKIP_B),
    ):
        op = np.where(kind == of_kind, np.where(forward, forth, back), op)
    joined = schedule.joined[row] & (kind == _COMPUTE)
    body = np.stack([op, schedule.stage[row], schedule.microbatch[row], part, joined], axis=1)
    stages = schedule.stages_of(rank)
    reductions = [(Op.REDUCE_GRAD, stage, NONE, 0, 0) for stage in reversed(stages)]
    if embedding_stage is not None:
        reductions.append((Op.REDUCE_EMBEDDING, embedding_stage, NONE, 0, 0))
    step_end = [*reductions, (Op.OPTIMIZER, stages[0], NONE, 0, 0)]
    return np.concatenate([body, np.array(step_end, dtype=np.int32)])
