"""Many calls of one function: in this process, in others, or on any executor; a dead worker loses nothing."""

from __future__ import annotations

import asyncio
import concurrent.futures
import importlib
import logging
import multiprocessing
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, TypeVar

from pipesim.errors import ExecutionError, ScenarioError
from pipesim.processes import unheard_by_children
from pipesim.questions.beside import beside

Task = TypeVar("Task")
Value = TypeVar("Value")

_CANCELLED = (concurrent.futures.CancelledError, asyncio.CancelledError)
"""What a cluster's futures raise when its scheduler is gone."""
_MAX_AHEAD = 1000
"""Tasks handed to an executor whose size is unknown before one is done."""
LOST = "ended its worker process twice (out of memory, or killed from outside)"


@dataclass(frozen=True, slots=True)
class Outcome(Generic[Task, Value]):
    """What became of a task: a value, or the reason why its worker died each time."""

    task: Task
    value: Value | None = None
    lost: str | None = None


class CallPool:
    """Where calls run: in this process, in others that it starts, or on an executor.

    Parameters
    ----------
    num_workers : int
        Processes; with 1 the calls run in this one. Where a process dies, the tasks that were under way run
        again, each in a process of its own; one whose process dies again is lost.
    executor : concurrent.futures.Executor, optional
        Used in place of processes, and not shut down. What happens when its workers die is its own affair.
    """

    def __init__(self, num_workers: int = 1, executor: Executor | None = None) -> None:
        self.num_workers = num_workers
        self._given = executor
        self._own: ProcessPoolExecutor | None = None

    def __enter__(self) -> CallPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._own is not None:
            _end(self._own, at_once=error is not None)

    def run(
        self, function: Callable[[Task], Value], tasks: Sequence[Task], *, until_s: float | None = None
    ) -> Iterator[Outcome[Task, Value]]:
        """Call a function for every task and yield the outcomes as they come.

        Parameters
        ----------
        function : Callable
            Importable by name, for other processes load it so.
        tasks : sequence
            Arguments, one a call.
        until_s : float, optional
            On the clock of `time.monotonic`: what is not done then has no outcome. Processes are ended at
            once; in this process the call under way is the last one.

        Raises
        ------
        ExecutionError
            If processes cannot start, or the executor breaks.
        """
        if self._given is not None:
            yield from _on_executor(function, tasks, self._given, until_s)
        elif self.num_workers == 1:
            for task in tasks:
                if _left_s(until_s) == 0:
                    return
                yield Outcome(task, function(task))
        else:
            yield from self._in_processes(function, tasks, until_s)

    def _in_processes(
        self, function: Callable[[Task], Value], tasks: Sequence[Task], until_s: float | None
    ) -> Iterator[Outcome[Task, Value]]:
        queue = deque(tasks)
        while queue:
            if self._own is None:
                self._own = _start_processes(self.num_workers)
            suspects = yield from _until_crash(self._own, function, queue, self.num_workers, until_s)
            if (suspects or queue) and _left_s(until_s) == 0:
                _end(self._own, at_once=True)
                self._own = None
                return
            if suspects or queue:
                _end(self._own, at_once=False)
                self._own = None
            for suspect in suspects:
                alone = _start_processes(1)
                finished = False
                try:
                    if (yield from _until_crash(alone, function, deque([suspect]), 1, until_s)):
                        if _left_s(until_s) == 0:
                            return
                        yield Outcome(suspect, lost=LOST)
                    finished = True
                finally:
                    _end(alone, at_once=not finished)


def _left_s(until_s: float | None) -> float | None:
    return None if until_s is None else max(0.0, until_s - time.monotonic())


def _until_crash(
    executor: ProcessPoolExecutor,
    function: Callable[[Task], Value],
    queue: deque[Task],
    num_at_once: int,
    until_s: float | None,
) -> Generator[Outcome[Task, Value], None, list[Task]]:
    """Work the queue off; return the tasks that were under way when a process died or the time was up."""
    running: dict[Future[Value], Task] = {}
    crashed: list[Task] = []
    while (queue or running) and not crashed and _left_s(until_s) != 0:
        while queue and len(running) < num_at_once:
            try:
                running[_submit(executor, function, queue[0])] = queue[0]
            except BrokenExecutor:
                break
            queue.popleft()
        if not running:
            return []
        done, _ = wait(running, timeout=_left_s(until_s), return_when=FIRST_COMPLETED)
        for future in done:
            task = running.pop(future)
            try:
                value = future.result()
            except BrokenExecutor:
                crashed.append(task)
            else:
                yield Outcome(task, value)
    return crashed + list(running.values())


