"""The record of what ran when: the one type that the simulator and the executor both return."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy.typing as npt

from pipesim.ir.actions import REDUCTIONS, BoolArray, IntArray, Op

if TYPE_CHECKING:
    import pandas as pd

Times = npt.NDArray[Any]
"""Seconds: float64, or object where the costs were exact fractions."""

COMPUTE_STREAM, P2P_STREAM, COLLECTIVE_STREAM = "compute", "p2p", "collective"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Timeline:
    """What ran when, one row an action of a rank of a replica; all arrays have shape (rows,).

    Rows keep the program order of their rank and replica. The two parts of an overlapped pair are two rows
    with the same start and end. A send's row and its receive's span the message from leaving to arriving.
    `waited_s` is how long a computation waited, within its row, for weights or gradients that replicas share
    out, or how long, while anything computed, no bucket of a reduction was under way; None: nothing is known
    of that, or there was nothing to wait for.
    """

    source: Literal["simulated", "measured"]
    rank: IntArray
    replica: IntArray
    op: IntArray
    stage: IntArray
    microbatch: IntArray
    slice: IntArray
    step: IntArray
    start_s: Times
    end_s: Times
    nbytes: npt.NDArray[Any]
    waited_s: Times | None = None

    def __len__(self) -> int:
        return len(self.op)

    def __repr__(self) -> str:
        return f"<Timeline {self.source}: {len(self)} actions>"

    @property
    def compute(self) -> BoolArray:
        """Mask of F, B, I and W."""
        return self.op <= Op.W

    def select(self, rows: BoolArray) -> Timeline:
        """Keep the rows of a mask."""
        columns = {name: getattr(self, name)[rows] for name in _COLUMNS}
        waited = None if self.waited_s is None else self.waited_s[rows]
        return Timeline(source=self.source, **columns, waited_s=waited)

    def stream(self) -> list[str]:
        """Name of the stream each row ran on: ``compute``, ``p2p`` or ``collective``."""
        return [_STREAM_OF[op] for op in self.op.tolist()]

    def to_frame(self) -> pd.DataFrame:
        """Rows as a table, with `op` as text and a column `stream`."""
        import pandas as pd

        columns: dict[str, object] = {name: getattr(self, name) for name in _COLUMNS}
        columns["op"] = [Op(op).name for op in self.op.tolist()]
        columns["stream"] = self.stream()
        order = ["rank", "replica", "stream", "op", *_COLUMNS[3:]]
        if self.waited_s is not None:
            columns["waited_s"] = self.waited_s
            order.append("waited_s")
        return pd.DataFrame(columns)[order]


_COLUMNS = ("rank", "replica", "op", "stage", "microbatch", "slice", "step", "start_s", "end_s", "nbytes")
_STREAM_OF = {
    op: P2P_STREAM
    if op in (Op.SEND_F, Op.RECV_F, Op.SEND_B, Op.RECV_B)
    else COLLECTIVE_STREAM
    if op in (*REDUCTIONS, Op.UNSHARD, Op.RESHARD)
    else COMPUTE_STREAM
    for op in Op
}
