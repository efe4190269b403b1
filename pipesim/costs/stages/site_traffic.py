"""What passes between data centres: replicas that seldom meet, and what the traffic costs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import permutations

import numpy as np
import numpy.typing as npt

from pipesim.costs.network.alpha_beta import Collective, Ring, all_reduce
from pipesim.costs.network.fabric import Demand, Wire
from pipesim.costs.network.topology import fabric
from pipesim.costs.table import CostTable, SitePrices
from pipesim.scenario.hardware import Cluster
from pipesim.scenario.resolved import Parallel

FloatArray = npt.NDArray[np.float64]

_OUTER_BYTES = 4
"""Of a parameter's change between two synchronisations of groups of replicas."""


def outer_collectives(
    parallel: Parallel, ring: Ring, dense: FloatArray, experts: FloatArray
) -> list[Collective]:
    """All-reduces, stage by stage, in which groups of replicas average their changes of the weights.

    As DiLoCo does after so many steps (arXiv 2311.08105), of 32-bit differences; each device of a group takes
    its share of them.
    """
    shares = dense / parallel.num_sharing + experts / parallel.num_expert_sharing
    return [all_reduce(_OUTER_BYTES * float(number), ring) for number in shares]


def outer_sync_s(each: Sequence[Collective], cluster: Cluster, parallel: Parallel) -> FloatArray:
    """Share of a step in these, shape (stages,); nothing is hidden, and all ranks are at it together."""
    wires = fabric(cluster, parallel)
    loads: dict[Wire, float] = defaultdict(float)
    for stage, collective in enumerate(each):
        for wire, load in wires.reduction(stage % parallel.pipeline, across=True).loads.items():
            loads[wire] += float(load) * float(collective.nbytes)
    together_s = max(load / float(wires.wiring.bytes_per_s(wire)) for wire, load in loads.items())
    num_chunks = len(each) // parallel.pipeline
    moving = [max(float(one.nbytes / one.bytes_per_s), together_s / num_chunks) for one in each]
    seconds = [float(one.latency_s) + moving_s for one, moving_s in zip(each, moving, strict=True)]
    return np.array(seconds) / parallel.local_steps


def site_prices(
    cluster: Cluster, parallel: Parallel, table: CostTable, outer: Sequence[Collective]
) -> SitePrices | None:
    """Price what passes between data centres; None where that costs nothing.

    What shared-out weights move beside computations is left out.
    """
    if not any(link.usd_per_byte for link in cluster.site_links.values()):
        return None
    wires, ranks = fabric(cluster, parallel), range(parallel.pipeline)

    def usd_per_byte(demand: Demand) -> float:
        return sum(
            float(load) * cluster.site_links[min(one, other), max(one, other)].usd_per_byte
            for (what, one, other), load in demand.loads.items()
            if what == "site"
        )

    messages = {
        (src, dst): sum(usd_per_byte(wires.message(src, dst, replica)) for replica in range(parallel.data))
        for src, dst in permutations(ranks, 2)
    }
    sync = np.zeros(table.num_stages)
    for stage in range(table.num_stages):
        rank = stage % parallel.pipeline
        for step in table.sync_steps(stage):
            rings = wires.reduction(rank, of_experts=step.of_experts, across=step.across)
            sync[stage] += float(step.collective.nbytes) * usd_per_byte(rings)
        if outer:
            apart = usd_per_byte(wires.reduction(rank, across=True))
            sync[stage] += float(outer[stage].nbytes) * apart / parallel.local_steps
    return SitePrices({pair: price for pair, price in messages.items() if price}, sync)
