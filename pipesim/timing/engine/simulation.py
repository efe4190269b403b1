"""Run a lowered schedule on simulated GPUs, links and collectives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from pipesim.costs import CostTable
from pipesim.costs.reductions import bucket_share
from pipesim.costs.rows import exposed_exchange_s
from pipesim.errors import DeadlockError, ScheduleError
from pipesim.ir.actions import Lowered, Op
from pipesim.ir.shape import check_replicas
from pipesim.ir.timeline import Timeline
from pipesim.timing.engine.collective import (
    GradientSync,
    RunningCollective,
    RunningExchange,
    RunningTokens,
    StepEnd,
)
from pipesim.timing.engine.giving_up import GiveUp
from pipesim.timing.engine.gpu import Gpu
from pipesim.timing.engine.link import Mail
from pipesim.timing.engine.pace import Pace
from pipesim.timing.engine.program import RECEIVE, SEND, Program, prepare
from pipesim.timing.engine.shared_flows import NetworkMode
from pipesim.timing.engine.simulated_clock import Clock
from pipesim.timing.engine.wires import LinkMaker, Wires

P2pMode = Literal["overlapped", "send-blocking", "blocking"]


def simulate(
    schedule: Lowered,
    costs: CostTable,
    *,
    p2p: P2pMode = "overlapped",
    network: NetworkMode = "fair",
    num_replicas: int = 1,
    durations: npt.NDArray[Any] | None = None,
    byte_factors: npt.NDArray[Any] | None = None,
    give_up: GiveUp | None = None,
) -> Timeline:
    """Simulate one step.

    Parameters
    ----------
    schedule : Schedule
        Lowered; for blocking transfers with ``receive="batched"``.
    costs : CostTable
        For the schedule's number of stages.
    p2p : {"overlapped", "send-blocking", "blocking"}
        Whether a transfer runs beside the computation, holds its sender to its end, or starts when both ranks
        reach it and holds both.
    network : {"fair", "fifo", "ideal"}
        How traffic shares wires: max-min fair, first come first served, or each as if it were alone.
    num_replicas : int
        Replicas of the pipeline to simulate one by one. Alike replicas behave alike, so one can stand for
        all: the cost of synchronising gradients comes from the cost table, not from this number, and what one
        sends loads the wires as if all did.
    durations : array, shape (rows,) or (num_replicas, rows), optional
        Seconds of each row in place of what the costs say, both rows of an overlapped pair holding the
        pair's: how a measured step is replayed and how jitter comes in. Rows of transfers and reductions are
        not read.
    byte_factors : array, shape (num_replicas, rows), optional
        What the bytes of each message are multiplied with on the wire; read at sends.
    give_up : GiveUp, optional
        When to stop because the step takes too long.

    Returns
    -------
    Timeline
        Rows in program order, rank by rank and replica by replica. The same arguments give the same bytes.

    Raises
    ------
    ScheduleError
        If the schedule is not lowered, or the costs are of another number of stages.
    DeadlockError
        If the ranks wait for each other for ever, as they can where transfers block.
    ScheduleError
        If there are too many replicas to hold.
    UnlikeReplicasError
        If one replica is simulated for several and cannot stand for them: their wires differ, or only one
        can go first.
    TooLongError
        If it gives up.
    """
    _check(schedule, costs)
    check_replicas(num_replicas, len(schedule.op))
    clock = Clock()
    of_first = durations if durations is None or durations.ndim == 1 else durations[0]
    program = prepare(schedule, costs, of_first)
    wires = Wires(clock, program, costs, num_replicas, network)
    paces = [
        [Pace(clock, costs.overlap_slowdown) for _ in range(schedule.num_ranks)] for _ in range(num_replicas)
    ]
    alone_s, transfers = wires.embedding_transfers()
    meeting_s = 0 if costs.host is None else costs.host.meeting_s
    step_end = StepEnd(
        {stage: _gradient_sync(clock, wires, stage, paces) for stage in wires.holders},
        RunningCollective(clock, num_replicas * len(wires.with_copies), alone_s, transfers),
        RunningCollective(clock, num_replicas * schedule.num_ranks, meeting_s),
    )
    exchanges = _exchanges(clock, wires, program, num_replicas)
    tokens = _token_exchanges(clock, wires, program, num_replicas)
    gap_s = 0 if costs.host is None else costs.host.per_action_s
    replicas = [
        _Replica(
            clock,
            program.with_its_own(_of_replica(durations, replica), _of_replica(byte_factors, replica)),
            wires.links(program, replica),
            exchanges,
            tokens,
            step_end,
            paces[replica],
            p2p,
            gap_s,
        )
        for replica in range(num_replicas)
    ]
    if give_up is not None:
        for time_s in give_up.looks_s():
            clock.run_before(time_s)
            for replica in replicas:
                give_up.look(schedule, replica.end_s, time_s)
    clock.run_to_the_end()
    for replica in replicas:
        replica.check_done()
    return _timeline(program, replicas, costs, step_end)


def _check(schedule: object, costs: CostTable) -> None:
    if not isinstance(schedule, Lowered):
        raise ScheduleError(
            f"found {type(schedule).__name__}, which has no messages yet; needed: pipesim.lower(schedule)"
        )
    costs.check_stages(schedule)


def _of_replica(values: npt.NDArray[Any] | None, replica: int) -> npt.NDArray[Any] | None:
    return None if values is None or values.ndim == 1 else values[replica]


def _gradient_sync(clock: Clock, wires: Wires, stage: int, paces: Sequence[Sequence[Pace]]) -> GradientSync:
    costs, ranks = wires.costs, wires.holders[stage]
    num_members, fixed_s = len(ranks) * len(paces), costs.fixed_sync_s[stage]
    if costs.gradient_buckets is None:
        alone_s, transfers = wires.transfers(stage, costs.sync_steps(stage))
        whole = RunningCollective(clock, num_members, fixed_s + alone_s, transfers)
        return GradientSync(whole, None, overlapped=False)
    of_bucket = [step for step in costs.sync_steps(stage, bucket_share(costs, stage)) if not step.of_weights]
    alone_s, transfers = wires.transfers(stage, of_bucket)
    beside = [of_replica[rank] for of_replica in paces for rank in ranks]
    num_buckets = int(costs.gradient_buckets[stage])
    buckets = RunningCollective(clock, num_members, alone_s, transfers, num_rounds=num_buckets, paces=beside)
    of_weights = [step for step in costs.sync_steps(stage) if step.of_weights]
    alone_s, transfers = wires.transfers(stage, of_weights)
    if not of_weights and not fixed_s:
        return GradientSync(buckets, None, overlapped=True)
    last = RunningCollective(clock, num_members, fixed_s + alone_s, transfers)
    return GradientSync(buckets, last, overlapped=True)


def _exchanges(clock: Clock, wires: Wires, program: Program, num_replicas: int) -> dict[int, RunningExchange]:
    """Exchanges that can make a computation longer: they share wires, or replicas wait for each other."""
    if wires.costs.shard_exchange is None:
        return {}
    found, num_blocks = {}, wires.costs.shard_exchange.num_blocks
    for row in program.exchanges:
        alone_s, transfers = wires.exchange_transfers(row)
        if transfers or num_replicas > 1:
            num_parts = num_blocks[program.schedule.stage[row]]
            found[row] = RunningExchange(clock, num_replicas, num_parts, alone_s, transfers)
    return found


def _token_exchanges(
    clock: Clock, wires: Wires, program: Program, num_replicas: int
) -> dict[int, RunningTokens]:
    """Exchanges with experts that can make a computation longer, as `_exchanges`."""
    tokens = program.tokens
    if tokens is None:
        return {}
    found = {}
    for row in np.flatnonzero(tokens.num_parts).tolist():
        hidden, shown = wires.token_transfers(row, tokens)
        if hidden is not None or shown is not None or num_replicas > 1:
            num_parts = int(tokens.num_parts[row])
            found[row] = RunningTokens(clock, num_replicas, num_parts, tokens.shown_s[row], hidden, shown)
    return found


class _Replica:
    """One pipeline: its GPUs, its links, and when each row ran."""

    def __init__(
        self,
        clock: Clock,
        program: Program,
        links: list[LinkMaker],
        exchanges: dict[int, RunningExchange],
        tokens: dict[int, RunningTokens],
        step_end: StepEnd,
        paces: Sequence[Pace],
        p2p: P2pMode,
        gap_s: Any,
    ) -> None:
        self.program = program
        self.tokens = tokens
        self.start_s: list[Any] = [0] * len(program.kind)
        self.end_s: list[Any] = [0] * len(program.kind)
        self.mail = Mail(clock, links, program.route, program.message_bytes)
        self.gpus = [
            Gpu(
                clock,
                program,
                rank,
                self.mail,
                exchanges,
                tokens,
                step_end,
                self.start_s,
                self.end_s,
                paces[rank],
                gap_s,
            )
            for rank in range(program.schedule.num_ranks)
        ]
        for gpu in self.gpus:
            run = (
                gpu.run_blocking()
                if p2p == "blocking"
                else gpu.run_overlapped(sends_block=p2p != "overlapped")
            )
            clock.process(run)

    def check_done(self) -> None:
        """Raise where a GPU never reached its end."""
        if all(gpu.at is None for gpu in self.gpus):
            return
        lines = ["the schedule deadlocks under blocking transfers; each rank waits for:"]
        lines += [f"  rank {rank}: {self._waits_for(gpu)}" for rank, gpu in enumerate(self.gpus)]
        raise DeadlockError("\n".join(lines))

    def _waits_for(self, gpu: Gpu) -> str:
        if gpu.at is None:
            return "nothing, it is done"
        program, schedule = self.program, self.program.schedule
        pending = []
        row = gpu.at - 1
        while program.kind[row] in (SEND, RECEIVE):
            if self.mail.arrived_s[program.message[row]] is None:
                src, dst = program.link_ranks[program.route[program.message[row]]]
                peer = dst if program.kind[row] == SEND else src
                pending.append(f"{schedule.action(row)} with rank {peer}")
            row -= 1
        return f"{', '.join(reversed(pending)) or 'the other ranks'}, before {schedule.action(gpu.at)}"

    def spans(self, dtype: np.dtype[Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Start and end of all rows, those of transfers taken from the mail."""
        start_s, end_s = np.array(self.start_s, dtype), np.array(self.end_s, dtype)
        sent, arrived = np.array(self.mail.sent_s, dtype), np.array(self.mail.arrived_s, dtype)
        for rows in (self.program.send_row, self.program.receive_row):
            start_s[rows], end_s[rows] = sent, arrived
        return start_s, end_s


