"""What a rank does, in order: operations, actions, and the schedule that holds them as integer columns.

A schedule is order only: it knows no times and no idle slots. Text and CSV are those of
``torch.distributed.pipelining``, so a file written here loads there and the other way round.
"""

from __future__ import annotations

import csv
import enum
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from pipesim.errors import ScenarioError, ScheduleError
from pipesim.reading import csv_rows

IntArray = npt.NDArray[np.int32]
RowSlice: TypeAlias = slice
BoolArray = npt.NDArray[np.bool_]


class Op(enum.IntEnum):
    """Operations; the names are torch's letters (zero-bubble papers write B for our I)."""

    F = 0
    """Forward."""
    B = 1
    """Full backward: input and weight gradient together."""
    I = 2  # noqa: E741 - torch's letter
    """Input gradient."""
    W = 3
    """Weight gradient."""
    SEND_F = 4
    RECV_F = 5
    SEND_B = 6
    RECV_B = 7
    UNSHARD = 8
    RESHARD = 9
    REDUCE_GRAD = 10
    REDUCE_EMBEDDING = 11
    """The ranks of the first and the last stage add up their gradients of one embedding."""
    OPTIMIZER = 12
    OVERLAP_F_B = 13
    """A forward and a backward run together; exists in text and as an `Action`, stored as its two parts."""
    SEND_SKIP_F = 14
    """Of a skip connection: its tensor leaves the stage it comes from; `slice` is the connection's number."""
    RECV_SKIP_F = 15
    SEND_SKIP_B = 16
    """The gradient of that tensor leaves the stage that took it."""
    RECV_SKIP_B = 17


COMPUTE = (Op.F, Op.B, Op.I, Op.W)
SENDS = (Op.SEND_F, Op.SEND_B, Op.SEND_SKIP_F, Op.SEND_SKIP_B)
RECEIVES = (Op.RECV_F, Op.RECV_B, Op.RECV_SKIP_F, Op.RECV_SKIP_B)
SKIP_TRANSFERS = (Op.SEND_SKIP_F, Op.RECV_SKIP_F, Op.SEND_SKIP_B, Op.RECV_SKIP_B)
REDUCTIONS = (Op.REDUCE_GRAD, Op.REDUCE_EMBEDDING)
NO_MICROBATCH = -1

_NUMBER = "([0-9]{1,9})"
"""What fits a column of 32 bits."""
_ACTION = re.compile(rf"{_NUMBER}(SEND_F|RECV_F|SEND_B|RECV_B|F|B|I|W){_NUMBER}(?:\.{_NUMBER})?")
_STAGE_ACTION = re.compile(rf"{_NUMBER}(UNSHARD|RESHARD|REDUCE_GRAD|REDUCE_EMBEDDING|OPTIMIZER)")
_OVERLAP = re.compile(r"\(([^;()]+);([^;()]+)\)OVERLAP_F_B")


class Action(NamedTuple):
    """One thing a rank does.

    For a send or receive, `stage` is the rank's own stage: ``0SEND_F1`` pairs with ``1RECV_F1``.
    """

    op: Op
    stage: int
    microbatch: int = NO_MICROBATCH
    slice: int = 0
    """Part of the sequence, in schedules that cut a microbatch along it; number of a skip connection."""
    parts: tuple[Action, ...] = ()
    """Forward and backward of an overlapped pair; empty otherwise."""

    def __str__(self) -> str:
        if self.parts:
            return f"({';'.join(map(str, self.parts))}){self.op.name}"
        if self.microbatch == NO_MICROBATCH:
            return f"{self.stage}{self.op.name}"
        suffix = f".{self.slice}" if self.slice else ""
        return f"{self.stage}{self.op.name}{self.microbatch}{suffix}"

    @classmethod
    def parse(cls, text: str) -> Action:
        """Read ``2F0``, ``3SEND_F1``, ``1F0.2`` (slice 2), ``0REDUCE_GRAD`` or ``(0F7;7B3)OVERLAP_F_B``.

        Raises
        ------
        ScheduleError
            If the whole text is not one action.
        """
        text = text.strip()
        if match := _ACTION.fullmatch(text):
            stage, op, microbatch, part = match.groups()
            return cls(Op[op], int(stage), int(microbatch), int(part or 0))
        if match := _STAGE_ACTION.fullmatch(text):
            return cls(Op[match[2]], int(match[1]))
        if match := _OVERLAP.fullmatch(text):
            return overlap(cls.parse(match[1]), cls.parse(match[2]))
        raise ScheduleError(
            f"{text!r} is not an action; expected stage, operation, microbatch as in 2F0, 3SEND_F1, "
            f"0REDUCE_GRAD or (0F7;7B3)OVERLAP_F_B"
        )


