"""Weights gathered and gradients reduced by every microbatch, on wires that others use too."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from helpers import costs_of, schedule_of

from pipesim.costs.network.alpha_beta import Collective, Ring
from pipesim.costs.network.traffic import Fabric
from pipesim.costs.network.wiring import Wiring
from pipesim.costs.shards import ShardExchange, SyncStep
from pipesim.ir import lower
from pipesim.ir.actions import Op
from pipesim.metrics import measure
from pipesim.prediction import predict
from pipesim.scenario import scenario_from_mapping
from pipesim.timing.engine import simulate
from pipesim.timing.longest_path import StepProgram

F = Fraction
ORDERS = ("0F0 0F1 0B0 0B1", "1F0 1F1 1B0 1B1")


def table(num_blocks=1, exposed=3):
    """Two ranks of two replicas, a device a node: cards of 2 bytes a second, messages of 8 bytes.

    Every F and B takes 10 seconds, beside which 20 bytes are gathered, alone for 10 seconds too.
    """
    wiring = Wiring(1, F(8), F(0), F(2), F(0), nics_per_node=1)
    axes = (("tp", 1), ("cp", 1), ("dp", 2), ("pp", 2))
    gathers = ((SyncStep(Collective("ring", F(0), F(20), F(2)), of_experts=False, of_weights=True),),) * 2
    part = np.full(2, float(exposed))
    exchange = ShardExchange(gathers, ((), ()), (num_blocks,) * 2, dict.fromkeys((Op.F, Op.B, Op.I), part))
    costs = costs_of(2, forward_s=10, backward_s=10, p2p_bytes_per_s=F(2), boundary_bytes=8)
    return replace(costs, fabric=Fabric(wiring, axes, axes), shard_exchange=exchange)


def ends(mode, num_replicas=1, num_blocks=1, durations=None):
    lowered = lower(schedule_of(*ORDERS))
    timeline = simulate(
        lowered, table(num_blocks), network=mode, num_replicas=num_replicas, durations=durations
    )
    computing = timeline.select(timeline.compute)
    return computing.end_s.reshape(num_replicas, 2, 4).tolist()


def test_gathers_and_messages_share_cards():
    """F 1 of rank 0 begins at 10 with message 0 on its card: one byte a second each until 18, then 12 left.

    So F 1 ends at 24. Message 0 is there at 18; F 0 of rank 1 has 8 of its 20 bytes left when message 1 comes
    at 24, and both end at 32. The way back is the same.
    """
    assert ends("ideal") == [[[10, 20, 58, 68], [24, 34, 44, 54]]]
    for num_replicas in (1, 2):
        found = ends("fair", num_replicas)
        assert found == [[[10, 24, 74, 84], [32, 42, 52, 66]]] * num_replicas


def test_parts_are_spread_over_the_computation():
    """Of F 1's two parts of 10 bytes the first meets message 0 until 18 and ends at 19, the second at 24."""
    assert ends("fair", num_blocks=2)[0][0][1] == 24
    assert ends("ideal", num_blocks=2) == ends("ideal")


def test_gradients_gathers_and_messages_share_a_card():
    """Two chunks a rank of 10 seconds each; stage 1 gathers 20 bytes, stage 3 reduces 40, messages are of 4.

    At 80 rank 1 has its gradients of stage 3 and sends its last message of it: a byte a second each until 84.
    A message comes in from 82 to 86, then the first backward of stage 1 gathers. At 94 all three are on the
    card with 26, 12 and 4 bytes left: the message has gone by 100, the gather by 108. The next message and
    gather come at once: three again until 114, two until the gradients are through at 124, and the last 6
    bytes of the gather take until 127.
    """
    of_stage_1 = table().shard_exchange.gathers[0]
    exchange = ShardExchange(
        ((), of_stage_1, (), ()), ((),) * 4, (1,) * 4, dict.fromkeys((Op.F, Op.B, Op.I), np.zeros(4))
    )
    costs = replace(
        costs_of(2, 2, forward_s=20, backward_s=20, p2p_bytes_per_s=F(2), boundary_bytes=4),
        fabric=table().fabric,
        shard_exchange=exchange,
        gradient_bytes=np.array([F(0), F(0), F(0), F(40)]),
        gradient_ring=Ring(2, F(2), F(0), F(0)),
        gradient_buckets=np.ones(4, int),
    )
    schedule = schedule_of(
        "0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1",
        "1F0 1F1 3F0 3F1 3B0 3B1 1B0 1B1",
    )
    for num_replicas in (1, 2):
        timeline = simulate(lower(schedule), costs, num_replicas=num_replicas)
        computing = timeline.select(timeline.compute)
        expected = [10, 20, 38, 48, 82, 94, 124, 139, 24, 36, 50, 60, 70, 80, 108, 127]
        assert computing.end_s.tolist() == expected * num_replicas
        reduced = (timeline.op == Op.REDUCE_GRAD) & (timeline.stage == 3)
        assert set(zip(timeline.start_s[reduced], timeline.end_s[reduced], strict=True)) == {(80, 124)}


