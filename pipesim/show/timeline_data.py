"""Timelines as the page's script reads them: columns of small integers, one compressed stream."""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pipesim.costs.rows import activations_held
from pipesim.device_memory import memory_by_row, memory_over_time
from pipesim.idle_time import IdleTimes, idle_times
from pipesim.ir import NONE, held
from pipesim.ir.actions import RECEIVES, SENDS, Op
from pipesim.show.amounts import TimeUnit, percent, seconds
from pipesim.show.glossary import OPERATIONS
from pipesim.show.protocols import TimedRun

Integers = npt.NDArray[np.int64]

MOST_ACTIONS = 500_000
"""What a browser draws without waiting; schedules after those that reach it have no timeline on the page."""

_TYPES = (("u1", 0, 2**8), ("i1", -(2**7), 2**7), ("u2", 0, 2**16), ("i2", -(2**15), 2**15))
_WIDE, _WIDEST = ("i4", 2**31), "f8"
_FINEST_S = 1e-7
_MEMORY_STEPS = 1_000_000


class Columns:
    """Packs arrays of integers one after the other.

    A column is described by ``[type, offset, length, form]``: numbers as they stand (""), differences of
    neighbours ("d"), or bytes that count in a list of distinct numbers (that list).
    """

    def __init__(self) -> None:
        self.content = bytearray()

    def add(self, values: npt.NDArray[Any], *, differences: bool = False) -> list[Any]:
        """Append a column and describe it."""
        whole = np.asarray(values, np.int64)
        form: Any = "d" if differences else ""
        if differences:
            whole = np.diff(whole, prepend=0)
        distinct = np.unique(whole)
        if not differences and len(distinct) <= 2**8 and _type_of(distinct) != "u1":
            form, whole = distinct.tolist(), np.searchsorted(distinct, whole)
        kind = _type_of(whole)
        offset = len(self.content)
        self.content += whole.astype(f"<{kind}").tobytes()
        return [kind, offset, len(whole), form]


def _type_of(values: npt.NDArray[Any]) -> str:
    low, high = int(values.min(initial=0)), int(values.max(initial=0))
    for name, least, above in _TYPES:
        if least <= low and high < above:
            return name
    name, limit = _WIDE
    return name if -limit <= low and high < limit else _WIDEST


def packed_timelines(runs: Mapping[int, TimedRun], *, shown: Sequence[int], unit: TimeUnit) -> str:
    """Compress the timelines of runs; see `script/data.js` for the reader.

    Parameters
    ----------
    runs : Mapping
        Row of the page's table of schedules to the run; beyond `MOST_ACTIONS` later ones are left out.
    shown : sequence of int
        Rows whose timelines are shown at first, the most important first.
    unit : TimeUnit
        Of the time axis.

    Returns
    -------
    str
        Base64 of a raw deflate stream: the length of a JSON text in four bytes (little-endian), that text,
        columns.
    """
    columns, entries, num_actions = Columns(), [], 0
    for row, run in sorted(runs.items(), key=lambda item: (item[0] not in shown, item[0])):
        num_actions += len(run.schedule.op)
        if num_actions <= MOST_ACTIONS or row in shown:
            entries.append({"row": row, **_entry(run, columns)})
    names, words = {int(op): op.name for op in Op}, {op.name: said for op, said in OPERATIONS.items()}
    head = {"ops": names, "words": words, "shown": list(shown), "unit": unit._asdict(), "runs": entries}
    text = json.dumps(head, separators=(",", ":"), ensure_ascii=False).encode()
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    content = len(text).to_bytes(4, "little") + text + bytes(columns.content)
    return base64.b64encode(packer.compress(content) + packer.flush()).decode()


def _entry(run: TimedRun, columns: Columns) -> dict[str, Any]:
    times, schedule, metrics = idle_times(run.events, run.schedule), run.schedule, run.metrics
    tick = min(_FINEST_S, 10.0 ** math.ceil(math.log10(float(metrics.step_time_s) / 2**31)))
    fits = metrics.fits_memory is not False
    return {
        "name": run.label,
        "words": f"step {seconds(metrics.step_time_s)}, bubble ratio {percent(metrics.bubble_ratio)}"
        + ("" if fits else ", does not fit in memory"),
        "tick": tick,
        "step": float(metrics.step_time_s),
        "makespan": float(metrics.makespan_s),
        "microbatches": schedule.num_microbatches,
        "slices": schedule.num_slices,
        "chunks": [schedule.stages_of(rank) for rank in range(schedule.num_ranks)],
        "offsets": times.offsets.tolist(),
        **_actions(run, times, columns),
        **_times(times, tick, columns),
        "memory": _memory(run, times, columns),
        "after": _after(run, float(times.start_s.min()), tick, columns),
    }


