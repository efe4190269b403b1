"""Experts as they run: over tensor-parallel devices too, one copy a node and device, fp8, one rack."""

from itertools import combinations
from math import comb

import numpy as np
import pytest
from helpers import FEW_TERMS

from pipesim.costs import build_costs
from pipesim.costs.network.exchange import Exchange, expected_places, one_copy
from pipesim.costs.network.topology import axis_sizes, expert_data_ring, expert_exchange
from pipesim.errors import ScenarioError
from pipesim.prediction import predict
from pipesim.scenario import scenario_from_mapping
from pipesim.scenario.resolved import Experts

DEEPSEEK = {
    "model": {"preset": "deepseek-v3", "seq_length": 4096, "expert_imbalance": 1},
    "cluster": {"machine": "dgx-h100", "num_nodes": 256},
    "parallel": {"pipeline": 16, "expert": 64, "expert_dispatch": "deepep", "expert_overlap": 0},
    "batch": {"global": 15360},
    "precision": {"compute": "fp8"},
    "optimizer": "sharded",
}


def scenario(*overrides, mapping=DEEPSEEK):
    return scenario_from_mapping(mapping, overrides=overrides)


def test_exactly_four_nodes_of_eight_by_hand():
    """4096 tokens of 7168 values to four nodes, 7/8 leaves the node, over 48.5 GB/s: 2.18 and 4.24 ms."""
    group = Exchange(64, 8, intra_bytes_per_s=1e15, inter_bytes_per_s=48.5e9, latency_s=20e-6, one_copy=True)
    dispatch, combine = (one_copy(4096 * 7168 * nbytes, 4, 8, group).seconds(group) for nbytes in (1.03, 2))
    assert dispatch == pytest.approx(2.18e-3 + 20e-6, rel=0.003)
    assert combine == pytest.approx(4.24e-3 + 20e-6, rel=0.003)


def test_deepseek_v3_sends_a_token_to_fewer_than_four_nodes():
    """Eight experts of 128 on four nodes leave a node out in 9 % of the cases: 3.63 nodes in the mean."""
    asked = scenario()
    group = expert_exchange(asked.cluster, asked.parallel)
    assert (group.num_members, group.num_together) == (64, 8)
    assert group.inter_bytes_per_s == pytest.approx(48.5e9, rel=0.01)
    nodes = expected_places(asked.model.experts, 8)
    assert nodes == pytest.approx(4 * (1 - comb(96, 8) / comb(128, 8)))
    costs = build_costs(asked, num_chunks=1)
    values = 4096 * 7168 * nodes * 7 / 8 / group.inter_bytes_per_s
    # A stage in the middle has four layers with experts; there in fp8 with its scales, the rest in 16 bits.
    layer = values * (1 + 1 / 32) + values * 2 + 2 * 20e-6
    assert costs.forward_parts_s["expert_exchange"][5] == pytest.approx(4 * layer)
    assert costs.backward_parts_s["expert_exchange"][5] == pytest.approx(4 * (2 * 2 * values + 2 * 20e-6))
    half = build_costs(scenario("parallel.expert_overlap=0.5"), num_chunks=1)
    assert half.forward_parts_s["expert_exchange"][5] == pytest.approx(2 * layer)


def drawn(experts, num_places):
    """Mean number of distinct places over every choice of groups and of experts in them."""
    per_group, here = experts.num_experts // experts.num_groups, experts.num_experts / num_places
    counts = []
    for groups in combinations(range(experts.num_groups), experts.num_groups_per_tok):
        allowed = [group * per_group + at for group in groups for at in range(per_group)]
        counts += [
            len({int(expert / here) for expert in chosen})
            for chosen in combinations(allowed, experts.num_experts_per_tok)
        ]
    return float(np.mean(counts))


