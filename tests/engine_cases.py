"""Schedules, cost tables and ways to run them, drawn by chance: what the engine must do as it did before.

``python tests/engine_cases.py`` writes the digests that `test_engine_digests.py` compares with.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import fields, replace
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from helpers import costs_of, random_schedule

from pipesim.costs import CostTable
from pipesim.costs.host import HostCost
from pipesim.costs.network.alpha_beta import Collective, Ring
from pipesim.costs.network.traffic import Fabric
from pipesim.costs.network.wiring import Wiring
from pipesim.costs.rows import step_durations
from pipesim.costs.shards import ShardExchange, SyncStep
from pipesim.ir import lower
from pipesim.ir.actions import SENDS, Op, Schedule
from pipesim.schedules import Shape, generate
from pipesim.timing.engine import simulate

Case = tuple[Schedule, CostTable, dict[str, Any]]
NAMES = ("1f1b", "gpipe", "interleaved-1f1b", "zb-h1", "zb-v", "dualpipe-v", "dualpipe")


class Draw:
    """Numbers by chance: fractions or floats, now all alike, now all different."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.exact = random.random() < 0.35
        self.alike = random.random() < 0.5

    def number(self, value: Fraction) -> Any:
        return value if self.exact else float(value)

    def time(self, most: int = 4) -> Any:
        denominator = 10 if self.alike else self.random.randint(1, 7) if self.exact else 997
        return self.number(Fraction(self.random.randint(1, most * denominator), denominator))

    def column(self, length: int, most: int = 4) -> Any:
        values = [self.time(most)] * length if self.alike else [self.time(most) for _ in range(length)]
        return tuple(values)


def case(seed: int) -> Case:
    """Draw one; the same seed gives the same."""
    random = Random(seed)
    draw = Draw(random)
    schedule = _schedule(random)
    p2p = random.choice(["overlapped", "overlapped", "overlapped", "send-blocking", "blocking"])
    tied = schedule.num_ranks > 1 and random.random() < 0.2
    lowered = lower(schedule, receive="late" if p2p == "blocking" else "early", tied_embedding=tied)
    num_replicas = random.choice([1, 2, 3, 4])
    costs = _costs(draw, lowered, num_replicas, tied=tied)
    every = random.random() < 0.6
    chosen: dict[str, Any] = {
        "p2p": p2p,
        "network": random.choice(["fair", "fair", "fair", "fair", "fifo", "ideal"]),
        "num_replicas": num_replicas if every else 1,
    }
    if random.random() < 0.25:
        chosen |= _jitter(draw, lowered, costs, chosen["num_replicas"])
    return lowered, costs, chosen


def _schedule(random: Random) -> Schedule:
    if random.random() < 0.4:
        return random_schedule(random)
    name = random.choice(NAMES)
    num_ranks = 2 * random.randint(1, 3) if name.startswith("dualpipe") else random.randint(1, 6)
    num_chunks = {"interleaved-1f1b": 2, "zb-v": 2, "dualpipe-v": 2}.get(name, 1)
    num_microbatches = num_ranks * 2 * random.randint(1, 2)
    return generate(name, Shape(num_ranks, num_chunks, num_microbatches))


def _costs(draw: Draw, schedule: Schedule, num_replicas: int, *, tied: bool) -> CostTable:
    random, num_stages = draw.random, schedule.num_stages
    names = ("forward_s", "backward_s", "input_gradient_s", "weight_gradient_s")
    stated: dict[str, Any] = {name: draw.column(num_stages) for name in names}
    if random.random() < 0.5:
        stated["overlapped_pair_s"] = draw.column(num_stages)
    stated["p2p_latency_s"] = draw.number(Fraction(0)) if random.random() < 0.3 else draw.time(1)
    if random.random() < 0.8:
        stated["p2p_bytes_per_s"] = draw.number(Fraction(random.randint(1, 9)))
        stated["boundary_bytes"] = draw.number(Fraction(random.randint(0, 30), random.choice([1, 3, 10])))
    stated["optimizer_s"] = draw.time()
    stated["gradient_sync_s"] = draw.number(Fraction(0)) if random.random() < 0.6 else draw.time()
    costs = costs_of(num_stages, number=Fraction if draw.exact else float, **stated)
    if random.random() < 0.3:
        few = draw.number(Fraction(1, 17))
        costs = replace(costs, host=HostCost(few, few * few, few * random.randint(0, 1)))
    if num_replicas > 1:
        costs = _with_gradients(draw, costs, num_stages, num_replicas)
    if random.random() < 0.75 and stated.get("boundary_bytes"):
        costs = replace(costs, fabric=_fabric(draw, schedule.num_ranks, num_replicas))
    if tied:
        ring = Ring(2, draw.time(8), draw.time(1), draw.number(Fraction(0)))
        costs = replace(costs, tied_embedding_bytes=draw.time(9), tied_embedding_ring=ring)
    return costs


