"""The engine against the one before it, byte for byte, until the change has settled."""

from __future__ import annotations

from collections import Counter
from typing import Any

from engine_cases import case, outcome
from engine_of_before import simulate as simulate_before

from pipesim.timing.engine import simulate

NUM_CASES = 600
AT_LEAST = 500
"""Timelines among them; the rest are refused, for one of the two reasons that drawn cases have."""
REFUSALS = {"DeadlockError", "UnlikeReplicasError"}


def test_500_timelines_of_all_modes_have_the_same_bytes(benchmark: Any) -> None:
    """Schedules, costs, wires, gradients and jitter by chance; also what is refused is refused alike."""

    def compare() -> tuple[Counter[str], Counter[str]]:
        modes: Counter[str] = Counter()
        refused: Counter[str] = Counter()
        for seed in range(NUM_CASES):
            before, now = (outcome(run, case(seed)) for run in (simulate_before, simulate))
            assert now == before, f"case {seed}"
            _, _, chosen = case(seed)
            if "raised" in now:
                refused[now["raised"]] += 1
            else:
                modes[f"{chosen['network']}, {chosen['p2p']}"] += 1
        return modes, refused

    modes, refused = benchmark.pedantic(compare, rounds=1, warmup_rounds=0)
    benchmark.extra_info.update(modes | refused)
    assert refused.keys() == REFUSALS, "an engine that cannot read its arguments compares nothing"
    assert modes.total() >= AT_LEAST
    assert len(modes) == 9, "each way to send on each kind of network"
