"""What a run or a trace tells about costs, before anything is made of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pipesim.ir.actions import Op

FloatArray = npt.NDArray[np.float64]
NO_TABLE = np.zeros((0, 2))


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Measured durations, sorted by what they are of; seconds and bytes.

    Parameters
    ----------
    source : str
        File or name.
    workload : str
        What was computed, on what. Op times of unlike workloads are not mixed.
    stages_of_rank : tuple of tuple of int
        Stages that each rank holds.
    op_s : mapping of (Op, int) to array
        Durations of each operation of each stage.
    pair_s : mapping of int to array
        Durations of overlapped pairs, by the stage of the forward.
    boundary_bytes, gradient_bytes : array, shape (num_stages,)
        What leaves a stage forward, and what its replicas reduce; NaN where it is not known.
    message_s : array, shape (messages, 2)
        Bytes, and seconds from the end of the computation that gave the message to the start of the one that
        took it, of messages whose receiver had been waiting.
    send_call_s : array, shape (messages, 2)
        Bytes, and seconds that the call held up the sender.
    gap_s : array
        Seconds between neighbouring computations of a rank that nothing held up.
    sync_s : mapping of int to array
        Seconds in which replicas reduced the gradients of a stage, from when all were there.
    meeting_s : array
        Seconds until all ranks know that all have come to the optimizer.
    optimizer_s : mapping of int to array
        By rank, seconds of the optimizer step.
    hides_host : bool
        The device goes on by itself while its host makes calls, so they hold up nothing.
    num_steps, num_disturbed : int
        Steps used, and steps set aside.
    unused : tuple of str
        What could not be used, and why.
    """

    source: str
    workload: str
    stages_of_rank: tuple[tuple[int, ...], ...]
    op_s: Mapping[tuple[Op, int], FloatArray]
    pair_s: Mapping[int, FloatArray] = field(default_factory=dict)
    boundary_bytes: FloatArray = field(default_factory=lambda: np.zeros(0))
    gradient_bytes: FloatArray = field(default_factory=lambda: np.zeros(0))
    message_s: FloatArray = field(default_factory=lambda: NO_TABLE)
    send_call_s: FloatArray = field(default_factory=lambda: NO_TABLE)
    gap_s: FloatArray = field(default_factory=lambda: np.zeros(0))
    sync_s: Mapping[int, FloatArray] = field(default_factory=dict)
    meeting_s: FloatArray = field(default_factory=lambda: np.zeros(0))
    optimizer_s: Mapping[int, FloatArray] = field(default_factory=dict)
    hides_host: bool = True
    num_steps: int = 1
    num_disturbed: int = 0
    unused: tuple[str, ...] = ()

    @property
    def num_stages(self) -> int:
        """Number of stages S."""
        return 1 + max(max(stages) for stages in self.stages_of_rank)
