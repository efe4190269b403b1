"""A schedule prepared once and timed under many sets of costs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipesim.costs import CostTable
from pipesim.costs.host import HostCost
from pipesim.costs.rows import message_bytes, row_durations, skip_delays
from pipesim.ir import Dependencies, check_compute_only, dependencies, linear_extension
from pipesim.ir.actions import IntArray, Schedule
from pipesim.timing.longest_path.spans import Spans


@dataclass(frozen=True, slots=True, eq=False)
class PreparedSchedule:
    """What timing needs of a schedule and no costs can change. Made by `PreparedSchedule.of`.

    Parameters
    ----------
    schedule : Schedule
        Valid and compute only.
    needs : Dependencies
        Of the schedule.
    rows : IntArray
        What the compiled loop reads of them, as `pipesim.timing.longest_path.kernels.new_rows` lays it out.
    order : IntArray
        Rows in an order in which they can run; of an overlapped pair the first only.
    messages : tuple of (int, int, int, int)
        Source rank, destination rank, boundary (the lower of the two stages) and slice of each kind.
    message_of_row : IntArray
        Index into `messages` of each row that waits for one, `len(messages)` for the others.
    further : Further
        Inputs through skip connections, as the compiled loop reads them.
    """

    schedule: Schedule
    needs: Dependencies
    rows: IntArray
    order: IntArray
    messages: tuple[tuple[int, int, int, int], ...]
    message_of_row: IntArray
    further: Further

    @classmethod
    def of(cls, schedule: Schedule) -> PreparedSchedule:
        """Prepare a valid compute-only schedule.

        Raises
        ------
        DeadlockError
            If the schedule cannot run.
        """
        from pipesim.timing.longest_path.kernels import ORDER, new_rows, write_order

        check_compute_only(schedule)
        needs = dependencies(schedule)
        num_rows = len(schedule.op)
        further = Further.of(needs.skips.producer, needs.skips.consumer, num_rows)
        rows = new_rows(needs.producer, schedule.joined, schedule.offsets[:-1], further.next_input)
        if write_order(rows, schedule.offsets) < num_rows:
            linear_extension(schedule, needs)  # raises, and names what each rank waits for
        messages, message_of_row = _messages(schedule, needs)
        return cls(
            schedule=schedule,
            needs=needs,
            rows=rows,
            order=rows[ORDER, : num_rows - int(schedule.joined.sum())],
            messages=messages,
            message_of_row=message_of_row,
            further=further,
        )

    def evaluate(
        self,
        durations: npt.ArrayLike,
        delays: npt.ArrayLike | None = None,
        skip_delays: npt.ArrayLike | None = None,
    ) -> Spans:
        """Time the schedule; the same as `pipesim.timing.longest_path.evaluate`, in floats.

        Parameters
        ----------
        durations, delays : array_like, shape (rows,)
            Seconds, as there.
        skip_delays : array_like, shape (inputs of skip connections,)
            As there.
        """
        from pipesim.timing.longest_path.kernels import DELAY, DURATION, END, START, time_rows

        num_rows = len(self.schedule.op)
        duration_s = np.asarray(durations, np.float64)
        if len(duration_s) != num_rows:
            raise ValueError(f"{len(duration_s)} durations for {num_rows} rows")
        given, found = np.zeros((2, num_rows)), np.empty((2, num_rows))
        given[DURATION] = duration_s
        if delays is not None:
            np.copyto(given[DELAY], np.asarray(delays, np.float64), where=self.needs.crosses)
        along_skips = self.further.sorted(skip_delays)
        time_rows(self.rows, len(self.order), self.further.giver, along_skips, given, found)
        return Spans(found[START], found[END])

    def evaluate_costs(self, costs: CostTable, *, sends_block: bool = False) -> Spans:
        """Time the schedule under a cost table, each message alone on its link.

        Parameters
        ----------
        costs : CostTable
            For the schedule's number of stages.
        sends_block : bool
            A rank goes on only when its message has arrived; the end of a row is still that of computing.
        """
        costs.check_stages(self.schedule)
        durations, delays = row_durations(self.schedule, costs), self.delays(costs)
        along_skips = skip_delays(self.schedule, self.needs, costs)
        if not sends_block and costs.host is None:
            return self.evaluate(durations, delays, along_skips)
        rows = np.flatnonzero(self.needs.crosses)
        producer = self.needs.producer[rows]
        # How long the messages of each row hold up its rank, and with what follows until it can go on.
        sending = np.zeros(len(durations))
        np.add.at(sending, producer, (delays if sends_block else self._send_calls(costs))[rows])
        # A pair sends its first message before its second, which the first one's receiver need not wait for.
        first = np.flatnonzero(self.schedule.joined)
        sent_later = np.zeros(len(durations))
        sent_later[first + 1] = sending[first]
        sending[first] = sending[first + 1] = sending[first] + sending[first + 1]
        held = sending if costs.host is None else sending + float(costs.host.per_action_s)
        arrives = np.zeros(len(durations))
        arrives[rows] = sent_later[producer] + delays[rows] - held[producer]
        # What the messages of skip connections hold up is left out: then this is a bound from below.
        after_held = along_skips - held[self.needs.skips.producer]
        spans = self.evaluate(durations + held, arrives, after_held)
        return Spans(spans.start, np.asarray(spans.end) - held)

    def _send_calls(self, costs: CostTable) -> npt.NDArray[Any]:
        """Seconds that each row's message holds up its sender, shape (rows,)."""
        nbytes = message_bytes(self.schedule, costs)
        host = costs.host or HostCost()
        seconds = [float(host.send_s(nbytes[boundary, part])) for _, _, boundary, part in self.messages]
        return np.array([*seconds, 0])[self.message_of_row]

    def delays(self, costs: CostTable) -> npt.NDArray[Any]:
        """Seconds from a producer's end to the arrival of its message, shape (rows,); see `row_delays`."""
        nbytes = message_bytes(self.schedule, costs)
        seconds = [
            costs.p2p(source, destination).transfer_s(nbytes[boundary, part])
            for source, destination, boundary, part in self.messages
        ]
        result: npt.NDArray[Any] = np.array([*seconds, 0], costs.forward_s.dtype)[self.message_of_row]
        return result


