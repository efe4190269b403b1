"""Costs laid out along the rows of a schedule: the one place where the engine and the evaluator ask.

A cost table speaks of whole microbatches. Where a schedule cuts the sequence into k slices, slice q of 0..k-1
takes a k-th of the work, but of causal attention (2q + 1) / k^2, for its queries see all earlier keys; the
overhead of a layer is paid for every slice in full. A slice with another share of the sequence, from a to b,
takes b - a of the work and b^2 - a^2 of the attention.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pipesim.costs.shards import ShardExchange
from pipesim.costs.table import CostTable
from pipesim.costs.token_exchange import TokenRows, token_rows
from pipesim.errors import ScheduleError
from pipesim.ir import Dependencies, dependencies, held
from pipesim.ir.actions import ActionTable, Op, Schedule

Array = npt.NDArray[Any]


def row_durations(schedule: ActionTable, costs: CostTable) -> Array:
    """Seconds of each row, shape (rows,); both rows of an overlapped pair hold the pair's duration."""
    durations = row_durations_apart(schedule, costs)
    first = np.flatnonzero(schedule.joined)
    if costs.overlapped_pair_s is not None:
        pairs = costs.overlapped_pair_s[schedule.stage[first]] / schedule.num_slices
    elif costs.token_exchange is not None:
        stages = schedule.stage[first], schedule.stage[first + 1]
        pairs = costs.token_exchange.paired_s(
            durations[first], durations[first + 1], stages, float(costs.overlap_slowdown)
        )
    else:
        return _with_pairs(schedule, durations)
    durations[first] = durations[first + 1] = pairs
    return durations


def row_durations_apart(schedule: ActionTable, costs: CostTable) -> Array:
    """Seconds of each row by itself, as if no two ran together, shape (rows,)."""
    durations = _single_durations(schedule, costs)
    for rank, of_rank in costs.of_ranks.items():
        rows = schedule.rows_of(rank)
        durations[rows] = _single_durations(schedule, of_rank)[rows]
    if costs.shard_exchange is not None and not costs.shard_exchange.in_every_operation:
        durations = durations + _exposed_s(schedule, costs)
    return durations


def rows_of_tokens(schedule: ActionTable, costs: CostTable, durations: Array) -> TokenRows | None:
    """Exchanges of tokens along the rows, whose `durations` are given; None where there are none."""
    if costs.token_exchange is None:
        return None
    return token_rows(schedule, costs.token_exchange, durations, row_durations_apart(schedule, costs))


def _single_durations(schedule: ActionTable, costs: CostTable) -> Array:
    durations = costs.durations(schedule.op, schedule.stage)
    return durations if schedule.num_slices == 1 else _of_slices(schedule, costs, durations)


def exposed_exchange_s(schedule: ActionTable, costs: CostTable) -> Array | None:
    """Seconds of each row's duration in which it waits for shared-out weights or gradients, shape (rows,).

    On an idle network; both rows of an overlapped pair hold the pair's. None where nothing is shared out.
    """
    if costs.shard_exchange is None:
        return None
    return _with_pairs(schedule, _exposed_s(schedule, costs))


def _exposed_s(schedule: ActionTable, costs: CostTable) -> Array:
    exchange = costs.shard_exchange
    assert exchange is not None
    seconds = _of_moves(schedule, exchange)
    for rank, of_rank in costs.of_ranks.items():
        if of_rank.shard_exchange is not None:
            rows = schedule.rows_of(rank)
            seconds[rows] = _of_moves(schedule, of_rank.shard_exchange)[rows]
    return seconds


def exchange_s(schedule: ActionTable, costs: CostTable) -> Array | None:
    """Seconds that each row's gathers and reductions take, hidden or not; else as `exposed_exchange_s`."""
    exchange = costs.shard_exchange
    if exchange is None:
        return None
    gathers, reduces = exchange.moves(schedule)
    gather_s, reduce_s = exchange.seconds()
    along = np.where(gathers, gather_s[schedule.stage], 0.0) + np.where(
        reduces, reduce_s[schedule.stage], 0.0
    )
    return _with_pairs(schedule, along / (schedule.num_slices if exchange.in_every_operation else 1))


def _of_moves(schedule: ActionTable, exchange: ShardExchange) -> Array:
    """Find what gathers and reductions add to each row; a part, where every slice of a sequence has them."""
    gathers, reduces = exchange.moves(schedule)
    along = np.zeros(len(schedule.op))
    for op in (Op.F, Op.B, Op.I, Op.W):
        does_all = (gathers | ~np.isin(op, (Op.F, Op.B, Op.I))) & (reduces | ~np.isin(op, (Op.B, Op.W)))
        for seconds, rows in (
            (exchange.exposed_s, does_all),
            (exchange.exposed_gathers_s, gathers & ~does_all),
            (exchange.exposed_reductions_s, reduces & ~does_all),
        ):
            chosen = (schedule.op == op) & rows
            if op in seconds:
                along[chosen] = seconds[op][schedule.stage[chosen]]
    return along / (schedule.num_slices if exchange.in_every_operation else 1)


