"""Context parallelism: shares of a sequence, keys and values around a ring, computing beside it."""

import pytest
from helpers import FEW_TERMS
from hypothesis import given
from hypothesis import strategies as st

from pipesim.costs import build_costs
from pipesim.costs.stages.overlap import exposed_s, overlapped_s
from pipesim.errors import ScenarioError
from pipesim.scenario import scenario_from_mapping

seconds = st.floats(0, 10, allow_nan=False)


def costs(*, context=1, data=None, nodes=1, overrides=(), **parallel):
    case = scenario_from_mapping(
        {
            "model": {"preset": "llama3-8b", "seq_length": 8192},
            "cluster": {"accelerator": "h100-sxm", "num_nodes": nodes, "inter_node": "ib-ndr"},
            "parallel": {"pipeline": 1, "context": context, "data": data} | parallel,
            "batch": {"microbatches": 2},
            "efficiency": FEW_TERMS,
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


PORT = 450e9 * 0.824


def shown(table, passes="forward"):
    return getattr(table, f"{passes}_parts_s")["context_exchange"][0] / 32


def test_gathered_keys_and_values_are_waited_for_and_held():
    # By hand: 8192 / 8 tokens, keys and values of 1024 values each, 2 bytes: 7 shares of 4 MiB come, and in
    # the backward again, and their gradients go. Where there are many, they are a layer's most memory.
    table, ring = costs(context_exchange="all-gather", context=8), costs(context=8)
    share = 2 * 1024 * 2048
    assert shown(table) == pytest.approx(7 * (10e-6 + share / PORT))
    assert shown(table, "backward") == pytest.approx(7 * (10e-6 + 2 * share / PORT))
    assert table.activation_bytes == ring.activation_bytes
    many = {"context": 8, "pipeline": 2, "nodes": 2, "overrides": ["model.num_key_value_heads=32"]}
    table, ring = (costs(context_exchange=one, **many) for one in ("all-gather", "ring"))
    assert table.working_bytes[0] > ring.working_bytes[0]


def test_ulysses_exchanges_heads_for_positions_before_and_after_attention():
    # Llama 3 8B on 8 devices, by hand: 1024 tokens, queries and output 4096, keys and values 1024 values each
    # of 2 bytes; 7 of 8 parts leave a device, at 0.74 of what its port sends one neighbour; 30 us a time.
    table = costs(context_exchange="ulysses", context=8)
    nbytes = 7 / 8 * 1024 * 2 * (4096 + 2 * 1024 + 4096)
    assert shown(table) == pytest.approx(2 * 30e-6 + nbytes / (0.74 * PORT))
    assert shown(table, "backward") == pytest.approx(shown(table))


def test_hierarchical_is_ulysses_inside_and_a_ring_around():
    table = costs(
        context_exchange="hierarchical",
        context_inner=8,
        context=16,
        nodes=2,
        overrides=["cluster.inter_node.bandwidth=1 GB/s"],
    )
    # 512 tokens: the exchange in the node, then one step between nodes beside half of the attention.
    inside_s = 2 * 30e-6 + 7 / 8 * 512 * 2 * (4096 + 2 * 1024 + 4096) / (0.74 * PORT)
    around_s = 20e-6 + 2 * 512 * 2048 / (1e9 * 0.97)
    attention_s = table.forward_parts_s["attention"][0] / 32
    assert shown(table) == pytest.approx(inside_s + around_s - attention_s / 2)


@pytest.mark.parametrize(
    ("parallel", "words"),
    [
        (
            {"context_exchange": "ulysses", "context": 16},
            "tensor 1 x 16 does not divide the 8 key-value heads",
        ),
        ({"context_exchange": "hierarchical", "context": 8}, "needs the devices of an inner group"),
        (
            {"context_exchange": "hierarchical", "context": 8, "context_inner": 3},
            "3 does not divide context 8",
        ),
        ({"context": 8, "context_inner": 2}, "only hierarchical has inner groups"),
    ],
)
def test_an_exchange_that_cannot_be_is_refused(parallel, words):
    with pytest.raises(ScenarioError, match=words):
        costs(nodes=2, **parallel)
