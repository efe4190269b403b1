"""Why each action of a step did not start sooner: idle time by cause, action by action."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipesim.ir import NONE, dependencies
from pipesim.ir.actions import RECEIVES, SENDS, SKIP_TRANSFERS, IntArray, Op, RowSlice, Schedule
from pipesim.ir.timeline import Timeline

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class IdleTimes:
    """Actions of a step in the order of their ranks, an overlapped pair as one; arrays of shape (actions,).

    Parameters
    ----------
    row
        First row of each action in the schedule.
    awaited
        Row that hands over what the action needs, of a pair the part that came last; `NONE` where nothing is.
    start_s, end_s
        Seconds.
    dependency_s
        Between the rank's action before and this one until the awaited row has ended, 0 for a rank's first
        action; with blocking transfers, all of that time in which no message of the rank is under way.
    p2p_s
        The rest of that time: until the message is there.
    collective_s
        Within the action, until shared-out parameters are gathered and gradients reduced.
    offsets
        Rank r owns actions offsets[r] to offsets[r + 1].
    """

    row: IntArray
    awaited: IntArray
    start_s: Array
    end_s: Array
    dependency_s: Array
    p2p_s: Array
    collective_s: Array
    offsets: IntArray

    def actions_of(self, rank: int) -> RowSlice:
        """Actions of one rank."""
        return RowSlice(int(self.offsets[rank]), int(self.offsets[rank + 1]))


def idle_times(timeline: Timeline, schedule: Schedule) -> IdleTimes:
    """Attribute the time before and within every action of one step of one replica.

    Parameters
    ----------
    timeline : Timeline
        Its computations are the schedule's, in the same order.
    schedule : Schedule
        Compute only.
    """
    compute = timeline.select(timeline.compute)
    start, end = compute.start_s, compute.end_s
    waited = 0 * start if compute.waited_s is None else np.minimum(compute.waited_s, end - start)
    awaited, ready = _inputs(schedule, start, end)
    first = ~np.roll(schedule.joined, 1)
    row = np.flatnonzero(first).astype(np.int32)
    offsets = np.concatenate(([0], np.cumsum(first)))[schedule.offsets].astype(np.int32)
    begin, finish, ready = start[row], end[row], ready[row]
    dependency, p2p = 0 * begin, 0 * begin
    later = np.ones(len(row), np.bool_)
    later[offsets[:-1]] = False
    after = np.flatnonzero(later)
    produced = np.minimum(np.maximum(ready[after], finish[after - 1]), begin[after])
    dependency[after], p2p[after] = produced - finish[after - 1], begin[after] - produced
    times = IdleTimes(row, awaited[row], begin, finish, dependency, p2p, waited[row], offsets)
    if _partners_wait(timeline, schedule, end):
        for rank in range(schedule.num_ranks):
            _count_transfers_alone(times, timeline, rank)
    return times


def _inputs(schedule: Schedule, start: Array, end: Array) -> tuple[IntArray, Array]:
    """Row that each row takes its input from, and when that has ended; of pairs for both parts together."""
    needs = dependencies(schedule)
    awaited = needs.producer.copy()
    ready = np.where(awaited == NONE, start.min(), end[awaited])
    for producer, consumer in zip(needs.skips.producer.tolist(), needs.skips.consumer.tolist(), strict=True):
        if end[producer] > ready[consumer]:
            awaited[consumer], ready[consumer] = producer, end[producer]
    pairs = np.flatnonzero(schedule.joined)
    second = pairs[ready[pairs + 1] > ready[pairs]]
    awaited[second], ready[second] = awaited[second + 1], ready[second + 1]
    return awaited, ready


def _partners_wait(timeline: Timeline, schedule: Schedule, end: Array) -> bool:
    """Whether any message left later than its computation ended, as where both ranks have to be there."""
    sent = timeline.select(np.isin(timeline.op, SENDS))
    by_key = {
        (int(op), *key): ended
        for op, ended, *key in zip(
            np.where(schedule.op == Op.F, Op.SEND_F, np.where(schedule.op == Op.W, Op.W, Op.SEND_B)).tolist(),
            end.tolist(),
            schedule.rank.tolist(),
            schedule.stage.tolist(),
            schedule.microbatch.tolist(),
            schedule.slice.tolist(),
            strict=True,
        )
    }
    along_skips = np.isin(sent.op, SKIP_TRANSFERS)
    between = np.where(sent.op == Op.SEND_SKIP_F, Op.SEND_F, np.where(along_skips, Op.SEND_B, sent.op))
    keys = zip(
        between.tolist(),
        sent.rank.tolist(),
        sent.stage.tolist(),
        sent.microbatch.tolist(),
        np.where(along_skips, 0, sent.slice).tolist(),
        strict=True,
    )
    return any(left > by_key[key] for key, left in zip(keys, sent.start_s.tolist(), strict=True))


def _count_transfers_alone(times: IdleTimes, timeline: Timeline, rank: int) -> None:
    """Count a rank's gaps as p2p only while one of its messages is on its way."""
    moving = timeline.select((timeline.rank == rank) & np.isin(timeline.op, SENDS + RECEIVES))
    moves = sorted(zip(moving.start_s.tolist(), moving.end_s.tolist(), strict=True))
    actions, next_move = times.actions_of(rank), 0
    for action in range(actions.start + 1, actions.stop):
        covered, gap_end = times.end_s[action - 1], times.start_s[action]
        p2p_s, gap_s = 0 * covered, gap_end - covered
        while next_move < len(moves) and moves[next_move][0] < gap_end:
            begin, end = moves[next_move]
            begin, end = max(begin, covered), min(end, gap_end)
            if end > begin:
                p2p_s, covered = p2p_s + (end - begin), end
            next_move += 1
        times.p2p_s[action], times.dependency_s[action] = p2p_s, max(0 * gap_s, gap_s - p2p_s)