def _with_pairs(schedule: ActionTable, seconds: Array) -> Array:
    first = np.flatnonzero(schedule.joined)
    seconds[first] = seconds[first + 1] = seconds[first] + seconds[first + 1]
    return seconds


def step_durations(schedule: ActionTable, costs: CostTable) -> Array:
    """Seconds of each row of a lowered schedule, shape (rows,): `row_durations`, and a rank's optimizer."""
    durations = row_durations(schedule, costs)
    rows = np.flatnonzero(schedule.op == Op.OPTIMIZER)
    for row, rank in zip(rows.tolist(), schedule.rank[rows].tolist(), strict=True):
        durations[row] = costs.of_ranks.get(rank, costs).optimizer_s[schedule.stages_of(rank)].sum()
    return durations


def _of_slices(schedule: ActionTable, costs: CostTable, whole: Array) -> Array:
    num_slices = schedule.num_slices
    attention = _part(schedule, costs, "attention", in_input_gradient=1, in_weight_gradient=0)
    overhead = _part(schedule, costs, "overhead", in_input_gradient=2, in_weight_gradient=2)
    if schedule.slice_shares is None:
        seen = 2 * schedule.slice + 1
        sliced: Array = (
            (whole - attention - overhead) / num_slices + attention * seen / num_slices**2 + overhead
        )
        return sliced
    shares = np.array(schedule.slice_shares)
    ends = np.cumsum(shares)
    share, end = shares[schedule.slice], ends[schedule.slice]
    uneven: Array = (
        (whole - attention - overhead) * share + attention * (end**2 - (end - share) ** 2) + overhead
    )
    return uneven


def attention_s(schedule: ActionTable, costs: CostTable, *, is_recomputed: bool) -> Array:
    """Seconds of attention in each row, shape (rows,); `is_recomputed` adds a forward's to the backward."""
    tables = {rank: costs.of_ranks.get(rank, costs) for rank in range(schedule.num_ranks)}
    seconds = np.zeros(len(schedule.op))
    for rank, table in tables.items():
        rows = schedule.rows_of(rank)
        found = _part(schedule, table, "attention", in_input_gradient=1, in_weight_gradient=0)
        if is_recomputed and "attention" in table.forward_parts_s:
            backward = np.isin(schedule.op, (Op.B, Op.I))
            found = found + np.where(backward, table.forward_parts_s["attention"][schedule.stage], 0.0)
        seconds[rows] = found[rows]
    if schedule.num_slices == 1:
        return seconds
    shares = np.array(schedule.slice_shares or [1 / schedule.num_slices] * schedule.num_slices)
    ends = np.cumsum(shares)
    # Slice numbers of transfers mean nothing here.
    part = np.where(schedule.op <= Op.W, schedule.slice, 0)
    seconds *= ends[part] ** 2 - (ends[part] - shares[part]) ** 2
    return seconds


def busiest_s(schedule: ActionTable, costs: CostTable) -> Array:
    """Seconds of each row that grow with the tokens of the busiest device, shape (rows,)."""
    seconds = np.zeros(len(schedule.op))
    for op, of_stages in costs.busiest_s.items():
        rows = schedule.op == op
        seconds[rows] = of_stages[schedule.stage[rows]]
    return seconds / schedule.num_slices


def _part(
    schedule: ActionTable, costs: CostTable, part: str, *, in_input_gradient: int, in_weight_gradient: int
) -> Array:
    """Seconds of one part along the rows; I and W hold 1/n of the backward's, or nothing where n is 0."""
    seconds = 0 * costs.forward_s[schedule.stage]
    for op, parts, divisor in (
        (Op.F, costs.forward_parts_s, 1),
        (Op.B, costs.backward_parts_s, 1),
        (Op.I, costs.backward_parts_s, in_input_gradient),
        (Op.W, costs.backward_parts_s, in_weight_gradient),
    ):
        if part in parts and divisor:
            rows = schedule.op == op
            seconds[rows] = parts[part][schedule.stage[rows]] / divisor
    return seconds


def message_bytes(schedule: ActionTable, costs: CostTable) -> Array:
    """Bytes of one message at each stage boundary, and of each slice, shape (num_stages, num_slices)."""
    of_slices = of_each_slice(schedule)
    whole = _per_slice(schedule, costs.boundary_bytes)[:, None]
    if of_slices is None:
        return np.repeat(whole, schedule.num_slices, axis=1)
    return whole * of_slices[None, :]


