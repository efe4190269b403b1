"""What people wait for: help, the first compare, pages and pictures, and rows of a sweep."""

from __future__ import annotations

import compileall
import itertools
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from yardstick import bare_loop, best_of_each

import pipesim
from pipesim.questions.sweep_row import RowTask, run_row
from pipesim.scenario.loading import read_yaml_mapping

SCENARIO = Path(__file__).parent.parent / "scenarios" / "gpt3-175b-h100.yaml"
NUM_CORES = 2
NUM_TIMEOUTS = 100_000
QUIET_S_A_TIMEOUT = 1.2e-6
"""Of a bare loop on the machine that the limits are of."""
CHUNKS = {"1f1b": 1, "interleaved-1f1b": 4, "zb-h1": 1, "zb-v": 2}


def tasks(mode: str) -> list[RowTask]:
    """Rows of GPT-3 on eight stages: batches, microbatches, schedules, and cards that reach more or less."""
    mapping = read_yaml_mapping(SCENARIO)
    grid = itertools.product((64, 128), (1, 2), CHUNKS, (0.5, 0.55, 0.6))
    return [
        RowTask(
            number,
            mapping,
            (
                f"batch.global={batch}",
                f"batch.micro={micro}",
                f"schedule={schedule}",
                f"parallel.virtual_stages={CHUNKS[schedule]}",
                f"cluster.inter_node={{preset: ib-ndr, efficiency: {efficiency}}}",
                f"network.mode={mode}",
            ),
            str(SCENARIO),
            "fast",
        )
        for number, (batch, micro, schedule, efficiency) in enumerate(grid)
    ]


@pytest.mark.parametrize(("mode", "limit_rows_per_s"), [("ideal", 40), ("fair", 20)])
def test_rows_of_a_sweep_in_a_second_of_one_core(benchmark: Any, mode: str, limit_rows_per_s: float) -> None:
    rows = tasks(mode)

    def sweep() -> None:
        assert {run_row(task)["status"] for task in rows} == {"ok"}

    benchmark.pedantic(sweep, rounds=1)
    best = best_of_each({"bare": lambda: bare_loop(8, NUM_TIMEOUTS), "sweep": sweep}, 2)
    quiet_s = best["sweep"] * NUM_TIMEOUTS * QUIET_S_A_TIMEOUT / best["bare"]
    benchmark.extra_info |= {**best, "rows_per_s": len(rows) / quiet_s}
    assert len(rows) / quiet_s >= limit_rows_per_s


def cpu_s(*arguments: str) -> float:
    """Least processor time of five runs of a Python process."""
    spent = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(spent)


def test_help_takes_little_longer_than_its_libraries(benchmark: Any) -> None:
    libraries_s = cpu_s("-c", "import typer, rich.console")
    help_s = benchmark.pedantic(cpu_s, args=("-m", "pipesim", "--help"), rounds=1)
    benchmark.extra_info |= {"libraries_s": libraries_s, "help_s": help_s}
    assert help_s <= 1.5 * libraries_s


REPORT = ("report", SCENARIO, "-o", "page.html")
README = ("compare", SCENARIO.with_name("gpt3-175b-a100.yaml"), "--plot", "all.png")
WAITS = {
    "first compare": (README, "cold", 8.0),
    "compare": (README, "warm", 4.0),
    "report": (REPORT, "warm", 6.0),
    "plot bubble": (("plot", "bubble", SCENARIO, "-o", "bubble.png"), "warm", 8.0),
}


@pytest.mark.parametrize("name", WAITS)
def test_a_verb_answers_in_time(benchmark: Any, tmp_path: Path, name: str) -> None:
    """By the clock, as on the machine that the limits are of; by the work where others keep it busy."""
    arguments, cache, limit_s = WAITS[name]
    command = [sys.executable, "-m", "pipesim", *map(str, arguments)]
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "machine-code")}
    compileall.compile_dir(pipesim.__path__[0], quiet=1)  # as an installation does

    def run() -> tuple[float, float]:
        before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(command, check=True, capture_output=True, cwd=tmp_path, env=environment)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return time.perf_counter() - begin, used_s

    if cache == "warm":
        run()
    quiet = os.getloadavg()[0] < NUM_CORES
    wall_s, used_s = benchmark.pedantic(run, rounds=1)
    timeout_s = min(bare_loop_s() for _ in range(5)) / NUM_TIMEOUTS
    scale = QUIET_S_A_TIMEOUT / timeout_s
    benchmark.extra_info |= {
        "wall_s": wall_s,
        "cpu_s": used_s,
        "quiet": quiet,
        "us_a_timeout": timeout_s * 1e6,
        "scaled_s": wall_s * scale,
    }
    assert wall_s * scale < limit_s if quiet else used_s * scale < limit_s * NUM_CORES * 0.75


def bare_loop_s() -> float:
    begin = time.process_time()
    bare_loop(8, NUM_TIMEOUTS)
    return time.process_time() - begin
