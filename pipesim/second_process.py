"""Another process that prepares a schedule while this one does what does not need it."""

from __future__ import annotations

import gc
import os
import pickle
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from pipesim.errors import PipesimError
from pipesim.processes import COLLECT_AFTER, num_workers_for, unheard_by_children

if TYPE_CHECKING:
    from pipesim.prediction import Prepared
    from pipesim.scenario import ResolvedScenario

_CODE = "import sys; sys.path[:] = sys.argv[1:]; from pipesim.second_process import serve; serve()"
_LENGTH_BYTES = 8
_ahead: dict[int, subprocess.Popen[bytes]] = {}
"""Started for the next `SecondProcess`, by the process that did so: one that is forked off has none."""


def start_ahead() -> None:
    """Start the process of the next `SecondProcess`: then both import what they need at the same time.

    To be followed by `end_ahead`, for there may be no next one.
    """
    if os.getpid() not in _ahead and num_workers_for(2, tasks_each=1) > 1 and sys.executable:
        command, pipe = [sys.executable, "-c", _CODE, *sys.path], subprocess.PIPE
        try:
            with unheard_by_children():
                _ahead[os.getpid()] = subprocess.Popen(
                    command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL
                )
        except OSError:  # no room for one more
            return


def end_ahead() -> None:
    """End what was started and never asked."""
    process = _ahead.pop(os.getpid(), None)
    if process is not None:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    for stream in (process.stdin, process.stdout):
        assert stream is not None
        try:
            stream.close()
        except OSError:  # what was never read
            continue
    process.wait()


def _start() -> list[subprocess.Popen[bytes]]:
    """Start one; none where there is no room for one more."""
    command = [sys.executable, "-c", _CODE, *sys.path]
    pipe = subprocess.PIPE
    try:
        with unheard_by_children():
            return [subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)]
    except OSError:
        return []


class SecondProcess:
    """A process beside this one, in a block; it ends with the block, and with this process however that ends.

    Parameters
    ----------
    wanted : bool
        Without, as on a single core or with nothing to compile by, there is none, and every answer is None.
    meanwhile : Callable, optional
        What this process may as well do before it waits.
    """

    def __init__(self, wanted: bool = True, *, meanwhile: Callable[[], object] = lambda: None) -> None:
        from pipesim.timing.compiling import can_compile

        self._meanwhile = meanwhile
        if wanted and can_compile():
            start_ahead()
        else:
            end_ahead()
        self._process = _ahead.pop(os.getpid(), None)

    @property
    def pid(self) -> int | None:
        """Number of the process; None where there is none."""
        return None if self._process is None else self._process.pid

    def __enter__(self) -> SecondProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        if self._process is not None:
            _end(self._process)
        self._process = None

    def prepare(
        self, scenario: ResolvedScenario, name: str, num_chunks: int
    ) -> Callable[[], Prepared | None]:
        """Begin to prepare a schedule; return what waits for it.

        None where that process cannot do it, or refuses: then this one can, or says why not. Answers are to
        be waited for in the order of the questions.
        """
        if self._process is None:
            return lambda: None
        from pipesim.search.kernel_loading import load_listing

        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        answer = process.stdout
        try:
            task = pickle.dumps((scenario, name, num_chunks))
            process.stdin.write(len(task).to_bytes(_LENGTH_BYTES, "big") + task)
            process.stdin.flush()
        except Exception:  # a scenario may hold what cannot be sent
            return lambda: None
        load_listing()  # compiled here while that process compiles the moves; it then finds this on disk

        def wait() -> Prepared | None:
            self._meanwhile()
            try:
                found: Prepared | None = pickle.load(answer)
            except (EOFError, OSError, pickle.UnpicklingError):
                return None
            return None if found is None else replace(found, scenario=scenario)

        return wait


def serve() -> None:
    """Be the other process: answer what comes in, until nothing can come any more, or something is amiss."""
    try:
        _answer()
    finally:  # at once, for the thread that listens would be in the way of an orderly end
        os._exit(1)


def _answer() -> None:
    gc.set_threshold(COLLECT_AFTER)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    tasks: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def listen() -> None:
        try:
            while length := sys.stdin.buffer.read(_LENGTH_BYTES):
                tasks.put(sys.stdin.buffer.read(int.from_bytes(length, "big")))
        finally:
            os._exit(1)

    threading.Thread(target=listen, daemon=True).start()
    from pipesim.prediction import prepare
    from pipesim.search.kernel_loading import load_kernels

    load_kernels()
    while True:
        scenario, name, num_chunks = pickle.loads(tasks.get())
        try:
            found = prepare(scenario, name, num_chunks=num_chunks)
        except PipesimError:
            pickle.dump(None, answers)
        else:
            pickle.dump(found, answers)
        answers.flush()
