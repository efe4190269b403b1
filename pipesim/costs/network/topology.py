"""Which devices share a node, and what their rings and links then reach.

Devices are numbered along the axes of the rank order (Megatron-LM's default: tensor fastest, then context,
data, pipeline), node after node, and each has a port of its own inside its node; network cards may be fewer.
Layers with experts are laid out anew: an expert-parallel group takes its place in the order among the devices
that are data- and context-parallel replicas for other layers.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace
from itertools import groupby, pairwise, product

import numpy as np

from pipesim.costs.network.alpha_beta import Algorithm, LinkCost, Number, PointToPoint, Ring
from pipesim.costs.network.collective_rates import BASE_LATENCY_S, Group
from pipesim.costs.network.exchange import Exchange
from pipesim.costs.network.traffic import Fabric
from pipesim.costs.network.wiring import Wiring
from pipesim.errors import ScenarioError
from pipesim.scenario.hardware import Accelerator, Cluster, Link
from pipesim.scenario.resolved import Parallel

_TENSOR_COLLECTIVE_LATENCY_S = 30e-6
"""All latency of one tensor-parallel collective, launch included; fixed in the model that the presets fit."""
_EXCHANGE_SHARE_INTRA, _EXCHANGE_SHARE_INTER = 0.74, 0.83
"""Of a link's ring bandwidth in an all-to-all: .597 of .802 (SimuMax's fit on 8 B200 and NVLink 5), and the
mean of SimAI's table at 256 MiB over 2 to 16 nodes (.79, .92, .87, .75)."""

_SHARE_OF_ONE_COPY_INTRA, _ONE_COPY_LATENCY_S = 0.8, 20e-6
"""Of a port's nominal rate, and of one exchange with one copy a device: DeepEP measures 153 to 158 GB/s over
NVLink of 160 and 43 to 58 over a card of 50 (github.com/deepseek-ai/DeepEP, README)."""


