"""What is searched: times, memory and a placement, and the way between schedules and words.

A word is a schedule whose k-th F (I, W) on a stage is that of microbatch k; see `pipesim.search.word_timing`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pipesim.costs.host import HostCost
from pipesim.costs.rows import row_delays, row_durations
from pipesim.costs.table import CostTable
from pipesim.errors import InfeasibleError
from pipesim.ir.actions import Action, Op, Schedule
from pipesim.ir.dependencies import NONE, dependencies

if TYPE_CHECKING:
    from pipesim.search.word_timing import Pipeline

Floats = npt.NDArray[np.float64]
Word = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]

WORD_OPS = (Op.F, Op.I, Op.W)
ROUNDING = 1e-9
"""Relative room for sums of floating-point amounts of memory."""


def _amount(held: float, *, in_bytes: bool) -> str:
    """Bytes, or chunks where the costs know no bytes."""
    return f"{held / 1e9:.3g} GB" if in_bytes else f"{held:g} chunks"


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """What one microbatch holds on each stage, and the most that each rank may hold at once.

    Parameters
    ----------
    amounts : array, shape (S,)
        Held from F to I: bytes, or ones where microbatches are counted.
    limits : array, shape (p,)
        In the same unit; infinite where nothing limits.
    deferred : array, shape (S,), optional
        Held from I to W; None: as from F to I.
    """

    amounts: Floats
    limits: Floats
    deferred: Floats | None = None

    @property
    def until_weights(self) -> Floats:
        """Held from I to W, shape (S,)."""
        return self.amounts if self.deferred is None else self.deferred


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """One placement with its times (seconds) and memory; arrays of times have shape (3, S) for F, I, W.

    Parameters
    ----------
    rank_of : int32, shape (S,)
        Rank of each stage; each rank holds as many as the others.
    num_microbatches : int
        m.
    durations_s : float64, shape (3, S)
        Of F, I and W.
    delays_s : float64, shape (3, S)
        From the neighbouring stage's end to the arrival of its message at F or I of a stage; 0 on one rank.
    memory : MemoryLimit
        Limits of each rank.
    full_backward_s : float64, shape (S,)
        Of a B that does the work of I and W; for bounds of schedules that do not split it.
    trailing_s : float
        Most of a duration that the host takes after the computation; the last action's does not count.
    """

    rank_of: npt.NDArray[np.int32]
    num_microbatches: int
    durations_s: Floats
    delays_s: Floats
    memory: MemoryLimit
    full_backward_s: Floats
    trailing_s: float = 0.0

    @classmethod
    def of(
        cls, rank_of: Sequence[int], num_microbatches: int, costs: CostTable, memory: MemoryLimit
    ) -> Problem:
        """Lay a cost table along a placement.

        Raises
        ------
        InfeasibleError
            If a rank has no room for one microbatch on all its stages.
        """
        ranks = np.array(rank_of, np.int32)
        one, symbols = _one_microbatch(ranks)
        needs, row = dependencies(one), np.argsort(symbols)
        host = costs.host or HostCost()
        holding = np.full(len(row), float(host.per_action_s))
        crossing = np.flatnonzero(needs.crosses)
        for here, source in zip(crossing, needs.producer[crossing], strict=True):
            nbytes = costs.boundary_bytes[min(one.stage[here], one.stage[source])]
            holding[source] += float(host.send_s(nbytes))
        arrival = row_delays(one, needs, costs).astype(np.float64)
        # The host holds the sender up after its computation, not the message.
        arrival[crossing] -= holding[needs.producer[crossing]]
        full = replace(one, op=np.where(one.op == Op.I, Op.B, one.op).astype(np.int32))
        split_s, full_s = (
            (row_durations(each, costs).astype(np.float64) + holding)[row].reshape(3, -1)
            for each in (one, full)
        )
        problem = cls(
            rank_of=ranks,
            num_microbatches=num_microbatches,
            durations_s=split_s,
            delays_s=arrival[row].reshape(3, -1),
            memory=memory,
            full_backward_s=full_s[1],
            trailing_s=float(holding.max()),
        )
        problem._check_room()
        return problem

    def _check_room(self) -> None:
        for rank, limit in enumerate(self.memory.limits):
            here = self.rank_of == rank
            amounts, more = self.memory.amounts[here], (self.memory.until_weights - self.memory.amounts)[here]
            least = float(amounts.sum() + max(0.0, more.max()))
            if least > limit * (1 + ROUNDING):
                in_bytes = least > 1e6
                room, held = (_amount(max(0.0, one), in_bytes=in_bytes) for one in (limit, least))
                raise InfeasibleError(
                    f"rank {rank} has room for {room} of activations, one microbatch on all its "
                    f"stages holds {held}; allow at least that, or cut the model into more stages"
                )

    @property
    def num_ranks(self) -> int:
        """Workers p."""
        return len(self.memory.limits)

    @property
    def num_stages(self) -> int:
        """Stages S."""
        return len(self.rank_of)

    @property
    def num_actions(self) -> int:
        """Length of a word, 3 S m."""
        return 3 * self.num_stages * self.num_microbatches

    @property
    def stages(self) -> npt.NDArray[np.int32]:
        """Stages of each rank, ascending, shape (p, v)."""
        by_rank = np.argsort(self.rank_of, kind="stable").astype(np.int32)
        return by_rank.reshape(self.num_ranks, -1)

    @property
    def split_costs_more(self) -> bool:
        """Whether I and W of some stage take longer than its B."""
        return bool((self.durations_s[1:].sum(axis=0) > self.full_backward_s * (1 + ROUNDING)).any())

    def unsplit(self) -> Problem:
        """Give the same with each backward in one: as long as B where I stands, and nothing left for W."""
        forward_s = self.durations_s[0]
        nothing = np.zeros_like(forward_s)
        return replace(
            self,
            durations_s=np.stack([forward_s, self.full_backward_s, nothing]),
            memory=replace(self.memory, deferred=nothing),
        )

    def pipeline(self) -> tuple[Pipeline, float]:
        """Arrays for the compiled search, and the factor that turns its times into seconds.

        The factor is a power of two that makes a mean action last about 1, so that no digit is lost.
        """
        from pipesim.search.word_timing import Pipeline

        mean = float(self.durations_s.mean())
        scale = 2.0 ** np.floor(np.log2(mean)) if mean > 0 else 1.0
        amounts, deferred = self.memory.amounts, self.memory.until_weights
        arrays = Pipeline.of(
            self.rank_of,
            self.stages,
            self.num_microbatches,
            producer=_producers(self.rank_of),
            duration=np.ravel(self.durations_s) / scale,
            delay=np.ravel(self.delays_s) / scale,
            change=np.concatenate([amounts, deferred - amounts, -deferred]),
            limit=self.memory.limits * (1 + ROUNDING),
        )
        work = self.durations_s.sum(axis=0)[self.stages].sum(axis=1) * self.num_microbatches
        arrays.work[:] = work / scale
        return arrays, scale

    def word(self, schedule: Schedule) -> Word:
        """Split every full B of a schedule into I and W, side by side, and number microbatches by turn.

        Neither makes any action later, for microbatches are alike, nor any rank hold more, unless W reads
        more than F left.
        """
        op, num_stages = schedule.op, self.num_stages
        full = op == Op.B
        kind = np.select([op == Op.F, full | (op == Op.I)], [0, 1], 2)
        symbols = np.repeat(kind * num_stages + schedule.stage, np.where(full, 2, 1))
        first = np.cumsum(np.where(full, 2, 1)) - np.where(full, 2, 1)
        symbols[first[full] + 1] += num_stages
        return symbols.astype(np.int32)

    def orders(self, word: Word, whole: Flags | None = None) -> Iterator[list[Action]]:
        """Actions of rank 0, 1, ...

        Parameters
        ----------
        word : int32, shape (3 * S * m,)
            What is run.
        whole : bool, shape (S, m), optional
            Backwards that are not split: each is a B where its I stands. None by default.
        """
        num_stages = self.num_stages
        for symbols in word.reshape(self.num_ranks, -1).tolist():
            turn = dict.fromkeys(symbols, 0)
            order = []
            for symbol in symbols:
                op, stage, k = WORD_OPS[symbol // num_stages], symbol % num_stages, turn[symbol]
                turn[symbol] += 1
                if op is Op.F or whole is None or not whole[stage, k]:
                    order.append(Action(op, stage, k))
                elif op is Op.I:
                    order.append(Action(Op.B, stage, k))
            yield order


def _one_microbatch(rank_of: Word) -> tuple[Schedule, Word]:
    """F, I and W of one microbatch, for which rules and costs of rows hold; and the symbol of each row."""
    num_stages = len(rank_of)
    by_rank = [np.flatnonzero(rank_of == rank).tolist() for rank in range(int(rank_of.max()) + 1)]
    orders = [[Action(op, stage, 0) for op in WORD_OPS for stage in stages] for stages in by_rank]
    schedule = Schedule.from_orders("one microbatch", orders)
    kind = np.array([WORD_OPS.index(Op(op)) for op in schedule.op.tolist()])
    return schedule, (kind * num_stages + schedule.stage).astype(np.int32)


def _producers(rank_of: Word) -> Word:
    """Symbol whose output each symbol takes, as `pipesim.search.word_timing.Pipeline` has it."""
    schedule, symbols = _one_microbatch(rank_of)
    source = dependencies(schedule).producer
    producer, fed = np.full(len(symbols), NONE, np.int32), np.flatnonzero(source != NONE)
    producer[symbols[fed]] = symbols[source[fed]]
    return producer
