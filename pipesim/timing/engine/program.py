"""A lowered schedule prepared for the engine: durations and messages along its rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pipesim.costs import CostTable
from pipesim.costs.rows import exchange_s, message_bytes, rows_of_tokens, skip_bytes, step_durations
from pipesim.costs.token_exchange import TokenRows
from pipesim.ir.actions import RECEIVES, SENDS, SKIP_TRANSFERS, Lowered, Op

NO_MESSAGE = -1
COMPUTE, PAIR_START, PAIR_END, SEND, RECEIVE, STEP_END, DISTURBED, DISTURBED_PAIR_END = range(8)
"""Kinds of row; an overlapped pair runs as one when its second row is reached. Collectives may run beside
disturbed computations, and start during them."""


def _table(*ops: Op) -> npt.NDArray[np.bool_]:
    """Whether each operation is one of these, by code; a look-up is faster than comparing."""
    return np.isin(np.arange(max(Op) + 1), ops)


_IS_SEND, _IS_RECEIVE, _SKIPS = _table(*SENDS), _table(*RECEIVES), _table(*SKIP_TRANSFERS)
_TOWARDS_END = _table(Op.F, Op.SEND_F, Op.RECV_F, Op.SEND_SKIP_F, Op.RECV_SKIP_F)
_HAS_MESSAGE = _table(Op.F, Op.B, Op.I, *SENDS, *RECEIVES)


@dataclass(frozen=True, slots=True)
class Program:
    """What the simulated GPUs read; lists are indexed by row, the message arrays by message."""

    schedule: Lowered
    kind: list[int]
    duration_s: list[Any]
    message: list[int]
    """The message that a row sends, receives or, as a computation, waits for."""
    further: dict[int, list[int]]
    """By row of a computation, what else it waits for: messages of skip connections."""
    message_bytes: list[Any]
    send_s: list[Any]
    """How long each message holds up its sender."""
    exchanges: list[int]
    """Rows of computations beside which weights are gathered or gradients reduced."""
    tokens: TokenRows | None
    """What computations exchange with experts."""
    reduces: dict[int, int]
    """The stage whose gradients become complete during a computation, in buckets that leave at once."""
    route: list[int]
    """The link that each message takes."""
    link_ranks: list[tuple[int, int]]
    """Source and destination of each link."""
    send_row: npt.NDArray[np.intp]
    receive_row: npt.NDArray[np.intp]

    def with_its_own(
        self, durations: npt.NDArray[Any] | None, byte_factors: npt.NDArray[Any] | None
    ) -> Program:
        """Give one replica its own durations and bytes on the wire, shape (rows,) each; None keeps these."""
        program = self
        if durations is not None:
            program = replace(program, duration_s=durations.tolist())
        if byte_factors is not None:
            factors = byte_factors[self.send_row].tolist()
            sizes = [nbytes * factor for nbytes, factor in zip(self.message_bytes, factors, strict=True)]
            program = replace(program, message_bytes=sizes)
        return program


def prepare(schedule: Lowered, costs: CostTable, durations: npt.NDArray[Any] | None = None) -> Program:
    """Lay costs and messages along the rows of a lowered schedule; see `pipesim.ir.lower`.

    `durations`, shape (rows,), takes the place of what the costs say; see `pipesim.timing.engine.simulate`.
    """
    if durations is None:
        durations = step_durations(schedule, costs)
    elif len(durations) != len(schedule.op):
        raise ValueError(f"{len(durations)} durations for {len(schedule.op)} rows")
    message, send_row, receive_row = _match_messages(schedule)
    rank = schedule.rank
    nbytes = _sizes(schedule, costs, send_row)
    ends = rank[send_row] * schedule.num_ranks + rank[receive_row]
    links, route = np.unique(ends, return_inverse=True)
    kind = _kinds(schedule)
    reduces = {} if costs.gradient_buckets is None else _last_backwards(schedule)
    for first in _first_by_rank(schedule, reduces):
        beside = slice(first, schedule.offsets[schedule.rank[first] + 1])
        kind[beside] = np.where(kind[beside] == COMPUTE, DISTURBED, kind[beside])
        kind[beside] = np.where(kind[beside] == PAIR_END, DISTURBED_PAIR_END, kind[beside])
    exchanges = _exchanging(schedule, costs)
    tokens = rows_of_tokens(schedule, costs, durations)
    exchanging = exchanges if tokens is None else exchanges + np.flatnonzero(tokens.num_parts).tolist()
    kind[exchanging] = np.where(
        np.isin(kind[exchanging], (PAIR_END, DISTURBED_PAIR_END)), DISTURBED_PAIR_END, DISTURBED
    )
    return Program(
        schedule=schedule,
        kind=kind.tolist(),
        duration_s=durations.tolist(),
        message=message.tolist(),
        further=_further(schedule, message, receive_row),
        message_bytes=nbytes,
        send_s=[0] * len(nbytes) if costs.host is None else [costs.host.send_s(n) for n in nbytes],
        exchanges=exchanges,
        tokens=tokens,
        reduces=reduces,
        route=route.tolist(),
        link_ranks=[divmod(link, schedule.num_ranks) for link in links.tolist()],
        send_row=send_row,
        receive_row=receive_row,
    )


def _kinds(schedule: Lowered) -> npt.NDArray[np.int8]:
    kind = np.full(len(schedule.op), STEP_END, np.int8)
    kind[schedule.op <= Op.W] = COMPUTE
    kind[schedule.joined] = PAIR_START
    kind[1:][schedule.joined[:-1]] = PAIR_END
    kind[_IS_SEND[schedule.op]] = SEND
    kind[_IS_RECEIVE[schedule.op]] = RECEIVE
    return kind


def _exchanging(schedule: Lowered, costs: CostTable) -> list[int]:
    """Rows with an exchange of their own; that of a slice is no more than a part of its duration."""
    moving = exchange_s(schedule, costs)
    if moving is None or schedule.num_slices > 1:
        return []
    rows: list[int] = np.flatnonzero((moving > 0) & ~schedule.joined).tolist()
    return rows


def _last_backwards(schedule: Lowered) -> dict[int, int]:
    """Row of the last weight gradients of each stage on each rank that holds it -> stage."""
    found: dict[tuple[int, int], int] = {}
    rows = np.flatnonzero(np.isin(schedule.op, (Op.B, Op.W)))
    for row, rank, stage in zip(
        rows.tolist(), schedule.rank[rows].tolist(), schedule.stage[rows].tolist(), strict=True
    ):
        found[rank, stage] = row
    return {row: stage for (_, stage), row in found.items()}


def _first_by_rank(schedule: Lowered, rows: Iterable[int]) -> list[int]:
    first: dict[int, int] = {}
    rank = schedule.rank
    for row in sorted(rows):
        first.setdefault(int(rank[row]), row)
    return list(first.values())


def _match_messages(
    schedule: Lowered,
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Give each message a number by its send row; find receives and consumers by what they consume."""
    op, stage, num_skips = schedule.op, schedule.stage, len(schedule.skips)
    towards_end = _TOWARDS_END[op]
    consumer_stage = stage + (op == Op.SEND_F) - (op == Op.SEND_B)
    num_parts = max(schedule.num_slices, num_skips)
    # The last row of stages is that of skip connections, told apart by number.
    sizes = (2, schedule.num_stages + 1, schedule.num_microbatches, num_parts)
    key = np.ravel_multi_index(
        (
            towards_end.astype(int),
            np.where(_SKIPS[op], schedule.num_stages, np.clip(consumer_stage, 0, schedule.num_stages - 1)),
            schedule.microbatch,
            schedule.slice,
        ),
        sizes,
        mode="clip",
    )
    send_row, receives = np.flatnonzero(_IS_SEND[op]), np.flatnonzero(_IS_RECEIVE[op])
    number_of = np.full(int(np.prod(sizes)), NO_MESSAGE)
    number_of[key[send_row]] = np.arange(len(send_row))
    message = np.where(_HAS_MESSAGE[op], number_of[key], NO_MESSAGE)
    receive_row = np.empty_like(send_row)
    receive_row[message[receives]] = receives
    return message, send_row, receive_row


