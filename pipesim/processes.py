"""How many processes to start, and how: a terminal's Ctrl-C is for the first one alone."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

COLLECT_AFTER = 50_000
"""New objects after which the garbage collector looks for rings: its own 700 take a sixth of a short run."""


def num_workers_for(num_tasks: int, *, tasks_each: int) -> int:
    """Choose processes: one a core, but none for fewer than `tasks_each` tasks."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, num_tasks // tasks_each))


@contextmanager
def unheard_by_children() -> Iterator[None]:
    """Let processes that start inside not hear Ctrl-C, which a terminal sends to all: this one ends them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
