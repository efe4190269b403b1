"""Sends and receives that a file states: whether they are those that its computations need, and in order."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise

import numpy as np

from pipesim.errors import ScheduleError
from pipesim.ir.actions import RECEIVES, SENDS, Action, ActionTable, Op, Schedule
from pipesim.ir.lowering import lower
from pipesim.ir.rendezvous import find_hang


def has_messages(schedule: Schedule) -> bool:
    """Whether a schedule states any send or receive."""
    return bool(np.isin(schedule.op, SENDS + RECEIVES).any())


def check_messages(schedule: Schedule) -> None:
    """Check the messages of a schedule whose computations are valid.

    Raises
    ------
    ScheduleError
        A send or receive is missing, doubled or of no use; receives stand in another order than the sends of
        the same two ranks, which transports that match by order (gloo, NCCL) would give each other's data; or
        the ranks hang even where sends return at once.
    """
    expected, found = _messages(lower(schedule.compute_only())), _messages(schedule)
    for rank, action in expected - found:
        raise ScheduleError(f"rank {rank}: {action} is missing, its message is needed on another rank")
    for (rank, action), count in found.items():
        if (rank, action) not in expected:
            raise ScheduleError(f"rank {rank}: {action} sends or receives what nobody needs")
        if count > 1:
            raise ScheduleError(f"rank {rank}: {action} stands there {count} times")
    hang = find_hang(schedule, "buffered")
    if hang is not None:
        raise ScheduleError(hang)
    _check_order(schedule)


def _messages(schedule: ActionTable) -> Counter[tuple[int, Action]]:
    rows = np.flatnonzero(np.isin(schedule.op, SENDS + RECEIVES)).tolist()
    rank = schedule.rank
    return Counter((int(rank[row]), schedule.action(row)) for row in rows)


def _check_order(schedule: Schedule) -> None:
    """Compare, for each two ranks and each direction, the order of sends with that of their receives."""
    ranks = schedule.rank.tolist()
    sent: dict[tuple[Op, int, int, int], int] = {}
    received: dict[tuple[Op, int, int, int], int] = {}
    for row in np.flatnonzero(np.isin(schedule.op, SENDS + RECEIVES)).tolist():
        op, stage, microbatch, part, _ = schedule.action(row)
        towards_end = op in (Op.SEND_F, Op.RECV_F)
        is_send = op in SENDS
        # Named by the sending stage.
        source = stage if is_send else stage - 1 if towards_end else stage + 1
        message = (Op.F if towards_end else Op.B, source, microbatch, part)
        (sent if is_send else received)[message] = row
    pairs: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for message, row in sent.items():
        pairs[ranks[row], ranks[received[message]]].append((row, received[message]))
    for messages in pairs.values():
        messages.sort()
        for (_, earlier), (send, receive) in pairwise(messages):
            if receive < earlier:
                raise ScheduleError(
                    f"rank {ranks[receive]}: {schedule.action(receive)} stands before "
                    f"{schedule.action(earlier)}, but rank {ranks[send]} sends them the other way round; "
                    "transports that match messages by order would swap their data"
                )