def _start_processes(num_workers: int) -> ProcessPoolExecutor:
    """Start processes afresh, so that nothing of this one's threads and locks is copied."""
    context = multiprocessing.get_context("spawn")
    executor = ProcessPoolExecutor(num_workers, mp_context=context, initializer=_end_with_parent)
    try:
        _submit(executor, os.getpid).result()
    except BrokenExecutor:
        _end(executor, at_once=True)
        raise ExecutionError(
            "worker processes do not start; a script that starts some needs its work under "
            "if __name__ == '__main__':"
        ) from None
    except BaseException:
        _end(executor, at_once=True)
        raise
    return executor


def _end(executor: ProcessPoolExecutor, *, at_once: bool) -> None:
    """Shut down; at once, without waiting for what still runs and nobody will ask for."""
    if at_once:
        with executor._shutdown_lock:  # of a process that is being started
            processes = list((executor._processes or {}).values())
        for process in processes:
            process.kill()
    executor.shutdown(cancel_futures=True)


def _submit(executor: ProcessPoolExecutor, function: Callable[..., Value], *arguments: Any) -> Future[Value]:
    """Submit from a thread, where no signal breaks off the start of a process half-way."""

    def submit() -> Future[Value]:
        with unheard_by_children():
            return executor.submit(function, *arguments)

    return beside(submit)()


def _end_with_parent() -> None:
    """End this worker however its parent ends: a kill leaves nobody who would tell it to."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _on_executor(
    function: Callable[[Task], Value], tasks: Sequence[Task], executor: Executor, until_s: float | None
) -> Iterator[Outcome[Task, Value]]:
    queue = deque(tasks)
    running: dict[Future[Value], Task] = {}
    try:
        while (queue or running) and _left_s(until_s) != 0:
            while queue and len(running) < _MAX_AHEAD:
                running[executor.submit(function, queue[0])] = queue[0]
                queue.popleft()
            done, _ = wait(running, timeout=_left_s(until_s), return_when=FIRST_COMPLETED)
            for future in done:
                task = running.pop(future)
                try:
                    value = future.result()
                except Exception as error:
                    if type(error).__name__ != "KilledWorker":
                        raise
                    yield Outcome(task, lost=LOST)
                else:
                    yield Outcome(task, value)
    except (BrokenExecutor, *_CANCELLED, OSError) as error:
        words = f": {error}" if str(error) else ""
        raise ExecutionError(f"the executor broke{words}; what was done is kept") from None
    finally:
        for future in running:
            future.cancel()


@contextmanager
def dask_executor(address: str) -> Iterator[Executor]:
    """Connect to a Dask scheduler, such as ``tcp://127.0.0.1:8786``; its workers must have pipesim.

    Raises
    ------
    ScenarioError
        If Dask is not installed, or there is no scheduler at the address.
    ExecutionError
        If the scheduler goes away.
    """
    try:
        distributed: Any = importlib.import_module("distributed")
    except ImportError:
        raise ScenarioError("needs Dask: pip install '.[dask]' in pipesim's folder", key="--dask") from None
    if not address.rpartition(":")[2].isdecimal():
        words = "HOST:PORT is needed, such as tcp://host:8786"
        raise ScenarioError(f"no Dask scheduler at {address}: {words}", key="--dask")
    try:
        client = distributed.Client(address, timeout="10s", set_as_default=False)
    except (OSError, ValueError, ImportError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ScenarioError(f"no Dask scheduler at {address}: {reason}", key="--dask") from None
    for name in ("distributed", "distributed.client"):  # what it has to say comes as an exception too
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        yield client.get_executor(pure=False)
    except ExecutionError as error:
        raise ExecutionError(f"the Dask scheduler at {address} went away, or gave up: {error}") from None
    finally:
        client.close()
