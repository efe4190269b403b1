"""Timelines as files: a trace for Chrome and Perfetto, a CSV, a JSON document."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from pipesim import __version__
from pipesim.device_memory import memory_over_time
from pipesim.files import complete_file
from pipesim.idle_time import IdleTimes, idle_times
from pipesim.ir import NONE
from pipesim.ir.actions import RECEIVES, SENDS, SKIP_TRANSFERS, Op, Schedule
from pipesim.ir.timeline import COLLECTIVE_STREAM, COMPUTE_STREAM, P2P_STREAM, Timeline
from pipesim.show.protocols import TimedRun

_IDLE = "idle"
_THREADS = {COMPUTE_STREAM: 0, P2P_STREAM: 1, COLLECTIVE_STREAM: 2}
_MICROSECONDS = 1e6
_COLOURS = {
    Op.F: "rail_response",
    Op.B: "rail_idle",
    Op.I: "detailed_memory_dump",
    Op.W: "rail_load",
    Op.REDUCE_GRAD: "thread_state_runnable",
    Op.REDUCE_EMBEDDING: "thread_state_runnable",
    Op.OPTIMIZER: "bad",
}
"""Names that chrome://tracing has colours for (reservedColorsByName in Catapult's color_scheme.html): blue,
orange, purple, green, pale blue, ochre. Perfetto colours by name without digits, so by operation too."""
_IDLE_COLOUR = "thread_state_sleeping"


def write_trace(timeline: Timeline, path: str | Path, *, run: TimedRun | None = None) -> None:
    """Write the trace-event JSON that chrome://tracing and ui.perfetto.dev open.

    A process is a rank (of a replica), its threads are the streams, an arrow is a message from its sender's
    to its receiver's rank; sends stand on the sender's p2p thread while the message is under way.

    Parameters
    ----------
    timeline : Timeline
        What to write.
    path : str or Path
        Where to.
    run : TimedRun, optional
        Whose timeline it is: adds a thread of idle slices with their cause, a counter of each rank's memory,
        and the run's main numbers.
    """
    facts = {} if run is None else {"otherData": _facts(run)}
    head = json.dumps({"displayTimeUnit": "ms", **facts}, indent=1)
    events = chain(_events(timeline), () if run is None else _events_of_run(run))
    with complete_file(path) as temporary, temporary.open("w", encoding="utf-8") as out:
        out.write(head.removesuffix("\n}") + ',\n "traceEvents": [\n')
        separator = ""
        for event in events:
            out.write(separator + json.dumps(event, separators=(",", ":")))
            separator = ",\n"
        out.write("\n]}\n")


def _events(timeline: Timeline) -> Iterator[dict[str, Any]]:
    num_ranks = int(timeline.rank.max()) + 1
    process = timeline.replica * num_ranks + timeline.rank
    for one in np.unique(process).tolist():
        replica, rank = divmod(one, num_ranks)
        name = f"rank {rank}" if timeline.replica.max() == 0 else f"replica {replica} rank {rank}"
        yield {"ph": "M", "name": "process_name", "pid": one, "args": {"name": name}}
        yield {"ph": "M", "name": "process_sort_index", "pid": one, "args": {"sort_index": one}}
        for stream, thread in _THREADS.items():
            yield {"ph": "M", "name": "thread_name", "pid": one, "tid": thread, "args": {"name": stream}}
    numbers = (process, timeline.op, timeline.stage, timeline.microbatch, timeline.slice, timeline.step)
    times = (_MICROSECONDS * one.astype(float) for one in (timeline.start_s, timeline.end_s))
    arrays = (*numbers, timeline.replica, timeline.nbytes.astype(float), *times)
    for stream, *row in zip(timeline.stream(), *(array.tolist() for array in arrays), strict=True):
        yield from _row_events(_THREADS[stream], *row)


def _facts(run: TimedRun) -> dict[str, Any]:
    m = run.metrics
    return {
        "made by": f"pipesim {__version__}",
        "scenario": run.scenario.name,
        "schedule": run.label,
        "ranks, stages, microbatches": f"{m.num_ranks}, {m.num_stages}, {m.num_microbatches}",
        "step_time_s": float(m.step_time_s),
        "makespan_s": float(m.makespan_s),
        "bubble_ratio": float(m.bubble_ratio),
        "peak_memory_bytes": m.peak_memory_bytes,
        "fits_memory": m.fits_memory,
    }


def _events_of_run(run: TimedRun) -> Iterator[dict[str, Any]]:
    """Give each rank's idle slices and, where bytes are stated, its memory over time."""
    times, first = idle_times(run.events, run.schedule), int(run.events.replica[0]) * run.schedule.num_ranks
    begin_s, end_s = float(times.start_s.min()), float(times.end_s.max())
    for rank in range(run.schedule.num_ranks):
        place = {"pid": first + rank, "tid": len(_THREADS)}
        yield {"ph": "M", "name": "thread_name", **place, "args": {"name": _IDLE}}
        for cause, since_s, until_s, waits_for in _gaps(run.schedule, times, rank, begin_s, end_s):
            if until_s > since_s:
                yield {
                    **{"ph": "X", "name": cause, "cat": _IDLE, "cname": _IDLE_COLOUR, **place},
                    **{"ts": _MICROSECONDS * since_s, "dur": _MICROSECONDS * (until_s - since_s)},
                    "args": waits_for,
                }
        if run.metrics.peak_memory_bytes is None:
            continue
        seconds, used = memory_over_time(run.events, run.schedule, run.costs, rank)
        for at_s, num_bytes in zip(seconds.tolist(), used.tolist(), strict=True):
            counter = {"ph": "C", "name": "memory", "pid": first + rank, "ts": _MICROSECONDS * at_s}
            yield {**counter, "args": {"GB": num_bytes / 1e9}}


