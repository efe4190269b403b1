"""What one GPU does: its compute stream works through the rank's rows in order."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import simpy

from pipesim.ir.actions import Op
from pipesim.timing.engine.collective import RunningCollective, RunningExchange, RunningTokens, StepEnd
from pipesim.timing.engine.link import Mail
from pipesim.timing.engine.pace import Pace
from pipesim.timing.engine.program import (
    COMPUTE,
    DISTURBED,
    DISTURBED_PAIR_END,
    NO_MESSAGE,
    PAIR_END,
    PAIR_START,
    RECEIVE,
    SEND,
    STEP_END,
    Program,
)
from pipesim.timing.engine.simulated_clock import Clock

COMPUTES = (COMPUTE, PAIR_END)
DISTURBED_COMPUTES = (DISTURBED, DISTURBED_PAIR_END)
BEGINS = (COMPUTE, DISTURBED, PAIR_START)
Process = Generator[simpy.Event, Any, None]


class Gpu:
    """One rank of one replica.

    Parameters
    ----------
    program : Program
        What all ranks do.
    rank : int
        Which of them this is.
    mail : Mail
        The messages of the replica.
    exchanges : dict of int to RunningExchange
        What computations move among the replicas, by row; shared by the replicas.
    tokens : dict of int to RunningTokens
        What computations exchange with experts, by row; shared by the replicas.
    step_end : StepEnd
        What ends the step, shared by the replicas.
    pace : Pace
        How fast it computes beside collectives.
    start_s, end_s : list
        Filled in, by row; the rows of transfers are left to their messages.
    gap_s : number
        From the end of a computation to the earliest start of the next.
    """

    def __init__(
        self,
        clock: Clock,
        program: Program,
        rank: int,
        mail: Mail,
        exchanges: dict[int, RunningExchange],
        tokens: dict[int, RunningTokens],
        step_end: StepEnd,
        start_s: list[Any],
        end_s: list[Any],
        pace: Pace,
        gap_s: Any = 0,
    ) -> None:
        self.clock = clock
        self.program = program
        self.rows = range(int(program.schedule.offsets[rank]), int(program.schedule.offsets[rank + 1]))
        self.mail = mail
        self.exchanges = exchanges
        self.tokens = tokens
        self.step_end = step_end
        self.start_s = start_s
        self.end_s = end_s
        self.pace = pace
        self.gap_s = gap_s
        self.at: int | None = self.rows.start
        """The row it is at, or None when it is done."""

    def run_overlapped(self, *, sends_block: bool = False) -> Process:
        """Transfers run beside the compute stream; an action waits only for its own input.

        Where sends block, the stream goes on only when its message has arrived; receives block nobody.
        """
        clock, timeout, mail, arrived_s = self.clock, self.clock.timeout, self.mail, self.mail.arrived_s
        start_s, end_s, now_s = self.start_s, self.end_s, self.clock.now
        rows = slice(self.rows.start, self.rows.stop)
        columns = (self.program.kind[rows], self.program.message[rows], self.program.duration_s[rows])
        send_s, gap_s, began = self.program.send_s, self.gap_s, False
        further = self.program.further
        for row, kind, message, duration_s in zip(self.rows, *columns, strict=True):
            if gap_s and kind in BEGINS:
                if began:
                    yield timeout(gap_s)
                    now_s = clock.now
                began = True
            if further and row in further:
                for other in further[row]:
                    if (at_s := arrived_s[other]) is None or at_s > now_s:
                        yield mail.after(other)
                        now_s = clock.now
            if kind in COMPUTES:
                if message == NO_MESSAGE or ((at_s := arrived_s[message]) is not None and at_s <= now_s):
                    start_s[row] = now_s
                    yield timeout(duration_s)
                else:
                    # The computation follows the arrival at once, so that one event does for both.
                    yield mail.after(message, duration_s)
                    start_s[row] = arrived_s[message]
                end_s[row] = now_s = clock.now
                if kind == PAIR_END:
                    start_s[row - 1], end_s[row - 1] = start_s[row], now_s
            elif kind == SEND:
                mail.send(message, now_s)
                if sends_block:
                    yield mail.after(message)
                    now_s = clock.now
                elif send_s[message]:
                    yield timeout(send_s[message])
                    now_s = clock.now
            elif kind == PAIR_START:
                if message != NO_MESSAGE and ((at_s := arrived_s[message]) is None or at_s > now_s):
                    yield mail.after(message)
                    now_s = clock.now
            elif kind in DISTURBED_COMPUTES:
                if message != NO_MESSAGE and ((at_s := arrived_s[message]) is None or at_s > now_s):
                    yield mail.after(message)
                yield from self._compute_beside_collectives(row)
                now_s = clock.now
            elif kind == STEP_END:
                yield from self._end_step(row)
                now_s = clock.now
        self.at = None

    def _compute_beside_collectives(self, row: int) -> Process:
        """Compute in as many parts as the row completes buckets of gradients; each leaves when complete.

        Where the row moves weights or gradients among the replicas, it lasts until they are there.
        """
        exchange = self.exchanges.get(row)
        moved = None if exchange is None else exchange.join(self.program.duration_s[row])
        stage = self.program.reduces.get(row)
        buckets = None if stage is None else self.step_end.reductions[stage].buckets
        self.start_s[row] = self.clock.now
        if row in self.tokens:
            yield from self._compute_beside_tokens(self.tokens[row], self.program.duration_s[row], buckets)
        else:
            num_parts = 1 if buckets is None else buckets.num_rounds
            part_s = self.program.duration_s[row] / num_parts
            for part in range(num_parts):
                yield self.pace.compute(part_s)
                if buckets is not None:
                    buckets.join(part)
        if moved is not None and not moved.processed:
            yield moved
        self.end_s[row] = self.clock.now
        if self.program.kind[row] == DISTURBED_PAIR_END:
            self.start_s[row - 1], self.end_s[row - 1] = self.start_s[row], self.end_s[row]

    def _compute_beside_tokens(
        self, tokens: RunningTokens, duration_s: Any, buckets: RunningCollective | None
    ) -> Process:
        """Compute in parts, each of which ends when its tokens are there; gradients leave after some."""
        num_parts = tokens.num_parts
        part_s = max(0, duration_s - tokens.shown_s) / num_parts
        for part in range(num_parts):
            tokens.begin(part)
            yield self.pace.compute(part_s)
            there = tokens.computed(part)
            if not there.processed:
                yield there
            if buckets is not None:
                rounds = buckets.num_rounds
                for bucket in range(part * rounds // num_parts, (part + 1) * rounds // num_parts):
                    buckets.join(bucket)

    def run_blocking(self) -> Process:
        """Transfers between two computations go together, and the compute stream waits for all of them."""
        kind, clock, mail = self.program.kind, self.clock, self.mail
        together: list[int] = []
        began = False
        for row in self.rows:
            self.at = row
            if kind[row] == SEND or kind[row] == RECEIVE:
                together.append(self.program.message[row])
                continue
            for message in together:
                mail.meet(message, clock.now)
            for message in together:
                if mail.arrived_s[message] is None or mail.arrived_s[message] > clock.now:
                    yield mail.after(message)
            together.clear()
            if self.gap_s and kind[row] in BEGINS:
                if began:
                    yield clock.timeout(self.gap_s)
                began = True
            self.start_s[row] = clock.now
            if kind[row] == STEP_END:
                yield from self._end_step(row)
            elif kind[row] in DISTURBED_COMPUTES:
                yield from self._compute_beside_collectives(row)
            elif kind[row] != PAIR_START:
                yield clock.timeout(self.program.duration_s[row])
                self.end_s[row] = clock.now
                if kind[row] == PAIR_END:
                    self.end_s[row - 1] = clock.now
        self.at = None

    def _end_step(self, row: int) -> Process:
        schedule, step_end = self.program.schedule, self.step_end
        if schedule.op[row] == Op.REDUCE_GRAD:
            reduction = step_end.reductions[int(schedule.stage[row])]
            yield from reduction.finish()
            self.start_s[row], self.end_s[row] = reduction.started_s, reduction.ended_s
        elif schedule.op[row] == Op.REDUCE_EMBEDDING:
            yield step_end.embedding.join()
            self.start_s[row], self.end_s[row] = step_end.embedding.started_s, step_end.embedding.ended_s
        else:
            yield step_end.optimizer_barrier.join()
            self.start_s[row] = self.clock.now
            yield self.clock.timeout(self.program.duration_s[row])
            self.end_s[row] = self.clock.now
