"""The engine against the one before it, byte for byte, until the change has settled."""

from __future__ import annotations

from collections import Counter
from typing import Any

from engine_cases import case, outcome
from engine_of_before import simulate as simulate_before

from pipesim.timing.engine import simulate

NUM_CASES = 500


def test_500_cases_of_all_modes_have_the_same_bytes(benchmark: Any) -> None:
    """Schedules, costs, wires, gradients and jitter by chance; also what is refused is refused alike."""

    def compare() -> Counter[str]:
        kinds: Counter[str] = Counter()
        for seed in range(NUM_CASES):
            before, now = (outcome(run, case(seed)) for run in (simulate_before, simulate))
            assert now == before, f"case {seed}"
            _, _, chosen = case(seed)
            kinds["refused" if "raised" in before else f"{chosen['network']}, {chosen['p2p']}"] += 1
        return kinds

    kinds = benchmark.pedantic(compare, rounds=1, warmup_rounds=0)
    benchmark.extra_info.update(kinds)
    assert len(kinds) == 10, "each way to send on each kind of network, and some refused"