def _sizes(schedule: Lowered, costs: CostTable, send_row: npt.NDArray[np.intp]) -> list[Any]:
    """Bytes of each message."""
    op, skips = schedule.op[send_row], _SKIPS[schedule.op[send_row]]
    boundary = np.where(skips, 0, schedule.stage[send_row] - (op == Op.SEND_B))
    part = np.where(skips, 0, schedule.slice[send_row])
    nbytes = message_bytes(schedule, costs)[boundary, part]
    if skips.any():
        nbytes[skips] = skip_bytes(schedule, costs)[schedule.slice[send_row[skips]]]
    sizes: list[Any] = nbytes.tolist()
    return sizes


def _further(
    schedule: Lowered, message: npt.NDArray[np.intp], receive_row: npt.NDArray[np.intp]
) -> dict[int, list[int]]:
    """Messages of skip connections by the computation that takes them."""
    if not schedule.skips:
        return {}
    found: dict[int, list[int]] = {}
    row_of = {
        (bool(forward), stage, microbatch): row
        for row, (forward, stage, microbatch) in enumerate(
            zip(
                (schedule.op == Op.F).tolist(),
                schedule.stage.tolist(),
                schedule.microbatch.tolist(),
                strict=True,
            )
        )
        if schedule.op[row] in (Op.F, Op.B, Op.I)
    }
    for row in receive_row[_SKIPS[schedule.op[receive_row]]].tolist():
        forward, key = schedule.op[row] == Op.RECV_SKIP_F, (schedule.stage[row], schedule.microbatch[row])
        taker = row_of[bool(forward), int(key[0]), int(key[1])]
        found.setdefault(taker, []).append(int(message[row]))
    return found