def members_per_node(cluster: Cluster, *, num_members: int, stride: int) -> int:
    """How many devices of a group share a node, in the node where they are fewest.

    Parameters
    ----------
    num_members, stride : int
        The group has every `stride`-th device of a block of ``num_members * stride``; blocks lie end to end.
    """
    return max(1, math.gcd(num_members * stride, cluster.gpus_per_node) // stride)


def axis_sizes(parallel: Parallel, *, of_experts: bool = False) -> list[tuple[str, int]]:
    """Axes and their sizes, the fastest first, as layers without experts or as experts are laid out."""
    if of_experts:
        sizes = {
            "tp": parallel.expert_tensor or parallel.tensor,
            "ep": parallel.expert,
            "dp": parallel.num_expert_sharing,
            "pp": parallel.pipeline,
        }
    else:
        sizes = {
            "tp": parallel.tensor,
            "cp": parallel.context,
            "dp": parallel.data_shard or parallel.data,
            "pp": parallel.pipeline,
        }
    ordered = [(axis, sizes[axis]) for axis in parallel.rank_order if axis in sizes]
    if parallel.data_shard is None:
        return ordered
    # Replicas that share out are neighbours, groups of them follow each other.
    groups = [("dr", parallel.num_groups)]
    return [pair for axis, size in ordered for pair in [(axis, size), *(groups if axis == "dp" else ())]]


def fewest_together(
    cluster: Cluster, parallel: Parallel, axes: Collection[str], *, of_experts: bool = False
) -> int:
    """How many devices of a group that spans `axes` share a node, in the node where they are fewest."""
    together, stride = 1, 1
    # An axis of one device does not part the axes around it.
    sizes = [(axis, size) for axis, size in axis_sizes(parallel, of_experts=of_experts) if size > 1]
    for member, run in groupby(sizes, lambda pair: pair[0] in axes):
        size = math.prod(count for _, count in run)
        if member:
            together *= members_per_node(cluster, num_members=size, stride=stride)
        stride *= size
    return together


def tensor_ring(cluster: Cluster, parallel: Parallel, *, intra_node_factor: float) -> Ring | None:
    """Ring of one tensor-parallel group; None when it has one member."""
    together = fewest_together(cluster, parallel, ("tp",))
    return _ring_of_tensor(cluster, parallel.tensor, together, intra_node_factor)


def expert_tensor_ring(cluster: Cluster, parallel: Parallel, *, intra_node_factor: float) -> Ring | None:
    """Ring of the devices that share every expert's matrices; None where there is one."""
    together = fewest_together(cluster, parallel, ("tp",), of_experts=True)
    size = parallel.expert_tensor or parallel.tensor
    return _ring_of_tensor(cluster, size, together, intra_node_factor)


def _ring_of_tensor(cluster: Cluster, size: int, together: int, intra_node_factor: float) -> Ring | None:
    if size == 1:
        return None
    bandwidth = _port_bytes_per_s(cluster, together) * intra_node_factor
    if together < size:
        bandwidth = min(bandwidth, _card_bytes_per_s(cluster) * together)
    return Ring(size, bandwidth, step_latency_s=0.0, base_latency_s=_TENSOR_COLLECTIVE_LATENCY_S)


def _port_bytes_per_s(cluster: Cluster, together: int) -> float:
    """Rate of one device to its partners in the node: wired pair by pair, only over the pairs it has."""
    if not cluster.paired or cluster.gpus_per_node == 1:
        return cluster.intra_node.bytes_per_s
    return cluster.intra_node.bytes_per_s * max(1, together - 1) / (cluster.gpus_per_node - 1)


def _card_bytes_per_s(cluster: Cluster) -> float:
    """Rate of one device to other nodes while all its neighbours send too."""
    return cluster.inter_node.bytes_per_s * (cluster.nics_per_node / cluster.gpus_per_node)


def context_link(cluster: Cluster, parallel: Parallel) -> LinkCost | None:
    """Slowest link along the ring of one context-parallel group; None when it has one member."""
    if parallel.context == 1:
        return None
    together = fewest_together(cluster, parallel, ("cp",))
    if together == parallel.context:
        return LinkCost(cluster.intra_node.p2p_latency_s, _port_bytes_per_s(cluster, 2))
    return LinkCost(cluster.inter_node.p2p_latency_s, _card_bytes_per_s(cluster))


def context_group(cluster: Cluster, parallel: Parallel) -> Exchange | None:
    """Devices that exchange heads for positions of their sequence; None where none do."""
    if parallel.context == 1 or parallel.context_exchange not in ("ulysses", "hierarchical"):
        return None
    size = parallel.context_inner or parallel.context
    together = min(size, fewest_together(cluster, parallel, ("cp",)))
    return Exchange(
        num_members=size,
        num_together=together,
        intra_bytes_per_s=_port_bytes_per_s(cluster, together) * _EXCHANGE_SHARE_INTRA,
        inter_bytes_per_s=_card_bytes_per_s(cluster) * _EXCHANGE_SHARE_INTER,
        latency_s=_TENSOR_COLLECTIVE_LATENCY_S,
    )


def expert_exchange(cluster: Cluster, parallel: Parallel) -> Exchange | None:
    """Exchange of tokens in one expert-parallel group; None when it has one member."""
    if parallel.expert == 1:
        return None
    together = fewest_together(cluster, parallel, ("ep",), of_experts=True)
    card_bytes_per_s = _card_bytes_per_s(cluster)
    if not cluster.plain and together < parallel.expert:
        card_bytes_per_s = min(card_bytes_per_s, _exchange_bytes_per_s(cluster, parallel))
    if parallel.expert_dispatch != "alltoall":
        return Exchange(
            num_members=parallel.expert,
            num_together=together,
            intra_bytes_per_s=_SHARE_OF_ONE_COPY_INTRA * cluster.intra_node.nominal_bytes_per_s,
            inter_bytes_per_s=card_bytes_per_s,
            latency_s=_ONE_COPY_LATENCY_S,
            one_copy=True,
            hidden=parallel.expert_overlap,
        )
    return Exchange(
        num_members=parallel.expert,
        num_together=together,
        intra_bytes_per_s=_port_bytes_per_s(cluster, together) * _EXCHANGE_SHARE_INTRA,
        inter_bytes_per_s=card_bytes_per_s * _EXCHANGE_SHARE_INTER,
        latency_s=_TENSOR_COLLECTIVE_LATENCY_S,
        hidden=parallel.expert_overlap,
    )


def _exchange_bytes_per_s(cluster: Cluster, parallel: Parallel) -> float:
    """Rate at which a device of the slowest rank exchanges with other nodes, when its rank is alone."""
    wires = fabric(cluster, parallel).with_fewest_replicas()
    ranks = {wires.place(rank): rank for rank in range(parallel.pipeline)}.values()
    demands = [wires.exchange(rank, 0.0) for rank in ranks]
    rates = (wires.wiring.alone_bytes_per_s(demand) for demand in demands)
    return min(float(rate) for rate in rates if rate is not None)


def same_devices(cluster: Cluster, before: Parallel, after: Parallel) -> Cluster:
    """Say which ranks of another cut have the accelerators that ranks have now; devices stay where they are.

    Raises
    ------
    ScenarioError
        If a rank of the other cut would have devices of two kinds.
    """
    if not cluster.other_accelerators:
        return cluster
    of_device: dict[int, Accelerator] = {}
    num_ranks = cluster.num_numbered_ranks or before.pipeline
    each = cluster.num_gpus // num_ranks
    for rank, accelerator in enumerate(cluster.accelerators(num_ranks)):
        # Of a cut that is left open, a rank's devices are taken to lie side by side.
        block = range(rank * each, (rank + 1) * each)
        of_rank = block if cluster.num_numbered_ranks else fabric(cluster, before).devices(rank)
        of_device |= dict.fromkeys(of_rank, accelerator)
    others = {}
    for rank in range(after.pipeline):
        devices = [of_device[device] for device in fabric(cluster, after).devices(rank)]
        kinds = {device.name: device for device in devices}
        if len(kinds) > 1:
            raise ScenarioError(
                f"rank {rank} of {after.pipeline} would have {' and '.join(kinds)}; one kind is needed",
                key="cluster.other_accelerators",
            )
        (accelerator,) = kinds.values()
        if accelerator.name != cluster.accelerator.name:
            others[rank] = accelerator
    return replace(cluster, other_accelerators=others, num_numbered_ranks=0)


def fabric(cluster: Cluster, parallel: Parallel) -> Fabric:
    """Wires of the cluster, and the devices of each pipeline rank on them."""
    return Fabric(
        wiring=Wiring(
            gpus_per_node=cluster.gpus_per_node,
            port_bytes_per_s=cluster.intra_node.bytes_per_s,
            port_latency_s=cluster.intra_node.p2p_latency_s,
            nic_bytes_per_s=cluster.inter_node.bytes_per_s,
            nic_latency_s=cluster.inter_node.p2p_latency_s,
            nics_per_node=cluster.nics_per_node,
            paired=cluster.paired,
            nodes_per_switch=cluster.nodes_per_switch if cluster.blocks else None,
            oversubscription=cluster.oversubscription,
            rails=cluster.rails,
            degraded=cluster.degraded_nodes,
            site_of_node=cluster.site_of_node,
            site_bytes_per_s={pair: link.bytes_per_s for pair, link in cluster.site_links.items()},
            site_latency_s={pair: link.latency_s for pair, link in cluster.site_links.items()},
        ),
        axes=tuple(axis_sizes(parallel)),
        expert_axes=tuple(axis_sizes(parallel, of_experts=True)),
    )


def across_ring(cluster: Cluster, parallel: Parallel, algorithm: Algorithm | None = None) -> Ring | None:
    """Ring of groups of replicas of which each shares out all there is; None where there is one group."""
    if parallel.data_shard is None:
        return None
    together = fewest_together(cluster, parallel, ("dr",))
    return _replica_ring(cluster, parallel, parallel.num_groups, together, algorithm, across=True)


def data_ring(cluster: Cluster, parallel: Parallel, algorithm: Algorithm | None = None) -> Ring | None:
    """Ring of the data- and context-parallel replicas that share out a stage; None without replicas.

    Groups side by side use all cards of a node together, so one that has k members in a node is as fast as k
    ports where each device has a card.
    """
    together = fewest_together(cluster, parallel, ("cp", "dp"))
    return _replica_ring(cluster, parallel, parallel.num_sharing, together, algorithm)


def expert_data_ring(cluster: Cluster, parallel: Parallel, algorithm: Algorithm | None = None) -> Ring | None:
    """Ring of the devices that hold the same experts; None when there is one of each."""
    together = fewest_together(cluster, parallel, ("dp",), of_experts=True)
    num_members = parallel.num_expert_sharing
    return _replica_ring(cluster, parallel, num_members, together, algorithm, of_experts=True)


def _replica_ring(
    cluster: Cluster,
    parallel: Parallel,
    num_members: int,
    together: int,
    algorithm: Algorithm | None,
    *,
    of_experts: bool = False,
    across: bool = False,
) -> Ring | None:
    if num_members == 1:
        return None
    intra, inter = cluster.intra_node, cluster.inter_node
    intra_bytes_per_s, inter_bytes_per_s = intra.bytes_per_s, inter.bytes_per_s * together
    if not cluster.plain:
        intra_bytes_per_s, inter_bytes_per_s = _shared_rates(
            cluster, parallel, of_experts=of_experts, across=across
        )
    group = Group(
        num_members=num_members,
        num_nodes=math.ceil(num_members / together),
        intra_bytes_per_s=intra_bytes_per_s,
        inter_bytes_per_s=inter_bytes_per_s,
        intra_hop_s=intra.hop_latency_s,
        inter_hop_s=inter.hop_latency_s,
        intra_ramp_s=intra.ramp_s,
        inter_ramp_s=inter.ramp_s,
        switches=intra.switches,
        far_s=_far_s(cluster, parallel, of_experts=of_experts, across=across),
    )
    return group.ring(algorithm)


def _far_s(cluster: Cluster, parallel: Parallel, *, of_experts: bool, across: bool) -> float:
    """Find what a pass over the devices of a ring takes longer for hops to other data centres, at most."""
    if not cluster.site_links:
        return 0.0
    wires, most = fabric(cluster, parallel), 0.0
    sites = np.array(cluster.site_of_node)
    for rank in range(parallel.pipeline):
        groups = wires.groups(rank, of_experts=of_experts, across=across) // cluster.gpus_per_node
        for visited in np.unique(sites[groups], axis=0):
            hops = pairwise(dict.fromkeys(visited.tolist()))
            links = [cluster.site_links[min(hop), max(hop)].latency_s for hop in hops]
            most = max(most, sum(links) - len(links) * cluster.inter_node.hop_latency_s)
    return most


def _shared_rates(
    cluster: Cluster, parallel: Parallel, *, of_experts: bool, across: bool
) -> tuple[float, float]:
    """Find what the slowest rank's rings reach inside nodes and between them, when they run alone."""
    wires = fabric(cluster, parallel).with_fewest_replicas()
    ranks = {wires.place(rank): rank for rank in range(parallel.pipeline)}.values()
    demands = [wires.reduction(rank, of_experts=of_experts, across=across) for rank in ranks]

    loads = {load for demand in demands for load in demand.loads.items()}

    def slowest(inside: bool) -> float:
        chosen = (load for load in loads if load[0][0].startswith(("port", "pair")) == inside)
        rate = wires.wiring.slowest(chosen)
        return math.inf if rate is None else float(rate)

    return slowest(True), slowest(False)


def tied_embedding_ring(cluster: Cluster, parallel: Parallel) -> Ring | None:
    """Ring of the first and the last pipeline rank, which both hold a tied embedding; None of one rank.

    As fast as the replicas' rings are that run side by side.
    """
    if parallel.pipeline == 1:
        return None
    links, last = pipeline_links(cluster, parallel), parallel.pipeline - 1
    kind = cluster.intra_node if links.same_node(0, last) else cluster.inter_node
    wires = fabric(cluster, parallel).with_fewest_replicas()
    bytes_per_s = wires.wiring.alone_bytes_per_s(wires.between_ranks(0, last)) or kind.bytes_per_s
    far = {(src, dst): float(latency_s) for src, dst, latency_s in links.pair_latencies}
    hop_s = max(far.get((0, last), 0.0), kind.hop_latency_s)
    return Ring(2, float(bytes_per_s), hop_s, BASE_LATENCY_S)


def pipeline_links(cluster: Cluster, parallel: Parallel) -> PointToPoint:
    """Links between pipeline ranks."""
    sizes = axis_sizes(parallel)
    place = next(index for index, (axis, _) in enumerate(sizes) if axis == "pp")
    links = PointToPoint(
        intra=_link_cost(cluster.intra_node),
        inter=_link_cost(cluster.inter_node),
        gpus_per_rank=math.prod(size for _, size in sizes[:place]),
        gpus_per_node=cluster.gpus_per_node,
        num_blocks=math.prod(size for _, size in sizes[place + 1 :]),
        num_ranks=parallel.pipeline,
    )
    return links if cluster.plain else _with_shared_wires(links, fabric(cluster, parallel), parallel.pipeline)


def _with_shared_wires(links: PointToPoint, wires: Fabric, num_ranks: int) -> PointToPoint:
    """Bound links by what the shards of a rank reach together, and each kind by its slowest neighbours."""
    rates: dict[bool, dict[tuple[int, int], float]] = {True: {}, False: {}}
    alike: dict[tuple[int, int, int], tuple[Number | None, bool]] = {}
    apart_in_sites = bool(wires.wiring.site_of_node)
    replicas = range(wires.num_replicas if wires.wiring.degraded or apart_in_sites else 1)
    latencies: dict[tuple[int, int], Number] = {}
    for src in range(num_ranks):
        neighbours = range(num_ranks) if apart_in_sites else ((src + 1) % num_ranks, (src - 1) % num_ranks)
        for dst, replica in product(sorted({*neighbours} - {src}), replicas):
            kind = wires.place(src), dst - src, replica
            if kind not in alike:
                message = wires.message(src, dst, replica)
                if any(what == "site" for what, *_ in message.loads):
                    latencies[src, dst] = max(message.latency_s, latencies.get((src, dst), 0))
                leaves_node = any(what.startswith("card") for what, *_ in message.loads)
                alike[kind] = wires.wiring.alone_bytes_per_s(message), leaves_node
            rate, leaves_node = alike[kind]
            # A replica that stays in its node says nothing of others that leave theirs.
            if rate is not None and leaves_node != links.same_node(src, dst):
                of_kind = rates[not leaves_node]
                of_kind[src, dst] = min(float(rate), of_kind.get((src, dst), math.inf))
    intra = replace(links.intra, bytes_per_s=min(rates[True].values(), default=links.intra.bytes_per_s))
    inter = replace(links.inter, bytes_per_s=min(rates[False].values(), default=links.inter.bytes_per_s))
    apart = [
        (*pair, rate)
        for link, of_kind in ((intra, rates[True]), (inter, rates[False]))
        for pair, rate in of_kind.items()
        if rate != link.bytes_per_s
    ]
    far = tuple((*pair, latency_s) for pair, latency_s in latencies.items())
    return replace(links, intra=intra, inter=inter, pair_rates=tuple(apart), pair_latencies=far)


def _link_cost(link: Link) -> LinkCost:
    return LinkCost(link.p2p_latency_s, link.bytes_per_s)
