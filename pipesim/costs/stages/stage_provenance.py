"""Where the numbers of a cost table came from that any model shares, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipesim.costs.network.alpha_beta import Ring
from pipesim.costs.network.topology import (
    data_ring,
    expert_data_ring,
    expert_exchange,
    fewest_together,
    pipeline_links,
)
from pipesim.scenario.hardware import Cluster
from pipesim.scenario.resolved import Efficiency, Parallel, ResolvedScenario


def common_provenance(
    scenario: ResolvedScenario, cluster: Cluster, efficiency: Efficiency, counts: Sequence[int]
) -> dict[str, str]:
    """Name sources by subject, and how devices are laid out; `counts` are the layers of each stage."""
    accelerator, parallel = cluster.accelerator, scenario.parallel
    words = {
        "accelerator": f"{accelerator.name} ({accelerator.source}, {accelerator.date})",
        "efficiency": f"{efficiency.name} ({efficiency.source})"
        + (
            ""
            if not scenario.borrowed_for
            else f"; borrowed, not fitted to runs on {', '.join(scenario.borrowed_for)}"
        ),
        "layers per stage": runs(counts),
        "pipeline links": _pipeline_words(cluster, parallel),
        "devices in one node": _together_words(cluster, parallel),
    }
    for key, ring in (
        ("gradient synchronisation", data_ring(cluster, parallel)),
        ("gradient synchronisation of experts", expert_data_ring(cluster, parallel)),
    ):
        if ring is not None and (key == "gradient synchronisation" or parallel.experts_apart):
            words[key] = _ring_words(scenario, ring)
    if parallel.local_steps > 1:
        num_groups = parallel.data // (parallel.data_shard or parallel.data)
        words["local steps"] = (
            f"{num_groups} groups of replicas average their changes every {parallel.local_steps} steps, of "
            "which each step has its share; what that costs in convergence, and the outer optimizer's state, "
            "are not counted (arXiv 2311.08105)"
        )
    return words


def _ring_words(scenario: ResolvedScenario, ring: Ring) -> str:
    collective = {
        "plain": "ring all-reduce",
        "sharded": "ring reduce-scatter and all-gather",
        "zero2": "ring reduce-scatter in every backward, all-gather at the end,",
        "zero3": "ring all-gather in every forward and backward, reduce-scatter in every backward,",
        "fsdp": "ring all-gather before a stage's first forward"
        + (" and whenever a rank comes back to it" if scenario.parallel.reshard_after_forward else "")
        + ", reduce-scatter in its last backward,",
    }[scenario.sharding]
    words = f"{collective} over {ring.num_members} replicas at {float(ring.bytes_per_s) / 1e9:g} GB/s"
    if scenario.parallel.data_shard is not None and scenario.parallel.local_steps == 1:
        num_groups = scenario.parallel.data // scenario.parallel.data_shard
        words += f", then all-reduce of shards over {num_groups} groups"
    return words


def _pipeline_words(cluster: Cluster, parallel: Parallel) -> str:
    links = pipeline_links(cluster, parallel)
    neighbours = range(parallel.pipeline - 1)
    num_intra = sum(links.same_node(rank, rank + 1) for rank in neighbours)
    return (
        f"{num_intra} of {len(neighbours)} neighbours share a node ({cluster.intra_node.name}), "
        f"the others use {cluster.inter_node.name}; devices numbered {'-'.join(parallel.rank_order)}"
    )


def _together_words(cluster: Cluster, parallel: Parallel) -> str:
    groups = [
        (name, size, fewest_together(cluster, parallel, axes))
        for name, size, axes in (
            ("tensor", parallel.tensor, ("tp",)),
            ("context", parallel.context, ("cp",)),
            ("data", parallel.num_replicas, ("cp", "dp")),
        )
    ]
    exchange = expert_exchange(cluster, parallel)
    if exchange is not None:
        groups.append(("expert", exchange.num_members, exchange.num_together))
    return ", ".join(f"{name} {together} of {size}" for name, size, together in groups if size > 1) or "1"


def runs(counts: Sequence[int]) -> str:
    """Write equal neighbours once: ``3 x 12, 11``."""
    runs: list[list[Any]] = []
    for count in counts:
        if runs and runs[-1][1] == count:
            runs[-1][0] += 1
        else:
            runs.append([1, count])
    return ", ".join(f"{times} x {count}" if times > 1 else str(count) for times, count in runs)
