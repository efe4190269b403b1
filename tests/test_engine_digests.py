"""Timelines of cases drawn by chance, in every mode, against digests of those of an earlier engine."""

import json
from collections import Counter

import pytest
from engine_cases import DIGESTS, NUM_DIGESTS, case, digest, outcome

from pipesim.timing.engine import simulate

EXPECTED = json.loads(DIGESTS.read_text())


@pytest.mark.parametrize("seed", range(NUM_DIGESTS))
def test_timelines_are_those_of_before(seed):
    assert digest(outcome(simulate, case(seed))) == EXPECTED[seed]


def test_the_cases_cover_all_modes():
    kinds = Counter()
    for seed in range(NUM_DIGESTS):
        _, costs, chosen = case(seed)
        kinds[chosen["network"]] += 1
        kinds[chosen["p2p"]] += 1
        kinds["exact" if costs.forward_s.dtype == object else "floats"] += 1
        kinds["one for all" if chosen["num_replicas"] == 1 else "every replica"] += 1
        kinds["jitter"] += "durations" in chosen
        kinds["buckets"] += costs.gradient_buckets is not None
        kinds["shards"] += costs.shard_exchange is not None
    assert len(kinds) == 13
    assert min(kinds.values()) >= 5
