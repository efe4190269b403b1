"""The caller's side of the ranks' processes: start them, give them jobs, end them."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import MutableMapping
from multiprocessing import Pipe
from types import TracebackType
from typing import IO

from pipesim.errors import ExecutionError
from pipesim.executor.job import Job, RankResult

INSTALL = "pip install '.[torch]' in pipesim's folder"
STALL_S, STARTUP_S = 25.0, 600.0
"""Longest that no rank finishes an action in a step; and that none gets on while stages are built."""
_LAST_LINES = 5


def require_torch() -> None:
    """Refuse to go on without torch.

    Raises
    ------
    ExecutionError
        With the one command that installs it.
    """
    if importlib.util.find_spec("torch") is None:
        raise ExecutionError(f"a real run needs torch, which is not installed; install it with: {INSTALL}")


class RankPool:
    """Processes for ranks, which take one job after the other; torch is imported once for all of them.

    Use it as a context manager. After a failure all ranks are ended; the next job gets new ones.

    Parameters
    ----------
    num_processes : int
        At least ranks times replicas of every job.
    stall_timeout_s, startup_timeout_s : float
        See `pipesim.executor.running.execute`.
    threads_per_rank : int
        Threads that one rank computes with.

    Raises
    ------
    ExecutionError
        If torch is missing or the processes do not start.
    """

    def __init__(
        self,
        num_processes: int,
        *,
        stall_timeout_s: float = STALL_S,
        startup_timeout_s: float = STARTUP_S,
        threads_per_rank: int = 1,
    ) -> None:
        require_torch()
        if not hasattr(os, "fork"):
            raise ExecutionError("ranks are forked, which this system cannot do; use torchrun, or Linux")
        self.num_processes = num_processes
        self._ours, theirs = Pipe()
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        self._log_read = 0
        numbers = [theirs.fileno(), num_processes, stall_timeout_s, startup_timeout_s, threads_per_rank]
        self._launcher = subprocess.Popen(
            [sys.executable, "-m", "pipesim.executor.launcher", *map(str, numbers)],
            pass_fds=[theirs.fileno()],
            env=_environment(threads_per_rank),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )
        theirs.close()

    def run(self, job: Job) -> list[RankResult]:
        """Run a job and give the results of its ranks, process by process.

        Raises
        ------
        ExecutionError
            If a rank raises, dies, never starts or stands still: names the rank and its action.
        """
        if job.num_processes > self.num_processes:
            raise ExecutionError(f"{job.num_processes} ranks are needed, the pool has {self.num_processes}")
        try:
            self._ours.send_bytes(pickle.dumps(job))
            outcome = self._ours.recv()
        except (OSError, EOFError):
            raise ExecutionError(f"the process that starts the ranks died{self._last_lines()}") from None
        except BaseException:
            self.close()
            raise
        if isinstance(outcome, ExecutionError):
            raise ExecutionError(f"{outcome}{self._last_lines()}") from None
        return [result for result in outcome if result is not None]

    def _last_lines(self) -> str:
        self._log.seek(self._log_read)
        lines = self._log.read().decode(errors="replace").splitlines()
        self._log_read = self._log.tell()
        shown = [line for line in lines if line.strip() and not line.startswith("[Gloo]")][-_LAST_LINES:]
        return "".join(f"\n  {line}" for line in shown)

    def close(self) -> None:
        """End all processes."""
        self._ours.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._launcher.wait(timeout=5)
        self._launcher.kill()
        self._launcher.wait()
        self._log.close()

    def __enter__(self) -> RankPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _environment(threads: int) -> dict[str, str]:
    """Environment of the ranks: the caller's modules, loopback only, and no thread pools beside torch's."""
    paths = [path or os.getcwd() for path in sys.path]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
        "OMP_NUM_THREADS": str(threads),
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": str(threads),
    }
    stay_on_this_machine(environment)
    return environment


def stay_on_this_machine(environment: MutableMapping[str, str]) -> None:
    """Let gloo listen on loopback alone, and NCCL too unless the user named its interface."""
    loopback = "lo" if sys.platform == "linux" else "lo0"
    environment["GLOO_SOCKET_IFNAME"] = loopback
    environment.setdefault("NCCL_SOCKET_IFNAME", loopback)
