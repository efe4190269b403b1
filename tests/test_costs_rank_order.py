"""How devices are numbered decides which groups share a node, checked device by device."""

from collections import Counter
from dataclasses import replace
from itertools import permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim.costs.network.alpha_beta import LinkCost, PointToPoint
from pipesim.costs.network.topology import (
    axis_sizes,
    context_link,
    data_ring,
    expert_exchange,
    fewest_together,
    pipeline_links,
    tensor_ring,
)
from pipesim.scenario.hardware import Accelerator, Cluster, Link
from pipesim.scenario.resolved import Parallel
from pipesim.scenario.schema_cluster import PeakKeys

NVLINK = Link(
    name="nvlink4", bandwidth="450 GB/s", efficiency=370 / 450, p2p_latency=10e-6, hop_latency=3.4e-6
)
INFINIBAND = Link(name="ib-ndr", bandwidth="50 GB/s", efficiency=0.97, p2p_latency=20e-6, hop_latency=14e-6)
ACCELERATOR = Accelerator(
    name="h100", peak=PeakKeys(bf16="989 TFLOP/s"), memory="80 GB", memory_bandwidth="3350 GB/s"
)
ORDERS = list(permutations(("tp", "cp", "ep", "dp", "pp")))


def cluster(gpus_per_node=8):
    return Cluster(ACCELERATOR, 16, gpus_per_node, NVLINK, INFINIBAND)


def parallel(order, *, tensor=1, context=1, data=1, pipeline=1, expert=1):
    order = order.split("-") if isinstance(order, str) else order
    return Parallel(
        pipeline, tensor, data, 1, False, None, context=context, expert=expert, rank_order=tuple(order)
    )


def devices(layout, *, of_experts=False):
    """Coordinates of every device by axis, in the order of their numbers."""
    sizes = axis_sizes(layout, of_experts=of_experts)
    axes = [axis for axis, _ in sizes]
    for place in product(*(range(size) for _, size in reversed(sizes))):
        yield dict(zip(axes, reversed(place), strict=True))


def brute_force(layout, axes, gpus_per_node, *, of_experts=False):
    members = Counter()
    for number, place in enumerate(devices(layout, of_experts=of_experts)):
        group = tuple(value for axis, value in sorted(place.items()) if axis not in axes)
        members[group, number // gpus_per_node] += 1
    return min(members.values())


powers = st.sampled_from([1, 2, 4, 8])


@given(
    order=st.sampled_from(ORDERS),
    tensor=powers,
    context=powers,
    data=powers,
    pipeline=powers,
    gpus_per_node=powers,
    axes=st.sampled_from([("tp",), ("cp",), ("dp",), ("cp", "dp"), ("tp", "cp")]),
)
def test_fewest_together_counts_every_device(order, tensor, context, data, pipeline, gpus_per_node, axes):
    layout = parallel(order, tensor=tensor, context=context, data=data, pipeline=pipeline)
    found = fewest_together(cluster(gpus_per_node), layout, axes)
    assert found == brute_force(layout, axes, gpus_per_node)


@given(
    order=st.sampled_from(ORDERS),
    tensor=powers,
    data=powers,
    expert=powers,
    pipeline=powers,
    gpus_per_node=powers,
    axes=st.sampled_from([("ep",), ("dp",)]),
)
def test_experts_are_laid_out_anew(order, tensor, data, expert, pipeline, gpus_per_node, axes):
    layout = parallel(order, tensor=tensor, data=data * expert, expert=expert, pipeline=pipeline)
    found = fewest_together(cluster(gpus_per_node), layout, axes, of_experts=True)
    assert found == brute_force(layout, axes, gpus_per_node, of_experts=True)


@given(
    gpus_per_rank=st.integers(1, 6),
    num_ranks=st.integers(1, 5),
    num_blocks=st.integers(1, 12),
    gpus_per_node=st.integers(1, 9),
)
def test_ranks_share_a_node_when_all_their_devices_do(gpus_per_rank, num_ranks, num_blocks, gpus_per_node):
    links = PointToPoint(
        LinkCost(1, None), LinkCost(2, None), gpus_per_rank, gpus_per_node, num_blocks, num_ranks
    )
    numbers = [
        [
            (block * num_ranks + rank) * gpus_per_rank + i
            for block in range(num_blocks)
            for i in range(gpus_per_rank)
        ]
        for rank in range(num_ranks)
    ]
    for src, dst in permutations(range(num_ranks), 2):
        pairs = zip(numbers[src], numbers[dst], strict=True)
        assert links.same_node(src, dst) == all(a // gpus_per_node == b // gpus_per_node for a, b in pairs)


def test_an_axis_of_one_device_parts_nothing():
    """Two context shards of three replicas fill two nodes of three, whether or not tp stands between."""
    for order in ("cp-tp-dp-pp", "tp-cp-dp-pp"):
        layout = parallel(f"ep-{order}", context=2, data=3)
        assert fewest_together(cluster(3), layout, ("cp", "dp")) == 3


def test_pairs_of_devices_that_are_alone_in_their_nodes():
    alone = replace(cluster(1), paired=True)
    assert context_link(alone, parallel("tp-cp-ep-dp-pp", context=4)).bytes_per_s == 48.5e9
    assert tensor_ring(alone, parallel("tp-cp-ep-dp-pp", tensor=4), intra_node_factor=1).bytes_per_s == 48.5e9


def test_pipeline_neighbours_before_data():
    """Order tp-pp-dp: four pipeline ranks of two devices each fill a node, replicas are in other nodes."""
    inside = parallel("tp-cp-ep-pp-dp", tensor=2, pipeline=4, data=16)
    outside = parallel("tp-cp-ep-dp-pp", tensor=2, pipeline=4, data=16)
    assert pipeline_links(cluster(), inside).same_node(0, 3)
    assert not pipeline_links(cluster(), outside).same_node(0, 1)
    assert data_ring(cluster(), inside).bytes_per_s == 48.5e9
    assert data_ring(cluster(), outside).bytes_per_s == 4 * 48.5e9


def test_context_before_or_after_tensor():
    near = parallel("tp-cp-ep-dp-pp", tensor=2, context=4, data=4)
    far = parallel("tp-dp-ep-cp-pp", tensor=2, context=4, data=4)
    assert context_link(cluster(), near).bytes_per_s == 370e9
    assert context_link(cluster(), far).bytes_per_s == 48.5e9
    assert context_link(cluster(), parallel("tp-cp-ep-dp-pp", data=8)) is None


@pytest.mark.parametrize(("tensor", "together"), [(1, 8), (2, 4), (8, 1)])
def test_experts_share_the_node_with_tensor_shards(tensor, together):
    exchange = expert_exchange(cluster(), parallel("tp-cp-ep-dp-pp", tensor=tensor, data=16, expert=8))
    assert (exchange.num_members, exchange.num_together) == (8, together)