def of_each_slice(schedule: ActionTable) -> Array | None:
    """Give what a slice has in multiples of the mean one, shape (num_slices,); None where all are alike."""
    shares = schedule.slice_shares
    return None if shares is None else np.array(shares) * schedule.num_slices


def skip_bytes(schedule: ActionTable, costs: CostTable) -> Array:
    """Bytes of the tensor of each of a schedule's skip connections, shape (skips,).

    Raises
    ------
    ScheduleError
        If the costs are of other connections.
    """
    if schedule.skips != costs.skip_ends:
        raise ScheduleError(
            f"{schedule.name} has the skip connections {schedule.skips}, the costs are of {costs.skip_ends}"
        )
    return np.array([skip.nbytes for skip in costs.skips], costs.boundary_bytes.dtype)


def held_bytes(schedule: ActionTable, costs: CostTable) -> Array:
    """Activations that a microbatch, or the mean slice, holds on each stage from F to I, shape (stages,)."""
    return _per_slice(schedule, costs.activation_bytes)


def activations_held(schedule: ActionTable, costs: CostTable) -> Array:
    """Bytes of activations that a rank holds right after each row, shape (rows,)."""
    deferred = None if costs.deferred_bytes is None else _per_slice(schedule, costs.deferred_bytes)
    return held(schedule, held_bytes(schedule, costs), deferred, of_each_slice(schedule))


def logits_held(schedule: ActionTable, costs: CostTable) -> Array:
    """Bytes of logits, and of what a loss keeps of them, among `activations_held`."""
    if costs.logit_bytes is None:
        return np.zeros(len(schedule.op))
    deferred = costs.logit_bytes if costs.deferred_logit_bytes is None else costs.deferred_logit_bytes
    kept = _per_slice(schedule, costs.logit_bytes), _per_slice(schedule, deferred)
    return held(schedule, *kept, of_each_slice(schedule))


def _per_slice(schedule: ActionTable, whole: Array) -> Array:
    return whole if schedule.num_slices == 1 else whole / schedule.num_slices


def row_delays(schedule: ActionTable, needs: Dependencies, costs: CostTable) -> Array:
    """Seconds from a row's producer's end to the arrival of its message on an idle link, shape (rows,)."""
    rank = schedule.rank
    delays = np.zeros(len(rank), dtype=costs.forward_s.dtype)
    rows = np.flatnonzero(needs.crosses)
    source = needs.producer[rows]
    boundary = np.minimum(schedule.stage[rows], schedule.stage[source])
    columns = np.stack([rank[source], rank[rows], boundary, schedule.slice[rows]])
    keys, inverse = np.unique(columns, axis=1, return_inverse=True)
    nbytes = message_bytes(schedule, costs)
    seconds = [
        costs.p2p(src, dst).transfer_s(nbytes[stage, part]) for src, dst, stage, part in keys.T.tolist()
    ]
    if seconds:
        delays[rows] = np.array(seconds, dtype=delays.dtype)[inverse.reshape(-1)]
    return delays


def skip_delays(schedule: ActionTable, needs: Dependencies, costs: CostTable) -> Array:
    """Seconds that each input of a skip connection is under way on an idle link, shape (inputs,)."""
    skips, rank = needs.skips, schedule.rank
    delays = np.zeros(len(skips.skip), dtype=costs.forward_s.dtype)
    nbytes = skip_bytes(schedule, costs)
    for number in np.flatnonzero(skips.crosses).tolist():
        ends = int(rank[skips.producer[number]]), int(rank[skips.consumer[number]])
        delays[number] = costs.p2p(*ends).transfer_s(nbytes[skips.skip[number]])
    return delays


def traffic_usd(schedule: Schedule, costs: CostTable) -> float:
    """Price of what a step of all replicas sends between data centres, in USD."""
    prices = costs.site_prices
    if prices is None:
        return 0.0
    needs, rank, total = dependencies(schedule), schedule.rank, float(prices.sync_usd.sum())
    nbytes = message_bytes(schedule, costs)
    for row in np.flatnonzero(needs.crosses).tolist():
        source = int(needs.producer[row])
        boundary = min(int(schedule.stage[row]), int(schedule.stage[source]))
        pair = int(rank[source]), int(rank[row])
        total += float(nbytes[boundary, schedule.slice[row]]) * prices.message_usd_per_byte.get(pair, 0.0)
    for number in np.flatnonzero(needs.skips.crosses).tolist():
        pair = int(rank[needs.skips.producer[number]]), int(rank[needs.skips.consumer[number]])
        skip = costs.skips[int(needs.skips.skip[number])]
        total += float(skip.nbytes) * prices.message_usd_per_byte.get(pair, 0.0)
    return total
