"""A lowered schedule prepared for the engine: durations and messages along its rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pipesim.costs import CostTable
from pipesim.costs.rows import exchange_s, message_bytes, step_durations
from pipesim.ir.actions import RECEIVES, SENDS, Op, Schedule

NO_MESSAGE = -1
COMPUTE, PAIR_START, PAIR_END, SEND, RECEIVE, STEP_END, DISTURBED, DISTURBED_PAIR_END = range(8)
"""Kinds of row; an overlapped pair runs as one when its second row is reached. Collectives may run beside
disturbed computations, and start during them."""


@dataclass(frozen=True, slots=True)
class Program:
    """What the simulated GPUs read; lists are indexed by row, the message arrays by message."""

    schedule: Schedule
    kind: list[int]
    duration_s: list[Any]
    message: list[int]
    """The message that a row sends, receives or, as a computation, waits for."""
    message_bytes: list[Any]
    send_s: list[Any]
    """How long each message holds up its sender."""
    exchanges: list[int]
    """Rows of computations beside which weights are gathered or gradients reduced."""
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


def prepare(schedule: Schedule, costs: CostTable, durations: npt.NDArray[Any] | None = None) -> Program:
    """Lay costs and messages along the rows of a lowered schedule; see `pipesim.ir.lower`.

    `durations`, shape (rows,), takes the place of what the costs say; see `engine_of_before.simulate`.
    """
    if durations is None:
        durations = step_durations(schedule, costs)
    elif len(durations) != len(schedule.op):
        raise ValueError(f"{len(durations)} durations for {len(schedule.op)} rows")
    message, send_row, receive_row = _match_messages(schedule)
    boundary = schedule.stage[send_row] - (schedule.op[send_row] == Op.SEND_B)
    rank = schedule.rank
    nbytes = message_bytes(schedule, costs)[boundary, schedule.slice[send_row]].tolist()
    ends = rank[send_row] * schedule.num_ranks + rank[receive_row]
    links, route = np.unique(ends, return_inverse=True)
    kind = _kinds(schedule)
    reduces = {} if costs.gradient_buckets is None else _last_backwards(schedule)
    for first in _first_by_rank(schedule, reduces):
        beside = slice(first, schedule.offsets[schedule.rank[first] + 1])
        kind[beside] = np.where(kind[beside] == COMPUTE, DISTURBED, kind[beside])
        kind[beside] = np.where(kind[beside] == PAIR_END, DISTURBED_PAIR_END, kind[beside])
    exchanges = _exchanging(schedule, costs)
    kind[exchanges] = np.where(kind[exchanges] == PAIR_END, DISTURBED_PAIR_END, DISTURBED)
    return Program(
        schedule=schedule,
        kind=kind.tolist(),
        duration_s=durations.tolist(),
        message=message.tolist(),
        message_bytes=nbytes,
        send_s=[0] * len(nbytes) if costs.host is None else [costs.host.send_s(n) for n in nbytes],
        exchanges=exchanges,
        reduces=reduces,
        route=route.tolist(),
        link_ranks=[divmod(link, schedule.num_ranks) for link in links.tolist()],
        send_row=send_row,
        receive_row=receive_row,
    )


def _kinds(schedule: Schedule) -> npt.NDArray[np.int8]:
    kind = np.full(len(schedule.op), STEP_END, np.int8)
    kind[schedule.op <= Op.W] = COMPUTE
    kind[schedule.joined] = PAIR_START
    kind[1:][schedule.joined[:-1]] = PAIR_END
    kind[np.isin(schedule.op, SENDS)] = SEND
    kind[np.isin(schedule.op, RECEIVES)] = RECEIVE
    return kind


def _exchanging(schedule: Schedule, costs: CostTable) -> list[int]:
    """Rows with an exchange of their own; that of a slice is no more than a part of its duration."""
    moving = exchange_s(schedule, costs)
    if moving is None or schedule.num_slices > 1:
        return []
    rows: list[int] = np.flatnonzero((moving > 0) & ~schedule.joined).tolist()
    return rows


def _last_backwards(schedule: Schedule) -> dict[int, int]:
    """Row of the last weight gradients of each stage on each rank that holds it -> stage."""
    found: dict[tuple[int, int], int] = {}
    rows = np.flatnonzero(np.isin(schedule.op, (Op.B, Op.W)))
    for row, rank, stage in zip(
        rows.tolist(), schedule.rank[rows].tolist(), schedule.stage[rows].tolist(), strict=True
    ):
        found[rank, stage] = row
    return {row: stage for (_, stage), row in found.items()}


def _first_by_rank(schedule: Schedule, rows: Iterable[int]) -> list[int]:
    first: dict[int, int] = {}
    for row in sorted(rows):
        first.setdefault(int(schedule.rank[row]), row)
    return list(first.values())


def _match_messages(
    schedule: Schedule,
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Give each message a number by its send row; find receives and consumers by what they consume."""
    op, stage = schedule.op, schedule.stage
    towards_end = np.isin(op, (Op.F, Op.SEND_F, Op.RECV_F))
    consumer_stage = stage + (op == Op.SEND_F) - (op == Op.SEND_B)
    key = np.ravel_multi_index(
        (towards_end.astype(int), consumer_stage, schedule.microbatch, schedule.slice),
        (2, schedule.num_stages, schedule.num_microbatches, schedule.num_slices),
        mode="clip",
    )
    send_row, receives = np.flatnonzero(np.isin(op, SENDS)), np.flatnonzero(np.isin(op, RECEIVES))
    number_of = np.full(2 * schedule.num_stages * schedule.num_microbatches * schedule.num_slices, NO_MESSAGE)
    number_of[key[send_row]] = np.arange(len(send_row))
    has_message = np.isin(op, (Op.F, Op.B, Op.I, *SENDS, *RECEIVES))
    message = np.where(has_message, number_of[key], NO_MESSAGE)
    receive_row = np.empty_like(send_row)
    receive_row[message[receives]] = receives
    return message, send_row, receive_row
