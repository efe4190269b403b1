"""A schedule as text, for people who look for a fault in it."""

from __future__ import annotations

from pipesim.ir.actions import ActionTable
from pipesim.ir.dependencies import NONE

ARROW = " <-"


def format_grid(schedule: ActionTable, row: int | None = None, *, around: int = 4) -> str:
    """Print actions as a grid, a line a position and a column a rank, with an arrow at `row`.

    Only `around` positions on each side of the row (or the first ones) are shown.
    """
    columns = [
        [str(schedule.action(r)) for r in range(schedule.offsets[k], schedule.offsets[k + 1])]
        for k in range(schedule.num_ranks)
    ]
    rank = NONE if row is None else int(schedule.rank[row])
    middle = around if row is None else row - int(schedule.offsets[rank])
    widest_cell = max((len(cell) for column in columns for cell in column), default=0)
    width = max(widest_cell + len(ARROW), len(f"rank {schedule.num_ranks}")) + 2
    first, stop = max(0, middle - around), min(middle + around + 1, max(map(len, columns), default=0))
    lines = ["step  " + "".join(f"rank {k}".ljust(width) for k in range(schedule.num_ranks))]
    for position in range(first, stop):
        cells = []
        for k, column in enumerate(columns):
            cell = column[position] if position < len(column) else ""
            cells.append((cell + ARROW if k == rank and position == middle else cell).ljust(width))
        lines.append(f"{position:<6}" + "".join(cells))
    return "\n".join(line.rstrip() for line in lines)
