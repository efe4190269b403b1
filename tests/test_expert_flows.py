"""Tokens on their way to experts and back, on wires that messages and gradients use too."""

from dataclasses import replace

import numpy as np
import pytest
from helpers import costs_of, schedule_of

from pipesim.costs import build_costs
from pipesim.costs.network.traffic import Fabric
from pipesim.costs.network.wiring import Wiring
from pipesim.costs.token_exchange import TokenExchange
from pipesim.ir import lower
from pipesim.ir.actions import Op
from pipesim.metrics import measure
from pipesim.prediction import predict
from pipesim.scenario import scenario_from_mapping
from pipesim.timing.engine import simulate
from pipesim.timing.longest_path import StepProgram

ORDERS = ("0F0 0F1 0B0 0B1", "1F0 1F1 1B0 1B1")


def table(shown=4.0, num_parts=1, boundary=8.0):
    """Two ranks of two replicas that share out experts, a device a node: cards of 2 bytes a second.

    Every F and B takes 10 seconds with 8 bytes of tokens, alone for 4 seconds; messages are of 8 bytes too.
    """
    wiring = Wiring(1, 8.0, 0.0, 2.0, 0.0, nics_per_node=1)
    axes = (("tp", 1), ("cp", 1), ("dp", 2), ("pp", 2))
    of_experts = (("tp", 1), ("ep", 2), ("dp", 1), ("pp", 2))
    everywhere = np.ones(2)
    exchange = TokenExchange(
        nbytes=dict.fromkeys((Op.F, Op.B), 8 * everywhere),
        latency_s=dict.fromkeys((Op.F, Op.B), 0 * everywhere),
        alone_s=dict.fromkeys((Op.F, Op.B), 4 * everywhere),
        shown_s=dict.fromkeys((Op.F, Op.B), shown * everywhere),
        num_parts=(num_parts,) * 2,
        bytes_per_s=2.0,
        num_members=2,
        inside_share=0.0,
    )
    costs = costs_of(2, forward_s=10, backward_s=10, p2p_bytes_per_s=2.0, boundary_bytes=boundary)
    arrays = ("forward_s", "backward_s", "input_gradient_s", "weight_gradient_s", "boundary_bytes")
    floats = {name: getattr(costs, name).astype(float) for name in arrays}
    return replace(costs, **floats, fabric=Fabric(wiring, axes, of_experts), token_exchange=exchange)


def ends(costs, mode, num_replicas=1):
    timeline = simulate(lower(schedule_of(*ORDERS)), costs, network=mode, num_replicas=num_replicas)
    return timeline.select(timeline.compute).end_s.reshape(num_replicas, 2, 4).tolist()


def test_tokens_and_messages_share_cards():
    """F 0 of rank 1 computes from 14 to 20; then its tokens and message 1 come in at a byte a second each.

    Both are there at 28. The second message back, sent at 58, meets the tokens of rank 0's B 0, which has
    computed from 52 to 58, and both take until 66.
    """
    assert ends(table(), "ideal") == [[[10, 20, 58, 68], [24, 34, 44, 54]]]
    for num_replicas in (1, 2):
        assert ends(table(), "fair", num_replicas) == [[[10, 20, 66, 76], [28, 38, 48, 58]]] * num_replicas


def test_hidden_tokens_travel_while_their_part_is_computed():
    """Of 8 bytes half travel beside 8 seconds of computing, from 10 on beside message 0, which comes then.

    F 1 of rank 0 has its 4 hidden bytes by 14 and ends at 20 all the same; message 0, of whose 8 bytes 4 are
    left at 14, comes at 16. Rank 1 hides 4 bytes from 16 to 18 and shows 4 from 24, when message 1, sent at
    20 and alone until then, has just come.
    """
    assert ends(table(shown=2.0), "ideal")[0][0][:2] == [10, 20]
    found = ends(table(shown=2.0), "fair")[0]
    assert found[0][:2] == [10, 20]
    assert found[1][:2] == [26, 36]


