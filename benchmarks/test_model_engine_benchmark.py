"""What the engine costs on models with the default network, beside a bare SimPy loop of as many timeouts.

Counted are computations (each part of one that completes a bucket of gradients), messages and collectives.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from yardstick import bare_loop, best_of_each

from pipesim.costs import CostTable, build_costs
from pipesim.costs.variation import vary
from pipesim.ir import lower
from pipesim.ir.actions import SENDS, Op, Schedule
from pipesim.scenario import scenario_from_mapping
from pipesim.scenario.resolved import Jitter
from pipesim.schedules import Shape, generate
from pipesim.timing.engine import simulate
from pipesim.timing.engine.shared_flows import Network

ROUNDS = 5
GPT3 = {"preset": "gpt3-175b", "seq_length": 2048}
LLAMA = {"preset": "llama3-70b", "seq_length": 8192}
H100 = {"accelerator": "h100-sxm", "intra_node": "nvlink4", "inter_node": "ib-ndr"}
A100 = {"accelerator": "a100-sxm-80", "intra_node": "nvlink3", "inter_node": "ib-hdr"}
ONE_CARD = H100 | {"nics_per_node": 1}
SLOW_CARD = ONE_CARD | {"inter_node": "roce-100"}


@dataclass(frozen=True)
class Case:
    """One run; `shape` is p, t, d, v, m."""

    limit: float
    model: dict[str, Any]
    cluster: dict[str, Any]
    schedule: str
    shape: tuple[int, int, int, int, int]
    more: dict[str, Any] = field(default_factory=dict)
    every_replica: bool = False
    jitter: Jitter | None = None
    meet: float = 0
    """Least share of the transfers that meet another."""


OVERLAPPED = {"recompute": "full", "parallel": {"overlap_gradients": True}}
SPREAD = Jitter(compute=0.05, devices=0.02, network=0.1)
CASES = {
    "1f1b p32": Case(4, GPT3, H100, "1f1b", (32, 8, 2, 1, 256)),
    "interleaved p8": Case(4, GPT3, A100, "interleaved-1f1b", (8, 8, 2, 4, 256)),
    "zb-v p8": Case(4, GPT3, H100, "zb-v", (8, 8, 2, 2, 256)),
    "1024 GPUs, all replicas": Case(4, LLAMA, H100, "1f1b", (16, 8, 8, 1, 128), every_replica=True),
    "1024 GPUs, one for all": Case(5, LLAMA, H100, "1f1b", (16, 8, 8, 1, 128)),
    "gradients overlapped": Case(
        6, {"preset": "llama3-405b"}, H100, "1f1b", (16, 8, 4, 1, 64), {"layers": "balanced"} | OVERLAPPED
    ),
    "one card, jitter": Case(8, LLAMA, ONE_CARD, "1f1b", (16, 4, 4, 1, 64), {}, True, SPREAD),
    "dualpipe-v, one card": Case(8, GPT3, ONE_CARD, "dualpipe-v", (8, 8, 2, 2, 128), meet=0.2),
    "dualpipe-v, slow card, jitter": Case(
        8, GPT3, SLOW_CARD, "dualpipe-v", (8, 8, 4, 2, 64), {}, True, SPREAD, meet=0.2
    ),
    "gradients overlapped, slow card, jitter": Case(
        8, LLAMA, SLOW_CARD, "1f1b", (16, 4, 4, 1, 64), OVERLAPPED, True, SPREAD, meet=0.2
    ),
}


def prepared(case: Case) -> tuple[Schedule, CostTable, dict[str, Any]]:
    pipeline, tensor, data, num_chunks, num_microbatches = case.shape
    parallel = {"pipeline": pipeline, "tensor": tensor, "data": data, "sequence_parallel": tensor > 1}
    num_nodes = pipeline * tensor * data // 8
    scenario = scenario_from_mapping(
        case.more
        | {
            "model": case.model,
            "cluster": case.cluster | {"num_nodes": num_nodes, "gpus_per_node": 8},
            "parallel": parallel | case.more.get("parallel", {}),
            "batch": {"global": num_microbatches * data},
        }
    )
    costs = build_costs(scenario, num_chunks=num_chunks)
    schedule = lower(generate(case.schedule, Shape(pipeline, num_chunks, num_microbatches), costs))
    chosen: dict[str, Any] = {"num_replicas": data if case.every_replica else 1}
    if case.jitter is not None:
        varied = vary(schedule, costs, case.jitter, num_replicas=data, seed=1)
        chosen |= {"durations": varied.durations, "byte_factors": varied.byte_factors}
    return schedule, costs, chosen


def num_events(schedule: Schedule, costs: CostTable, num_replicas: int, num_collectives: int) -> int:
    computations = (schedule.op <= Op.W).sum() - schedule.joined.sum() + np.isin(schedule.op, SENDS).sum()
    num_parts = 0
    if costs.gradient_buckets is not None:
        held = zip(schedule.stage, schedule.op, strict=True)
        num_parts = sum(int(costs.gradient_buckets[stage]) - 1 for stage, op in held if op == Op.REDUCE_GRAD)
    return num_replicas * (int(computations) + num_parts) + num_collectives


def count_transfers(monkeypatch: pytest.MonkeyPatch, run: Any) -> Counter[str]:
    """How many transfers there are, of collectives among them, and how many the server had to take."""
    counts: Counter[str] = Counter()
    with monkeypatch.context() as patch:
        for name in ("start", "transfer", "_join"):
            method = getattr(Network, name)

            def counted(*arguments: Any, name: str = name, method: Any = method) -> Any:
                counts[name] += 1
                return method(*arguments)

            patch.setattr(Network, name, counted)
        run()
    return counts


@pytest.mark.parametrize("name", CASES)
def test_few_times_a_bare_simpy_loop(benchmark: Any, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    case = CASES[name]
    schedule, costs, chosen = prepared(case)

    def run() -> Any:
        return simulate(schedule, costs, **chosen)

    counts = count_transfers(monkeypatch, run)
    met = counts["_join"] / counts["start"]
    num_replicas = chosen["num_replicas"]
    num_timeouts = num_events(schedule, costs, num_replicas, counts["transfer"])
    num_processes = schedule.num_ranks * num_replicas
    benchmark.pedantic(run, rounds=1, warmup_rounds=0)
    best = best_of_each({"bare": lambda: bare_loop(num_processes, num_timeouts), "engine": run}, ROUNDS)
    ratio = best["engine"] / best["bare"]
    benchmark.extra_info |= {**best, "num_timeouts": num_timeouts, "met": met, "ratio": ratio}
    assert met >= case.meet
    assert ratio <= case.limit
