"""Run a schedule for real."""

from __future__ import annotations

import os

from pipesim.errors import ExecutionError
from pipesim.executor.assemble import assemble
from pipesim.executor.job import RUNTIMES, Job
from pipesim.executor.rank_processes import STALL_S, STARTUP_S, RankPool, require_torch
from pipesim.executor.run import Run
from pipesim.executor.workload import EmulatedWorkload, FactoryWorkload, Workload
from pipesim.ir import lower, validate
from pipesim.ir.actions import Lowered

DEVICES = ("cpu", "cuda", "emulated")
_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def execute(
    schedule: Lowered,
    workload: Workload,
    *,
    device: str = "cpu",
    num_replicas: int = 1,
    num_steps: int = 10,
    warmup: int = 3,
    record: bool = True,
    threads_per_rank: int = 1,
    stall_timeout_s: float = STALL_S,
    startup_timeout_s: float = STARTUP_S,
    runtime: str = "pipesim",
    pool: RankPool | None = None,
) -> Run | None:
    """Replay a lowered schedule with one process a rank, action by action.

    Processes are started on this machine; under ``torchrun`` each of its processes calls this and is a rank.

    Parameters
    ----------
    schedule : Lowered
        Lowered with ``receive="early"``, the same that the engine takes.
    workload : Workload
        The model, or the times of the emulated device.
    device : {"cpu", "cuda", "emulated"}
        On GPUs, one a rank, tensors travel by NCCL, else by gloo. Where this machine has fewer GPUs than
        ranks, they share one: each is a lane of this process, and tensors are copied.
    num_replicas : int
        Data-parallel replicas of the pipeline, whose gradients are summed.
    num_steps, warmup : int
        Steps to record, and steps before them that are not.
    record : bool
        Time every action; without, only steps are timed.
    threads_per_rank : int
        Threads a rank computes with on a CPU.
    stall_timeout_s : float
        A run in which no rank finishes an action for so long is ended.
    startup_timeout_s : float
        So is one in which no rank gets on for so long while stages are built.
    runtime : {"pipesim", "torch", "torch-named"}
        What runs it: our executor, torch's runtime of orders, or torch's own class where it has one.
    pool : RankPool, optional
        Processes to use; by default they are started and ended here.

    Returns
    -------
    Run or None
        None in processes of ``torchrun`` other than 0.

    Raises
    ------
    ScheduleError
        If the schedule is not legal.
    ExecutionError
        If device and workload do not go together, torch is missing, or a rank fails: then no process is left,
        and the message names the rank and its action.
    """
    check(schedule, workload, device)
    if num_replicas < 1 or num_steps < 1 or warmup < 0:
        raise ExecutionError(
            f"found {num_replicas} replicas, {num_steps} steps after {warmup}; "
            f"expected at least 1 replica, 1 step and 0 warm-up steps"
        )
    job = Job(schedule, workload, device, num_replicas, num_steps, warmup, record, runtime=runtime)
    require_torch()
    check_runtime(runtime)
    if runtime != "pipesim":
        from pipesim.executor import torch_replay

        torch_replay.check_runnable(job)
    if device == "cuda":
        require_gpus()
    if pool is not None:
        return assemble(job, pool.run(job))
    if is_under_torchrun():
        from pipesim.executor.torchrun import run_here

        results = run_here(
            job,
            timeout_s=stall_timeout_s,
            startup_timeout_s=startup_timeout_s,
            threads_per_rank=threads_per_rank,
        )
        return None if results is None else assemble(job, results)
    if share_one_gpu(device, job.num_processes):
        if runtime != "pipesim":
            raise ExecutionError("torch's runtime has one process a rank, so each needs a GPU of its own")
        return _run_on_one_gpu(job)
    with RankPool(
        job.num_processes,
        stall_timeout_s=stall_timeout_s,
        startup_timeout_s=startup_timeout_s,
        threads_per_rank=threads_per_rank,
    ) as started:
        return assemble(job, started.run(job))


def is_under_torchrun() -> bool:
    """Whether this process is one of several that a launcher started as ranks."""
    return all(name in os.environ for name in _TORCHRUN)


def share_one_gpu(device: str, num_processes: int) -> bool:
    """Whether ranks would be lanes of one process, as this machine has fewer GPUs than them.

    Raises
    ------
    ExecutionError
        If there is no GPU, or torch cannot use it.
    """
    return device == "cuda" and not is_under_torchrun() and require_gpus() < num_processes


def require_gpus() -> int:
    """Count GPUs before any process starts; see `pipesim.executor.gpus.require_gpus`."""
    from pipesim.executor import gpus

    return gpus.require_gpus()


def _run_on_one_gpu(job: Job) -> Run:
    from pipesim.executor import gpus, lanes

    streams, words = gpus.partitioned_streams(job.schedule.num_ranks)
    run = assemble(job, lanes.run_in_lanes(job, streams=streams))
    run.environment["lanes"] = words
    lanes.refuse_host_bound(run)
    return run


def check(schedule: Lowered, workload: Workload, device: str) -> None:
    """Refuse what cannot run: an illegal or not lowered schedule, a workload for another device.

    Raises
    ------
    ScheduleError, ExecutionError
        See `execute`.
    """
    check_device(device)
    if (device == "emulated") != isinstance(workload, EmulatedWorkload):
        kind = "times of an emulated device" if isinstance(workload, EmulatedWorkload) else "a model"
        raise ExecutionError(f"the device {device} was given {kind}")
    if isinstance(workload, FactoryWorkload):
        workload.parts()
    needed = 'the schedule must come from pipesim.ir.lower(schedule, receive="early")'
    if not isinstance(schedule, Lowered):
        raise ExecutionError(needed)
    validate(schedule.schedule)
    lowered = lower(schedule.schedule)
    same = len(lowered.op) == len(schedule.op) and all(
        (getattr(lowered, name) == getattr(schedule, name)).all()
        for name in ("op", "stage", "microbatch", "slice", "joined")
    )
    if not same:
        raise ExecutionError(needed)
    if isinstance(workload, EmulatedWorkload):
        sizes = len(workload.row_s), len(workload.boundary_bytes), len(workload.gradient_bytes)
        expected = len(schedule.op), schedule.num_stages, schedule.num_stages
        if sizes != expected:
            raise ExecutionError(f"the times are for {sizes} rows and stages, the schedule has {expected}")


def check_runtime(runtime: str) -> None:
    """Refuse a runtime that there is not.

    Raises
    ------
    ExecutionError
        Listing those there are.
    """
    if runtime not in RUNTIMES:
        raise ExecutionError(f"found runtime {runtime!r}; expected one of {', '.join(RUNTIMES)}")


def check_device(device: str) -> None:
    """Refuse a device that there is not.

    Raises
    ------
    ExecutionError
        Listing those there are.
    """
    if device not in DEVICES:
        raise ExecutionError(f"found device {device!r}; expected one of {', '.join(DEVICES)}")