@pytest.mark.parametrize(
    ("num_experts", "k", "num_groups", "groups_taken", "num_places"),
    [
        (8, 2, 1, 1, 4),
        (8, 2, 1, 1, 8),
        (8, 3, 4, 2, 2),
        (8, 3, 4, 2, 4),
        (8, 3, 4, 2, 8),
        (12, 4, 6, 3, 2),
        (12, 4, 6, 3, 3),
        (12, 4, 6, 3, 6),
        (12, 4, 6, 3, 12),
        (8, 2, 4, 1, 1),
    ],
)
def test_distinct_places_against_every_choice(num_experts, k, num_groups, groups_taken, num_places):
    experts = Experts(num_experts, k, 1, 0, (True,), 1.0, num_groups, groups_taken)
    assert expected_places(experts, num_places) == pytest.approx(drawn(experts, num_places))


def test_copies_for_every_expert_take_longer():
    one, each = (
        build_costs(scenario(f"parallel.expert_dispatch={kind}"), num_chunks=1).forward_parts_s[
            "expert_exchange"
        ][5]
        for kind in ("deepep", "alltoall")
    )
    assert each > 1.39 * one
    narrow, wide = (
        build_costs(scenario(f"precision.dispatch_format={kind}"), num_chunks=1) for kind in ("fp8", "16-bit")
    )
    shorter = wide.forward_parts_s["expert_exchange"] - narrow.forward_parts_s["expert_exchange"]
    assert shorter[5] > 0
    assert (narrow.backward_parts_s["expert_exchange"] == wide.backward_parts_s["expert_exchange"]).all()


def test_experts_inside_one_rack_stay_on_nvlink():
    """64 devices of a node of NVLink 5: 8 experts of 256 on 7.13 devices, each gets a copy over 720 GB/s."""
    rack = {"machine": "gb200-nvl72", "num_nodes": 4, "gpus_per_node": 64, "nics_per_node": 64}
    asked = scenario(
        "parallel.pipeline=4", mapping=DEEPSEEK | {"cluster": rack, "batch": {"microbatches": 16}}
    )
    group = expert_exchange(asked.cluster, asked.parallel)
    assert group.num_together == 64
    devices = expected_places(asked.model.experts, 64)
    costs = build_costs(asked, num_chunks=1)
    values = 4096 * 7168 * devices * 63 / 64 / (0.8 * asked.cluster.intra_node.nominal_bytes_per_s)
    layers = 15
    assert costs.forward_parts_s["expert_exchange"][1] == pytest.approx(
        layers * (values * (3 + 1 / 32) + 2 * 20e-6)
    )


QWEN = {
    "model": "qwen3-235b-a22b",
    "cluster": {"machine": "dgx-h100", "num_nodes": 32},
    "parallel": {"pipeline": 8, "tensor": 2, "expert": 32, "virtual_stages": 4, "sequence_parallel": True},
    "batch": {"global": 2048, "micro": 1},
    "schedule": "interleaved-1f1b",
    "layers": [2, *[3] * 30, 2],
    "optimizer": "sharded",
    "recompute": "selective",
    "recompute_modules": ["moe_act", "layernorm"],
    "precision": {"gradient_bytes": 4},
}


def test_qwen3_235b_on_256_h100_loads_and_fits():
    """NVIDIA's recipe: tensor 2, pipeline 8 of 4 chunks, experts over 32 devices, of 80 GB each."""
    asked = scenario(mapping=QWEN)
    parallel = asked.parallel
    assert (parallel.data, parallel.expert_tensor) == (16, 1)
    assert "spread over tensor 2 too" in asked.echo["parallel.expert_tensor"]
    assert (parallel.num_expert_shards, parallel.num_expert_replicas) == (32, 1)
    assert axis_sizes(parallel, of_experts=True) == [("tp", 1), ("ep", 32), ("dp", 1), ("pp", 8)]
    assert expert_data_ring(asked.cluster, parallel) is None
    result = predict(asked)
    assert result.metrics.fits_memory
    stated = scenario("parallel.expert_tensor=1", mapping=QWEN)
    assert predict(stated).metrics.step_time_s == result.metrics.step_time_s


