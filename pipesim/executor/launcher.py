"""The process between the caller and the ranks: imports torch once, forks the ranks, watches them, ends them.

Run as ``python -m pipesim.executor.launcher DESCRIPTOR NUM_PROCESSES STALL_S STARTUP_S THREADS``; it talks
through the connection with that file descriptor. Nothing survives it: it kills and reaps its ranks whenever
it ends, and it ends when the caller does.

Objects travel pickled only through pairs of connected sockets without a name, handed from parent to child:
nobody else can reach those. What does listen carries none; see `pipesim.executor.board`.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from datetime import timedelta
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from types import FrameType
from typing import Any, NoReturn

import torch
from torch.distributed import TCPStore

from pipesim.executor.board import Board, loopback_store, new_key
from pipesim.executor.job import BUILDING, Job, RankError
from pipesim.executor.worker import Worker, connect

_POLL_S = 0.2
_LOOK_S = 1.0
_GRACE_S = 0.5
"""After a first failure, how long to listen for its cause: peers of a dead rank may be heard of first."""
_CELLS = 3
"""Numbers of a rank in shared memory: how often it moved, its step, its row."""


class Ranks:
    """The forked processes, their pipes, and the shared memory in which they say where they are."""

    def __init__(
        self, caller: Connection, num_processes: int, stall_s: float, startup_s: float, threads: int
    ) -> None:
        self.caller = caller
        self.num_processes = num_processes
        self.stall_s = stall_s
        self.startup_s = startup_s
        self._memory = mmap.mmap(-1, num_processes * _CELLS * 8)
        self.cells = memoryview(self._memory).cast("q")
        self.pipes: list[Connection] = []
        self.pids: list[int] = []
        key = new_key()
        for process in range(num_processes):
            ours, theirs = Pipe()
            pid = os.fork()
            if pid == 0:
                for other in (*self.pipes, ours, caller):
                    other.close()
                _serve_jobs(process, num_processes, theirs, self.cells, key, stall_s, startup_s, threads)
            theirs.close()
            self.pipes.append(ours)
            self.pids.append(pid)
        # Only now: a process must not be forked while the store's thread holds a lock.
        self.store = loopback_store(0, timedelta(seconds=startup_s))
        for pipe in self.pipes:
            with contextlib.suppress(OSError):
                pipe.send(self.store.port)

    def run(self, job: Job, message: bytes) -> list[Any]:
        """Give all ranks a job and collect their results.

        Raises
        ------
        RankError
            If one raises, dies, or nobody gets on any more.
        EOFError
            If the caller is gone.
        """
        for process in range(self.num_processes):
            self.cells[process * _CELLS + 1], self.cells[process * _CELLS + 2] = 0, BUILDING
        for process, pipe in enumerate(self.pipes):
            try:
                pipe.send_bytes(message)
            except OSError:
                raise RankError(self._how_it_died(job, process), lost_contact=False) from None
        results: list[Any] = [None] * self.num_processes
        failures: dict[int, RankError] = {}
        missing = set(range(self.num_processes))
        first_failure_at: float | None = None
        moved, moved_at = -1, time.monotonic()
        while missing:
            for process, outcome in self._heard(missing, job):
                missing.discard(process)
                if isinstance(outcome, RankError):
                    failures[process] = outcome
                else:
                    results[process] = outcome
                moved_at = time.monotonic()
            now = time.monotonic()
            if failures:
                first_failure_at = first_failure_at or now
                if not missing or now - first_failure_at > _GRACE_S:
                    break
            total = sum(self.cells[::_CELLS].tolist())
            if total != moved:
                moved, moved_at = total, now
            elif now - moved_at > self._patience_s(missing):
                raise RankError(self._where_all_are(job, missing), lost_contact=False)
        if failures:
            raise min(failures.values(), key=lambda failure: failure.lost_contact)
        return results

    def _heard(self, missing: set[int], job: Job) -> Iterator[tuple[int, Any]]:
        ready = set(wait([self.caller, *(self.pipes[process] for process in missing)], timeout=_POLL_S))
        if self.caller in ready:
            raise EOFError("the caller, which sends nothing while a job runs, is gone")
        for process in sorted(missing):
            if self.pipes[process] not in ready:
                continue
            try:
                yield process, self.pipes[process].recv()
            except (EOFError, OSError):
                yield process, RankError(self._how_it_died(job, process), lost_contact=False)

    def _patience_s(self, missing: set[int]) -> float:
        """How long nobody may get on: weights take longer to build than an action to run."""
        building = any(self.cells[process * _CELLS + 2] == BUILDING for process in missing)
        return max(self.startup_s, self.stall_s) if building else self.stall_s

    def _where(self, job: Job, process: int) -> str:
        if process >= job.num_processes:
            return f"spare process {process}"
        moved, step, row = self.cells[process * _CELLS : (process + 1) * _CELLS]
        name = job.whereabouts(process, step, row)
        return name if moved else f"{name.partition(',')[0]}, which never started"

    def _how_it_died(self, job: Job, process: int) -> str:
        _, status = os.waitpid(self.pids[process], 0)
        self.pids[process] = 0
        code = os.waitstatus_to_exitcode(status)
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit status {code}"
        return f"{self._where(job, process)}: the process {how}"

    def _where_all_are(self, job: Job, missing: set[int]) -> str:
        lines = [f"  {self._where(job, process)}" for process in sorted(missing)]
        return f"no rank got on for {self._patience_s(missing):g} s:\n" + "\n".join(lines)

    def kill(self) -> None:
        """End all ranks and reap them, and the store with its thread."""
        for pid in filter(None, self.pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in filter(None, self.pids):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        for pipe in self.pipes:
            pipe.close()
        del self.store


def _serve_jobs(
    process: int,
    num_processes: int,
    pipe: Connection,
    cells: memoryview,
    key: bytes,
    stall_s: float,
    startup_s: float,
    threads: int,
) -> NoReturn:
    """Life of a rank: jobs until the pipe closes."""
    try:
        _die_with_parent()
        mine = cells[process * _CELLS : (process + 1) * _CELLS]

        def progress(step: int, row: int) -> None:
            mine[0] += 1
            mine[1], mine[2] = step, row

        torch.set_num_threads(threads)
        port = pipe.recv()
        # The launcher watches for standstill: the store's and the groups' own timeouts must only be longer.
        patience_s = 4 * max(stall_s, startup_s)
        store = TCPStore(
            "127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=patience_s)
        )
        connect(store, process, num_processes, timeout_s=patience_s, cuda=torch.cuda.is_available())
        worker = Worker(
            process, num_processes, Board(store, key), progress, local_index=process, timeout_s=patience_s
        )
        while True:
            job = pickle.loads(pipe.recv_bytes())
            try:
                pipe.send(worker.run(job))
            except RankError as failure:
                pipe.send(failure)
    except EOFError:
        pass
    except Exception as error:
        with contextlib.suppress(OSError):
            pipe.send(RankError(f"process {process}: {type(error).__name__}: {error}", lost_contact=True))
    os._exit(0)


def _die_with_parent() -> None:
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


def _end_with_caller() -> None:
    """Look now and then whether the caller is there, also where a full pipe or a lost rank holds this up."""
    caller = os.getppid()

    def look(number: int, frame: FrameType | None) -> None:
        if os.getppid() != caller:
            os._exit(0)

    # Not by the parent-death signal: that comes when the thread ends that started this process.
    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, _LOOK_S, _LOOK_S)


def main() -> None:
    """Serve the caller until it closes the connection."""
    descriptor, num_processes, stall_s, startup_s, threads = sys.argv[1:]
    # Ctrl-C goes to the caller, which then closes the connection.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _end_with_caller()
    caller = Connection(int(descriptor))
    # The first optimizer imports much of torch; once here rather than in every rank.
    torch.optim.SGD([torch.zeros(1)], lr=0.0)
    ranks = None
    try:
        while True:
            if ranks is None:
                ranks = Ranks(caller, int(num_processes), float(stall_s), float(startup_s), int(threads))
            message = caller.recv_bytes()
            try:
                outcome: Any = ranks.run(pickle.loads(message), message)
            except RankError as failure:
                outcome = failure
                ranks.kill()
                ranks = None
            caller.send(outcome)
    except (EOFError, BrokenPipeError):
        pass
    except Exception:
        traceback.print_exc()
    finally:
        if ranks is not None:
            ranks.kill()
        sys.stderr.flush()
        os._exit(0)


if __name__ == "__main__":
    main()
