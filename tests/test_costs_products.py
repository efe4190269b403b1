"""What small matrix products move and quantise, the host's floor, and gradients hidden in closed form."""

import pytest

from pipesim.costs.stages.overlap import shown_sync
from pipesim.costs.transformer.products import Rates, products
from pipesim.prediction import predict
from pipesim.scenario import scenario_from_mapping

SCENARIO = {
    "model": {"preset": "qwen3-30b-a3b", "num_hidden_layers": 8},
    "cluster": {"accelerator": "b200-sxm", "num_nodes": 1},
    "parallel": {"pipeline": 2, "expert": 4},
    "batch": {"global": 32},
}


def test_a_product_by_hand():
    """2 experts share 10 rows; N 64, K 128, fp8: every number worked out from the module's own formula."""
    rates = Rates(1e6, 1.0, 0.5, 1e6, 1e6, memory_bytes_per_s=1e3, operand_bytes=1.0, quantise_bytes=7.0)
    found = products(((64, 128),), 10, rates, num_matrices=2, rate_factor=rates.grouped_gemm)
    work_s = 2 * 10 * 64 * 128 / 0.5e6
    rows_in, rows_out, weights = 10 * 128, 10 * 64, 2 * 64 * 128
    moved = rows_in + weights + 2 * rows_out + 7 * rows_in
    assert found.forward_s == pytest.approx(work_s + moved / 1e3)
    moved = rows_out + weights + 2 * rows_in + 7 * rows_out
    assert found.input_gradient_s == pytest.approx(work_s + moved / 1e3)
    assert found.weight_gradient_s == pytest.approx(work_s + (rows_out + rows_in + 6 * weights) / 1e3)


def test_without_traffic_a_product_is_its_operations():
    rates = Rates(1e6, 0.5, 1.0, 1e6, 1e6, 1e3)
    found = products(((64, 128), (64, 100)), 10, rates)
    assert found.forward_s == found.weight_gradient_s == pytest.approx(2 * 10 * 64 * (128 + 100 / 0.5) / 1e6)


def costs(**keys):
    return predict(scenario_from_mapping(SCENARIO | keys), timing="fast").costs


def test_the_hosts_floor_and_graphs():
    floor = {"preset": "b200-megatron", "expert_layer_floor": "50 ms"}
    slow = costs(efficiency=floor)
    assert slow.forward_s[0] == pytest.approx(4 * 50e-3, rel=2e-3)  # 4 layers, and the embedding
    assert slow.backward_s[0] == pytest.approx(8 * 50e-3, rel=2e-3)
    free = costs(efficiency=floor, cuda_graphs="full")
    assert free.forward_s[0] == costs(efficiency="b200-megatron").forward_s[0] < slow.forward_s[0]


def test_cards_are_factors_on_the_sets_own_peak():
    stated = {"preset": "b200-megatron", "peak": {"bf16": "1125 TFLOP/s"}, "cards": {"b200-sxm": 2.0}}
    assert costs(efficiency=stated).forward_s == pytest.approx(costs(efficiency="b200-megatron").forward_s)
    other = SCENARIO["cluster"] | {"accelerator": "gb200"}
    on_other = costs(efficiency=stated, cluster=other)
    assert on_other.forward_parts_s["gemm"] == pytest.approx(
        2 * costs(efficiency=stated).forward_parts_s["gemm"]
    )


def test_what_shows_of_gradients_beside_computing():
    hidden = shown_sync(1.0, 1.0, forward_s=5.0, backward_s=5.0, slowdown=0.25)
    assert hidden == pytest.approx(0.2 + 1 / 8)  # slowed by 0.25 / 1.25, and the last bucket
    longer = shown_sync(3.0, 1.0, forward_s=5.0, backward_s=2.0, slowdown=0.25)
    assert longer == pytest.approx((1 + 3 * 0.2) / 4 + 1 / 8)
    assert shown_sync(3.0, 1.0, forward_s=0.0, backward_s=0.0, slowdown=0.25) == 1.0


def test_engine_and_evaluator_agree_on_hidden_gradients():
    hides = {"preset": "b200-megatron", "gradient_overlap": True}
    scenario = scenario_from_mapping(SCENARIO | {"efficiency": hides, "network": {"mode": "ideal"}})
    engine, fast = (predict(scenario, timing=timing) for timing in ("engine", "fast"))
    assert fast.timed_by == "compiled"
    assert engine.step_time_s == pytest.approx(fast.step_time_s, rel=1e-9)
    at_end = predict(scenario.with_({"parallel.overlap_gradients": False}), timing="fast")
    assert 0 < fast.metrics.exposed_sync_s < at_end.metrics.exposed_sync_s
