"""What shared wires cost: many replicas simulated or one for all, costs of many GPUs, and an overload."""

from __future__ import annotations

import time
import tracemalloc
from functools import partial
from typing import Any

import numpy as np
import pytest
from yardstick import bare_loop, best_of_each

from pipesim.costs import CostTable, build_costs
from pipesim.costs.network.fabric import Flow
from pipesim.ir import lower
from pipesim.ir.actions import Schedule
from pipesim.scenario import ResolvedScenario, scenario_from_mapping
from pipesim.schedules import Shape, generate
from pipesim.timing.engine import simulate
from pipesim.timing.engine.shared_flows import Network, Stream
from pipesim.timing.engine.simulated_clock import Clock

RANKS, REPLICAS, TENSOR, MICROBATCHES = 16, 8, 8, 128


@pytest.fixture(scope="module")
def cluster() -> tuple[Schedule, CostTable]:
    scenario = scenario_from_mapping(
        {
            "model": {"preset": "llama3-70b", "seq_length": 8192},
            "cluster": {"machine": "dgx-h100", "num_nodes": 128},
            "parallel": {"pipeline": RANKS, "tensor": TENSOR, "data": REPLICAS, "sequence_parallel": True},
            "batch": {"global": MICROBATCHES * REPLICAS},
        }
    )
    costs = build_costs(scenario, num_chunks=1)
    return lower(generate("1f1b", Shape(RANKS, 1, MICROBATCHES), costs)), costs


def test_all_replicas_of_1024_gpus_and_one_for_all_are_alike(
    benchmark: Any, cluster: tuple[Schedule, CostTable]
) -> None:
    schedule, costs = cluster
    every = benchmark.pedantic(
        lambda: simulate(schedule, costs, num_replicas=REPLICAS), rounds=1, warmup_rounds=0
    )
    folded = simulate(schedule, costs)
    ideal = simulate(schedule, costs, network="ideal")
    assert (every.op < 4).sum() == 2 * RANKS * MICROBATCHES * REPLICAS
    assert np.array_equal(every.end_s, np.tile(folded.end_s, REPLICAS))
    assert every.end_s.max() > ideal.end_s.max()


def test_1024_gpus_need_no_more_than_2_gib(benchmark: Any, cluster: tuple[Schedule, CostTable]) -> None:
    schedule, costs = cluster
    tracemalloc.start()
    benchmark.pedantic(lambda: simulate(schedule, costs, num_replicas=REPLICAS), rounds=1, warmup_rounds=0)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    benchmark.extra_info["peak_bytes"] = peak_bytes
    assert peak_bytes < 2 * 2**30


def cut(num_ranks: int, tensor: int, num_replicas: int, nics_per_node: int) -> ResolvedScenario:
    num_nodes = num_ranks * tensor * num_replicas // 8
    return scenario_from_mapping(
        {
            "model": {"preset": "gpt3-175b", "seq_length": 2048},
            "cluster": {"machine": "dgx-h100", "num_nodes": num_nodes, "nics_per_node": nics_per_node},
            "parallel": {"pipeline": num_ranks, "tensor": tensor, "data": num_replicas},
            "batch": {"global": num_ranks * num_replicas},
        }
    )


CUTS = [(16, 8, 128), (64, 8, 32), (32, 4, 128), (2, 8, 1024), (4, 1, 4096)]


@pytest.mark.parametrize("nics_per_node", [8, 1])
def test_a_cut_of_16384_gpus_costs_no_more_than_40_000_timeouts(benchmark: Any, nics_per_node: int) -> None:
    """About 50 ms where a bare SimPy loop does a million timeouts in 1.2 s."""
    scenarios = {f"p{p} t{t} d{d}": cut(p, t, d, nics_per_node) for p, t, d in CUTS}
    asked = {name: partial(build_costs, one, num_chunks=1) for name, one in scenarios.items()}
    benchmark.pedantic(next(iter(asked.values())), rounds=1)
    best = best_of_each({"bare": lambda: bare_loop(1, 40_000)} | asked, 3)
    benchmark.extra_info |= best
    assert max(best.values()) == best["bare"]


def test_what_a_cut_costs_does_not_grow_with_its_replicas(benchmark: Any) -> None:
    few, many = (partial(build_costs, cut(16, 8, d, 1), num_chunks=1) for d in (64, 1024))
    benchmark.pedantic(many, rounds=1)
    best = best_of_each({"few": few, "many": many}, 5)
    benchmark.extra_info |= best
    assert best["many"] < 1.3 * best["few"]


def overload_s(num_transfers: int) -> float:
    """Offer twice what a wire carries, in two kinds of transfer."""
    clock = Clock()
    network = Network(clock, [1.0, 1.0], "fair")
    streams = [network.stream(Flow(0.0, 1.0, loads)) for loads in (((0, 1),), ((0, 1), (1, 1)))]
    arrived: list[float] = []

    def transfer(stream: Stream) -> Any:
        yield network.transfer(stream, 1.0, 0.0)
        arrived.append(clock.now)

    def source(stream: Stream) -> Any:
        for _ in range(num_transfers // 2):
            yield clock.timeout(1.0)
            clock.process(transfer(stream))

    for stream in streams:
        clock.process(source(stream))
    begin = time.process_time()
    clock.run()
    assert len(arrived) == num_transfers
    return time.process_time() - begin


def test_an_overload_takes_time_in_proportion_to_its_transfers(benchmark: Any) -> None:
    short_s = min(overload_s(4000) for _ in range(3))
    long_s = benchmark.pedantic(lambda: overload_s(16_000), rounds=1, warmup_rounds=0)
    benchmark.extra_info["transfers_per_s"] = 16_000 / long_s
    assert long_s < 8 * short_s
