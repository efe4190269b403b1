"""A lowered schedule as each rank's instructions: who hands what to whom, and under which number."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from pipesim.ir import NONE, Dependencies, dependencies
from pipesim.ir.actions import RECEIVES, SENDS, SKIP_TRANSFERS, Action, ActionTable, Lowered, Op, Schedule


class SkipTensor(NamedTuple):
    """A tensor, or its gradient, that goes through a skip connection."""

    skip: int
    """Number of the connection."""
    message: int
    crosses: bool
    """From one rank to another."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One row of a rank with what the executor needs to carry it out.

    Parameters
    ----------
    row : int
        Position among the rank's rows of the lowered schedule.
    op, stage, microbatch, slice
        The action.
    message : int
        A transfer: the tensor it moves. A computation: the tensor it takes from another stage, or `NONE`.
    waits : bool
        That tensor comes from another rank.
    gives : int
        A computation: the number of the tensor it hands on, or `NONE`.
    peer : int
        A transfer: the other rank.
    skips_in, skips_out : tuple of SkipTensor
        A computation: what it takes and hands on through skip connections.
    """

    row: int
    op: Op
    stage: int
    microbatch: int
    slice: int
    message: int = NONE
    waits: bool = False
    gives: int = NONE
    peer: int = NONE
    skips_in: tuple[SkipTensor, ...] = ()
    skips_out: tuple[SkipTensor, ...] = ()

    @property
    def awaited(self) -> list[int]:
        """Numbers of all tensors that a computation takes from other ranks."""
        own = [self.message] if self.waits else []
        return own + [tensor.message for tensor in self.skips_in if tensor.crosses]

    def __str__(self) -> str:
        return str(Action(self.op, self.stage, self.microbatch, self.slice))


Unit: TypeAlias = tuple[Instruction, ...]
"""One instruction, or the two parts of an overlapped pair."""


@dataclass(frozen=True, slots=True)
class RankProgram:
    """Everything one rank does in a step, in order."""

    rank: int
    stages: tuple[int, ...]
    units: tuple[Unit, ...]

    @property
    def num_rows(self) -> int:
        """Instructions, parts of pairs counted one by one."""
        return sum(map(len, self.units))


def plan(schedule: Lowered) -> list[RankProgram]:
    """Turn a lowered schedule into one program a rank.

    A tensor that passes between stages is numbered by the computation that takes it, so the number is the
    same on both sides and unique within a step; those of skip connections come after all of these.
    """
    compute = schedule.schedule
    needs = dependencies(compute)
    producer, consumer, crosses = needs.producer.tolist(), needs.consumer.tolist(), needs.crosses.tolist()
    stage_of, rank_of = compute.stage.tolist(), compute.rank.tolist()
    row_of = {_key(compute, row): row for row in range(len(compute.op))}
    taken, given, skip_message = _skip_tensors(compute, needs)
    programs = []
    for rank in range(schedule.num_ranks):
        rows = schedule.rows_of(rank)
        units: list[Unit] = []
        for row in range(rows.start, rows.stop):
            action = schedule.action(row)
            found = {"row": row - rows.start, **action._asdict()}
            found.pop("parts")
            if action.op <= Op.W:
                own = row_of[_key(schedule, row)]
                source = producer[own]
                if source != NONE and stage_of[source] != action.stage:
                    found.update(message=own, waits=crosses[own])
                found["gives"] = consumer[own]
                found.update(skips_in=tuple(taken.get(own, ())), skips_out=tuple(given.get(own, ())))
            elif action.op in SKIP_TRANSFERS:
                forth = action.op in (Op.SEND_SKIP_F, Op.RECV_SKIP_F)
                number = skip_message[forth, action.slice, action.microbatch]
                ends = (needs.skips.producer, needs.skips.consumer)[action.op in SENDS]
                found.update(message=len(compute.op) + number, peer=rank_of[ends[number]])
            elif action.op in SENDS:
                taker = consumer[row_of[_compute_key(schedule, row)]]
                found.update(message=taker, peer=rank_of[taker])
            elif action.op in RECEIVES:
                taker = row_of[_compute_key(schedule, row)]
                found.update(message=taker, peer=rank_of[producer[taker]])
            instruction = Instruction(**found)
            if row > rows.start and schedule.joined[row - 1]:
                units[-1] = (*units[-1], instruction)
            else:
                units.append((instruction,))
        programs.append(RankProgram(rank, tuple(schedule.stages_of(rank)), tuple(units)))
    return programs


def _skip_tensors(
    compute: Schedule, needs: Dependencies
) -> tuple[dict[int, list[SkipTensor]], dict[int, list[SkipTensor]], dict[tuple[bool, int, int], int]]:
    """Find what rows take and give through skip connections, and inputs by direction, number, microbatch."""
    taken: dict[int, list[SkipTensor]] = defaultdict(list)
    given: dict[int, list[SkipTensor]] = defaultdict(list)
    by_place = {}
    columns = (needs.skips.producer, needs.skips.consumer, needs.skips.skip, needs.skips.crosses)
    for number, (producer, consumer, skip, crosses) in enumerate(
        zip(*(column.tolist() for column in columns), strict=True)
    ):
        tensor = SkipTensor(skip, len(compute.op) + number, crosses)
        taken[consumer].append(tensor)
        given[producer].append(tensor)
        by_place[bool(compute.op[producer] == Op.F), skip, int(compute.microbatch[producer])] = number
    return taken, given, by_place


def _key(schedule: ActionTable, row: int) -> tuple[int, int, int, int]:
    op = Op(int(schedule.op[row]))
    kind = Op.B if op is Op.I else op
    return kind, int(schedule.stage[row]), int(schedule.microbatch[row]), int(schedule.slice[row])


def _compute_key(schedule: Lowered, row: int) -> tuple[int, int, int, int]:
    op = Op(int(schedule.op[row]))
    kind = Op.F if op in (Op.SEND_F, Op.RECV_F) else Op.B
    return kind, int(schedule.stage[row]), int(schedule.microbatch[row]), int(schedule.slice[row])


def post_receives_early(program: RankProgram, num_computations: int) -> RankProgram:
    """Move each receive at least `num_computations` computations before the one that takes it.

    Only for transports that match messages by their number: the order of receives changes. A receive that is
    posted when its message comes spares the sender a wait.
    """
    positions = [at for at, unit in enumerate(program.units) if unit[0].op <= Op.W]
    turn_of = {
        message: turn
        for turn, at in enumerate(positions)
        for part in program.units[at]
        for message in part.awaited
    }

    def place(at: int) -> tuple[int, int]:
        first = program.units[at][0]
        if first.op not in RECEIVES:
            return at, 1
        before = positions[max(0, turn_of[first.message] - num_computations)]
        return (before, 0) if before < at else (at, 1)

    order = sorted(range(len(program.units)), key=place)
    return RankProgram(program.rank, program.stages, tuple(program.units[at] for at in order))