def _gaps(
    schedule: Schedule, times: IdleTimes, rank: int, begin_s: float, end_s: float
) -> Iterator[tuple[str, float, float, dict[str, str]]]:
    """Give the cause, begin and end of each part of a rank's idle time, and what it waits for.

    Where transfers block, parts of one gap may alternate; they are given in one piece each.
    """
    actions = times.actions_of(rank)
    for i in range(actions.start, actions.stop):
        awaited, start_s = int(times.awaited[i]), float(times.start_s[i])
        waits_for = {"next": str(schedule.action(int(times.row[i])))}
        if awaited != NONE:
            waits_for["waits for"] = f"{schedule.action(awaited)} on rank {schedule.rank[awaited]}"
        if i == actions.start:
            yield "warm-up", begin_s, start_s, waits_for
        else:
            ready_s = start_s - float(times.p2p_s[i])
            yield "dependency", float(times.end_s[i - 1]), ready_s, waits_for
            yield "exposed p2p", ready_s, start_s, waits_for
    yield "cool-down", float(times.end_s[actions.stop - 1]), end_s, {}


def _row_events(
    thread: int,
    process: int,
    code: int,
    stage: int,
    microbatch: int,
    part: int,
    step: int,
    replica: int,
    nbytes: float,
    start: float,
    end: float,
) -> Iterator[dict[str, Any]]:
    """Give a box for all but a receive, and an end of an arrow for what is sent or received."""
    op, place = Op(code), {"pid": process, "tid": thread}
    arrow = {"id": _message(op, stage, microbatch, part, step, replica), "name": "message", "cat": "p2p"}
    if op in RECEIVES:
        at = {**place, "tid": _THREADS[COMPUTE_STREAM], "ts": end}
        yield {"ph": "f", "bp": "e", **arrow, **at}
        return
    facts: dict[str, Any] = {"stage": stage, "microbatch": microbatch, "slice": part, "step": step}
    if nbytes:
        facts["bytes"] = nbytes
    name = f"{stage}{op.name}" + ("" if microbatch < 0 else str(microbatch))
    colour = {"cname": _COLOURS[op]} if op in _COLOURS else {}
    box = {"ph": "X", "name": name, "cat": op.name, **colour, **place}
    yield {**box, "ts": start, "dur": end - start, "args": facts}
    if op in SENDS:
        yield {"ph": "s", **arrow, **place, "ts": start}


def _message(op: Op, stage: int, microbatch: int, part: int, step: int, replica: int) -> str:
    """Identify a message by its direction and the stage that consumes it."""
    if op in SKIP_TRANSFERS:
        direction = "F" if op in (Op.SEND_SKIP_F, Op.RECV_SKIP_F) else "B"
        return f"{direction} skip {part}.{microbatch}.{step}.{replica}"
    forward = op in (Op.SEND_F, Op.RECV_F)
    consumer = stage + (1 if op is Op.SEND_F else -1 if op is Op.SEND_B else 0)
    return f"{'F' if forward else 'B'}{consumer}.{microbatch}.{part}.{step}.{replica}"


def write_timeline(timeline: Timeline, path: str | Path) -> None:
    """Write the rows as CSV; see `Timeline.to_frame` for the columns."""
    with complete_file(path) as temporary:
        timeline.to_frame().to_csv(temporary, index=False)
