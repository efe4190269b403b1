"""Tokens that the stages of a model send to experts and back, as traffic beside and between computations."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipesim.costs.network.traffic import Tokens
from pipesim.ir.actions import ActionTable, IntArray, Op

Array = npt.NDArray[Any]


class TokenKey(NamedTuple):
    """Whose tokens travel."""

    rank: int


@dataclass(frozen=True, slots=True, eq=False)
class TokenExchange:
    """Exchanges of tokens in the F and the B (or I) of every stage.

    Parameters
    ----------
    nbytes : Mapping of Op to Array
        What a device sends over the kind of wire that its group crosses nodes by, or else inside its node, by
        F and B, each of shape (S,).
    latency_s, alone_s, shown_s : Mapping of Op to Array
        Of all exchanges of an operation: their latency; latency and bytes on an idle network; and what of
        that does not run beside computing, which durations contain.
    num_parts : tuple of int
        Layers with experts of each stage, one after the other.
    bytes_per_s : float
        Rate of `nbytes` alone.
    num_members : int
        Devices of a group that exchanges.
    inside_share : float
        Bytes inside the node for each of `nbytes`; 1 where a group lies in one node.
    imbalance : float
        Tokens of the busiest device over the mean.
    """

    nbytes: Mapping[Op, Array]
    latency_s: Mapping[Op, Array]
    alone_s: Mapping[Op, Array]
    shown_s: Mapping[Op, Array]
    num_parts: tuple[int, ...]
    bytes_per_s: float
    num_members: int
    inside_share: float
    imbalance: float = 1.0

    def traffic(self, ranks_and_stages: Iterable[tuple[int, int]]) -> dict[Hashable, Tokens]:
        """Say what they ask of the wires: of each rank with such a stage."""
        ranks = dict.fromkeys(rank for rank, stage in ranks_and_stages if self.num_parts[stage])
        return {TokenKey(rank): Tokens(rank, self.bytes_per_s, self.inside_share) for rank in ranks}

    def paired_s(
        self, forward_s: Array, backward_s: Array, stages: tuple[IntArray, IntArray], slowdown: float
    ) -> Array:
        """Seconds of forwards and backwards run together, each of whose exchanges the other computes beside.

        As long as the computing of both, slowed down while tokens travel, or as their exchanges, whichever is
        longer; at most as long as one after the other. So DualPipe (arXiv 2412.19437, 3.2.1) hides them, and
        Megatron-core with ``overlap_moe_expert_parallel_comm``.

        Parameters
        ----------
        forward_s, backward_s : array, shape (pairs,)
            Seconds of each part by itself.
        stages : pair of array, shape (pairs,)
            Of the forwards and of the backwards.
        slowdown : float
            Extra share of computing beside an exchange.
        """
        first, second = stages
        computing = forward_s + backward_s - self.shown_s[Op.F][first] - self.shown_s[Op.B][second]
        moving = self.alone_s[Op.F][first] + self.alone_s[Op.B][second]
        together: Array = np.maximum(moving, computing + moving * slowdown / (1 + slowdown))
        paired: Array = np.minimum(forward_s + backward_s, together)
        return paired


_MOST_PARTS = 4
"""Of one operation: tokens of neighbouring layers travel together where a stage has more."""


class TokenRows(NamedTuple):
    """Exchanges of tokens along the rows of a schedule, shape (rows,); a pair's stand at its second row.

    Each has as many parts of like size, one after the other: computing, beside which what is hidden travels,
    and then what shows.
    """

    nbytes: Array
    latency_s: Array
    alone_s: Array
    shown_s: Array
    num_parts: IntArray

    def spans(self, rows: IntArray, start_s: Array, end_s: Array) -> Array:
        """Start and end of the bytes of some rows' exchanges on an idle network, shape (exchanges, 2).

        Parameters
        ----------
        rows : array of int
            Which.
        start_s, end_s : array, shape (rows,)
            Of their operations.
        """
        parts = self.num_parts[rows]
        again = np.repeat(np.arange(len(rows)), parts)
        number = np.arange(len(again)) - np.repeat(np.cumsum(parts) - parts, parts)
        each = parts[again]
        length_s = (end_s - start_s)[again] / each
        begin_s = start_s[again] + number * length_s
        alone_s, shown_s, latency_s = (
            of[rows][again] / each for of in (self.alone_s, self.shown_s, self.latency_s)
        )
        share = np.divide(shown_s, alone_s, out=np.zeros(len(again)), where=alone_s > 0)
        hidden = np.stack([begin_s + (1 - share) * latency_s, begin_s + alone_s - shown_s], axis=1)
        from_s = begin_s + length_s - shown_s
        shown = np.stack([from_s + share * latency_s, from_s + shown_s], axis=1)
        spans = np.concatenate([hidden, shown])
        moving: Array = spans[spans[:, 1] > spans[:, 0]]
        return moving


def token_rows(schedule: ActionTable, exchange: TokenExchange, durations: Array, alone: Array) -> TokenRows:
    """Lay exchanges along the rows.

    Parameters
    ----------
    schedule : ActionTable
        Lowered or not.
    exchange : TokenExchange
        Of its stages.
    durations, alone : array, shape (rows,)
        Seconds of each row, both rows of a pair holding the pair's, and of each row by itself.
    """
    op = np.where(schedule.op == Op.I, Op.B, schedule.op)

    def along(by_op: Mapping[Op, Array]) -> Array:
        found = np.zeros(len(op))
        for which in (Op.F, Op.B):
            rows = op == which
            found[rows] = by_op[which][schedule.stage[rows]]
        if schedule.slice_shares is None:
            return found / schedule.num_slices
        found *= np.array(schedule.slice_shares)[schedule.slice]
        return found

    moved = np.isin(op, (Op.F, Op.B))
    most = np.minimum(np.array(exchange.num_parts, np.int32), _MOST_PARTS)
    parts = np.where(moved, most[schedule.stage], 0).astype(np.int32)
    columns = [along(by_op) for by_op in (exchange.nbytes, exchange.latency_s, exchange.alone_s)]
    shown = along(exchange.shown_s)
    first = np.flatnonzero(schedule.joined)
    second = first + 1
    for column in columns:
        column[second] += column[first]
        column[first] = 0
    computing = alone[first] + alone[second] - shown[first] - shown[second]
    shown[second], shown[first] = np.maximum(0.0, durations[second] - computing), 0
    parts[second], parts[first] = np.maximum(parts[first], parts[second]), 0
    nbytes, latency_s, alone_s = columns
    return TokenRows(nbytes, latency_s, alone_s, np.minimum(shown, alone_s), parts)
