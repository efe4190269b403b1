"""What shared wires cost: 1024 GPUs with every replica simulated, one replica for all, and an overload."""

from __future__ import annotations

import time
import tracemalloc
from typing import Any

import numpy as np
import pytest
import simpy

from pipesim.costs import CostTable, build_costs
from pipesim.costs.network.fabric import Flow
from pipesim.ir import lower
from pipesim.ir.actions import Schedule
from pipesim.scenario import scenario_from_mapping
from pipesim.schedules import Shape, generate
from pipesim.timing.engine import simulate
from pipesim.timing.engine.clock import Clock
from pipesim.timing.engine.network import Network, Stream

RANKS, REPLICAS, TENSOR, MICROBATCHES = 16, 8, 8, 128
MOST_TIMES_A_BARE_LOOP = 12
"""Of a timeout each for all computations and messages: a message on shared wires takes a latency, a solution
of the rates at its start and one at its end."""


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


def bare_loop_s(num_processes: int, num_timeouts: int) -> float:
    env = simpy.Environment()

    def wait() -> Any:
        for _ in range(num_timeouts // num_processes):
            yield env.timeout(1.0)

    for _ in range(num_processes):
        env.process(wait())
    begin = time.process_time()
    env.run()
    return time.process_time() - begin


def test_all_replicas_of_1024_gpus_in_a_minute_and_one_for_all_in_two_seconds(
    benchmark: Any, cluster: tuple[Schedule, CostTable]
) -> None:
    schedule, costs = cluster
    begin = time.process_time()
    every = benchmark.pedantic(
        lambda: simulate(schedule, costs, num_replicas=REPLICAS), rounds=1, warmup_rounds=0
    )
    every_s = time.process_time() - begin
    begin = time.process_time()
    folded = simulate(schedule, costs)
    folded_s = time.process_time() - begin
    ideal = simulate(schedule, costs, network="ideal")
    num_computations = 2 * RANKS * MICROBATCHES * REPLICAS
    num_messages = 2 * (RANKS - 1) * MICROBATCHES * REPLICAS
    num_events = num_computations + num_messages
    bare_s = bare_loop_s(RANKS * REPLICAS, num_events)
    benchmark.extra_info.update(
        num_gpus=RANKS * REPLICAS * TENSOR,
        folded_s=folded_s,
        actions_per_s=num_events / every_s,
        bare_timeouts_per_s=num_events / bare_s,
        times_a_bare_loop=every_s / bare_s,
    )
    assert (every.op < 4).sum() == num_computations
    assert np.array_equal(every.end_s, np.tile(folded.end_s, REPLICAS))
    assert every.end_s.max() > ideal.end_s.max()
    assert every_s < 60
    assert folded_s < 2
    assert every_s < MOST_TIMES_A_BARE_LOOP * bare_s


def test_1024_gpus_need_no_more_than_2_gib(benchmark: Any, cluster: tuple[Schedule, CostTable]) -> None:
    schedule, costs = cluster
    tracemalloc.start()
    benchmark.pedantic(lambda: simulate(schedule, costs, num_replicas=REPLICAS), rounds=1, warmup_rounds=0)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    benchmark.extra_info["peak_bytes"] = peak_bytes
    assert peak_bytes < 2 * 2**30


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
