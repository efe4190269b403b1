"""What programs that tests run beside themselves share with them; imports neither torch nor pytest."""

from __future__ import annotations

import os
from pathlib import Path

from pipesim.errors import ExecutionError
from pipesim.executor import EmulatedWorkload, FactoryWorkload, RankPool, execute
from pipesim.ir import lower
from pipesim.schedules import Shape, generate

__all__ = [
    "SCHEDULE",
    "EmulatedWorkload",
    "ExecutionError",
    "FactoryWorkload",
    "RankPool",
    "Shape",
    "descendants",
    "environment",
    "execute",
    "generate",
    "lower",
]

SCHEDULE = lower(generate("1f1b", Shape(2, 1, 4)))


def descendants() -> dict[int, str]:
    """Process id and command line of all processes that descend from this one."""
    parents: dict[int, list[int]] = {}
    names: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                names[int(entry.name)] = (entry / "cmdline").read_text(errors="replace").replace("\0", " ")
            except OSError:
                continue
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found: dict[int, str] = {}
    queue = [os.getpid()]
    while queue:
        children = parents.get(queue.pop(), [])
        queue += children
        found |= {child: names[child] for child in children}
    return found


def environment(**variables: str) -> dict[str, str]:
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "GLOO_SOCKET_IFNAME": "lo", **variables}
