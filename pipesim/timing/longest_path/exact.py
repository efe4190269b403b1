"""The evaluator in plain Python: exact for any number type, and the reference of the compiled one.

Independent of the engine, hence its oracle.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipesim.ir import NONE, dependencies, linear_extension
from pipesim.ir.actions import Schedule
from pipesim.timing.longest_path.spans import Spans


def evaluate(
    schedule: Schedule,
    durations: Sequence[Any],
    delays: Sequence[Any] | None = None,
    skip_delays: Sequence[Any] | None = None,
) -> Spans:
    """Time a compute-only schedule: an action starts when its rank is free and its input is there.

    Parameters
    ----------
    schedule : Schedule
        Valid and compute only.
    durations : sequence, length rows
        Time of each row; the second row of an overlapped pair is ignored, the first holds the pair's.
    delays : sequence, length rows, optional
        Time from the end of a row's producer on another rank to the arrival of its message.
    skip_delays : sequence, optional
        The same for each input of `Dependencies.skips`, 0 where it stays on its rank.

    Raises
    ------
    DeadlockError
        If the schedule cannot run.
    """
    needs = dependencies(schedule)
    producer, crosses = needs.producer.tolist(), needs.crosses.tolist()
    joined = schedule.joined.tolist()
    first = set(schedule.offsets[:-1].tolist())
    zero = 0 * durations[0]
    start, end = [zero] * len(producer), [zero] * len(producer)
    further: dict[int, list[int]] = {}
    giver = needs.skips.producer.tolist()
    for number, row in enumerate(needs.skips.consumer.tolist()):
        further.setdefault(row, []).append(number)
    for row in linear_extension(schedule, needs):
        if row and joined[row - 1]:
            continue
        begin = zero if row in first else end[row - 1]
        unit = range(row, row + 2 if joined[row] else row + 1)
        for part in unit:
            source = producer[part]
            if source != NONE:
                there = end[source] + delays[part] if delays is not None and crosses[part] else end[source]
                begin = max(begin, there)
            for number in further.get(part, ()):
                delay = zero if skip_delays is None else skip_delays[number]
                begin = max(begin, end[giver[number]] + delay)
        for part in unit:
            start[part], end[part] = begin, begin + durations[row]
    return Spans(start, end)
