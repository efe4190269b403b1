"""A model of NCCL's queues under the instructions of all ranks: what a step takes if transfers queue up.

A rank's transfers with one key wait for each other in the order in which they are posted. A message moves
once it is made and stands at the head of its queue on both ranks; hosts run ahead of their devices.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable

from pipesim.executor.instructions import plan
from pipesim.ir import NONE
from pipesim.ir.actions import RECEIVES, SENDS, Lowered, Op

DURATIONS = {Op.F: 1.0, Op.B: 2.0, Op.I: 1.0, Op.W: 1.0}
Queue = Callable[[int, int], Hashable]
"""From sender and receiver to what tells the queue from others of a rank."""


def makespan(lowered: Lowered, queue_of: Queue | None, message_s: float) -> float:
    """End of the last computation; with no queues a message is there `message_s` after it was made."""
    programs = plan(lowered)
    scale = lowered.num_ranks / lowered.num_stages
    compute = [[unit for unit in program.units if unit[0].op <= Op.W] for program in programs]
    queues = _queues(programs, queue_of or (lambda sender, receiver: None))
    places: dict[int, list[tuple[Hashable, int]]] = defaultdict(list)
    for key, messages in queues.items():
        for at, message in enumerate(messages):
            places[message].append((key, at))
    heads, free_at = dict.fromkeys(queues, 0), dict.fromkeys(queues, 0.0)
    made: dict[int, float] = {}
    there: dict[int, float] = {}
    at, now = [0] * len(compute), [0.0] * len(compute)
    moved = True
    while moved:
        moved = False
        for rank, units in enumerate(compute):
            while at[rank] < len(units):
                unit = units[at[rank]]
                needed = [part.message for part in unit if part.waits]
                if any(message not in there for message in needed):
                    break
                start = max([now[rank], *(there[message] for message in needed)])
                now[rank] = start + scale * sum(DURATIONS[part.op] for part in unit)
                made |= {part.gives: now[rank] for part in unit if part.gives != NONE}
                at[rank] += 1
                moved = True
        for message, ends in places.items():
            if message in there or message not in made:
                continue
            if queue_of is None:
                there[message] = made[message] + message_s
            elif all(heads[key] == place for key, place in ends):
                there[message] = max(made[message], *(free_at[key] for key, _ in ends)) + message_s
                for key, _ in ends:
                    heads[key], free_at[key] = heads[key] + 1, there[message]
            else:
                continue
            moved = True
    assert at == [len(units) for units in compute], "the ranks wait for each other for ever"
    return max(now)


def _queues(programs: list, queue_of: Queue) -> dict[Hashable, list[int]]:
    queues: dict[Hashable, list[int]] = defaultdict(list)
    for program in programs:
        for first, *_ in program.units:
            if first.op in SENDS:
                queues[program.rank, queue_of(program.rank, first.peer)].append(first.message)
            elif first.op in RECEIVES:
                queues[program.rank, queue_of(first.peer, program.rank)].append(first.message)
    return queues
