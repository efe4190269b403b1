"""Experts and latent attention: published counts, hand-computed times, layers of unequal cost."""

import numpy as np
import pytest

from pipesim.costs import build_costs
from pipesim.costs.network.alpha_beta import all_reduce_s
from pipesim.costs.network.exchange import Exchange, all_to_all
from pipesim.costs.network.topology import expert_data_ring, expert_exchange
from pipesim.costs.transformer.flops import layer_attention_flops, step_flops
from pipesim.costs.transformer.parameters import active_parameters, layer_parameters, model_parameters
from pipesim.scenario import scenario_from_mapping

# Rates that make every part easy to compute by hand; no part has an overhead of its own.
PLAIN = {
    "gemm": 0.5, "gemm_fp8": 0.5, "attention": 0.5, "attention_kernel": "flash", "memory": 1,
    "layer_overhead": "0 s", "tensor_collective_factor": 1, "intra_node_bandwidth_factor": 1,
    "unaligned_gemm": 1, "grouped_gemm": 0.8, "operand_traffic": False, "quantise_bytes": {},
    "sort_passes": None, "gradient_overlap": False,
}  # fmt: skip


def scenario(model, *, nodes=4, overrides=(), **parallel):
    return scenario_from_mapping(
        {
            "model": model,
            "cluster": {"accelerator": "h100-sxm", "num_nodes": nodes, "inter_node": "ib-ndr"},
            "parallel": {"pipeline": 1} | parallel,
            "batch": {"microbatches": 4},
            "efficiency": PLAIN,
        },
        overrides=overrides,
    )


def costs(model, **parallel):
    return build_costs(scenario(model, **parallel), num_chunks=1)


@pytest.mark.parametrize(
    ("name", "billions", "active"),
    [
        ("mixtral-8x7b", "46.70", "12.88"),
        ("mixtral-8x22b", "140.62", "39.15"),
        ("qwen3-30b-a3b", "30.53", "3.35"),
        ("qwen3-235b-a22b", "235.09", "22.19"),
        ("deepseek-v3", "671.03", "37.55"),
        ("qwen3-8b", "8.19", "8.19"),
        ("qwen3-32b", "32.76", "32.76"),
    ],
)
def test_published_parameter_counts(name, billions, active):
    model = scenario(name).model
    assert f"{model_parameters(model) / 1e9:.2f}" == billions
    assert f"{active_parameters(model) / 1e9:.2f}" == active


def test_deepseek_v3_counts_to_the_last_parameter():
    """The released files have 671026419200; in 58 layers 256 of them are biases that steer the router."""
    assert model_parameters(scenario("deepseek-v3").model) == 671_026_419_200 - 58 * 256


@pytest.mark.parametrize("name", ["mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v3"])
def test_flops_are_six_a_token_and_active_parameter_beside_attention(name):
    model = scenario(name).model
    tokens = 3 * model.seq_length
    attention = 3 * model.num_hidden_layers * layer_attention_flops(model, 3)
    # The embedding is looked up, and norms are no products; their parameters are about 1e-5 of the rest.
    products = active_parameters(model) - model.vocab_size * model.hidden_size
    assert step_flops(model, 3) - attention == pytest.approx(6 * tokens * products, rel=1e-4)


@pytest.mark.parametrize(("tensor", "expert"), [(1, 1), (1, 8), (2, 4), (4, 8)])
def test_devices_together_hold_every_parameter_once(tensor, expert):
    table = costs("qwen3-30b-a3b", tensor=tensor, expert=expert, pipeline=1, sequence_parallel=tensor > 1)
    held, experts = table.weight_bytes[0] / 2, 0.0
    if table.expert_share is not None:
        experts = table.expert_share[0] * held
    model = scenario("qwen3-30b-a3b").model
    layer = layer_parameters(model, with_experts=True)
    copied = 48 * layer.copied + model.hidden_size
    if expert > 1:
        assert experts * tensor * expert == pytest.approx(48 * layer.experts)
    whole = (held - experts - copied) * tensor + copied + experts * tensor * expert
    assert whole == pytest.approx(model_parameters(model))


def test_products_of_experts_by_hand():
    table = costs("mixtral-8x7b")
    tokens, rate = 4096, 0.5 * 989e12
    attention = 4096 * (4096 + 2 * 1024) + 4096 * 4096
    expert = 3 * 4096 * 14336
    layer_s = 2 * tokens * (attention + 4096 * 8) / rate + 2 * tokens * 2 * expert / (0.8 * rate)
    assert table.forward_parts_s["gemm"][0] == pytest.approx(32 * layer_s)
    assert table.backward_parts_s["gemm"][0] == pytest.approx(64 * layer_s)


def test_busiest_device_counts_only_where_experts_are_shared_out():
    def gemm(expert, imbalance):
        case = scenario("mixtral-8x7b", expert=expert, overrides=[f"model.expert_imbalance={imbalance}"])
        return build_costs(case, num_chunks=1).forward_parts_s["gemm"][0]

    assert gemm(1, 1) == gemm(1, 1.5) == pytest.approx(gemm(8, 1))
    expert_s = 32 * 2 * 4096 * 2 * 3 * 4096 * 14336 / (0.8 * 0.5 * 989e12)
    assert gemm(8, 1.5) - gemm(8, 1) == pytest.approx(0.5 * expert_s)


def test_all_to_all_alone():
    group = Exchange(8, 4, intra_bytes_per_s=100.0, inter_bytes_per_s=10.0, latency_s=1.0)
    assert all_to_all(800.0, group).seconds(group) == 1 + max(3 * 100 / 100, 4 * 100 / 10)
    within = Exchange(8, 8, intra_bytes_per_s=100.0, inter_bytes_per_s=10.0, latency_s=0.0)
    assert all_to_all(800.0, within).seconds(within) == 7


