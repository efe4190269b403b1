"""Links, rings, and which devices share a node."""

from collections import Counter
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim.costs.network.alpha_beta import (
    LinkCost,
    PointToPoint,
    Ring,
    all_gather_s,
    all_reduce_s,
    reduce_scatter_s,
)
from pipesim.costs.network.topology import (
    data_ring,
    members_per_node,
    pipeline_links,
    tensor_ring,
    tied_embedding_ring,
)
from pipesim.scenario import scenario_from_mapping
from pipesim.scenario.hardware import Accelerator, Cluster, Link
from pipesim.scenario.resolved import Parallel
from pipesim.scenario.schema_cluster import PeakKeys

NVLINK = Link(name="nvlink3", bandwidth="300 GB/s", efficiency=0.8, p2p_latency=10e-6, hop_latency=3.4e-6)
INFINIBAND = Link(name="ib-hdr", bandwidth="25 GB/s", efficiency=0.94, p2p_latency=20e-6, hop_latency=14e-6)
ACCELERATOR = Accelerator(
    name="a100", peak=PeakKeys(bf16="312 TFLOP/s"), memory="80 GB", memory_bandwidth="2039 GB/s"
)


def cluster(gpus_per_node=8, num_nodes=16):
    return Cluster(ACCELERATOR, num_nodes, gpus_per_node, NVLINK, INFINIBAND)


def parallel(pipeline=1, tensor=1, data=1):
    return Parallel(pipeline, tensor, data, 1, False, None)


def test_message_alone_takes_latency_and_bytes_over_bandwidth():
    assert LinkCost(Fraction(1, 10), Fraction(3)).transfer_s(Fraction(2)) == Fraction(1, 10) + Fraction(2, 3)


def test_ring_formulas_are_exact():
    ring = Ring(8, Fraction(100), Fraction(1, 1000), Fraction(1, 50))
    nbytes = Fraction(1000)
    assert all_reduce_s(nbytes, ring) == Fraction(1, 50) + 14 * Fraction(1, 1000) + Fraction(14, 8) * 10
    assert reduce_scatter_s(nbytes, ring) == all_gather_s(nbytes, ring)
    assert 2 * reduce_scatter_s(nbytes, ring) == all_reduce_s(nbytes, ring) + Fraction(1, 50)


def test_one_member_has_nothing_to_reduce():
    alone = Ring(1, 1.0, 1.0, 1.0)
    assert all_reduce_s(1e9, alone) == reduce_scatter_s(1e9, alone) == all_gather_s(1e9, alone) == 0


@given(
    gpus_per_rank=st.integers(1, 40),
    gpus_per_node=st.integers(1, 16),
    src=st.integers(0, 12),
    dst=st.integers(0, 12),
)
def test_ranks_share_a_node_when_all_their_devices_do(gpus_per_rank, gpus_per_node, src, dst):
    links = PointToPoint(LinkCost(1, None), LinkCost(2, None), gpus_per_rank, gpus_per_node)
    devices = range(gpus_per_rank)
    together = all(
        (src * gpus_per_rank + i) // gpus_per_node == (dst * gpus_per_rank + i) // gpus_per_node
        for i in devices
    )
    if src != dst:
        assert links.same_node(src, dst) == together
        assert links.between(src, dst) == (links.intra if together else links.inter)
    assert links.same_node(src, dst) == links.same_node(dst, src)


@given(
    num_members=st.integers(1, 24),
    stride=st.sampled_from([1, 2, 4, 8, 16]),
    gpus_per_node=st.sampled_from([1, 2, 4, 8, 16]),
)
def test_members_per_node_counts_the_poorest_node(num_members, stride, gpus_per_node):
    fewest = num_members
    for block in range(gpus_per_node):
        for offset in range(stride):
            first = block * num_members * stride + offset
            nodes = Counter((first + i * stride) // gpus_per_node for i in range(num_members))
            fewest = min(fewest, *nodes.values())
    assert members_per_node(cluster(gpus_per_node), num_members=num_members, stride=stride) == fewest


@pytest.mark.parametrize(
    ("tensor", "data", "bandwidth"),
    [
        (1, 8, 240e9),  # one node
        (1, 32, 188e9),  # eight ports of a node, below NVLink
        (4, 32, 2 * 23.5e9),
        (8, 12, 23.5e9),
        (2, 4, 240e9),
    ],
)
def test_data_parallel_ring_uses_the_ports_of_its_members(tensor, data, bandwidth):
    ring = data_ring(cluster(), parallel(4, tensor, data))
    assert (ring.num_members, ring.bytes_per_s) == (data, bandwidth)


def test_ring_latency_is_the_mean_over_its_hops():
    ring = data_ring(cluster(), parallel(1, 1, 16))
    assert 15 * ring.step_latency_s == pytest.approx(14 * 3.4e-6 + 14e-6)
    assert data_ring(cluster(), parallel(1, 8, 2)).step_latency_s == 14e-6


def test_no_ring_without_partners():
    assert data_ring(cluster(), parallel()) is None
    assert tensor_ring(cluster(), parallel(), intra_node_factor=1.0) is None


def test_tensor_ring_across_nodes_is_bound_by_the_ports():
    assert tensor_ring(cluster(), parallel(1, 8), intra_node_factor=0.5).bytes_per_s == 120e9
    assert tensor_ring(cluster(), parallel(1, 16), intra_node_factor=1.0).bytes_per_s == 8 * 23.5e9


def test_tied_embedding_crosses_nodes_when_its_ranks_do():
    assert tied_embedding_ring(cluster(), parallel(8, 1, 1)).bytes_per_s == 240e9
    assert tied_embedding_ring(cluster(), parallel(8, 8, 1)).bytes_per_s == 23.5e9


def test_pairs_of_devices_reach_what_was_measured():
    """Two and eight MI300X of a node: 47.7 and 312.9 GB/s (stas00/ml-engineering)."""
    machine = scenario_from_mapping(
        {
            "model": "llama3-8b",
            "cluster": {"machine": "mi300x-node", "num_nodes": 1},
            "parallel": {"pipeline": 1, "tensor": 8},
            "batch": {"global": 1},
        }
    ).cluster
    two, eight = (
        tensor_ring(machine, parallel(1, tensor), intra_node_factor=1.0).bytes_per_s for tensor in (2, 8)
    )
    assert two == pytest.approx(47.7e9, rel=0.07)
    assert eight == pytest.approx(312.9e9, rel=0.001)
    assert data_ring(machine, parallel(1, 1, 8)).bytes_per_s == pytest.approx(312.9e9, rel=0.001)
    assert data_ring(machine, parallel(4, 1, 2)).bytes_per_s == two


def test_devices_that_share_a_card_share_it_in_every_collective():
    shared = replace(cluster(), nics_per_node=1)
    assert tensor_ring(shared, parallel(1, 16), intra_node_factor=1.0).bytes_per_s == 23.5e9
    assert data_ring(shared, parallel(1, 8, 2)).bytes_per_s == 23.5e9 / 8
    assert data_ring(shared, parallel(1, 1, 16)).bytes_per_s == 23.5e9
    assert pipeline_links(shared, parallel(4, 8, 1)).inter.bytes_per_s == 23.5e9 / 8
    assert pipeline_links(shared, parallel(16, 1, 1)).inter.bytes_per_s == 23.5e9
