"""What the engine costs beside SimPy itself, and how it grows."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from helpers import costs_of, longest_path, makespan
from yardstick import bare_loop, best_of_each

from pipesim.costs import CostTable
from pipesim.ir import lower
from pipesim.ir.actions import Schedule
from pipesim.schedules import Shape, generate
from pipesim.timing.engine import simulate

MOST_TIMES_A_BARE_LOOP = {False: 2.5, True: 3.2}
ROUNDS = 7


def lowered_1f1b(num_ranks: int, num_microbatches: int) -> Schedule:
    return lower(generate("1f1b", Shape(num_ranks, 1, num_microbatches)))


def costs(num_ranks: int, *, bandwidth: bool) -> CostTable:
    """F 1 s, B 2 s, and 0.1 s or 0.2 s a message."""
    link = {"p2p_bytes_per_s": 1e7, "boundary_bytes": 1e6} if bandwidth else {}
    return costs_of(num_ranks, number=float, p2p_latency_s=0.1, **link)


def num_computations(num_ranks: int, num_microbatches: int) -> int:
    return 2 * num_ranks * num_microbatches


def num_messages(num_ranks: int, num_microbatches: int) -> int:
    return 2 * (num_ranks - 1) * num_microbatches


def num_rows(num_ranks: int, num_microbatches: int) -> int:
    """Computations, both ends of each message, and a reduction and an optimizer step a rank."""
    ends = 2 * num_messages(num_ranks, num_microbatches)
    return num_computations(num_ranks, num_microbatches) + ends + 2 * num_ranks


@pytest.mark.parametrize("bandwidth", [False, True], ids=["latency only", "shared bandwidth"])
def test_at_p64_m512_the_engine_takes_few_times_a_bare_simpy_loop(benchmark: Any, bandwidth: bool) -> None:
    p, m = 64, 512
    schedule, table = lowered_1f1b(p, m), costs(p, bandwidth=bandwidth)
    timeline = benchmark.pedantic(simulate, args=(schedule, table), rounds=1, warmup_rounds=1)
    assert len(timeline) == num_rows(p, m) == 194_688
    alone = longest_path(schedule.schedule, table)
    assert makespan(timeline) == pytest.approx(alone.makespan), "no two messages meet on a link here"

    num_timeouts = num_computations(p, m) + num_messages(p, m)
    assert num_timeouts == 130_048
    best = best_of_each(
        {"bare": lambda: bare_loop(p, num_timeouts), "engine": lambda: simulate(schedule, table)}, ROUNDS
    )
    ratio = best["engine"] / best["bare"]
    benchmark.extra_info |= {**best, "ratio": ratio}
    assert ratio <= MOST_TIMES_A_BARE_LOOP[bandwidth]


MICROBATCHES = (128, 256, 512, 1024)


def test_time_grows_linearly_in_actions(benchmark: Any) -> None:
    p = 32
    table = costs(p, bandwidth=True)
    schedules = {m: lowered_1f1b(p, m) for m in MICROBATCHES}
    for m, schedule in schedules.items():
        assert len(simulate(schedule, table)) == num_rows(p, m)
    benchmark.pedantic(simulate, args=(schedules[1024], table), rounds=1)
    best = best_of_each(
        {str(m): lambda schedule=schedule: simulate(schedule, table) for m, schedule in schedules.items()}, 5
    )
    row_s = {m: best[str(m)] / num_rows(p, m) for m in MICROBATCHES}
    benchmark.extra_info |= {"row_s": row_s}
    assert max(row_s.values()) < 1.4 * min(row_s.values())


def test_time_grows_linearly_in_ranks(benchmark: Any) -> None:
    """One microbatch, so that nothing but the ranks grows; schedule and lowering count too."""

    def step(num_ranks: int) -> None:
        timeline = simulate(lowered_1f1b(num_ranks, 1), costs(num_ranks, bandwidth=False))
        assert len(timeline) == num_rows(num_ranks, 1)

    benchmark.pedantic(step, args=(10_000,), rounds=1)
    best = best_of_each({str(p): lambda p=p: step(p) for p in (2_500, 10_000)}, 3)
    benchmark.extra_info |= best
    assert best["10000"] < 1.5 * 4 * best["2500"]


def test_memory_grows_linearly_in_actions(benchmark: Any) -> None:
    p = 8
    table = costs(p, bandwidth=True)

    def peak_bytes(num_microbatches: int) -> int:
        schedule = lowered_1f1b(p, num_microbatches)
        tracemalloc.start()
        try:
            simulate(schedule, table)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    row_bytes = {m: peak_bytes(m) / num_rows(p, m) for m in MICROBATCHES}
    benchmark.pedantic(peak_bytes, args=(128,), rounds=1)
    benchmark.extra_info |= {"row_bytes": row_bytes}
    assert max(row_bytes.values()) < 1.2 * min(row_bytes.values())
    assert max(row_bytes.values()) < 500