def test_dispatch_and_combine_in_forward_and_backward():
    case = scenario("mixtral-8x7b", expert=8)
    table = build_costs(case, num_chunks=1)
    nbytes = 2 * 4096 * 4096 * 2 * 1.04
    group = expert_exchange(case.cluster, case.parallel)
    one_way = all_to_all(nbytes, group).seconds(group)
    assert one_way == pytest.approx(30e-6 + nbytes * 7 / 8 / (450e9 * 0.824 * 0.74))
    for parts in (table.forward_parts_s, table.backward_parts_s):
        assert parts["expert_exchange"][0] == pytest.approx(32 * 2 * one_way)
    assert "expert_exchange" not in costs("mixtral-8x7b").forward_parts_s


def test_experts_across_nodes_are_bound_by_the_port():
    near, far = (
        costs("qwen3-30b-a3b", expert=expert).forward_parts_s["expert_exchange"][0] for expert in (8, 32)
    )
    nbytes = 2 * 4096 * 2048 * 8 * 1.04
    assert far == pytest.approx(48 * 2 * (30e-6 + nbytes * 24 / 32 / (50e9 * 0.97 * 0.83)))
    assert far > 5 * near


def test_tensor_parallel_experts_gather_every_copy_of_a_token():
    mixtral = costs("mixtral-8x7b", tensor=8, sequence_parallel=True).forward_parts_s["tensor_collective"][0]
    ring_s = 2 * 7 / 8 * 2 * 4096 * 4096 / (450e9 * 0.824)
    assert mixtral == pytest.approx(32 * (60e-6 + 3 * ring_s))


def test_replicas_of_experts_are_fewer():
    case = scenario("mixtral-8x7b", expert=8, tensor=1)
    table = build_costs(case, num_chunks=1)
    assert table.gradient_ring.num_members == 32
    assert table.expert_ring == expert_data_ring(case.cluster, case.parallel)
    assert table.expert_ring.num_members == 4
    share, gradient = table.expert_share[0], table.gradient_bytes[0]
    moved_s = all_reduce_s((1 - share) * gradient, table.gradient_ring)
    moved_s += all_reduce_s(share * gradient, table.expert_ring)
    assert table.gradient_sync_s(0) == pytest.approx(moved_s)
    assert costs("mixtral-8x7b").expert_ring is costs("mixtral-8x7b").expert_share is None


def test_first_layers_without_experts_make_a_lighter_stage():
    table = costs("deepseek-v3", pipeline=8, nodes=8, expert=8)
    case = scenario("deepseek-v3", pipeline=8, nodes=8, expert=8, overrides=["layers=balanced"])
    balanced = build_costs(case, num_chunks=1)
    total = table.forward_s + table.backward_s
    assert total[0] < total[1]
    even, better = total.max(), (balanced.forward_s + balanced.backward_s).max()
    assert better < even
    assert balanced.provenance["layers per stage"] == "6 x 8, 7, 6"  # the head weighs more than layers 0 to 2
    assert sum(balanced.weight_bytes) == pytest.approx(sum(table.weight_bytes))


def test_every_second_layer():
    table = build_costs(
        scenario("mixtral-8x7b", overrides=["model.moe_layer_freq=2", "model.intermediate_size=28672"]),
        num_chunks=1,
    )
    assert table.provenance["layers with experts per stage"] == "16"
    assert table.weight_bytes[0] / 2 == pytest.approx(46_702_792_704 - 16 * (6 * 3 * 4096 * 14336 + 8 * 4096))


def test_latent_attention_by_hand():
    table = costs("deepseek-v3", pipeline=61, nodes=61)
    tokens, rate, h, heads = 4096, 0.5 * 989e12, 7168, 128
    projections = h * 1536 + 1536 * heads * 192 + h * (512 + 64) + 512 * heads * 256 + heads * 128 * h
    assert table.forward_parts_s["gemm"][0] == pytest.approx(
        2 * tokens * (projections + 3 * h * 18432) / rate
    )
    scores = 2 * tokens**2 * heads * (192 + 128) / 2
    assert table.forward_parts_s["attention"][0] == pytest.approx(scores / rate)
    # Queries, keys (192 a head), values, output (128), latent vectors and their norms, two norms and inputs.
    width = heads * (192 + 192 + 128 + 128) + 2 * (512 + 1536) + 64
    assert table.activation_bytes[1] == tokens * (2 * width + 8 * h + 6 * 18432)


def test_activations_of_experts_count_every_copy_of_a_token():
    alone, shared = (costs("mixtral-8x7b", pipeline=4, expert=expert) for expert in (1, 8))
    kept = 8 * 4096 + 2 * (2 * 4096 + 2 * 1024) + 2 * (6 * 14336 + 4 * 4096)
    assert alone.activation_bytes[1] == 8 * 4096 * kept
    extra = 0.04 * 2 * (6 * 14336 + 4 * 4096)
    assert shared.activation_bytes[1] - alone.activation_bytes[1] == pytest.approx(8 * 4096 * extra)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_parts_add_up(recompute):
    case = scenario(
        "deepseek-v3", pipeline=4, nodes=32, tensor=2, context=2, expert=16, sequence_parallel=True,
        overrides=[f"recompute={recompute}"],
    )  # fmt: skip
    table = build_costs(case, num_chunks=1)
    assert sum(table.forward_parts_s.values()) == pytest.approx(table.forward_s)
    assert sum(table.backward_parts_s.values()) == pytest.approx(table.backward_s)
    assert table.input_gradient_s + table.weight_gradient_s == pytest.approx(table.backward_s)
    assert np.all(table.input_gradient_s > 0)
