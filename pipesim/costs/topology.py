"""Which devices share a node, and what their rings and links then reach.

Devices are numbered tensor fastest, then data, then pipeline (Megatron-LM's default order), node after node,
and each has a port of its own on both networks.
"""

from __future__ import annotations

import math

from pipesim.costs.network import LinkCost, PointToPoint, Ring
from pipesim.scenario.resolved import Cluster, Link, Parallel

_RING_BASE_LATENCY_S = 8.4e-6
"""NCCL's constant for a ring with the Simple protocol (src/graph/tuning.cc)."""
_TENSOR_COLLECTIVE_LATENCY_S = 30e-6
"""All latency of one tensor-parallel collective, launch included; fixed in the model that the presets fit."""


def members_per_node(cluster: Cluster, *, num_members: int, stride: int) -> int:
    """How many devices of a group share a node, in the node where they are fewest.

    Parameters
    ----------
    num_members, stride : int
        The group has every `stride`-th device of a block of ``num_members * stride``; blocks lie end to end.
    """
    return max(1, math.gcd(num_members * stride, cluster.gpus_per_node) // stride)


def tensor_ring(cluster: Cluster, parallel: Parallel, *, intra_node_factor: float) -> Ring | None:
    """Ring of one tensor-parallel group; None when it has one member."""
    if parallel.tensor == 1:
        return None
    together = members_per_node(cluster, num_members=parallel.tensor, stride=1)
    bandwidth = cluster.intra_node.bytes_per_s * intra_node_factor
    if together < parallel.tensor:
        bandwidth = min(bandwidth, cluster.inter_node.bytes_per_s * together)
    return Ring(parallel.tensor, bandwidth, step_latency_s=0.0, base_latency_s=_TENSOR_COLLECTIVE_LATENCY_S)


def data_ring(cluster: Cluster, parallel: Parallel) -> Ring | None:
    """Ring of the data-parallel replicas of one shard of a stage; None without replicas.

    Groups side by side use all ports of a node together, so one that has k members in a node is as fast as k
    ports. A step's latency is the mean over the ring's hops inside and between nodes.
    """
    if parallel.data == 1:
        return None
    together = members_per_node(cluster, num_members=parallel.data, stride=parallel.tensor)
    num_nodes = math.ceil(parallel.data / together)
    bandwidth = cluster.intra_node.bytes_per_s
    if num_nodes > 1:
        bandwidth = min(bandwidth, cluster.inter_node.bytes_per_s * together)
    num_steps = parallel.data - 1
    num_inter = num_nodes - 1
    latency = num_inter * cluster.inter_node.hop_latency_s
    latency += (num_steps - num_inter) * cluster.intra_node.hop_latency_s
    return Ring(parallel.data, bandwidth, latency / num_steps, _RING_BASE_LATENCY_S)


def tied_embedding_ring(cluster: Cluster, parallel: Parallel) -> Ring:
    """Ring of the first and the last pipeline rank, which both hold a tied embedding."""
    shared = pipeline_links(cluster, parallel).same_node(0, parallel.pipeline - 1)
    link = cluster.intra_node if shared else cluster.inter_node
    return Ring(2, link.bytes_per_s, link.hop_latency_s, _RING_BASE_LATENCY_S)


def pipeline_links(cluster: Cluster, parallel: Parallel) -> PointToPoint:
    """Links between pipeline ranks."""

    def cost(link: Link) -> LinkCost:
        return LinkCost(link.p2p_latency_s, link.bytes_per_s)

    return PointToPoint(
        intra=cost(cluster.intra_node),
        inter=cost(cluster.inter_node),
        gpus_per_rank=parallel.tensor * parallel.data,
        gpus_per_node=cluster.gpus_per_node,
    )
