"""What the engine is measured by: a bare SimPy loop in the same process."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import simpy


def bare_loop(num_processes: int, num_timeouts: int) -> None:
    """Wait for `num_timeouts` timeouts, spread over the processes, and do nothing else."""
    env = simpy.Environment()

    def wait(times: int) -> Any:
        for _ in range(times):
            yield env.timeout(1.0)

    for process in range(num_processes):
        share = num_timeouts // num_processes + (process < num_timeouts % num_processes)
        env.process(wait(share))
    env.run()


def best_of_each(functions: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Least processor seconds of each function, taken in turn so that all see the same machine.

    Processor time, for on a busy machine a long function is interrupted more often than a short one.
    """
    best = dict.fromkeys(functions, float("inf"))
    for _ in range(rounds):
        for name, function in functions.items():
            begin = time.process_time()
            function()
            best[name] = min(best[name], time.process_time() - begin)
    return best
