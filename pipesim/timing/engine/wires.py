"""Which messages and collectives of a program share wires, and the links and transfers that follow."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any

import numpy as np

from pipesim.costs import CostTable
from pipesim.costs.network.alpha_beta import Collective, LinkCost
from pipesim.costs.network.fabric import Flow, UnlikeReplicasError
from pipesim.costs.network.traffic import Traffic
from pipesim.costs.reductions import reduction_key, step_reductions
from pipesim.costs.shards import ShardKey, SyncStep
from pipesim.costs.token_exchange import TokenKey, TokenRows
from pipesim.ir.actions import BoolArray, Op
from pipesim.timing.engine.collective import Transfer
from pipesim.timing.engine.link import Carrier, IdealLink, Mail, SharedLink
from pipesim.timing.engine.program import Program
from pipesim.timing.engine.shared_flows import Network, NetworkMode, Stream
from pipesim.timing.engine.simulated_clock import Clock

_NEGLIGIBLE = 10**12
"""A share below one in so many is a rounding; an integer, so that fractions stay exact."""
LinkMaker = LinkCost | Callable[[Mail], Carrier]


class Wires:
    """The network of one simulation.

    Parameters
    ----------
    clock : Clock
        The simulation's.
    program : Program
        What all ranks do.
    costs : CostTable
        Without a fabric every pair of ranks has a wire of its own, and collectives have theirs.
    num_replicas : int
        Replicas that are simulated.
    mode : {"fair", "fifo", "ideal"}
        How wires are shared.

    Raises
    ------
    UnlikeReplicasError
        If one replica is simulated for several and cannot stand for them.
    """

    def __init__(
        self, clock: Clock, program: Program, costs: CostTable, num_replicas: int, mode: NetworkMode
    ) -> None:
        self.costs = costs
        self.mode = mode
        self.holders = _holders(program)
        self._schedule = schedule = program.schedule
        self._rank: list[int] = schedule.rank.tolist()
        """Of each row; the schedule's own is made anew each time."""
        self.with_copies: list[int] = schedule.rank[schedule.op == Op.REDUCE_EMBEDDING].tolist()
        """Ranks with a copy of a tied embedding."""
        self._traffic = None if mode == "ideal" else self._all_traffic(program, num_replicas)
        self.network: Network | None = None
        if self._traffic is not None and mode != "ideal":
            self.network = Network(clock, self._traffic.bytes_per_s, mode)
        self._streams: dict[Hashable, Stream] = {}
        self._token_parts: dict[tuple[Any, ...], tuple[Transfer | None, Transfer | None]] = {}
        self._moves: tuple[BoolArray, BoolArray] | None = None
        """Rows that gather and rows that reduce shards."""

    def links(self, program: Program, replica: int) -> list[LinkMaker]:
        """Links of one replica, in the order of `Program.link_ranks`."""
        return [self._link(src, dst, replica) for src, dst in program.link_ranks]

    def _link(self, src: int, dst: int, replica: int) -> LinkMaker:
        cost = self.costs.p2p(src, dst)
        if self.mode == "ideal":
            return lambda mail: IdealLink(cost, mail)
        if self._traffic is None or cost.bytes_per_s is None:
            return cost
        flow = self._traffic.messages[src, dst, replica]
        if self.network is None or not flow.loads:
            return LinkCost(flow.latency_s, flow.bytes_per_s)
        network, stream = self.network, self.network.stream(flow)
        return lambda mail: SharedLink(network, stream, mail)

    def transfers(self, stage: int, steps: Iterable[SyncStep]) -> tuple[Any, list[Transfer]]:
        """Time of the collectives of a stage that nothing can disturb, and the transfers of the others."""
        return self._transfers((reduction_key(stage, step), step.collective) for step in steps)

    def embedding_transfers(self) -> tuple[Any, list[Transfer]]:
        """Return the same of the all-reduce of a tied embedding."""
        collective = self.costs.tied_embedding
        return self._transfers([] if collective is None else [(Op.REDUCE_EMBEDDING, collective)])

    def exchange_transfers(self, row: int) -> tuple[Any, list[Transfer]]:
        """Return the same of what a computation moves among the replicas; a pair moves what both rows do."""
        schedule, exchange = self._schedule, self.costs.shard_exchange
        rank = self._rank[row]
        rows = (row - 1, row) if row and schedule.joined[row - 1] else (row,)
        if exchange is None:
            return self._transfers(())
        gathers, reduces = self._moves or exchange.moves(schedule)
        self._moves = gathers, reduces
        steps = [
            step
            for one in rows
            for step in exchange.steps(
                int(schedule.stage[one]), gathers=bool(gathers[one]), reduces=bool(reduces[one])
            )
        ]
        return self._transfers(
            (ShardKey(rank, step.of_experts, step.across), step.collective) for step in steps
        )

    def token_transfers(self, row: int, tokens: TokenRows) -> tuple[Transfer | None, Transfer | None]:
        """Return a part of what a computation exchanges with experts: what is hidden, and what shows."""
        rank = self._rank[row]
        sizes = tokens.shown_s, tokens.alone_s, tokens.nbytes, tokens.latency_s, tokens.num_parts
        key = (rank, *(of[row] for of in sizes))
        if key not in self._token_parts:
            self._token_parts[key] = self._parts(*key)
        return self._token_parts[key]

    def _parts(
        self, rank: int, shown_s: Any, alone_s: Any, nbytes: Any, latency_s: Any, num_parts: Any
    ) -> tuple[Transfer | None, Transfer | None]:
        flow = None if self._traffic is None else self._traffic.reductions.get(TokenKey(rank))
        if flow is None or self.network is None or not flow.loads:
            return None, None
        network, stream = self.network, self._streams.setdefault(TokenKey(rank), self.network.stream(flow))
        shown = shown_s / alone_s

        def part(share: Any) -> Transfer | None:
            of_part = (share * of / num_parts for of in (latency_s, nbytes))
            return Transfer(network, stream, *of_part) if share * _NEGLIGIBLE > 1 else None

        return part(1 - shown), part(shown)

    def _transfers(self, collectives: Iterable[tuple[Hashable, Collective]]) -> tuple[Any, list[Transfer]]:
        fixed_s: Any = 0
        transfers = []
        for key, collective in collectives:
            flow = None if self._traffic is None else self._traffic.reductions.get(key)
            if flow is None or self.network is None or not flow.loads:
                fixed_s += collective.seconds
                continue
            stream = self._streams.setdefault(key, self.network.stream(flow))
            transfers.append(Transfer(self.network, stream, collective.latency_s, collective.nbytes))
        return fixed_s, transfers

    def _all_traffic(self, program: Program, num_replicas: int) -> Traffic | None:
        fabric = self.costs.fabric
        if fabric is None:
            return self._own_wires(program, num_replicas) if self.mode == "fifo" else None
        if num_replicas not in (1, fabric.num_replicas):
            raise ValueError(
                f"found {num_replicas} replicas; needed: one for all, or all {fabric.num_replicas}"
            )
        one_for_all = num_replicas < fabric.num_replicas
        if one_for_all and self.mode == "fifo":
            # Of transfers that start together one goes first.
            raise UnlikeReplicasError
        reductions = step_reductions(self.costs, self.holders, self.with_copies)
        return fabric.traffic(program.link_ranks, reductions, one_replica_for_all=one_for_all)

    def _own_wires(self, program: Program, num_replicas: int) -> Traffic:
        bytes_per_s: list[Any] = []
        messages = {}
        for replica in range(num_replicas):
            for src, dst in program.link_ranks:
                cost = self.costs.p2p(src, dst)
                if cost.bytes_per_s is not None:
                    loads = ((len(bytes_per_s), 1),)
                    messages[src, dst, replica] = Flow(cost.latency_s, cost.bytes_per_s, loads)
                    bytes_per_s.append(cost.bytes_per_s)
        return Traffic(bytes_per_s, messages, {})


def _holders(program: Program) -> dict[int, list[int]]:
    """Ranks that reduce each stage's gradients."""
    schedule = program.schedule
    reduced = schedule.op == Op.REDUCE_GRAD
    pairs = np.unique(np.stack([schedule.stage[reduced], schedule.rank[reduced]]), axis=1).T.tolist()
    holders: dict[int, list[int]] = {}
    for stage, rank in pairs:
        holders.setdefault(stage, []).append(rank)
    return holders