def test_replicas_wait_for_each_other():
    lowered = lower(schedule_of(*ORDERS))
    slower = np.array([[F(10)] * len(lowered.op)] * 2)
    first = np.flatnonzero((lowered.op == Op.F) & (lowered.stage == 0) & (lowered.microbatch == 0))
    slower[1, first] = F(30)
    found = ends("ideal", num_replicas=2, durations=slower)
    # The slow F 0 gathers from the start, as its partner does; F 1 gathers when both are there, from 30 on.
    assert [found[0][0][0], found[1][0][0]] == [10, 30]
    assert [found[0][0][1], found[1][0][1]] == [40, 40]


def test_waits_are_counted_as_exposed_collectives():
    schedule, costs = schedule_of(*ORDERS), table()
    timeline = simulate(lower(schedule), costs)
    metrics = measure(timeline, schedule, costs)
    # Four times the three seconds of an idle network, and four seconds each where messages shared the cards.
    assert [rank.breakdown.collective_s for rank in metrics.ranks] == [12 + 8, 12 + 8]
    assert [rank.breakdown.busy_s for rank in metrics.ranks] == [4 * 7] * 2
    assert (metrics.exposed_collective_s, metrics.hidden_collective_s) == (20, 40 - 20)
    alone = measure(StepProgram.of(schedule).timeline(floats(costs)), schedule, floats(costs))
    assert (alone.exposed_collective_s, alone.hidden_collective_s) == (12, 28)
    assert StepProgram.of(schedule).contends(StepProgram.of(schedule).timeline(floats(costs)), costs)


def floats(costs):
    arrays = ("forward_s", "backward_s", "input_gradient_s", "weight_gradient_s", "boundary_bytes")
    return replace(costs, **{name: getattr(costs, name).astype(float) for name in arrays})


def scenario(optimizer, schedule, tensor, mode="fair"):
    return scenario_from_mapping(
        {
            "model": "llama3-70b",
            "cluster": {
                "accelerator": "h100-sxm",
                "num_nodes": 8,
                "inter_node": "ib-ndr",
                "nics_per_node": 4,
            },
            "parallel": {"pipeline": 4, "tensor": tensor, "virtual_stages": 1 if schedule == "1f1b" else 2},
            "batch": {"microbatches": 8},
            "optimizer": optimizer,
            "schedule": schedule,
            "network": {"mode": mode},
        }
    )


@pytest.mark.parametrize("optimizer", ["zero2", "zero3"])
@pytest.mark.parametrize("schedule", ["1f1b", "interleaved-1f1b", "zb-v", "dualpipe-v", "seq1f1b"])
def test_alone_the_engine_takes_what_the_formula_says(optimizer, schedule):
    for tensor, contended in ((2, False), (8, True)):
        ideal = predict(scenario(optimizer, schedule, tensor, "ideal")).metrics
        formula = predict(scenario(optimizer, schedule, tensor), timing="compiled").metrics
        for name in ("step_time_s", "exposed_collective_s", "hidden_collective_s", "bubble_ratio"):
            assert getattr(ideal, name) == pytest.approx(getattr(formula, name), rel=1e-9), name
        assert ideal.exposed_collective_s > 0 < ideal.hidden_collective_s
        shared = predict(scenario(optimizer, schedule, tensor), timing="fast")
        assert shared.timed_by == ("engine" if contended else shared.timed_by)
        assert shared.metrics.step_time_s >= ideal.step_time_s * (1 - 1e-12)
        for rank in shared.metrics.ranks:
            b = rank.breakdown
            parts = (b.busy_s, b.warmup_s, b.dependency_s, b.p2p_s, b.collective_s, b.cooldown_s)
            assert sum(parts) == pytest.approx(shared.metrics.makespan_s, rel=1e-12)
