"""Context parallelism: shares of a sequence, keys and values around a ring, computing beside it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim.costs import build_costs
from pipesim.costs.stages.overlap import exposed_s, overlapped_s
from pipesim.scenario import scenario_from_mapping

seconds = st.floats(0, 10, allow_nan=False)


def costs(*, context=1, data=None, nodes=1, overrides=(), **parallel):
    case = scenario_from_mapping(
        {
            "model": {"preset": "llama3-8b", "seq_length": 8192},
            "cluster": {"accelerator": "h100-sxm", "num_nodes": nodes, "inter_node": "ib-ndr"},
            "parallel": {"pipeline": 1, "context": context, "data": data} | parallel,
            "batch": {"microbatches": 2},
        },
        overrides=overrides,
    )
    return build_costs(case, num_chunks=1)


@given(compute=seconds, communication=seconds, slowdown=st.floats(0, 2))
def test_overlap_by_the_rate_of_computing(compute, communication, slowdown):
    """While communication lasts, computing runs at 1 / (1 + slowdown) of its rate."""
    if compute * (1 + slowdown) <= communication:
        expected = communication
    else:
        expected = communication + compute - communication / (1 + slowdown)
    assert overlapped_s(compute, communication, slowdown) == pytest.approx(expected, abs=1e-12)
    assert exposed_s(compute, communication, slowdown) <= communication + 1e-12


def test_a_device_has_a_share_of_every_sequence():
    whole, quarter = costs(data=8), costs(context=4, data=2)
    for part in ("gemm", "attention", "memory_bound", "head"):
        ratio = whole.forward_parts_s[part] / quarter.forward_parts_s[part]
        assert ratio == pytest.approx(4)
    assert whole.activation_bytes / quarter.activation_bytes == pytest.approx(4)
    assert quarter.weight_bytes == pytest.approx(whole.weight_bytes)
    # Four devices work on one sequence in place of four sequences.
    assert quarter.tokens_per_step * 4 == whole.tokens_per_step
    assert quarter.num_gpus == whole.num_gpus == 8


def test_messages_between_stages_are_shares_too():
    whole, half = costs(pipeline=2, data=4), costs(pipeline=2, context=2, data=2)
    assert whole.boundary_bytes[0] == 2 * half.boundary_bytes[0] == 2 * 8192 * 4096


def test_keys_and_values_are_hidden_behind_attention_but_for_what_they_slow():
    slowed, free = (
        costs(context=8, overrides=["model.seq_length=65536", f"efficiency.overlap_slowdown={value}"])
        for value in (0.15, 0)
    )
    assert "context_exchange" not in free.forward_parts_s
    transfer_s = 10e-6 + 2 * 8192 * 2048 / (450e9 * 0.824)
    assert free.forward_parts_s["attention"][0] / 32 / 8 > transfer_s
    expected = 32 * 7 * transfer_s * 0.15 / 1.15
    assert slowed.forward_parts_s["context_exchange"][0] == pytest.approx(expected)
    twice_s = 2 * transfer_s - 10e-6
    expected = 32 * 7 * twice_s * 0.15 / 1.15
    assert slowed.backward_parts_s["context_exchange"][0] == pytest.approx(expected)


def test_a_ring_between_nodes_shows_what_attention_does_not_cover():
    table = costs(context=16, nodes=2, overrides=["cluster.inter_node.bandwidth=1 GB/s"])
    transfer_s = 20e-6 + 2 * 512 * 2048 / (1e9 * 0.97)
    exposed = 32 * 15 * (transfer_s - table.forward_parts_s["attention"][0] / 32 / 16)
    assert table.forward_parts_s["context_exchange"][0] == pytest.approx(exposed)


def test_few_key_value_heads_are_copied_before_they_travel():
    link = "cluster.intra_node={preset: nvlink4, bandwidth: 1 GB/s}"
    two, one = (
        costs(context=2, tensor=4, overrides=[link, f"model.num_key_value_heads={heads}"]) for heads in (4, 1)
    )
    part = "context_exchange"
    assert two.forward_parts_s[part] == pytest.approx(one.forward_parts_s[part])


def test_gradients_are_reduced_over_context_and_data():
    table = costs(context=4, data=2, overrides=["optimizer=sharded"])
    assert table.gradient_ring.num_members == 8
    alike = costs(data=8, overrides=["optimizer=sharded"])
    assert table.optimizer_bytes == pytest.approx(alike.optimizer_bytes)
    assert table.gradient_sync_s(0) == pytest.approx(alike.gradient_sync_s(0))


def test_selective_recomputation_passes_keys_and_values_again():
    none, selective = (costs(context=8, overrides=[f"recompute={kind}"]) for kind in ("none", "selective"))
    again = none.forward_parts_s["attention"] + none.forward_parts_s["context_exchange"]
    assert selective.backward_s - none.backward_s == pytest.approx(again)