def _with_gradients(draw: Draw, costs: CostTable, num_stages: int, num_replicas: int) -> CostTable:
    random = draw.random
    dtype = object if draw.exact else float
    ring = Ring(num_replicas, draw.time(8), draw.time(1) / 10, draw.time(1) / 10)
    columns = {
        "gradient_bytes": np.array(draw.column(num_stages, 9), dtype),
        "weight_bytes": np.array(draw.column(num_stages, 9), dtype),
    }
    collective = random.choice(["all_reduce", "all_reduce", "reduce_scatter", "all_gather", "none"])
    costs = replace(costs, **columns, gradient_ring=ring, gradient_collective=collective)
    if random.random() < 0.3:
        share = draw.number(Fraction(random.randint(0, 3), 4))
        own = random.choice([None, replace(ring, bytes_per_s=draw.time(8))])
        costs = replace(costs, expert_share=np.array([share] * num_stages, dtype), expert_ring=own)
    if random.random() < 0.25:
        costs = replace(costs, shard_exchange=_exchange(draw, num_stages))
    elif random.random() < 0.5:
        costs = replace(
            costs,
            gradient_buckets=np.array([random.randint(1, 4) for _ in range(num_stages)]),
            overlap_slowdown=draw.number(Fraction(random.randint(0, 3), 5)),
        )
    return costs


def _exchange(draw: Draw, num_stages: int) -> ShardExchange:
    def steps(*, of_weights: bool) -> tuple[SyncStep, ...]:
        if draw.random.random() < 0.3:
            return ()
        return tuple(
            SyncStep(
                Collective("ring", draw.time(1) / 10, draw.time(6), draw.time(4)), of_experts, of_weights
            )
            for of_experts in ([False, True] if draw.random.random() < 0.3 else [False])
        )

    exposed = np.array([0.5] * num_stages)
    return ShardExchange(
        tuple(steps(of_weights=True) for _ in range(num_stages)),
        tuple(steps(of_weights=False) for _ in range(num_stages)),
        tuple(draw.random.randint(1, 3) for _ in range(num_stages)),
        dict.fromkeys((Op.F, Op.B, Op.I, Op.W), exposed),
    )


def _fabric(draw: Draw, num_ranks: int, num_replicas: int) -> Fabric:
    random = draw.random
    gpus_per_node = random.choice([1, 2, 3, 4, 8])
    wiring = Wiring(
        gpus_per_node,
        draw.number(Fraction(random.randint(4, 30))),
        draw.number(Fraction(0)) if random.random() < 0.3 else draw.time(1),
        draw.number(Fraction(random.randint(1, 12))),
        draw.number(Fraction(0)) if random.random() < 0.3 else draw.time(1),
        nics_per_node=random.choice([1, gpus_per_node]),
        paired=random.random() < 0.2 and gpus_per_node > 1,
        nodes_per_switch=random.choice([None, None, 1, 2]),
        oversubscription=draw.number(Fraction(random.randint(1, 3))),
        rails=random.random() < 0.2,
        degraded={0: draw.number(Fraction(1, 2))} if random.random() < 0.1 else {},
    )
    axes = [("tp", random.choice([1, 1, 2, 3])), ("cp", random.choice([1, 1, 2])), ("dp", num_replicas)]
    axes.insert(random.randint(0, 3), ("pp", num_ranks))
    return Fabric(wiring, tuple(axes), tuple(axes))


def _jitter(draw: Draw, schedule: Schedule, costs: CostTable, num_replicas: int) -> dict[str, Any]:
    random, shape = draw.random, (num_replicas, len(schedule.op))

    def factors() -> Any:
        drawn = [[Fraction(random.randint(9, 13), 10) for _ in range(shape[1])] for _ in range(shape[0])]
        return np.array([[draw.number(value) for value in row] for row in drawn])

    of_rows = factors()
    second = np.flatnonzero(schedule.joined) + 1
    of_rows[:, second] = of_rows[:, second - 1]
    found: dict[str, Any] = {"durations": step_durations(schedule, costs) * of_rows}
    if random.random() < 0.5:
        found["byte_factors"] = np.where(np.isin(schedule.op, SENDS), factors(), draw.number(Fraction(1)))
    return found


def outcome(run: Callable[..., Any], one: Case) -> dict[str, Any]:
    """Every column of the timeline with its bytes (fractions as text), or what was raised."""
    schedule, costs, chosen = one
    try:
        timeline = run(schedule, costs, **chosen)
    except Exception as error:
        return {"raised": type(error).__name__}
    found = {}
    for item in fields(timeline):
        column = getattr(timeline, item.name)
        if isinstance(column, np.ndarray):
            exact = column.dtype == object
            found[item.name] = repr(column.tolist()) if exact else (str(column.dtype), column.tobytes())
        else:
            found[item.name] = repr(column)
    return found


def digest(found: dict[str, Any]) -> str:
    """Short name of an outcome."""
    return hashlib.sha256(repr(found).encode()).hexdigest()[:16]


DIGESTS = Path(__file__).parent / "data" / "engine_digests.json"
NUM_DIGESTS = 80


def main() -> None:
    digests = [digest(outcome(simulate, case(seed))) for seed in range(NUM_DIGESTS)]
    DIGESTS.write_text(json.dumps(digests, indent=0) + "\n")


if __name__ == "__main__":
    main()
