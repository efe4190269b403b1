"""One rank of a run that ``torchrun`` (or another launcher that sets its variables) has started."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore

from pipesim.errors import ExecutionError
from pipesim.executor.job import Job, RankResult
from pipesim.executor.worker import Worker, connect


def run_here(job: Job, *, timeout_s: float, threads_per_rank: int) -> Sequence[RankResult] | None:
    """Run this process's rank; process 0 gives the results of all, the others None.

    Raises
    ------
    ExecutionError
        If the number of processes is not the job's, one never comes, or a rank fails.
    """
    process, num_processes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if num_processes != job.num_processes:
        raise ExecutionError(
            f"torchrun started {num_processes} processes, {job.num_processes} are needed "
            f"({job.schedule.num_ranks} ranks x {job.num_replicas} replicas)"
        )
    torch.set_num_threads(threads_per_rank)
    store = _meet(job, process, num_processes, timeout_s)
    connect(store, process, num_processes, timeout_s=timeout_s, cuda=job.device == "cuda")
    try:
        local_index = int(os.environ.get("LOCAL_RANK", process))
        worker = Worker(process, num_processes, store, lambda step, row: None, local_index=local_index)
        result = worker.run(job)
        gathered: list[Any] | None = [None] * num_processes if process == 0 else None
        dist.gather_object(result, gathered, dst=0, group=dist.new_group(backend="gloo"))
        return gathered
    finally:
        dist.destroy_process_group()


def _meet(job: Job, process: int, num_processes: int, timeout_s: float) -> Any:
    """Connect to the store and wait for all the others there, so that a missing one can be named."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    timeout = timedelta(seconds=timeout_s)
    hosted_by_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    try:
        store = TCPStore(
            address,
            port,
            is_master=process == 0 and not hosted_by_agent,
            wait_for_workers=False,
            timeout=timeout,
        )
    except (RuntimeError, ValueError) as error:
        raise ExecutionError(
            f"cannot reach the processes' meeting point {address}:{port}: {error}"
        ) from error
    shared = PrefixStore(f"pipesim {os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)
    shared.set(f"here {process}", "")
    for other in range(num_processes):
        try:
            shared.wait([f"here {other}"], timeout)
        except RuntimeError as error:
            replica, rank = job.place(other)
            where = f"rank {rank}" + (f" of replica {replica}" if job.num_replicas > 1 else "")
            raise ExecutionError(
                f"{where} (process {other}) never started: waited {timeout_s:g} s"
            ) from error
    return shared
