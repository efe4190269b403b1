"""What is compiled is kept, until a source that went into it changes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CALLER = """
from callee import number
from pipesim.timing.compiling import compiled

@compiled
def twice(x):
    return number(x) + number(x)
"""
CALLEE = """
from pipesim.timing.compiling import compiled_part

@compiled_part
def number(x):
    return x * {factor}
"""
RUN = "from caller import twice; print(twice(1), sum(twice.stats.cache_hits.values()))"


def test_machine_code_is_kept_until_a_source_of_what_it_calls_changes(tmp_path: Path) -> None:
    def run() -> str:
        done = subprocess.run([sys.executable, "-c", RUN], capture_output=True, text=True, env=environment)
        assert not done.stderr, done.stderr
        return done.stdout.strip()

    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    environment = os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("NUMBA_CACHE_DIR", None)
    (tmp_path / "caller.py").write_text(CALLER)
    (tmp_path / "callee.py").write_text(CALLEE.format(factor=1))
    assert run() == "2 0"
    assert run() == "2 1"
    (tmp_path / "callee.py").write_text(CALLEE.format(factor=5))
    assert run() == "10 0"
