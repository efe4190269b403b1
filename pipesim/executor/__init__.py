"""The real run: processes replay a lowered schedule with PyTorch. Importing this does not import torch."""

from pipesim.executor.rank_processes import RankPool
from pipesim.executor.run import Run, read_run
from pipesim.executor.running import execute
from pipesim.executor.workload import (
    CnnWorkload,
    EmulatedWorkload,
    FactoryWorkload,
    TransformerWorkload,
    Workload,
    emulated_workload,
    workload_from_scenario,
)

__all__ = [
    "CnnWorkload",
    "EmulatedWorkload",
    "FactoryWorkload",
    "RankPool",
    "Run",
    "TransformerWorkload",
    "Workload",
    "emulated_workload",
    "execute",
    "read_run",
    "workload_from_scenario",
]
