"""One rank of a run that ``torchrun`` (or another launcher that sets its variables) has started."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from ipaddress import ip_address
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore

from pipesim.errors import ExecutionError
from pipesim.executor.board import Board, agree_on_key, announce, loopback_store, wait_for
from pipesim.executor.job import Job, RankResult
from pipesim.executor.rank_processes import stay_on_this_machine
from pipesim.executor.wire import num_body_bytes, pack_result, unpack_result
from pipesim.executor.worker import Worker, connect

TOKEN = "PIPESIM_RUN_TOKEN"
_LEAST_TOKEN_LENGTH = 16
_SEE = "see docs/network.md"
_runs = itertools.count()
"""Runs of this process, so that one finds nothing of another in a store that outlives them."""


def run_here(
    job: Job, *, timeout_s: float, startup_timeout_s: float, threads_per_rank: int
) -> Sequence[RankResult] | None:
    """Run this process's rank; process 0 gives the results of all, the others None.

    `timeout_s` is for transfers and collectives of a step, `startup_timeout_s` for all before and after.

    Raises
    ------
    ExecutionError
        If the number of processes is not the job's, one never comes or does not belong, or a rank fails.
    """
    process, num_processes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if num_processes != job.num_processes:
        raise ExecutionError(
            f"torchrun started {num_processes} processes, {job.num_processes} are needed "
            f"({job.schedule.num_ranks} ranks x {job.num_replicas} replicas)"
        )
    on_one_node = is_on_one_node(os.environ)
    token = run_token(os.environ, on_one_node=on_one_node)
    if on_one_node:
        stay_on_this_machine(os.environ)
    torch.set_num_threads(threads_per_rank)
    store = _meet(job, process, num_processes, startup_timeout_s, on_one_node=on_one_node)
    board = _join(job, store, process, num_processes, token)
    connect(store, process, num_processes, timeout_s=startup_timeout_s, cuda=job.device == "cuda")
    worker = Worker(
        process,
        num_processes,
        board,
        lambda step, row: None,
        local_index=local_index(os.environ, process),
        timeout_s=timeout_s,
    )
    try:
        result = worker.run(job)
        assert result is not None
        gathered = _gather(result, job, board)
    except BaseException:
        if job.device == "cuda":
            worker.abort()
        else:
            dist.destroy_process_group()
        raise
    dist.destroy_process_group()
    return gathered


def local_index(environment: Mapping[str, str], process: int) -> int:
    """Read the number of a process among those of its machine, from torchrun or SLURM."""
    return int(environment.get("LOCAL_RANK", environment.get("SLURM_LOCALID", process)))


def is_on_one_node(environment: Mapping[str, str]) -> bool:
    """Say whether all processes are on this machine: torchrun tells, else the meeting point does."""
    if "LOCAL_WORLD_SIZE" in environment:
        return environment["LOCAL_WORLD_SIZE"] == environment["WORLD_SIZE"]
    address = environment["MASTER_ADDR"]
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def run_token(environment: Mapping[str, str], *, on_one_node: bool) -> str:
    """Read the secret that shows which processes belong to a run.

    Raises
    ------
    ExecutionError
        If several nodes have none, or one that can be guessed.
    """
    token = environment.get(TOKEN, "")
    if not token and not on_one_node:
        raise ExecutionError(
            f"a run on several nodes needs a secret, the same on all of them, in {TOKEN} "
            f"(such as from: openssl rand -hex 32); {_SEE}"
        )
    if token and len(token) < _LEAST_TOKEN_LENGTH:
        raise ExecutionError(
            f"{TOKEN} has {len(token)} characters; expected at least {_LEAST_TOKEN_LENGTH}; {_SEE}"
        )
    return token


def _meet(job: Job, process: int, num_processes: int, timeout_s: float, *, on_one_node: bool) -> Any:
    """Connect to the store and wait for all the others there, so that a missing one can be named."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    timeout = timedelta(seconds=timeout_s)
    hosted_by_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if on_one_node and not hosted_by_agent:
        address = "127.0.0.1"
    hosts = process == 0 and not hosted_by_agent
    try:
        if hosts and on_one_node:
            store = loopback_store(port, timeout)
        else:
            store = TCPStore(address, port, is_master=hosts, wait_for_workers=False, timeout=timeout)
    except (OSError, RuntimeError, ValueError) as error:
        raise ExecutionError(
            f"cannot reach the processes' meeting point {address}:{port}: {error}"
        ) from error
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)
    shared = PrefixStore(f"pipesim {restart} {next(_runs)}", store)
    announce(shared, process)
    for other in range(num_processes):
        try:
            wait_for(shared, other, timeout)
        except RuntimeError as error:
            raise ExecutionError(f"{_name(job, other)} never started: waited {timeout_s:g} s") from error
    return shared


def _join(job: Job, store: Any, process: int, num_processes: int, token: str) -> Board:
    """Prove to all others that this process has the run's token, and let each of them prove it."""
    board = Board(store, agree_on_key(store, num_processes, token))
    board.put(f"proof of {process}", process)
    for other in range(num_processes):
        try:
            board.get(f"proof of {other}")
        except ExecutionError:
            raise ExecutionError(
                f"{_name(job, other)} does not belong to this run: "
                f"{TOKEN} must be the same in all processes; {_SEE}"
            ) from None
        except RuntimeError as error:
            raise ExecutionError(f"{_name(job, other)} ended before it joined the others") from error
    return board


def _gather(result: RankResult, job: Job, board: Board) -> Sequence[RankResult] | None:
    """Bring the results to process 0: numbers by gloo, what they must be on the board, which is signed."""
    if result.process != 0:
        document, body = pack_result(result)
        board.put(f"result of {result.process}", document)
        dist.send(torch.frombuffer(body, dtype=torch.uint8), 0)
        return None
    results = [result]
    for other in range(1, job.num_processes):
        try:
            document = board.get(f"result of {other}")
            received = torch.empty(num_body_bytes(document), dtype=torch.uint8)
            dist.recv(received, other)
        except RuntimeError as error:
            raise ExecutionError(f"the result of {_name(job, other)} never came: {error}") from error
        results.append(unpack_result(document, received.numpy().data))
    return results


def _name(job: Job, process: int) -> str:
    replica, rank = job.place(process)
    where = f"rank {rank}" + (f" of replica {replica}" if job.num_replicas > 1 else "")
    return f"{where} (process {process})"
