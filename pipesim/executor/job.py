"""What travels to the ranks' processes and back; plain data, no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pipesim.errors import ExecutionError
from pipesim.executor.workload import Workload
from pipesim.ir.actions import Lowered

BUILDING, BETWEEN_STEPS = -1, -2
"""Where a rank stands when it is at no row."""
RUNTIMES = ("pipesim", "torch", "torch-named")


@dataclass(frozen=True, slots=True)
class Job:
    """One run of one schedule.

    Parameters
    ----------
    schedule : Lowered
        Lowered.
    workload : Workload
        What stages compute.
    device : {"cpu", "cuda", "emulated"}
        Where.
    num_replicas, num_steps, warmup : int
        Data-parallel replicas; steps that are recorded, and steps before them that are not.
    record : bool
        Whether actions are timed.
    keep_state : bool
        Whether gradients of the first step and weights after the last come back.
    receives_ahead : int
        Computations by which a receive is posted before it is needed, where messages carry numbers.
    runtime : {"pipesim", "torch", "torch-named"}
        What runs it: our executor, torch's runtime of orders, or torch's own class where it has one.
    by_order : bool
        Match messages by their order between CPUs too, as is done between GPUs.
    """

    schedule: Lowered
    workload: Workload
    device: str
    num_replicas: int = 1
    num_steps: int = 1
    warmup: int = 0
    record: bool = True
    keep_state: bool = False
    receives_ahead: int = 2
    by_order: bool = False
    runtime: str = "pipesim"

    @property
    def num_processes(self) -> int:
        """One for each rank of each replica."""
        return self.num_replicas * self.schedule.num_ranks

    def place(self, process: int) -> tuple[int, int]:
        """Replica and rank of a process; a replica's ranks are neighbours."""
        return divmod(process, self.schedule.num_ranks)

    def whereabouts(self, process: int, step: int, row: int) -> str:
        """Name a rank and what it was doing."""
        replica, rank = self.place(process)
        name = f"rank {rank}" if self.num_replicas == 1 else f"rank {rank} of replica {replica}"
        if row == BUILDING:
            return f"{name}, building its stages"
        if row == BETWEEN_STEPS:
            return f"{name}, between steps {step - self.warmup - 1} and {step - self.warmup}"
        action = self.schedule.action(int(self.schedule.offsets[rank]) + row)
        warm = f"warm-up step {step}" if step < self.warmup else f"step {step - self.warmup}"
        return f"{name} at {action} of {warm}"


@dataclass(frozen=True, slots=True)
class RankResult:
    """What one rank brings back.

    Parameters
    ----------
    columns : dict of str to array, shape (num_steps, rows of the rank)
        Nanoseconds; see `pipesim.executor.device.COLUMNS`.
    step_s : array, shape (num_steps,)
        Wall time of each step on this rank, from the barrier before it until all it sent is gone.
    disturbed : array, shape (num_steps,)
        Whether something else on the machine disturbed this rank.
    losses : array, shape (num_steps,)
        This rank's part of the mean loss; NaN where it holds no last stage.
    row_bytes : array, shape (rows of the rank,)
        Size of each message and reduction.
    peak_activation_bytes : int
        Most bytes held for a backward.
    peak_memory_bytes : int
        Most bytes that tensors of all kinds took on the rank's own GPU; 0 elsewhere.
    deferred_share : dict of int to float
        By stage, share of the parameters whose gradient W computes.
    clock_offset_ns, clock_bound_ns : tuple of int
        Before and after: this process's clock minus process 0's, and how far off that may be.
    environment : dict
        Versions and hardware.
    gradients, weights : dict of str to array
        By ``stage.layer.parameter``; empty unless asked for.
    """

    process: int
    columns: dict[str, npt.NDArray[np.int64]]
    step_s: npt.NDArray[np.float64]
    disturbed: npt.NDArray[np.bool_]
    losses: npt.NDArray[np.float64]
    row_bytes: npt.NDArray[np.int64]
    peak_activation_bytes: int
    deferred_share: dict[int, float]
    clock_offset_ns: tuple[int, int]
    clock_bound_ns: tuple[int, int]
    environment: dict[str, str]
    peak_memory_bytes: int = 0
    gradients: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    weights: dict[str, npt.NDArray[Any]] = field(default_factory=dict)


class RankError(ExecutionError):
    """A rank raised; says whether it only lost contact with another, so that the cause can be told apart."""

    def __init__(self, message: str, lost_contact: bool = False) -> None:
        super().__init__(message)
        self.lost_contact = lost_contact
