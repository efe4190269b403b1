"""Gradients reduced in buckets during the last backward: ends worked out by hand, exact."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from helpers import FEW_TERMS, costs_of, makespan, schedule_of

from pipesim.costs.network.alpha_beta import Ring
from pipesim.costs.stages.assembly import _gradient_buckets
from pipesim.errors import ScenarioError
from pipesim.ir import lower
from pipesim.ir.actions import Op
from pipesim.metrics import measure
from pipesim.prediction import predict
from pipesim.scenario import scenario_from_mapping
from pipesim.schedules import Shape, generate
from pipesim.timing.engine import simulate

F = Fraction


def table(num_stages, *, buckets, slowdown=0, seconds=4, collective="all_reduce", **stated):
    """Two replicas whose all-reduce of a stage takes `seconds`; B is 2, F is 1."""
    costs = costs_of(num_stages, **stated)
    return replace(
        costs,
        gradient_bytes=costs.gradient_bytes + F(seconds),
        weight_bytes=costs.weight_bytes + F(2),
        gradient_ring=Ring(2, F(1), F(0), F(0)),
        gradient_collective=collective,
        gradient_buckets=None if buckets is None else np.full(num_stages, buckets),
        overlap_slowdown=F(slowdown),
    )


def reduction(costs, *orders):
    timeline = simulate(lower(schedule_of(*orders)), costs)
    rows = timeline.op == Op.REDUCE_GRAD
    spans = zip(timeline.start_s[rows].tolist(), timeline.end_s[rows].tolist(), strict=True)
    return makespan(timeline), list(spans)


def test_buckets_leave_as_they_are_complete():
    """Quarters of B end at 1.5, 2, 2.5, 3; each bucket takes 1 and they follow each other."""
    assert reduction(table(1, buckets=None), "0F0 0B0") == (3, [(3, 7)])
    assert reduction(table(1, buckets=4), "0F0 0B0") == (3, [(F(3, 2), F(11, 2))])
    assert reduction(table(1, buckets=4, seconds=1), "0F0 0B0") == (3, [(F(3, 2), F(13, 4))])


def test_computing_is_slowed_only_while_a_collective_runs():
    """From 1.5 on there is always one: the other three quarters take 1 each instead of 0.5."""
    assert reduction(table(1, buckets=4, slowdown=1), "0F0 0B0") == (F(9, 2), [(F(3, 2), F(11, 2))])
    # Buckets of 0.25: each quarter computes 0.125 beside one, and 0.375 alone.
    found = reduction(table(1, buckets=4, slowdown=1, seconds=1), "0F0 0B0")
    assert found == (F(3, 2) + 3 * (F(1, 4) + F(3, 8)), [(F(3, 2), F(3, 2) + 3 * F(5, 8) + F(1, 4))])


def test_a_chunk_that_is_done_reduces_beside_the_others():
    """Two stages on one rank, B of 2 each: stage 1 is complete at 4, its all-reduce of 1 runs beside B 0."""
    orders = ("0F0 1F0 1B0 0B0",)
    assert reduction(table(2, buckets=1, seconds=1), *orders) == (6, [(4, 5), (6, 7)])
    assert reduction(table(2, buckets=1, seconds=1, slowdown=1), *orders) == (
        6 + F(1, 2),
        [(4, 5), (6.5, 7.5)],
    )
    assert reduction(table(2, buckets=None, seconds=1), *orders) == (6, [(6, 7), (7, 8)])


def test_new_weights_are_gathered_after_all():
    costs = table(1, buckets=4, collective="reduce_scatter")
    # Reduce-scatters of 0.5 end with the last bucket, half a second after B; weights of 2 take 1.
    assert reduction(costs, "0F0 0B0") == (3, [(F(3, 2), F(9, 2))])


def test_split_backwards_reduce_with_their_weight_gradients():
    costs = table(1, buckets=1, seconds=1, input_gradient_s=1, weight_gradient_s=1)
    assert reduction(costs, "0F0 0I0 0F1 0I1 0W0 0W1") == (6, [(6, 7)])


@pytest.mark.parametrize("name", ["1f1b", "gpipe", "zb-h1"])
def test_one_bucket_and_no_slowdown_change_nothing(name):
    schedule = generate(name, Shape(num_ranks=4, num_chunks=1, num_microbatches=6))
    at_end, during = table(4, buckets=None), table(4, buckets=1)
    first, second = (simulate(lower(schedule), costs) for costs in (at_end, during))
    assert first.end_s.tolist() == second.end_s.tolist()
    blocking = [
        simulate(lower(schedule, receive="late"), costs, p2p="blocking").end_s.tolist()
        for costs in (at_end, during)
    ]
    assert blocking[0] == blocking[1]


def test_exposed_and_hidden_add_up():
    schedule = schedule_of("0F0 0B0")
    costs = table(1, buckets=4)
    metrics = measure(simulate(lower(schedule), costs), schedule, costs)
    assert (metrics.exposed_sync_s, metrics.hidden_sync_s, metrics.step_time_s) == (
        F(5, 2),
        F(3, 2),
        F(11, 2),
    )


def test_waiting_between_collectives_is_not_counted_as_hidden():
    """Two stages on one rank; each reduce-scatters for 1 and gathers for 1.

    Stage 1 scatters from 4 to 5, its weights wait for the end of the computations at 6 and come until 7;
    stage 0 scatters from 6 to 7 and gathers until 8. Before 6 one second is hidden, after it two are exposed.
    """
    schedule = schedule_of("0F0 1F0 1B0 0B0")
    costs = table(2, buckets=1, seconds=2, collective="reduce_scatter")
    timeline = simulate(lower(schedule), costs)
    rows = timeline.op == Op.REDUCE_GRAD
    assert timeline.end_s[rows].tolist() == [7, 8]
    metrics = measure(timeline, schedule, costs)
    assert (metrics.exposed_sync_s, metrics.hidden_sync_s) == (2, 1)


def test_no_more_is_hidden_than_there_is():
    chunks = ["parallel.virtual_stages=4", "schedule=interleaved-1f1b", "optimizer=sharded"]
    asked = scenario_from_mapping(MAPPING, overrides=[*chunks, OVERLAP])
    result = predict(asked)
    costs = result.costs
    in_all = [sum(costs.gradient_sync_s(stage) for stage in range(rank, 16, 4)) for rank in range(4)]
    # Every bucket pays its own latency.
    assert 0 < result.metrics.hidden_sync_s < 1.2 * max(in_all)


def test_a_stage_without_parameters_has_an_empty_bucket():
    parameters = np.array([1e9, 0.0])
    assert _gradient_buckets(scenario_from_mapping(MAPPING, overrides=[OVERLAP]), parameters).tolist() == [
        25,
        1,
    ]


OVERLAP = "parallel.overlap_gradients=true"
MAPPING = {
    "model": "llama3-8b",
    "cluster": {"machine": "dgx-h100", "num_nodes": 4},
    "parallel": {"pipeline": 4, "tensor": 1, "data": 8},
    "batch": {"global": 64},
    "efficiency": FEW_TERMS,
}


def step(*overrides):
    return predict(scenario_from_mapping(MAPPING, overrides=overrides)).metrics


def test_in_a_scenario():
    at_end, during = step(), step("parallel.overlap_gradients=true")
    assert at_end.exposed_sync_s > 2 * during.exposed_sync_s > 0
    assert during.hidden_sync_s > at_end.hidden_sync_s
    assert during.step_time_s < at_end.step_time_s
    small = step("parallel.overlap_gradients=true", "parallel.gradient_bucket=10 MB")
    assert small.exposed_sync_s < during.exposed_sync_s


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (["parallel.gradient_bucket=10 MB"], "parallel.gradient_bucket"),
        (["parallel.overlap_gradients=true", "parallel.gradient_bucket=1 kB"], "parallel.gradient_bucket"),
        (["parallel.overlap_gradients=true", "optimizer=zero2"], "parallel.overlap_gradients"),
    ],
)
def test_what_has_no_effect_is_refused(overrides, key):
    with pytest.raises(ScenarioError) as caught:
        step(*overrides)
    assert caught.value.key == key
