"""What a backward in two parts holds from I to W: with recomputation more than from F to I, without less."""

import numpy as np
import pytest

from pipesim.costs import build_costs
from pipesim.errors import ScenarioError
from pipesim.prediction import predict
from pipesim.scenario import scenario_from_mapping

LLAMA = {
    "model": {"preset": "llama3-70b", "seq_length": 8192},
    "cluster": {
        "accelerator": "h100-sxm",
        "num_nodes": 4,
        "gpus_per_node": 8,
        "intra_node": "nvlink4",
        "inter_node": "ib-ndr",
    },
    "parallel": {"pipeline": 4, "tensor": 8, "sequence_parallel": True},
    "batch": {"microbatches": 32},
    "recompute": "full",
}
TOKENS, HIDDEN, QUERIES, KEYS, INNER = 8192, 8192, 8192, 1024, 28672
"""Of one microbatch and one layer; keys are as wide as values."""


def scenario(schedule, *overrides):
    return scenario_from_mapping(LLAMA | {"schedule": schedule}, overrides=overrides)


@pytest.mark.parametrize(
    ("schedule", "right_gb"), [("zb-h1", 65.0), ("zb-h2", 82.9), ("zb-v", 58.9), ("v-half", 51.0)]
)
def test_recomputed_layers_are_held_until_w(schedule, right_gb):
    """8 h + 4 hq + 4 hkv + 6 f bytes a token of each layer from I to W, counted apart from this code."""
    peak = predict(scenario(schedule)).metrics.peak_memory_bytes
    assert peak == pytest.approx(right_gb * 1e9, rel=0.02)


def test_what_w_reads_of_a_recomputed_layer():
    costs = build_costs(scenario("zb-h1"), num_chunks=1)
    layer = TOKENS / 8 * (8 * HIDDEN + 4 * QUERIES + 4 * KEYS + 6 * INNER)
    # A stage in the middle has 20 layers and neither end.
    assert costs.deferred_bytes[1] == pytest.approx(20 * layer)
    assert costs.activation_bytes[1] == pytest.approx(20 * 2 * TOKENS / 8 * HIDDEN)
    # Of the head its input and the 16-bit gradient of the logits, no longer the loss's 32-bit state.
    ends = costs.deferred_bytes[-1] - costs.deferred_bytes[1]
    assert ends == pytest.approx(2 * TOKENS / 8 * (HIDDEN + 128256))


def test_w_may_compute_the_layer_again():
    held, again = (
        build_costs(scenario("zb-h1", f"recompute_for_weights={way}"), num_chunks=1)
        for way in ("held", "again")
    )
    # The layer's input, and the gradients of the outputs of its products.
    width = HIDDEN + 2 * HIDDEN + (QUERIES + 2 * KEYS) + 2 * INNER
    assert again.deferred_bytes[1] == pytest.approx(20 * 2 * TOKENS / 8 * width)
    assert again.weight_gradient_s - held.weight_gradient_s == pytest.approx(
        held.backward_parts_s["recompute"]
    )
    for name in ("forward_s", "backward_s", "input_gradient_s"):
        assert getattr(again, name) == pytest.approx(getattr(held, name))


@pytest.mark.parametrize("name", ["zb-auto", "auto"])
@pytest.mark.parametrize("sequence", [8192, 32768])
def test_searched_orders_stay_within_the_device(name, sequence):
    options = "{name: auto, budget: 300000}" if name == "auto" else name
    asked = scenario("zb-h1", f"schedule={options}", f"model.seq_length={sequence}")
    metrics = predict(asked).metrics
    assert metrics.fits_memory
    assert metrics.peak_memory_bytes <= 80e9


def test_zb_2p_counts_what_w_holds():
    """At most 2p microbatches between F and W, of which each may hold what W reads."""
    result = predict(scenario("zb-2p"))
    assert max(rank.peak_in_flight for rank in result.metrics.ranks) <= 8


def test_gpt_with_tensor_parallelism_keeps_32_of_34():
    """Cut or not, tensors stay what they are: arXiv 2401.10241 table 1, with a fused attention."""
    gpt = {"num_hidden_layers": 8, "hidden_size": 4096, "num_attention_heads": 32}
    mapping = {
        "model": gpt | {"vocab_size": 51200, "seq_length": 2048},
        "cluster": {"accelerator": "h100-sxm", "num_nodes": 2, "gpus_per_node": 8, "inter_node": "ib-ndr"},
        "parallel": {"pipeline": 4, "tensor": 4, "sequence_parallel": True},
        "batch": {"microbatches": 8},
    }
    costs = build_costs(scenario_from_mapping(mapping), num_chunks=1)
    assert costs.deferred_bytes[1] / costs.activation_bytes[1] == pytest.approx(32 / 34)
    whole = build_costs(
        scenario_from_mapping(mapping, overrides=["parallel.sequence_parallel=false"]), num_chunks=1
    )
    # 10 h are not cut then, of which W reads 8 h: inputs of two products, gradients of two outputs.
    assert whole.deferred_bytes[1] / whole.activation_bytes[1] == pytest.approx((8 + 24 / 4) / (10 + 24 / 4))


def test_the_loss_is_over_when_w_runs():
    """Of 3 microbatches between I and W on the rank with the head none holds 32-bit logits any more."""
    logits = TOKENS / 8 * 128256
    costs = build_costs(scenario("v-half", "recompute=none", "batch.microbatches=64"), num_chunks=2)
    kept_until_input_gradient = costs.activation_bytes[-1] - costs.activation_bytes[-2]
    kept_until_weights = costs.deferred_bytes[-1] - costs.deferred_bytes[-2]
    hidden = 2 * TOKENS / 8 * HIDDEN
    assert kept_until_input_gradient == pytest.approx(4 * logits + 2 * hidden)
    assert kept_until_weights == pytest.approx(2 * logits + hidden)
    assert np.all(costs.deferred_bytes[1:-1] <= costs.activation_bytes[1:-1] * (1 + 1e-12))


def test_nothing_is_computed_again_without_recompute():
    with pytest.raises(ScenarioError, match="has an effect only with recompute: full") as caught:
        scenario("zb-h1", "recompute=none", "recompute_for_weights=again")
    assert caught.value.key == "recompute_for_weights"
