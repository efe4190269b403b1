"""How fast schedules are generated and timed, in processor time: what users read is asserted here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipesim.costs import CostTable
from pipesim.costs.direct import direct_costs
from pipesim.ir import lower
from pipesim.ir.shape import MAX_FORWARDS
from pipesim.scenario.resolved import DirectCosts
from pipesim.schedules import Shape, families, family, generate
from pipesim.timing.engine import simulate
from pipesim.timing.longest_path import PreparedSchedule, evaluate
from pipesim.timing.longest_path.reusable_program import compile_seconds


def unit_costs(num_ranks: int, num_chunks: int) -> CostTable:
    stated = DirectCosts(1.0, 2.0, 1.0, 1.0, 0.1, None, 0.0, None, 0.0, 0.0, 0.0)
    return direct_costs(stated, num_ranks=num_ranks, num_chunks=num_chunks)


def best_of(repeats: int, function: Callable[[], Any]) -> float:
    seconds = []
    for _ in range(repeats):
        begin = time.process_time()
        function()
        seconds.append(time.process_time() - begin)
    return min(seconds)


def test_at_p64_m512_the_evaluator_is_200_times_faster_than_the_engine(benchmark: Any) -> None:
    compile_seconds()
    schedule, costs = generate("1f1b", Shape(64, 1, 512)), unit_costs(64, 1)
    lowered = lower(schedule)
    begin = time.process_time()
    timeline = simulate(lowered, costs)
    engine_s = time.process_time() - begin
    prepared = PreparedSchedule.of(schedule)
    makespan = benchmark(lambda: prepared.evaluate_costs(costs)).makespan
    assert makespan == pytest.approx(timeline.end_s.max() - timeline.start_s.min(), rel=1e-12)
    evaluator_s = best_of(20, lambda: prepared.evaluate_costs(costs))
    rows_per_s = len(schedule.op) / evaluator_s
    benchmark.extra_info |= {"engine_s": engine_s, "ratio": engine_s / evaluator_s, "rows_per_s": rows_per_s}
    assert engine_s / evaluator_s >= 200
    assert rows_per_s > 3e7


@pytest.mark.parametrize(
    ("name", "num_chunks", "limit_s"),
    [("1f1b", 1, 0.25), ("interleaved-1f1b", 2, 0.5), ("zb-h1", 1, 0.5)],
)
def test_generating_and_timing_p64_m512(benchmark: Any, name: str, num_chunks: int, limit_s: float) -> None:
    compile_seconds()
    costs = unit_costs(64, num_chunks)

    def generate_and_time() -> float:
        schedule = generate(name, Shape(64, num_chunks, 512))
        makespan: float = PreparedSchedule.of(schedule).evaluate_costs(costs).makespan
        return makespan

    generate_and_time()
    benchmark.pedantic(generate_and_time, rounds=5)
    assert best_of(3, generate_and_time) < limit_s


def test_compilation_is_paid_once(benchmark: Any, tmp_path: Path) -> None:
    code = (
        "from pipesim.timing.longest_path.reusable_program import compile_seconds; print(compile_seconds())"
    )

    def in_new_process() -> float:
        environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True
        )
        return float(done.stdout)

    first_s = in_new_process()
    later_s = benchmark.pedantic(in_new_process, rounds=3)
    benchmark.extra_info |= {"first_s": first_s, "later_s": later_s}
    assert later_s < first_s / 2


LARGE = """
import json, resource, sys, time
from pipesim.costs.direct import direct_costs
from pipesim.timing.longest_path import PreparedSchedule
from pipesim.scenario.resolved import DirectCosts
from pipesim.schedules import Shape, generate
p, m = int(sys.argv[1]), int(sys.argv[2])
begin = time.process_time()
stated = DirectCosts(1.0, 2.0, 1.0, 1.0, 0.0, None, 0.0, None, 0.0, 0.0, 0.0)
costs = direct_costs(stated, num_ranks=p, num_chunks=1)
schedule = generate("1f1b", Shape(p, 1, m))
makespan = PreparedSchedule.of(schedule).evaluate_costs(costs).makespan
seconds = time.process_time() - begin
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"rows": len(schedule.op), "makespan": makespan, "seconds": seconds, "peak_bytes": peak}))
"""


def run_large(num_ranks: int, num_microbatches: int) -> dict[str, float]:
    command = [sys.executable, "-c", LARGE, str(num_ranks), str(num_microbatches)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    result: dict[str, float] = json.loads(done.stdout)
    assert result["makespan"] == 3 * (num_microbatches + num_ranks - 1)
    return result


def test_the_largest_shape_takes_half_a_minute_and_4_gib_at_most_and_grows_linearly(benchmark: Any) -> None:
    ranks, microbatches = 488, MAX_FORWARDS // 488
    half = run_large(ranks // 2, microbatches)
    whole = benchmark.pedantic(run_large, args=(ranks, microbatches), rounds=1)
    benchmark.extra_info |= {"half": half, "whole": whole}
    assert whole["seconds"] < 30
    assert whole["peak_bytes"] < 4 * 2**30
    assert whole["rows"] == 2 * half["rows"]
    assert whole["seconds"] < 2.6 * half["seconds"]


def test_zb_v_of_a_large_shape_is_generated_checked_and_timed_within_five_seconds() -> None:
    began = time.process_time()
    schedule = generate("zb-v", Shape(64, 2, 512))
    spans = evaluate(schedule, [1] * len(schedule.op))
    assert time.process_time() - began < 5
    assert len(schedule.op) == 64 * 512 * 2 * 3
    assert spans.makespan == 512 * 6 + 63


@pytest.mark.parametrize("name", sorted(name for name, one in families().items() if not one.needs_costs))
def test_generating_takes_time_in_proportion(name: str) -> None:
    chosen = family(name)
    p, m = 32, 512
    began = time.process_time()
    num_actions = sum(len(list(order)) for order in chosen.order(Shape(p, chosen.chunks or 2, m)))
    # A rank has some thousand actions: the square of that, over all ranks, would take far longer.
    assert time.process_time() - began < 3
    assert num_actions >= p * m