def _timeline(program: Program, replicas: list[_Replica], costs: CostTable, step_end: StepEnd) -> Timeline:
    schedule, num_replicas = program.schedule, len(replicas)
    dtype = costs.forward_s.dtype
    spans = [replica.spans(dtype) for replica in replicas]
    nbytes = np.zeros(len(program.kind), dtype=costs.boundary_bytes.dtype)
    for rows in (program.send_row, program.receive_row):
        nbytes[rows] = program.message_bytes
    reduced = schedule.op == Op.REDUCE_GRAD
    nbytes[reduced] = costs.gradient_bytes[schedule.stage[reduced]]
    if costs.tied_embedding is not None:
        nbytes[schedule.op == Op.REDUCE_EMBEDDING] = costs.tied_embedding.nbytes

    def repeated(column: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.tile(column, num_replicas)

    return Timeline(
        source="simulated",
        rank=repeated(schedule.rank),
        replica=np.repeat(np.arange(num_replicas, dtype=np.int32), len(program.kind)),
        op=repeated(schedule.op),
        stage=repeated(schedule.stage),
        microbatch=repeated(schedule.microbatch),
        slice=repeated(schedule.slice),
        step=np.zeros(len(program.kind) * num_replicas, np.int32),
        start_s=np.concatenate([start_s for start_s, _ in spans]),
        end_s=np.concatenate([end_s for _, end_s in spans]),
        nbytes=repeated(nbytes),
        waited_s=_waited_s(program, replicas, costs, step_end),
    )


def _waited_s(
    program: Program, replicas: list[_Replica], costs: CostTable, step_end: StepEnd
) -> npt.NDArray[Any] | None:
    """Add what contention makes computations wait for shards or tokens to what they wait on an idle network.

    Reductions in buckets wait for gradients in between, and at last for the end of the computations.
    """
    if costs.gradient_buckets is not None:
        schedule = program.schedule
        reduced, computing = schedule.op == Op.REDUCE_GRAD, np.flatnonzero(schedule.op <= Op.W).tolist()
        idle = np.zeros((len(replicas), len(schedule.op)), costs.forward_s.dtype)
        for of_replica, replica in zip(idle, replicas, strict=True):
            last_end = max(replica.end_s[row] for row in computing)
            of_replica[reduced] = [
                step_end.reductions[stage].idle_before(last_end) for stage in schedule.stage[reduced].tolist()
            ]
        return idle.ravel()
    exposed = exposed_exchange_s(program.schedule, costs)
    rows = sorted({*program.exchanges, *replicas[0].tokens})
    if exposed is None:
        if not rows:
            return None
        exposed = np.zeros(len(program.schedule.op))
    waited = np.tile(exposed, (len(replicas), 1))
    for of_replica, replica in zip(waited, replicas, strict=True):
        for row in rows:
            lasted_s = replica.end_s[row] - replica.start_s[row]
            of_replica[row] += max(0, lasted_s - replica.program.duration_s[row])
    pairs = np.flatnonzero(program.schedule.joined)
    waited[:, pairs] = waited[:, pairs + 1]
    return waited.ravel()
