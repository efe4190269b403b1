"""Whether the sends and receives of a lowered schedule can all meet, and what the transport must do for it.

Computations never stand in the way here: the order of a valid schedule puts them after what they need. What
can hang is a transport that lets a rank go on only when its peer has come to the same message.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Literal, TypeAlias

from pipesim.errors import DeadlockError, ScheduleError
from pipesim.ir.actions import RECEIVES, SENDS, SKIP_TRANSFERS, ActionTable, Op

Transport: TypeAlias = Literal["rendezvous", "exchanged", "grouped", "buffered"]

TRANSPORTS: dict[Transport, str] = {
    "rendezvous": "blocking sends and receives, one by one in order",
    "grouped": "blocking transfers, those between two computations posted together",
    "buffered": "sends that return before they are received",
}
"""From the least to ask of a transport to the most, with what each means."""


def needed_transport(lowered: ActionTable) -> Transport:
    """Find the least that a lowered schedule needs in order not to hang.

    Raises
    ------
    ScheduleError
        If a send has no receive or the other way round.
    DeadlockError
        If it hangs even where sends return at once.
    """
    for transport in TRANSPORTS:
        hang = find_hang(lowered, transport)
        if hang is None:
            return transport
    raise DeadlockError(hang)


def find_hang(lowered: ActionTable, transport: Transport) -> str | None:
    """Walk through a lowered schedule; None if it ends, else each rank's place and what it waits for.

    Parameters
    ----------
    lowered : ActionTable
        With sends and receives, as from `lower` or a file.
    transport : Transport
        A key of `TRANSPORTS`, or ``exchanged``: one by one in order, but what two ranks exchange between the
        same two computations of each goes together.

    Raises
    ------
    ScheduleError
        If a send has no receive or the other way round.
    """
    walk = _Walk(lowered, transport)
    runnable = list(range(lowered.num_ranks))
    while runnable:
        runnable.extend(walk.advance(runnable.pop()))
    return walk.describe() if any(walk.waits_for) else None


class _Walk:
    """Where each rank is; a rank stops at its messages until all that must meet have met."""

    def __init__(self, lowered: ActionTable, transport: Transport) -> None:
        self.lowered = lowered
        self.grouped = transport == "grouped"
        self.buffered = transport == "buffered"
        self.is_send = [op in SENDS for op in lowered.op.tolist()]
        self.is_message = [op in SENDS or op in RECEIVES for op in lowered.op.tolist()]
        self.peer = _match(lowered)
        self.run = self._runs() if transport == "exchanged" else None
        """By row: which unbroken run of messages of its rank it is in."""
        self.rank = lowered.rank.tolist()
        self.next_row = lowered.offsets[:-1].tolist()
        self.end = lowered.offsets[1:].tolist()
        self.reached = bytearray(len(self.rank))
        self.waits_for: list[set[int]] = [set() for _ in range(lowered.num_ranks)]
        """Rows of other ranks that must be reached before a rank goes on."""

    def advance(self, rank: int) -> list[int]:
        """Go on as far as possible; returns the ranks that this sets free."""
        freed: list[int] = []
        while not self.waits_for[rank] and self.next_row[rank] < self.end[rank]:
            for row in self._step(rank):
                self.reached[row] = 1
                peer = self.peer[row]
                if not self.reached[peer]:
                    if not (self.buffered and self.is_send[row]):
                        self.waits_for[rank].add(peer)
                    continue
                other = self.rank[peer]
                if row in self.waits_for[other]:
                    self.waits_for[other].discard(row)
                    if not self.waits_for[other]:
                        freed.append(other)
        return freed

    def _runs(self) -> list[int]:
        runs, run = [], 0
        starts = set(self.lowered.offsets.tolist())
        for row, is_message in enumerate(self.is_message):
            if not is_message or row in starts:
                run += 1
            runs.append(run)
        return runs

    def _exchanged(self, row: int, before: int) -> bool:
        """Whether a message goes together with the one before it: on both ranks nothing comes between."""
        one, other = self.peer[before], self.peer[row]
        return (
            self.run is not None and self.rank[one] == self.rank[other] and self.run[one] == self.run[other]
        )

    def _step(self, rank: int) -> list[int]:
        """Messages that the rank comes to next, all of one group; moves behind them."""
        row, end = self.next_row[rank], self.end[rank]
        while row < end and not self.is_message[row]:
            row += 1
        messages: list[int] = []
        while (
            row < end
            and self.is_message[row]
            and (self.grouped or not messages or self._exchanged(row, messages[-1]))
        ):
            messages.append(row)
            row += 1
        self.next_row[rank] = row
        return messages

    def describe(self) -> str:
        lines = ["sends and receives never meet; each rank waits for:"]
        for rank, rows in enumerate(self.waits_for):
            if not rows:
                lines.append(f"  rank {rank}: nothing")
                continue
            row = min(self.peer[peer] for peer in rows)
            peer = self.peer[row]
            lines.append(
                f"  rank {rank}: at {self.lowered.action(row)}, for {self.lowered.action(peer)} "
                f"on rank {self.rank[peer]}"
            )
        return "\n".join(lines)


def _match(lowered: ActionTable) -> dict[int, int]:
    """Row of the receive for each send and of the send for each receive.

    Messages are told apart by what they carry and its direction, and, with two model replicas, by microbatch.
    """
    ends: dict[tuple[bool, bool, int, int, int], list[int]] = defaultdict(list)
    columns = (lowered.op, lowered.stage, lowered.microbatch, lowered.slice)
    for row, (op, stage, microbatch, part) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
        if op in SENDS or op in RECEIVES:
            towards_end = op in (Op.SEND_F, Op.RECV_F, Op.SEND_SKIP_F, Op.RECV_SKIP_F)
            skips = op in SKIP_TRANSFERS
            boundary = 0 if skips else stage - (op in (Op.RECV_F, Op.SEND_B))
            ends[skips, towards_end, boundary, microbatch, part].append(row)
    peer: dict[int, int] = {}
    for rows in ends.values():
        sends = [row for row in rows if lowered.op[row] in SENDS]
        if len(rows) != 2 or len(sends) != 1:
            found = ", ".join(f"{lowered.action(row)} on rank {lowered.rank[row]}" for row in rows)
            raise ScheduleError(f"a message needs one send and one receive; found {found}")
        first, second = rows
        peer[first], peer[second] = second, first
    return peer
