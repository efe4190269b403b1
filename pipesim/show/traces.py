"""Timelines as files: a trace for Chrome and Perfetto, a CSV, a JSON document."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pipesim.files import complete_file
from pipesim.ir.actions import RECEIVES, SENDS, SKIP_TRANSFERS, Op
from pipesim.ir.timeline import COLLECTIVE_STREAM, COMPUTE_STREAM, P2P_STREAM, Timeline

_THREADS = {COMPUTE_STREAM: 0, P2P_STREAM: 1, COLLECTIVE_STREAM: 2}
_MICROSECONDS = 1e6


def write_trace(timeline: Timeline, path: str | Path) -> None:
    """Write the trace-event JSON that chrome://tracing and ui.perfetto.dev open.

    A process is a rank (of a replica), its threads are the streams, an arrow is a message from its sender's
    to its receiver's rank; sends stand on the sender's p2p thread while the message is under way.
    """
    with complete_file(path) as temporary, temporary.open("w", encoding="utf-8") as out:
        out.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
        separator = ""
        for event in _events(timeline):
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
    yield {"ph": "X", "name": name, "cat": op.name, **place, "ts": start, "dur": end - start, "args": facts}
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


def write_json(document: Any, path: str | Path) -> None:
    """Write a JSON document, whole or not at all."""
    with complete_file(path) as temporary:
        temporary.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
