"""Another process that prepares a schedule while this one does what does not need it."""

from __future__ import annotations

import os
import pickle
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pipesim.errors import PipesimError
from pipesim.prediction import Prepared, prepare
from pipesim.questions.call_pool import num_workers_for, unheard_by_children
from pipesim.scenario import ResolvedScenario
from pipesim.search.kernel_loading import load_kernels
from pipesim.timing.compiling import can_compile

_CODE = "import sys; sys.path[:] = sys.argv[1:]; from pipesim.questions.second_process import serve; serve()"


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
        self._process: subprocess.Popen[bytes] | None = None
        self._meanwhile = meanwhile
        if not (wanted and can_compile() and sys.executable) or num_workers_for(2, tasks_each=1) == 1:
            return
        command = [sys.executable, "-c", _CODE, *sys.path]
        try:
            with unheard_by_children():
                self._process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
                )
        except OSError:  # no room for one more
            return

    @property
    def pid(self) -> int | None:
        """Number of the process; None where there is none."""
        return None if self._process is None else self._process.pid

    def __enter__(self) -> SecondProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is None:
            return
        self._process.kill()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            try:
                stream.close()
            except OSError:  # what was never read
                continue
        self._process.wait()

    def prepare(
        self, scenario: ResolvedScenario, name: str, num_chunks: int
    ) -> Callable[[], Prepared | None]:
        """Begin to prepare a schedule; return what waits for it.

        None where that process cannot do it, or refuses: then this one can, or says why not. Answers are to
        be waited for in the order of the questions.
        """
        if self._process is None:
            return lambda: None
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        answer = process.stdout
        try:
            process.stdin.write(pickle.dumps((scenario, name, num_chunks)))
            process.stdin.flush()
        except Exception:  # a scenario may hold what cannot be sent
            return lambda: None

        def wait() -> Prepared | None:
            self._meanwhile()
            try:
                found: Prepared | None = pickle.load(answer)
            except (EOFError, OSError, pickle.UnpicklingError):
                return None
            return None if found is None else replace(found, scenario=scenario)

        return wait


def serve() -> None:
    """Be the other process: answer what comes in, until nothing can come any more."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def listen() -> None:
        try:
            while True:
                tasks.put(pickle.load(sys.stdin.buffer))
        finally:
            os._exit(1)

    threading.Thread(target=listen, daemon=True).start()
    load_kernels()
    while True:
        scenario, name, num_chunks = tasks.get()
        try:
            found = prepare(scenario, name, num_chunks=num_chunks)
        except PipesimError:
            pickle.dump(None, answers)
        else:
            pickle.dump(found, answers)
        answers.flush()