def test_experts_over_tensor_devices_are_whole_and_not_gathered():
    """The same weights and products a device; rows are not gathered and scattered over the tensor group."""
    over, cut = (
        build_costs(
            scenario(
                f"parallel.expert={e}",
                f"parallel.expert_tensor={t}",
                mapping=QWEN | {"efficiency": FEW_TERMS},
            ),
            num_chunks=4,
        )
        for e, t in ((32, 1), (16, 2))
    )
    assert over.weight_bytes == pytest.approx(cut.weight_bytes)
    assert over.activation_bytes == pytest.approx(cut.activation_bytes)
    assert over.forward_parts_s["gemm"] == pytest.approx(cut.forward_parts_s["gemm"])
    # Of the layer's two gathers and scatters one is left, attention's, with a microbatch's own rows.
    less = over.forward_parts_s["tensor_collective"][5] / cut.forward_parts_s["tensor_collective"][5]
    assert less < 0.25


def test_deepseek_v3_on_2048_h800_fits():
    """arXiv 2412.19437, section 3: 16 pipeline ranks in both directions, experts over 64, nothing cut.

    Norms, up-projections and activation functions are recomputed; moments have 16 bits, weights, inputs of
    products and of activation functions 8.
    """
    asked = scenario(
        "schedule=dualpipe",
        "cluster.accelerator=h800-sxm",
        "cluster.intra_node=nvlink4-h800",
        "recompute=selective",
        "recompute_modules=[layernorm, mla_up_proj, moe_act]",
        "precision={compute: fp8, weight_bytes: 1, optimizer_bytes: 8, activation_function_format: fp8}",
        "layers=balanced",
    )
    assert (asked.parallel.data, asked.batch.num_microbatches) == (128, 120)
    metrics = predict(asked).metrics
    assert metrics.fits_memory
    assert asked.precision.dispatch_bytes == pytest.approx(1.03, abs=0.002)


@pytest.mark.parametrize(
    ("machine", "nodes", "devices", "pipeline", "chunks", "expert"),
    [("gb200-nvl72", 4, 64, 4, 4, 64), ("hgx-b200", 32, 8, 16, 1, 8)],
)
def test_deepseek_v3_on_256_blackwell_fits(machine, nodes, devices, pipeline, chunks, expert):
    """Layouts of Megatron-Bridge's performance summary, MXFP8: they ran, in racks of 64 and nodes of 8."""
    mapping = {
        "model": "deepseek-v3",
        "cluster": {
            "machine": machine,
            "num_nodes": nodes,
            "gpus_per_node": devices,
            "nics_per_node": devices,
        },
        "parallel": {
            "pipeline": pipeline,
            "virtual_stages": chunks,
            "expert": expert,
            "expert_dispatch": "hybridep",
        },
        "batch": {"global": 4096},
        "schedule": "interleaved-1f1b" if chunks > 1 else "1f1b",
        "precision": {"compute": "fp8", "activation_format": "mxfp8", "optimizer_bytes": 8},
        "optimizer": "sharded",
        "recompute": "selective",
        "recompute_modules": ["mla_up_proj", "moe_act"],
        "layers": "balanced",
    }
    assert predict(scenario_from_mapping(mapping)).metrics.fits_memory


@pytest.mark.parametrize(
    ("overrides", "key", "words"),
    [
        (
            ("parallel.expert_tensor=4",),
            "parallel.expert",
            "32 x expert_tensor 4 = 128 does not divide tensor 2 x data 16",
        ),
        (("parallel.expert_dispatch=nccl",), "parallel.expert_dispatch", "alltoall"),
        (("parallel.expert_overlap=1.5",), "parallel.expert_overlap", "1.5"),
        (("model.n_group=7",), "model.n_group", "7 does not divide the 128 experts"),
        (("model.n_group=8", "model.topk_group=9"), "model.topk_group", "9 groups a token, but there are 8"),
        (
            ("model.n_group=64", "model.topk_group=2"),
            "model.topk_group",
            "2 groups have fewer than 8 experts",
        ),
    ],
)
def test_bad_input(overrides, key, words):
    with pytest.raises(ScenarioError, match=words) as caught:
        scenario(*overrides, mapping=QWEN)
    assert caught.value.key == key