def test_alone_flows_take_what_the_formula_says():
    """Without bytes of messages nothing meets the tokens, in one part or several, hidden or not."""
    for shown in (0.0, 1.0, 4.0):
        for num_parts in (1, 3):
            costs = table(shown, num_parts, boundary=0.0)
            for num_replicas in (1, 2):
                found = np.array(ends(costs, "fair", num_replicas))
                assert found == pytest.approx(np.array(ends(costs, "ideal") * num_replicas))


def test_waiting_for_wires_is_an_exposed_collective():
    schedule, costs = schedule_of(*ORDERS), table()
    metrics = measure(simulate(lower(schedule), costs), schedule, costs)
    assert [rank.breakdown.collective_s for rank in metrics.ranks] == [4, 4]
    assert [rank.breakdown.busy_s for rank in metrics.ranks] == [40, 40]


def test_the_evaluator_knows_when_tokens_meet_messages():
    program = StepProgram.of(schedule_of(*ORDERS))
    assert program.contends(program.timeline(table()), table())
    assert not program.contends(program.timeline(table(boundary=0.0)), table(boundary=0.0))


DEEPSEEK = {
    "model": {"preset": "deepseek-v3", "seq_length": 4096},
    "cluster": {"machine": "dgx-h100", "num_nodes": 16},
    "parallel": {"pipeline": 8, "expert": 16, "expert_dispatch": "deepep"},
    "batch": {"microbatches": 16},
    "optimizer": "sharded",
    "layers": "balanced",
}


def run(*overrides, timing="engine"):
    return predict(scenario_from_mapping(DEEPSEEK, overrides=overrides), timing=timing)


@pytest.mark.parametrize(
    "overrides",
    [
        ("schedule=dualpipe",),
        ("schedule=dualpipe-v", "parallel.expert_dispatch=alltoall"),
        ("schedule=zb-h1", "recompute=full"),
        ("schedule=1f1b", "recompute=selective", "recompute_modules=[moe, layernorm]"),
        ("layers=[4, 7, 8, 8, 9, 9, 9, 7]", "precision={compute: fp8, activation_format: mxfp8}"),
        ("schedule={name: interleaved-1f1b, pairs: true}", "parallel.virtual_stages=4"),
        ("optimizer=zero3",),
    ],
)
def test_the_evaluator_takes_what_a_plan_of_experts_needs(overrides):
    ideal, compiled = run(*overrides, "network.mode=ideal"), run(*overrides, timing="compiled")
    assert ideal.step_time_s == pytest.approx(compiled.step_time_s, rel=1e-9)
    assert ideal.metrics.exposed_collective_s == pytest.approx(
        compiled.metrics.exposed_collective_s, rel=1e-9, abs=1e-9
    )
    shared = run(*overrides)
    assert shared.step_time_s >= ideal.step_time_s * (1 - 1e-12)
    assert run(*overrides, timing="fast").timed_by == "engine"


def test_experts_inside_a_node_leave_messages_between_nodes_alone():
    keys = ("parallel.expert=8", "cluster.num_nodes=8")
    fast, engine = (run(*keys, timing=timing) for timing in ("fast", "engine"))
    assert fast.timed_by == "compiled"
    assert fast.step_time_s == pytest.approx(engine.step_time_s, rel=1e-9)


def test_replicas_that_differ_wait_for_each_others_tokens():
    keys = ("cluster.num_nodes=2", "parallel.pipeline=4", "parallel.expert=4", "jitter.devices=0.1")
    assert run(*keys).step_time_s > 1.05 * run(*keys[:-1]).step_time_s


def test_oversubscribed_switches_bound_exchanges():
    """Leaves of a node each, with a quarter of the up-links: what leaves a node has a quarter of the rate."""
    blocked = [f"cluster.{key}" for key in ("nodes_per_switch=1", "oversubscription=4", "rails=false")]
    free, bound = (
        build_costs(scenario_from_mapping(DEEPSEEK, overrides=keys), num_chunks=1) for keys in ((), blocked)
    )
    ratio = bound.token_exchange.bytes_per_s / free.token_exchange.bytes_per_s
    assert ratio == pytest.approx(0.25, rel=0.05)