@dataclass(frozen=True, slots=True, eq=False)
class Further:
    """Inputs of rows through skip connections, sorted by the row that takes them.

    Parameters
    ----------
    next_input : IntArray, shape (rows + 1,)
        Row r takes the inputs next_input[r] to next_input[r + 1].
    giver : IntArray, shape (inputs,)
        Row that each comes from.
    order : array of int, shape (inputs,)
        Which of the given inputs stands where.
    """

    next_input: IntArray
    giver: IntArray
    order: npt.NDArray[np.intp]

    @classmethod
    def of(cls, giver: IntArray, taker: IntArray, num_rows: int) -> Further:
        """Sort inputs by who takes them."""
        order = np.argsort(taker, kind="stable")
        counts = np.bincount(taker, minlength=num_rows)
        next_input = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        return cls(next_input, giver[order].astype(np.int32), order)

    def sorted(self, seconds: npt.ArrayLike | None) -> npt.NDArray[np.float64]:
        """Put what is stated of each input in this order; nothing is 0."""
        if seconds is None:
            return np.zeros(len(self.order))
        return np.asarray(seconds, np.float64)[self.order]


def _messages(
    schedule: Schedule, needs: Dependencies
) -> tuple[tuple[tuple[int, int, int, int], ...], IntArray]:
    rows = np.flatnonzero(needs.crosses)
    sources = needs.producer[rows]
    rank = schedule.rank
    boundary = np.minimum(schedule.stage[rows], schedule.stage[sources])
    parts = (rank[sources], rank[rows], boundary, schedule.slice[rows])
    sizes = (schedule.num_ranks, schedule.num_ranks, schedule.num_stages, schedule.num_slices)
    kinds, kind = np.unique(np.ravel_multi_index(parts, sizes), return_inverse=True)
    messages = tuple(zip(*(part.tolist() for part in np.unravel_index(kinds, sizes)), strict=True))
    message_of_row = np.full(len(rank), len(messages), np.int32)
    message_of_row[rows] = kind
    return messages, message_of_row


def compile_seconds() -> float:
    """Compile the evaluator or load it from disk, not only at its first use; return how long it took."""
    begin = time.perf_counter()
    from pipesim.timing.longest_path.kernels import warm_up

    warm_up()
    return time.perf_counter() - begin
