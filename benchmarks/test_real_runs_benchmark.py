"""What real runs take and how true predictions of them are, on a machine with nothing else to do.

Runs recognise steps that other work on the machine disturbed. Where those are the most, the machine cannot
say how true a prediction is, and the test says so instead of judging. `validation.py` covers the whole grid.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from test_executor_parts import middle_stage  # noqa: E402 - needs torch
from validation import COMPUTED, Part, emulated  # noqa: E402

from pipesim.evidence.validation import Validation, validate  # noqa: E402
from pipesim.executor import RankPool  # noqa: E402
from pipesim.ir.actions import Op  # noqa: E402
from pipesim.scenario import scenario_from_mapping  # noqa: E402


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool(4) as started:
        yield started


def found_of(part: Part, pool: RankPool, **settings: Any) -> Validation:
    scenario = scenario_from_mapping(part.scenario)
    return validate(scenario, device=part.device, num_steps=6, warmup=2, retries=1, pool=pool, **settings)


def judged(found: Validation) -> dict[str, Any]:
    """Errors of a validation, unless the machine was too busy to say."""
    steps = sum(row.num_steps for row in found.rows)
    disturbed = sum(row.num_disturbed_steps for row in found.rows)
    if 2 * disturbed > steps or any(row.disturbed for row in found.rows):
        pytest.skip(f"other work on this machine disturbed {disturbed} of {steps} steps")
    return found.summary()


def test_emulated_four_ranks(pool: RankPool) -> None:
    part = emulated(4)
    found = found_of(part, pool, schedules=("gpipe", "1f1b", "zb-h1", "zb-v"), microbatches=(8,))
    errors = judged(found)
    ratios = [row.measured_bubble_ratio for row in found.rows]
    assert ratios[3] < ratios[2] < ratios[0]
    assert {name: errors[name] for name, limit in part.limits.items() if errors[name] > limit} == {}


def test_real_computing_on_two_ranks(pool: RankPool) -> None:
    found = found_of(COMPUTED, pool, schedules=("1f1b",), microbatches=(8, 4))
    errors = judged(found)
    assert errors["median_replay_error_one_stage"] <= COMPUTED.limits["median_replay_error_one_stage"]
    drift = max(abs(row.step_time_error - row.replay_error) for row in found.rows if not row.calibrated_on)
    if drift > 0.03:
        pytest.skip(f"operations ran {drift:.0%} off the speed they had when they were measured")
    assert errors["median_step_time_error"] <= COMPUTED.limits["median_step_time_error"]
    assert errors["median_bubble_error"] <= COMPUTED.limits["median_bubble_error"]


def test_steps_next_to_other_jobs_are_recognised(pool: RankPool) -> None:
    """On cores that others hold, the ranks are late."""
    hogs = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4 * (os.cpu_count() or 1))
    ]
    try:
        found = found_of(emulated(4), pool, schedules=("1f1b",), microbatches=(4,))
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
    assert sum(row.num_disturbed_steps for row in found.rows) > sum(row.num_steps for row in found.rows) / 2


def test_i_and_w_together_cost_what_b_does() -> None:
    torch.set_num_threads(1)
    stage = middle_stage()
    x, gradient = torch.randn(2, 256, 256), torch.randn(2, 256, 256)
    spent: dict[str, list[float]] = {"B": [], "I": [], "W": []}

    def timed(op: Op) -> None:
        begin = time.thread_time()
        stage.run(op, 0, 0, gradient.clone())
        spent[op.name].append(time.thread_time() - begin)

    for _ in range(12):
        for split in (False, True):
            stage.run(Op.F, 0, 0, x.clone())
            for op in (Op.I, Op.W) if split else (Op.B,):
                timed(op)
    # The least of CPU times is what the machine's other work disturbs least.
    b, i, w = (min(spent[name]) for name in "BIW")
    assert abs(i + w - b) / b < 0.05
    assert 0.3 < i / b < 0.8
