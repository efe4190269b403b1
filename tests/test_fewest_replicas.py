"""Wires of many alike replicas, worked out from a few of them, against a walk over every device."""

from collections import defaultdict
from fractions import Fraction
from itertools import pairwise
from random import Random

import pytest
from helpers import examples
from hypothesis import given
from hypothesis import strategies as st

from pipesim.costs import build_costs
from pipesim.costs.network.fabric import Demand, UnlikeReplicasError, reduce_wires
from pipesim.costs.network.traffic import Fabric, Reduction
from pipesim.costs.network.wiring import Wiring
from pipesim.scenario import scenario_from_mapping

F = Fraction
ORDERS = [
    ("tp", "cp", "ep", "dp", "pp"),
    ("tp", "cp", "ep", "pp", "dp"),
    ("tp", "pp", "cp", "ep", "dp"),
    ("tp", "dp", "cp", "ep", "pp"),
    ("dp", "tp", "cp", "ep", "pp"),
]


def random_fabric(random):
    gpus_per_node = random.choice([1, 2, 3, 4, 8])
    wiring = Wiring(
        gpus_per_node,
        F(random.randint(4, 30)),
        F(1),
        F(random.randint(1, 12)),
        F(2),
        nics_per_node=random.choice([1, gpus_per_node]),
        paired=gpus_per_node > 1 and random.random() < 0.2,
        nodes_per_switch=random.choice([None, None, 1, 2, 3]),
        oversubscription=F(random.randint(1, 3)),
        rails=random.random() < 0.3,
    )
    tensor, context, pipeline = random.choice([1, 2, 4]), random.choice([1, 1, 2, 3]), random.randint(1, 3)
    data = random.choice([2, 3, 4, 6, 8, 12, 16])
    expert = random.choice([size for size in (1, 2, 4) if data * context % size == 0])
    sizes = {"tp": tensor, "cp": context, "dp": data, "pp": pipeline}
    of_experts = {"tp": tensor, "ep": expert, "dp": data * context // expert, "pp": pipeline}
    order = random.choice([ORDERS[0], *ORDERS])
    return Fabric(
        wiring,
        tuple((axis, sizes[axis]) for axis in order if axis in sizes),
        tuple((axis, of_experts[axis]) for axis in order if axis in of_experts),
    )


def coordinates(axes, device):
    found = {}
    for axis, size in axes:
        device, found[axis] = divmod(device, size)
    return found


def groups(axes, ranks, members):
    """Devices of some ranks that differ in nothing but `members`, found by looking at each device."""
    num_devices = 1
    for _, size in axes:
        num_devices *= size
    found = defaultdict(list)
    for device in range(num_devices):
        at = coordinates(axes, device)
        if at["pp"] in ranks:
            found[tuple(at[axis] for axis, _ in axes if axis not in (*members, "pp"))].append(device)
    return list(found.values())


def hop_loads(wiring, group):
    """Loads of the wires of one ring; a ring over several nodes leaves each through its first devices."""
    by_node = defaultdict(list)
    for device in group:
        by_node[device // wiring.gpus_per_node].append(device)
    nodes = list(by_node.values())
    num_rings = min(len(members) for members in nodes) if len(nodes) > 1 else 1
    hops = []
    for number, members in enumerate(nodes):
        if wiring.paired:
            hops += [(a, b, F(1, len(members) - 1)) for a in members for b in members if a != b]
        else:
            inside = [*members, members[0]] if len(nodes) == 1 else members
            hops += [(a, b, F(1)) for a, b in pairwise(inside) if a != b]
        if len(nodes) > 1:
            following = nodes[(number + 1) % len(nodes)]
            hops += [(members[k], following[k], F(1, num_rings)) for k in range(num_rings)]
    return num_rings, hops


def every_device(fabric, routes, reductions):
    """Flows with nothing left out: each pair of devices of each replica, each hop of each ring."""
    wiring, num_replicas = fabric.wiring, fabric.num_replicas
    demands, names = {}, {}
    for replica in range(num_replicas):
        for src, dst in routes:
            loads, latency_s = defaultdict(F), F(0)
            of_rank = [
                sorted(device for group in groups(fabric.axes, [rank], ("tp", "cp", "dp")) for device in group
                       if coordinates(fabric.axes, device)["dp"] == replica)
                for rank in (src, dst)
            ]  # fmt: skip
            for one, other in zip(*of_rank, strict=True):
                latency_s = max(latency_s, wiring.latency_s(one, other))
                for wire in wiring.path(one, other):
                    loads[wire] += 1
            demands[src, dst, replica], names[src, dst, replica] = Demand(latency_s, loads), (src, dst)
    for name, asked in reductions.items():
        axes, members = (fabric.expert_axes, ("dp",)) if asked.of_experts else (fabric.axes, ("cp", "dp"))
        members = () if asked.between_ranks else members
        loads, weight = defaultdict(F), 1
        for group in groups(axes, asked.ranks, members):
            num_rings, hops = hop_loads(wiring, group)
            weight = max(weight, num_rings)
            for src, dst, share in hops:
                for wire in wiring.path(src, dst):
                    loads[wire] += share
        by_rings = min(wiring.bytes_per_s(wire) / load for wire, load in loads.items())
        factor = min(F(1), by_rings / asked.bytes_per_s)
        demands[name] = Demand(F(0), {wire: load * factor for wire, load in loads.items()}, weight)
        names[name] = name
    wires = {wire: wiring.bytes_per_s(wire) for demand in demands.values() for wire in demand.loads}
    return reduce_wires(demands, wires, alike=names)


def asked_of(random, fabric):
    sizes, of_experts = dict(fabric.axes), dict(fabric.expert_axes)
    num_ranks = sizes["pp"]
    routes = [(rank, (rank + 1) % num_ranks) for rank in range(num_ranks) if num_ranks > 1]
    reductions = {}
    for rank in range(num_ranks):
        reductions["dense", rank] = Reduction((rank,), F(random.randint(1, 20)))
        if of_experts["dp"] > 1 and random.random() < 0.5:
            reductions["experts", rank] = Reduction((rank,), F(random.randint(1, 20)), of_experts=True)
    if num_ranks > 1:
        ends = (0, num_ranks - 1)
        reductions["copies", 0] = Reduction(ends, F(random.randint(1, 20)))
        reductions["tied", 0] = Reduction(ends, F(random.randint(1, 20)), between_ranks=True)
    return routes, reductions


def check(seed):
    """Compare; whether replicas were left out."""
    random = Random(seed)
    fabric = random_fabric(random)
    routes, reductions = asked_of(random, fabric)
    small = fabric.with_fewest_replicas()
    try:
        expected, capacities = every_device(fabric, routes, reductions)
    except UnlikeReplicasError:
        with pytest.raises(UnlikeReplicasError):
            fabric.traffic(routes, reductions, one_replica_for_all=True)
        return small is not fabric
    found = fabric.traffic(routes, reductions, one_replica_for_all=True)
    assert found.bytes_per_s == capacities
    for src, dst in routes:
        assert found.messages[src, dst, 0] == expected[src, dst]
    for name, asked in reductions.items():
        flow = found.reductions[name]
        assert (flow.loads, flow.weight) == (expected[name].loads, expected[name].weight)
        assert flow.bytes_per_s == asked.bytes_per_s
    for rank in range(dict(fabric.axes)["pp"]):
        rates = [one.wiring.alone_bytes_per_s(one.reduction(rank)) for one in (fabric, small)]
        assert rates[0] == rates[1]
    return small is not fabric


@examples(60)
@given(st.integers(0, 10**9))
def test_few_replicas_show_what_a_walk_over_all_devices_does(seed):
    check(seed)


@examples(60)
@given(st.integers(0, 10**9))
def test_ranks_that_begin_alike_cross_wires_alike(seed):
    fabric = random_fabric(Random(seed))
    num_ranks, rate = dict(fabric.axes)["pp"], fabric.wiring.alone_bytes_per_s
    of_rings, of_messages = defaultdict(set), defaultdict(set)
    for src in range(num_ranks):
        of_rings[fabric.place(src)].add(rate(fabric.reduction(src)))
        for dst in set(range(num_ranks)) - {src}:
            message = fabric.message(src, dst, 0)
            of_messages[fabric.place(src), dst - src].add((rate(message), message.latency_s))
    assert {len(found) for found in [*of_rings.values(), *of_messages.values()]} == {1}


def test_many_of_them_leave_replicas_out():
    assert sum(check(seed) for seed in range(40)) >= 8


def test_two_leaves_of_replicas_are_left():
    """Four devices a replica, eight a node, three nodes a leaf: two leaves hold twelve of 384 replicas."""
    wiring = Wiring(8, F(8), F(1), F(2), F(2), nics_per_node=8, nodes_per_switch=3, oversubscription=F(2))
    axes = (("tp", 4), ("cp", 1), ("dp", 384), ("pp", 2))
    assert Fabric(wiring, axes, axes).with_fewest_replicas().num_replicas == 12
    other = (("tp", 4), ("cp", 1), ("dp", 385), ("pp", 2))
    assert Fabric(wiring, other, other).with_fewest_replicas().num_replicas == 385


@pytest.mark.parametrize("nics_per_node", [8, 1])
def test_links_and_rings_are_those_of_a_cluster_half_as_large(nics_per_node):
    def costs(data):
        return build_costs(
            scenario_from_mapping(
                {
                    "model": {"preset": "gpt3-175b", "seq_length": 2048},
                    "cluster": {"machine": "dgx-h100", "num_nodes": data, "nics_per_node": nics_per_node},
                    "parallel": {"pipeline": 2, "tensor": 4, "data": data},
                    "batch": {"global": 4 * data},
                }
            ),
            num_chunks=1,
        )

    few, many = costs(1024), costs(2048)
    assert few.gradient_ring.bytes_per_s == many.gradient_ring.bytes_per_s
    links = [(costs.point_to_point.intra, costs.point_to_point.inter) for costs in (few, many)]
    assert links[0] == links[1]
    assert few.fabric.with_fewest_replicas() == many.fabric.with_fewest_replicas()
    assert many.gradient_ring.num_members == 2 * few.gradient_ring.num_members == 2048
