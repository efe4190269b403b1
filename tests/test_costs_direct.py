"""Costs that a scenario states outright, and what a cost table answers."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim.costs.direct import direct_costs
from pipesim.costs.network.alpha_beta import Ring
from pipesim.errors import ScenarioError
from pipesim.ir.actions import Op
from pipesim.scenario.resolved import DirectCosts

STATED = DirectCosts(
    forward_s=1.0,
    backward_s=2.0,
    input_gradient_s=None,
    weight_gradient_s=None,
    p2p_latency_s=0.1,
    p2p_bytes_per_s=None,
    boundary_bytes=64e6,
    overlapped_pair_s=None,
    gradient_sync_s=0.5,
    optimizer_s=0.25,
    activation_bytes=8e9,
)


def test_scalar_is_a_whole_ranks_time_shared_by_its_stages():
    table = direct_costs(STATED, num_ranks=4, num_chunks=2)
    assert table.num_stages == 8
    assert table.forward_s.tolist() == [0.5] * 8
    assert table.backward_s.tolist() == [1.0] * 8
    assert table.fixed_sync_s.tolist() == [0.25] * 8
    assert table.optimizer_s.tolist() == [0.125] * 8
    assert table.activation_bytes.tolist() == [4e9] * 8


def test_list_has_one_entry_a_stage():
    table = direct_costs(replace(STATED, forward_s=(1, 2, 3, 4)), num_ranks=2, num_chunks=2)
    assert table.forward_s.tolist() == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    ("field", "key"), [("forward_s", "costs.forward"), ("activation_bytes", "costs.activations")]
)
def test_list_of_another_length_names_the_key(field, key):
    costs = replace(STATED, **{field: (1.0, 2.0, 3.0)})
    with pytest.raises(ScenarioError, match=r"has 3 entries.*4 ranks x 2 chunks") as caught:
        direct_costs(costs, num_ranks=4, num_chunks=2, file="s.yaml")
    assert (caught.value.file, caught.value.key) == ("s.yaml", key)


def test_split_backward_is_halves_unless_stated():
    halves = direct_costs(STATED, num_ranks=2, num_chunks=1)
    assert halves.input_gradient_s.tolist() == halves.weight_gradient_s.tolist() == [1.0, 1.0]
    assert "half" in halves.provenance["input and weight gradient"]
    stated = replace(STATED, input_gradient_s=1.5, weight_gradient_s=(0.25, 0.75))
    table = direct_costs(stated, num_ranks=2, num_chunks=1)
    assert table.input_gradient_s.tolist() == [1.5, 1.5]
    assert table.weight_gradient_s.tolist() == [0.25, 0.75]


def test_message_leaves_every_stage_but_the_last():
    table = direct_costs(replace(STATED, p2p_bytes_per_s=32e6), num_ranks=3, num_chunks=1)
    assert table.boundary_bytes.tolist() == [64e6, 64e6, 0.0]
    assert table.p2p(0, 1) == table.p2p(2, 0)
    assert table.p2p(0, 1).transfer_s(table.boundary_bytes[0]) == pytest.approx(2.1)


def test_bare_p2p_is_latency_whatever_the_size():
    table = direct_costs(STATED, num_ranks=3, num_chunks=1)
    assert table.p2p(0, 1).transfer_s(1e30) == 0.1


@given(
    forward=st.fractions(min_value=0, max_value=100),
    backward=st.integers(0, 100) | st.floats(0, 100) | st.fractions(min_value=0, max_value=100),
    num_ranks=st.integers(1, 8),
    num_chunks=st.integers(1, 5),
)
def test_one_fraction_makes_every_number_exact(forward, backward, num_ranks, num_chunks):
    costs = replace(STATED, forward_s=forward, backward_s=backward, p2p_bytes_per_s=3)
    table = direct_costs(costs, num_ranks=num_ranks, num_chunks=num_chunks)
    assert sum(table.forward_s) == num_ranks * forward
    assert sum(table.backward_s) == num_ranks * Fraction(backward)
    assert (table.input_gradient_s + table.weight_gradient_s == table.backward_s).all()
    times = [
        *table.durations([Op.F, Op.B, Op.I, Op.W], [0] * 4),
        table.pair_s(0, 0),
        table.gradient_sync_s(0),
    ]
    times.append(table.p2p(0, 1).transfer_s(table.boundary_bytes[0]))
    assert {type(time) for time in times} == {Fraction}


def test_durations_in_bulk_by_op_and_stage():
    costs = replace(
        STATED, forward_s=(1, 2), backward_s=(10, 20), input_gradient_s=(3, 4), weight_gradient_s=(5, 6)
    )
    table = direct_costs(costs, num_ranks=2, num_chunks=1)
    ops = np.array([[Op.F, Op.B, Op.I], [Op.W, Op.SEND_F, Op.OPTIMIZER]], dtype=np.int32)
    stages = np.array([[1, 0, 1], [1, 0, 1]], dtype=np.int32)
    assert table.durations(ops, stages).tolist() == [[2.0, 10.0, 4.0], [6.0, 0.0, 0.0]]
    assert table.duration(Op.B, 1) == 20.0
    assert {table.duration(op, 0) for op in Op if op not in (Op.F, Op.B, Op.I, Op.W)} == {0.0}


def test_overlapped_pair_is_the_sum_unless_stated():
    uneven = replace(STATED, forward_s=(1, 2), backward_s=(10, 20))
    assert direct_costs(uneven, num_ranks=2, num_chunks=1).pair_s(1, 0) == 12.0
    stated = replace(uneven, overlapped_pair_s=9)
    assert direct_costs(stated, num_ranks=2, num_chunks=1).pair_s(1, 0) == 9.0
    assert direct_costs(stated, num_ranks=1, num_chunks=2).pair_s(1, 0) == 4.5


def test_gradient_sync_adds_ring_collectives_to_the_stated_time():
    stage = np.array([1000.0])
    table = replace(
        direct_costs(STATED, num_ranks=1, num_chunks=1),
        gradient_bytes=stage,
        weight_bytes=stage / 2,
        gradient_ring=Ring(num_members=4, bytes_per_s=100.0, step_latency_s=1.0, base_latency_s=0.5),
    )
    assert table.gradient_sync_s(0) == 0.5 + (0.5 + 6 + 15)
    sharded = replace(table, gradient_collective="reduce_scatter")
    assert sharded.gradient_sync_s(0) == 0.5 + (0.5 + 3 + 7.5) + (0.5 + 3 + 3.75)