def _actions(run: TimedRun, times: IdleTimes, columns: Columns) -> dict[str, Any]:
    """Say what each action is; of an overlapped pair the backward too, as distances from the forward."""
    schedule, row = run.schedule, times.row
    joined = schedule.joined[row]
    second = np.minimum(row + joined, len(schedule.op) - 1)
    action_of = np.zeros(len(schedule.op), np.int64)
    action_of[row] = np.arange(len(row))
    action_of[second] = np.arange(len(row))
    awaited = np.where(times.awaited == NONE, 0, action_of[times.awaited] - np.arange(len(row)))
    entry = {
        "op": columns.add(np.where(joined, int(Op.OVERLAP_F_B), schedule.op[row])),
        "stage": columns.add(schedule.stage[row]),
        "microbatch": columns.add(schedule.microbatch[row], differences=True),
        "awaited": columns.add(awaited),
    }
    if schedule.num_slices > 1:
        entry["slice"] = columns.add(schedule.slice[row])
    if joined.any():
        entry["stage2"] = columns.add(schedule.stage[second] - schedule.stage[row])
        entry["microbatch2"] = columns.add(schedule.microbatch[second] - schedule.microbatch[row])
    return entry


def _times(times: IdleTimes, tick: float, columns: Columns) -> dict[str, Any]:
    """Durations and gaps in ticks, rounded so that the sums of a rank, and so all its times, are right."""
    start, end = (one.astype(float) - float(times.start_s.min()) for one in (times.start_s, times.end_s))
    gap = (times.dependency_s + times.p2p_s).astype(float)
    firsts = times.offsets[:-1]
    gap[firsts] = start[firsts]
    found = {"duration": end - start, "gap": gap, "p2p": times.p2p_s, "collective": times.collective_s}
    return {name: columns.add(_ticks(times, values, tick)) for name, values in found.items()}


def _ticks(times: IdleTimes, values: npt.NDArray[Any], tick: float) -> Integers:
    whole = np.zeros(len(values), np.int64)
    for rank in range(len(times.offsets) - 1):
        actions = times.actions_of(rank)
        sums = np.rint(np.cumsum(values[actions].astype(float)) / tick).astype(np.int64)
        whole[actions] = np.diff(sums, prepend=0)
    return whole


def _memory(run: TimedRun, times: IdleTimes, columns: Columns) -> dict[str, Any]:
    """Bytes in use during and after each action; without bytes, the microbatches that a rank holds."""
    schedule, costs = run.schedule, run.costs
    joined = schedule.joined[times.row]
    last = times.row + joined
    if run.metrics.peak_memory_bytes is None:
        share = schedule.num_ranks / schedule.num_stages / schedule.num_slices
        after = share * held(schedule, np.ones(schedule.num_stages))
        during = np.where(schedule.op == Op.F, after, np.concatenate(([0.0], after[:-1])))
        kind, scale, limits = "microbatches held", share, []
    else:
        during = memory_by_row(schedule, costs)
        after = activations_held(schedule, costs).astype(float)
        for rank in range(schedule.num_ranks):
            _, used = memory_over_time(run.events, schedule, costs, rank)
            after[schedule.rows_of(rank)] = used[1::2]
        kind, scale = "memory of a device", run.metrics.peak_memory_bytes / _MEMORY_STEPS
        limits = [costs.of_ranks.get(rank, costs).memory_limit_bytes for rank in range(schedule.num_ranks)]
    during = np.where(joined, np.maximum(during[times.row], during[last]), during[times.row])
    return {
        "kind": kind,
        "scale": float(scale),
        "limits": sorted({float(limit) for limit in limits if limit is not None}),
        "during": columns.add(np.rint(during / scale), differences=True),
        "after": columns.add(np.rint(after[last] / scale), differences=True),
    }


def _after(run: TimedRun, begin_s: float, tick: float, columns: Columns) -> dict[str, Any]:
    """Gradient synchronisation and optimizer: what lasts, of all ranks."""
    events = run.events
    rows = events.select(~events.compute & (events.end_s > events.start_s))
    rows = rows.select(~np.isin(rows.op, SENDS + RECEIVES))
    start, end = (np.rint((one.astype(float) - begin_s) / tick) for one in (rows.start_s, rows.end_s))
    found = {"rank": rows.rank, "op": rows.op, "stage": rows.stage, "start": start, "duration": end - start}
    return {name: columns.add(values) for name, values in found.items()}