def forward(stage: int, microbatch: int, slice: int = 0) -> Action:
    """``F``: run the stage on a microbatch."""
    return Action(Op.F, stage, microbatch, slice)


def backward(stage: int, microbatch: int, slice: int = 0) -> Action:
    """``B``: input and weight gradient in one."""
    return Action(Op.B, stage, microbatch, slice)


def input_gradient(stage: int, microbatch: int, slice: int = 0) -> Action:
    """``I``: what the previous stage waits for."""
    return Action(Op.I, stage, microbatch, slice)


def weight_gradient(stage: int, microbatch: int, slice: int = 0) -> Action:
    """``W``: what nobody waits for before the step ends."""
    return Action(Op.W, stage, microbatch, slice)


def overlap(first: Action, second: Action) -> Action:
    """Run a forward and a backward together as one action.

    Raises
    ------
    ScheduleError
        If the parts are not one F and then one full B.
    """
    if first.op is not Op.F or second.op is not Op.B:
        raise ScheduleError(f"an overlapped pair is an F and then a full B, found {first} and {second}")
    return Action(Op.OVERLAP_F_B, first.stage, first.microbatch, first.slice, (first, second))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ActionTable:
    """The ordered actions of every rank, as integer columns: rank r owns rows offsets[r] to offsets[r + 1].

    An overlapped pair is two neighbouring rows, F then B, the first of which has `joined` set. Either a
    `Schedule`, which somebody wrote, or a `Lowered` one, in which all that follows from it stands too.
    """

    name: str
    num_stages: int
    num_microbatches: int
    num_slices: int
    offsets: IntArray
    op: IntArray
    stage: IntArray
    microbatch: IntArray
    slice: IntArray
    joined: BoolArray
    skips: tuple[tuple[int, int], ...] = field(default=(), kw_only=True)
    """Skip connections: the stage that each one's tensor comes from, and the later one that takes it."""
    slice_shares: tuple[float, ...] | None = field(default=None, kw_only=True)
    """Share of the sequence that each slice has; None: all alike."""

    def __repr__(self) -> str:
        sizes = f"{self.num_ranks} ranks, {self.num_stages} stages, {self.num_microbatches} microbatches"
        return f"<{type(self).__name__} {self.name}: {sizes}, {len(self.op)} actions>"

    @property
    def num_ranks(self) -> int:
        """Pipeline workers p."""
        return len(self.offsets) - 1

    @property
    def num_chunks(self) -> int:
        """Stages a rank holds, v; in schedules with two model replicas, both directions counted."""
        return max((len(self.stages_of(rank)) for rank in range(self.num_ranks)), default=0)

    @property
    def holds_stages_twice(self) -> bool:
        """Whether some stage stands on two ranks: a second copy of the model runs the other way."""
        return sum(len(self.stages_of(rank)) for rank in range(self.num_ranks)) > self.num_stages

    @property
    def holders(self) -> tuple[tuple[int, ...], ...]:
        """Ranks of each stage, ascending."""
        ranks: list[list[int]] = [[] for _ in range(self.num_stages)]
        for rank in range(self.num_ranks):
            for stage in self.stages_of(rank):
                ranks[stage].append(rank)
        return tuple(map(tuple, ranks))

    @property
    def rank(self) -> IntArray:
        """Rank of every row, shape (len(self),)."""
        return np.repeat(np.arange(self.num_ranks, dtype=np.int32), np.diff(self.offsets))

    def rows_of(self, rank: int) -> RowSlice:
        """Rows of one rank in the columns."""
        return RowSlice(int(self.offsets[rank]), int(self.offsets[rank + 1]))

    def stages_of(self, rank: int) -> list[int]:
        """Stages that occur on a rank, ascending."""
        return [int(stage) for stage in np.unique(self.stage[self.rows_of(rank)])]

    def actions_of(self, rank: int) -> list[Action]:
        """Actions of one rank in order, overlapped pairs as one action each."""
        rows = self.rows_of(rank)
        return list(self._actions(range(rows.start, rows.stop)))

    def action(self, row: int) -> Action:
        """One row as an action; a part of a pair is shown as that part."""
        return Action(
            Op(int(self.op[row])), int(self.stage[row]), int(self.microbatch[row]), int(self.slice[row])
        )

    def _actions(self, rows: Sequence[int]) -> Iterator[Action]:
        pending: Action | None = None
        for row in rows:
            action = self.action(row)
            if pending is not None:
                yield overlap(pending, action)
                pending = None
            elif self.joined[row]:
                pending = action
            else:
                yield action

    def select(self, rows: BoolArray, *, name: str | None = None) -> Self:
        """Keep the rows of a mask, in order."""
        kept = np.concatenate(([0], np.cumsum(rows)))
        return replace(
            self,
            name=name or self.name,
            offsets=kept[self.offsets].astype(np.int32),
            op=self.op[rows],
            stage=self.stage[rows],
            microbatch=self.microbatch[rows],
            slice=self.slice[rows],
            joined=self.joined[rows],
        )

    def to_csv(self) -> str:
        """Torch's form: no header, line r is rank r, one cell an action."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        for rank in range(self.num_ranks):
            writer.writerow([str(action) for action in self.actions_of(rank)])
        return text.getvalue()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Schedule(ActionTable):
    """What somebody wrote, a generator or a CSV: computations in order, no times.

    `pipesim.ir.lower` derives the rest. Read from a CSV it may hold communication; `compute_only` drops it.
    """

    @classmethod
    def from_orders(cls, name: str, orders: Iterable[Iterable[Action]]) -> Schedule:
        """Pack the actions of rank 0, 1, ... into columns; sizes follow from what occurs."""
        columns: list[npt.NDArray[np.int32]] = []
        lengths = [0]
        for order in orders:
            rows = _rows(list(order))
            columns.append(rows)
            lengths.append(len(rows))
        table = np.concatenate(columns) if columns else np.empty((0, 5), np.int32)
        op, stage, microbatch, part, joined = (np.ascontiguousarray(column) for column in table.T)
        return cls(
            name=name,
            num_stages=int(stage.max(initial=-1)) + 1,
            num_microbatches=int(microbatch.max(initial=-1)) + 1,
            num_slices=int(part.max(initial=0)) + 1,
            offsets=np.cumsum(lengths, dtype=np.int32),
            op=op,
            stage=stage,
            microbatch=microbatch,
            slice=part,
            joined=joined.astype(np.bool_),
        )

    def compute_only(self) -> Schedule:
        """Drop all that `pipesim.ir.lower` derives: keep F, B, I and W."""
        return self.select(self.op <= Op.W)

    @classmethod
    def from_csv(cls, text: str, *, name: str = "csv") -> Schedule:
        """Read torch's form, compute only or with communication; empty cells are idle slots and are dropped.

        Old files write B for the input gradient beside W: there B is read as I.

        Raises
        ------
        ScheduleError
            If the text is not CSV, a cell is not an action (the message names rank and cell), or there is no
            action at all.
        """
        rows = _csv_rows(text)
        old_letters = _uses_old_letters(cell for row in rows for cell in row)
        orders: list[list[Action]] = []
        for rank, row in enumerate(rows):
            order = []
            for column, cell in enumerate(row):
                if not cell:
                    continue
                try:
                    order.append(Action.parse(_modern(cell) if old_letters else cell))
                except ScheduleError as error:
                    raise ScheduleError(f"rank {rank}, cell {column + 1}: {error}") from None
            orders.append(order)
        if not any(orders):
            raise ScheduleError("the file holds no action; expected one line a rank, one cell an action")
        return cls.from_orders(name, orders)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Lowered(ActionTable):
    """A schedule with sends, receives, reductions and the optimizer; made by `pipesim.ir.lower` alone.

    What the engine runs and the executor replays.
    """

    schedule: Schedule
    """The computations it was derived from."""


def _rows(order: Sequence[Action]) -> IntArray:
    """Op, stage, microbatch, slice and joined of each row, shape (rows, 5)."""
    if order and not any(action.parts for action in order):
        *fields, _ = zip(*order, strict=True)
        rows = np.zeros((len(order), 5), np.int32)
        for column, field in enumerate(fields):
            rows[:, column] = np.fromiter(field, np.int32, len(order))
        return rows
    cells = [
        (part.op, part.stage, part.microbatch, part.slice, joined)
        for action in order
        for part, joined in _parts(action)
    ]
    return np.array(cells, dtype=np.int32).reshape(-1, 5)


def _parts(action: Action) -> Iterator[tuple[Action, bool]]:
    if action.parts:
        yield action.parts[0], True
        yield action.parts[1], False
    else:
        yield action, False


def _csv_rows(text: str) -> list[list[str]]:
    try:
        rows = [[cell.strip() for cell in row] for _, row in csv_rows(text)]
    except ScenarioError as error:
        raise ScheduleError(str(error)) from None
    while rows and not any(rows[-1]):
        rows.pop()
    return rows


_COMPUTE_CELL = re.compile(r"(\d+)(BW|F|B|I|W)(\d+(?:\.\d+)?)")


def _uses_old_letters(cells: Iterable[str]) -> bool:
    letters = {match[2] for cell in cells for match in _COMPUTE_CELL.finditer(cell)}
    return "BW" in letters or ("W" in letters and "I" not in letters)


def _modern(cell: str) -> str:
    letters = {"B": "I", "BW": "B"}
    return _COMPUTE_CELL.sub(lambda match: match[1] + letters.get(match[2], match[2]) + match[3], cell)
