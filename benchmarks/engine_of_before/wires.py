"""Which messages and collectives of a program share wires, and the links and transfers that follow."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import fields
from fractions import Fraction
from typing import Any

import numpy as np

from engine_of_before.clock import Clock
from engine_of_before.collective import Transfer
from engine_of_before.fabrics.fabric import Flow, UnlikeReplicasError
from engine_of_before.fabrics.traffic import Fabric, Reduction, Traffic
from engine_of_before.fabrics.wiring import Wiring
from engine_of_before.link import Carrier, IdealLink, Mail, SharedLink
from engine_of_before.network import Network, NetworkMode, Stream
from engine_of_before.program import Program
from pipesim.costs import CostTable
from pipesim.costs.network.alpha_beta import Collective, LinkCost, Number
from pipesim.costs.shards import ShardExchange, ShardKey, SyncStep
from pipesim.ir.actions import Op

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
        self.with_copies: list[int] = schedule.rank[schedule.op == Op.REDUCE_EMBEDDING].tolist()
        """Ranks with a copy of a tied embedding."""
        self._traffic = None if mode == "ideal" else self._all_traffic(program, num_replicas)
        self.network: Network | None = None
        if self._traffic is not None and mode != "ideal":
            self.network = Network(clock, self._traffic.bytes_per_s, mode)
        self._streams: dict[Hashable, Stream] = {}

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
        network, stream = self.network, Stream(flow)
        return lambda mail: SharedLink(network, stream, mail)

    def transfers(self, stage: int, steps: Iterable[SyncStep]) -> tuple[Any, list[Transfer]]:
        """Time of the collectives of a stage that nothing can disturb, and the transfers of the others."""
        return self._transfers((_reduction_key(stage, step), step.collective) for step in steps)

    def embedding_transfers(self) -> tuple[Any, list[Transfer]]:
        """Return the same of the all-reduce of a tied embedding."""
        collective = self.costs.tied_embedding
        return self._transfers([] if collective is None else [(Op.REDUCE_EMBEDDING, collective)])

    def exchange_transfers(self, row: int) -> tuple[Any, list[Transfer]]:
        """Return the same of what a computation moves among the replicas; a pair moves what both rows do."""
        schedule, exchange = self._schedule, self.costs.shard_exchange
        rank = int(schedule.rank[row])
        rows = (row - 1, row) if row and schedule.joined[row - 1] else (row,)
        steps = [step for one in rows for step in (self._steps(exchange, one) if exchange else ())]
        return self._transfers((ShardKey(rank, step.of_experts), step.collective) for step in steps)

    def _steps(self, exchange: ShardExchange, row: int) -> tuple[SyncStep, ...]:
        """List the collectives of one operation: F and I gather, W reduces, B does both."""
        op, stage = self._schedule.op[row], int(self._schedule.stage[row])
        return exchange.steps(stage, gathers=op in (Op.F, Op.B, Op.I), reduces=op in (Op.B, Op.W))

    def _transfers(self, collectives: Iterable[tuple[Hashable, Collective]]) -> tuple[Any, list[Transfer]]:
        fixed_s: Any = 0
        transfers = []
        for key, collective in collectives:
            flow = None if self._traffic is None else self._traffic.reductions.get(key)
            if flow is None or self.network is None or not flow.loads:
                fixed_s += collective.seconds
                continue
            stream = self._streams.setdefault(key, Stream(flow))
            transfers.append(Transfer(self.network, stream, collective.latency_s, collective.nbytes))
        return fixed_s, transfers

    def _all_traffic(self, program: Program, num_replicas: int) -> Traffic | None:
        fabric = _fabric_of_before(self.costs.fabric)
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
        reductions: dict[Hashable, Reduction] = {
            _reduction_key(stage, step): Reduction(ranks, step.collective.bytes_per_s, step.of_experts)
            for stage, ranks in self.holders.items()
            for share in {1, bucket_share(self.costs, stage)}
            for step in self.costs.sync_steps(stage, share)
        }
        if self.with_copies and self.costs.tied_embedding is not None:
            bytes_per_s = self.costs.tied_embedding.bytes_per_s
            reductions[Op.REDUCE_EMBEDDING] = Reduction(self.with_copies, bytes_per_s, between_ranks=True)
        if self.costs.shard_exchange is not None:
            held = sorted((rank, stage) for stage, ranks in self.holders.items() for rank in ranks)
            reductions |= self.costs.shard_exchange.traffic(held)
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


def _fabric_of_before(fabric: Any) -> Fabric | None:
    if fabric is None:
        return None
    wiring = Wiring(**{item.name: getattr(fabric.wiring, item.name) for item in fields(Wiring)})
    return Fabric(wiring, fabric.axes, fabric.expert_axes)


def bucket_share(costs: CostTable, stage: int) -> Number:
    """Part of a stage's gradients that one bucket holds."""
    return 1 if costs.gradient_buckets is None else Fraction(1, int(costs.gradient_buckets[stage]))


def _reduction_key(stage: int, step: SyncStep) -> tuple[int, bool, Number]:
    return stage, step.of_experts, step.collective.bytes_per_s


def _holders(program: Program) -> dict[int, list[int]]:
    """Ranks that reduce each stage's gradients."""
    schedule = program.schedule
    reduced = schedule.op == Op.REDUCE_GRAD
    pairs = np.unique(np.stack([schedule.stage[reduced], schedule.rank[reduced]]), axis=1).T.tolist()
    holders: dict[int, list[int]] = {}
    for stage, rank in pairs:
        holders.setdefault(stage, []).append(rank)
    return holders
