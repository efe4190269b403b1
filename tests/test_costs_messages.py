"""Messages between pipeline ranks under tensor parallelism: whole, or cut into shares and gathered."""

import numpy as np
import pytest

from pipesim.costs import build_costs
from pipesim.costs.network.alpha_beta import all_gather_s
from pipesim.costs.network.topology import tensor_ring
from pipesim.errors import ScenarioError
from pipesim.prediction import predict
from pipesim.scenario import scenario_from_mapping

GPT3 = {
    "model": "gpt3-175b",
    "cluster": {"machine": "dgx-h100", "num_nodes": 8},
    "parallel": {"pipeline": 8, "tensor": 8},
    "batch": {"microbatches": 16},
    "schedule": "1f1b",
}
WHOLE = 2 * 2048 * 12288
"""Bytes of one microbatch's residual stream."""


def scenario(*overrides):
    return scenario_from_mapping(GPT3, overrides=overrides)


@pytest.mark.parametrize(
    ("override", "sent_bytes", "sent_gb"),
    [
        ("parallel.sequence_parallel=false", WHOLE, 11.27),
        ("parallel.sequence_parallel=true", WHOLE / 8, 1.41),
        ("network.scatter_gather=true", WHOLE / 8, 1.41),
    ],
)
def test_only_what_is_cut_is_sent_in_shares(override, sent_bytes, sent_gb):
    """Megatron-core's get_tensor_shapes; of eight ranks in a row seven pairs exchange 16 microbatches."""
    result = predict(scenario(override))
    assert result.costs.boundary_bytes[:-1] == pytest.approx(sent_bytes)
    assert result.metrics.comm_bytes == pytest.approx(7 * 2 * 16 * sent_bytes)
    assert result.metrics.comm_bytes / 1e9 == pytest.approx(sent_gb, abs=0.005)


def test_shares_are_gathered_inside_the_node():
    whole, cut = (scenario(f"network.scatter_gather={on}") for on in ("false", "true"))
    ring = tensor_ring(cut.cluster, cut.parallel, intra_node_factor=1)
    gather_s = all_gather_s(WHOLE, ring)
    before, after = (build_costs(asked, num_chunks=1) for asked in (whole, cut))
    receives = np.arange(8) > 0
    assert after.forward_s - before.forward_s == pytest.approx(receives * gather_s)
    assert after.backward_s - before.backward_s == pytest.approx(receives[::-1] * gather_s)
    assert after.weight_gradient_s == pytest.approx(before.weight_gradient_s)


def test_a_set_fitted_to_software_that_gathers_has_that_in_its_numbers():
    whole, cut = (
        build_costs(scenario("efficiency=a100-megatron", f"network.scatter_gather={on}"), num_chunks=1)
        for on in ("false", "true")
    )
    assert cut.boundary_bytes == pytest.approx(whole.boundary_bytes / 8)
    assert cut.forward_s == pytest.approx(whole.forward_s)
    assert cut.backward_s == pytest.approx(whole.backward_s)


@pytest.mark.parametrize(
    ("efficiency", "on"),
    [
        ("h100-nemo", False),
        ("b200-megatron", False),
        ("a100-megatron-2024", False),
        ("a100-megatron", True),
        ("a100-megatron-2021", True),
        ("a100-megatron-2022", True),
        ("a100-megatron-deepspeed-bloom", True),
        ("a100-megatron-deepspeed-vtrain", True),
    ],
)
def test_the_software_of_a_set_decides(efficiency, on):
    asked = scenario(f"efficiency={efficiency}")
    assert asked.scatter_gather is on
    assert asked.echo["network.scatter_gather"] == f"{str(on).lower()} (of {efficiency})"
    assert not scenario(f"efficiency={efficiency}", "parallel.sequence_parallel=true").scatter_gather


def test_what_is_cut_is_not_cut_again():
    with pytest.raises(ScenarioError, match="cuts messages already") as caught:
        scenario("network.scatter_gather=true", "parallel.sequence_parallel=true")
    assert caught.value.key == "network.scatter_gather"
