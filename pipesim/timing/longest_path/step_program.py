"""All of a step that the order of a schedule decides, timed without the engine.

What the engine does event by event has a closed form where nothing contends: the longest path through the
computations, then each rank's reductions one after the other, then all optimizers at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from pipesim.costs import CostTable
from pipesim.costs.rows import exposed_exchange_s, message_bytes, rows_of_tokens, skip_bytes, skip_delays
from pipesim.costs.token_exchange import TokenKey
from pipesim.ir import NONE, Dependencies, embedding_copies
from pipesim.ir.actions import IntArray, Op, Schedule
from pipesim.ir.timeline import Timeline
from pipesim.timing.longest_path.contention import wires_contend
from pipesim.timing.longest_path.left import least_left_s
from pipesim.timing.longest_path.reusable_program import PreparedSchedule

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class StepProgram:
    """A schedule with all of a step that its order decides. Made by `StepProgram.of`.

    Parameters
    ----------
    prepared : PreparedSchedule
        The computations.
    columns : tuple of IntArray
        Rank, op, stage, microbatch and slice of each row of the timeline: computations, sends behind them,
        and the reductions and the optimizer of each rank at its end.
    compute_rows, send_rows, reduce_rows, embedding_rows, optimizer_rows : IntArray
        Where each kind stands in the columns.
    sender, receiver : IntArray
        Rows of the schedule that give and take what each send carries.
    skip_input : IntArray
        Which input of a skip connection (`Dependencies.skips`) that is; `NONE` between neighbours.
    stages : tuple of IntArray
        Of each rank, in the order in which it reduces their gradients.
    """

    prepared: PreparedSchedule
    columns: tuple[IntArray, ...]
    compute_rows: IntArray
    send_rows: IntArray
    reduce_rows: IntArray
    embedding_rows: IntArray
    optimizer_rows: IntArray
    sender: IntArray
    receiver: IntArray
    skip_input: IntArray
    stages: tuple[IntArray, ...]

    @classmethod
    def of(cls, schedule: Schedule, *, tied_embedding: bool = False) -> StepProgram:
        """Lay out a valid compute-only schedule; the parameters are those of `pipesim.ir.lower`.

        Raises
        ------
        DeadlockError
            If the schedule cannot run.
        """
        prepared = PreparedSchedule.of(schedule)
        num_rows, num_ranks = len(schedule.op), schedule.num_ranks
        sender, receiver, skip_input = _sends(prepared.needs)
        skips = skip_input != NONE
        stages = tuple(np.array(schedule.stages_of(rank)[::-1], np.int32) for rank in range(num_ranks))
        num_reductions = [len(of_rank) for of_rank in stages]
        copies = embedding_copies(schedule) if tied_embedding else {}
        with_copy = np.array(list(copies), np.int32)
        ranks, last_row = np.arange(num_ranks), schedule.offsets[1:] - 1
        # Sorted by the row that each one follows; both messages of a pair follow its second row.
        parts = (
            np.arange(num_rows),
            sender + schedule.joined[sender],
            np.repeat(last_row, num_reductions),
            last_row[with_copy],
            last_row,
        )
        sizes = [len(part) for part in parts]
        after, kind = np.concatenate(parts), np.repeat(np.arange(5), sizes)
        between, along = (Op.SEND_F, Op.SEND_B), (Op.SEND_SKIP_F, Op.SEND_SKIP_B)
        forth, back = (np.where(skips, *ops) for ops in zip(along, between, strict=True))
        of_send = np.where(schedule.op[sender] == Op.F, forth, back)
        part = (
            np.where(skips, prepared.needs.skips.skip[skip_input], schedule.slice[sender])
            if skips.any()
            else (schedule.slice[sender])
        )
        of_step_end = np.repeat([Op.REDUCE_GRAD, Op.REDUCE_EMBEDDING, Op.OPTIMIZER], sizes[2:])
        none, zero = np.full(len(of_step_end), NONE), np.zeros(len(of_step_end), np.int32)
        first_stages = np.array([of_rank[-1] for of_rank in stages])
        rank, stage = schedule.rank, schedule.stage
        columns: tuple[tuple[npt.NDArray[np.integer[Any]], ...], ...] = (
            (rank, rank[sender], np.repeat(ranks, num_reductions), with_copy, ranks),
            (schedule.op, of_send, of_step_end),
            (stage, stage[sender], *stages, np.array(list(copies.values()), np.int32), first_stages),
            (schedule.microbatch, schedule.microbatch[sender], none),
            (schedule.slice, part, zero),
        )
        order = np.lexsort((kind, after))
        place = np.empty(len(order), np.int32)
        place[order] = np.arange(len(order), dtype=np.int32)
        compute_rows, send_rows, reduce_rows, embedding_rows, optimizer_rows = np.split(
            place, np.cumsum(sizes)[:-1]
        )
        return cls(
            prepared=prepared,
            columns=tuple(np.concatenate(column).astype(np.int32)[order] for column in columns),
            compute_rows=compute_rows,
            send_rows=send_rows,
            reduce_rows=reduce_rows,
            embedding_rows=embedding_rows,
            optimizer_rows=optimizer_rows,
            sender=sender,
            receiver=receiver,
            skip_input=skip_input,
            stages=stages,
        )

    @property
    def schedule(self) -> Schedule:
        """The schedule itself."""
        return self.prepared.schedule

    def timeline(self, costs: CostTable, *, sends_block: bool = False) -> Timeline:
        """Time the whole step, each message alone on its link.

        Parameters
        ----------
        costs : CostTable
            For the schedule's number of stages.
        sends_block : bool
            A rank goes on only when its message has arrived. Not for schedules with overlapped pairs.
        """
        spans = self.prepared.evaluate_costs(costs, sends_block=sends_block)
        compute_start, compute_end = np.asarray(spans.start), np.asarray(spans.end)
        sync_start, sync_end = self._reductions(costs, self._free_s(costs, compute_end, sends_block))
        embedding_start, embedding_end = self._embedding(costs, sync_end)
        ready = max([float(compute_end.max()), *(ends[-1] for ends in sync_end), embedding_end])
        rank, op, stage, microbatch, part = self.columns
        start, end, nbytes = np.empty(len(op)), np.empty(len(op)), np.zeros(len(op))
        start[self.compute_rows], end[self.compute_rows] = compute_start, compute_end
        start[self.send_rows] = compute_end[self.sender]
        end[self.send_rows] = compute_end[self.sender] + self._under_way_s(costs)
        nbytes[self.send_rows] = self._sent_bytes(costs)
        start[self.reduce_rows], end[self.reduce_rows] = np.concatenate(sync_start), np.concatenate(sync_end)
        nbytes[self.reduce_rows] = costs.gradient_bytes[stage[self.reduce_rows]]
        start[self.embedding_rows], end[self.embedding_rows] = embedding_start, embedding_end
        if costs.tied_embedding is not None:
            nbytes[self.embedding_rows] = costs.tied_embedding.nbytes
        start[self.optimizer_rows] = ready
        end[self.optimizer_rows] = ready + np.array(self.optimizer_s(costs))
        return Timeline(
            source="simulated",
            rank=rank,
            replica=np.zeros(len(op), np.int32),
            op=op,
            stage=stage,
            microbatch=microbatch,
            slice=part,
            step=np.zeros(len(op), np.int32),
            start_s=start,
            end_s=end,
            nbytes=nbytes,
            waited_s=self._waited_s(costs),
        )

    def _waited_s(self, costs: CostTable) -> FloatArray | None:
        exposed = exposed_exchange_s(self.schedule, costs)
        if exposed is None:
            return None
        waited = np.zeros(len(self.columns[0]))
        waited[self.compute_rows] = exposed
        return waited

    def step_time_s(
        self, costs: CostTable, *, sends_block: bool = False, steps_overlap: bool = False
    ) -> float:
        """Seconds of the step and nothing else; what `measure` says of `timeline`.

        Where steps overlap, a rank begins the next one when its own part of this one is done, as with the
        zero-bubble paper's optimizer, which validates gradients afterwards: then it is the longest part.
        """
        spans = self.prepared.evaluate_costs(costs, sends_block=sends_block)
        compute_start, compute_end = np.asarray(spans.start), np.asarray(spans.end)
        _, sync_end = self._reductions(costs, self._free_s(costs, compute_end, sends_block))
        _, embedding_end = self._embedding(costs, sync_end)
        ready = np.array([ends[-1] for ends in sync_end])
        with_copy = self.columns[0][self.embedding_rows]
        ready[with_copy] = np.maximum(ready[with_copy], embedding_end)
        optimizer = np.array(self.optimizer_s(costs))
        if steps_overlap:
            begin = np.minimum.reduceat(compute_start, self.schedule.offsets[:-1])
            return float((ready + optimizer - begin).max())
        return float(max(compute_end.max(), ready.max()) + optimizer.max() - compute_start.min())

    def left_s(self, costs: CostTable) -> FloatArray:
        """Seconds from the end of each computation to the end of the step, if nothing contends.

        Reductions beside computations count as free.
        """
        seconds = np.zeros(len(self.stages))
        if costs.gradient_buckets is None:
            seconds += [sum(float(costs.gradient_sync_s(int(s))) for s in of_rank) for of_rank in self.stages]
        return least_left_s(self.prepared, costs, seconds + max(self.optimizer_s(costs)))

    def optimizer_s(self, costs: CostTable) -> list[float]:
        """Seconds of each rank's optimizer."""
        return [float(costs.optimizer_s[np.sort(of_rank)].sum()) for of_rank in self.stages]

    def _under_way_s(self, costs: CostTable) -> FloatArray:
        """Seconds that each send is under way, alone on its link."""
        seconds: FloatArray = np.asarray(self.prepared.delays(costs)[self.receiver], np.float64)
        skips = self.skip_input != NONE
        if skips.any():
            along = skip_delays(self.schedule, self.prepared.needs, costs)
            seconds[skips] = along[self.skip_input[skips]]
        return seconds

    def _sent_bytes(self, costs: CostTable) -> FloatArray:
        """Bytes of each send."""
        sender, skips = self.sender, self.skip_input != NONE
        boundary = np.where(skips, 0, self.schedule.stage[sender] - (self.schedule.op[sender] != Op.F))
        nbytes: FloatArray = message_bytes(self.schedule, costs)[boundary, self.schedule.slice[sender]]
        if skips.any():
            number = self.prepared.needs.skips.skip[self.skip_input[skips]]
            nbytes[skips] = skip_bytes(self.schedule, costs)[number]
        return nbytes

    def _free_s(self, costs: CostTable, compute_end: FloatArray, sends_block: bool) -> list[float]:
        """When each rank is done with its computations, and with its sends where they block."""
        last = self.schedule.offsets[1:] - 1
        free: FloatArray = compute_end[last]
        if sends_block:
            arrives_after = np.zeros(len(compute_end))
            between = self.skip_input == NONE
            arrives_after[self.sender[between]] = self._under_way_s(costs)[between]
            free = free + arrives_after[last]
        seconds: list[float] = free.tolist()
        return seconds

    def _reductions(self, costs: CostTable, free: list[float]) -> tuple[list[list[float]], list[list[float]]]:
        """Start and end of each rank's reductions: one after the other, each once all holders are there."""
        seconds = [float(costs.gradient_sync_s(stage)) for stage in range(self.schedule.num_stages)]
        starts: list[list[float]] = [[] for _ in free]
        ends: list[list[float]] = [[] for _ in free]
        holders = np.bincount(np.concatenate(self.stages), minlength=self.schedule.num_stages).tolist()
        arrived: dict[int, list[int]] = {}
        movable = list(range(len(free)))
        while movable:
            rank = movable.pop()
            if len(ends[rank]) == len(self.stages[rank]):
                continue
            stage = int(self.stages[rank][len(ends[rank])])
            here = arrived.setdefault(stage, [])
            here.append(rank)
            if len(here) < holders[stage]:
                continue
            begin = max(free[member] for member in here)
            for member in here:
                starts[member].append(begin)
                free[member] = begin + seconds[stage]
                ends[member].append(free[member])
            movable += here
        return starts, ends

    def _embedding(self, costs: CostTable, sync_end: list[list[float]]) -> tuple[float, float]:
        """Start and end of the all-reduce of a tied embedding; both 0 where there is none."""
        collective = costs.tied_embedding
        if collective is None or not len(self.embedding_rows):
            return 0.0, 0.0
        begin = max(sync_end[rank][-1] for rank in self.columns[0][self.embedding_rows])
        return begin, begin + float(collective.seconds)

    def _token_spans(self, timeline: Timeline, costs: CostTable) -> dict[TokenKey, FloatArray]:
        """When each rank has tokens under way, to experts or back."""
        start_s, end_s = timeline.start_s[self.compute_rows], timeline.end_s[self.compute_rows]
        tokens = rows_of_tokens(self.schedule, costs, end_s - start_s)
        if tokens is None:
            return {}
        found = {}
        for rank in range(self.schedule.num_ranks):
            of_rank = self.schedule.rows_of(rank)
            rows = of_rank.start + np.flatnonzero(tokens.num_parts[of_rank]).astype(np.int32)
            found[TokenKey(rank)] = tokens.spans(rows, start_s[rows], end_s[rows])
        return found

    def contends(
        self, timeline: Timeline, costs: CostTable, *, mode: Literal["fair", "fifo"] = "fair"
    ) -> bool:
        """Whether shared wires would change a timeline; see `wires_contend`."""
        if costs.gradient_buckets is not None:
            return True
        sender, rank = self.sender, self.schedule.rank
        if costs.fabric is not None:
            ends = np.stack([rank[sender], rank[self.receiver]], axis=1)
            tokens = self._token_spans(timeline, costs)
            return wires_contend(timeline, costs, self.send_rows, ends, mode=mode, tokens=tokens)
        link = rank[sender].astype(np.int64) * self.schedule.num_ranks + rank[self.receiver]
        ends_of = {int(key): divmod(int(key), self.schedule.num_ranks) for key in np.unique(link)}
        latency = {key: float(costs.p2p(*ends).latency_s) for key, ends in ends_of.items()}
        sent, arrived = timeline.start_s[self.send_rows], timeline.end_s[self.send_rows]
        through = arrived - np.array([latency[key] for key in link.tolist()])
        order = np.lexsort((through, sent, link))
        same_link = link[order][1:] == link[order][:-1]
        # Rounding makes a message that follows the other at once seem early.
        early = sent[order][1:] < through[order][:-1] - 1e-12 * np.abs(through[order][:-1])
        return bool((same_link & early).any())


def _sends(needs: Dependencies) -> tuple[IntArray, IntArray, IntArray]:
    """Sender, receiver and input of a skip connection of each message, in the order in which rows send."""
    between, number = np.flatnonzero(needs.crosses), np.flatnonzero(needs.skips.crosses)
    sender = np.concatenate([needs.producer[between], needs.skips.producer[number]])
    receiver = np.concatenate([between, needs.skips.consumer[number]]).astype(np.int32)
    skip_input = np.concatenate([np.full(len(between), NONE), number]).astype(np.int32)
    order = np.lexsort((skip_input, sender))
    return sender[order], receiver[order], skip_input[order]
