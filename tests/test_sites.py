"""Unlike nodes and several data centres: stages or replicas over slow links, replicas that seldom meet."""

import numpy as np
import pytest

from pipesim.costs import build_costs
from pipesim.errors import ScenarioError
from pipesim.prediction import predict, prepare
from pipesim.questions.planning import plan
from pipesim.scenario import scenario_from_mapping
from pipesim.scenario.resolve_groups import device_numbers

TWO_SITES = {
    "groups": [
        {"num_nodes": 1, "accelerator": "h100-sxm", "site": "oslo"},
        {"num_nodes": 1, "accelerator": "a100-sxm-80", "site": "rome"},
    ],
    "site_links": [{"between": ["rome", "oslo"], "latency": "30 ms", "bandwidth": "10 GB/s"}],
    "intra_node": "nvlink4",
    "inter_node": "ib-hdr",
}


def scenario(*, cluster=(), overrides=(), uncut=False, **changes):
    mapping = {
        "model": {"preset": "llama3-8b", "seq_length": 4096},
        "cluster": TWO_SITES | dict(cluster),
        "parallel": {"pipeline": 2, "tensor": 4},
        "batch": {"global": 16},
        "schedule": "1f1b",
        "optimizer": "sharded",
    }
    return scenario_from_mapping(mapping | changes, overrides=overrides, uncut=uncut)


TO_BONN = {"between": ["oslo", "bonn"], "latency": 0, "bandwidth": "1 GB/s"}
REPLICAS = ["parallel.rank_order=tp-cp-ep-pp-dp"]


def test_stages_over_sites_have_the_devices_of_their_site():
    asked = scenario()
    assert asked.cluster.num_nodes == 2
    assert [one.name for one in asked.cluster.accelerators(2)] == ["h100-sxm", "a100-sxm-80"]
    costs = build_costs(asked, num_chunks=1)
    # By hand: two replicas of four devices send one message of 4096 x 4096 bf16 values each, whole from every
    # tensor-parallel device: eight of them share 10 GB/s.
    link = costs.p2p(0, 1)
    assert link.latency_s == 0.03
    assert link.bytes_per_s == pytest.approx(10e9 / 4)
    assert costs.boundary_bytes[0] == 2 * 4096 * 4096
    moved = prepare(asked)
    demand = moved.costs.fabric.message(0, 1, 0)
    assert demand.loads["site", 0, 1] == 4


def test_a_message_between_sites_takes_its_latency_and_its_share_of_the_link():
    step = predict(scenario(batch={"microbatches": 1}, parallel={"pipeline": 2, "tensor": 4, "data": 2}))
    sent = step.events.select(step.events.nbytes > 0)
    first = int(np.flatnonzero(sent.op == 4)[0])
    # Both replicas send at once: a fourth of a half each.
    expected = 0.03 + 2 * 4096 * 4096 / (10e9 / 8)
    assert sent.end_s[first] - sent.start_s[first] == pytest.approx(expected)


def test_replicas_over_sites_wait_for_the_slower_one_and_for_the_link():
    asked = scenario(overrides=REPLICAS)
    assert [one.name for one in asked.cluster.accelerators(2)] == ["a100-sxm-80"] * 2
    assert "a100-sxm-80, the slowest" in asked.echo["cluster.groups (rank 0)"]
    costs = build_costs(asked, num_chunks=1)
    assert costs.p2p(0, 1).latency_s < 1e-3
    assert costs.peak_flops_per_gpu == pytest.approx((989.5e12 + 312e12) / 2, rel=1e-3)
    # By hand: reduce-scatter of 4 bytes and all-gather of 2 for each of a rank's parameters, half of them
    # each way; each pass has one hop between the sites.
    parameters = 4 * costs.weight_bytes[0] / 2
    both_s = 2 * 0.03 + parameters / 2 * 6 / 10e9
    assert costs.gradient_sync_s(0) == pytest.approx(both_s, rel=1e-3)
    engine, compiled = predict(asked), predict(asked, timing="compiled")
    assert engine.metrics.exposed_sync_s > 0.9 * both_s
    # Each rank has the link to itself there; both use it at a time in the engine.
    assert compiled.step_time_s < engine.step_time_s


def test_replicas_that_meet_every_n_steps_pay_the_link_once():
    parallel = {"pipeline": 2, "tensor": 4, "rank_order": "tp-cp-ep-pp-dp"}
    every = {n: scenario(parallel=parallel | {"local_steps": n}) for n in (10, 100)}
    costs = {n: build_costs(one, num_chunks=1) for n, one in every.items()}
    assert costs[10].gradient_ring is None
    assert costs[10].across_ring is None
    # By hand: all ranks at once, 4 bytes of 8.03e9 parameters each way over 10 GB/s; two passes of latency.
    parameters = 4 * float(costs[10].weight_bytes.sum()) / 2
    whole_s = 2 * 0.03 + parameters * 4 / 10e9
    for n, table in costs.items():
        assert table.gradient_sync_s(0) == pytest.approx(whole_s / n, rel=1e-3)
    # Every replica keeps all of its optimizer's state.
    alone = build_costs(scenario(overrides=REPLICAS), num_chunks=1)
    assert costs[10].optimizer_bytes[0] == pytest.approx(2 * alone.optimizer_bytes[0])
    steps = [predict(scenario(parallel=parallel)), *map(predict, every.values())]
    seconds = [step.step_time_s for step in steps]
    assert seconds == sorted(seconds, reverse=True)
    with pytest.raises(ScenarioError, match="one group of 2 replicas"):
        scenario(parallel=parallel | {"local_steps": 10, "data_shard": 2})


def test_traffic_between_sites_is_paid_for():
    links = [TWO_SITES["site_links"][0] | {"usd_per_gb": 0.02}]
    free, paid = predict(scenario()), predict(scenario(cluster={"site_links": links}))
    # Two replicas of four devices, eight microbatches of 4096 x 4096 bf16 values, forth and back.
    nbytes = 2 * 8 * 4 * 2 * (2 * 4096 * 4096)
    assert paid.metrics.usd_per_step - free.metrics.usd_per_step == pytest.approx(0.02 * nbytes / 1e9)
    parallel = {"pipeline": 2, "tensor": 4, "rank_order": "tp-cp-ep-pp-dp", "local_steps": 10}
    free = predict(scenario(parallel=parallel))
    paid = predict(scenario(cluster={"site_links": links}, parallel=parallel))
    # 4 bytes of each parameter each way, a tenth of that a step.
    parameters = 4 * float(build_costs(scenario(), num_chunks=1).weight_bytes.sum()) / 2
    expected = 0.02 * 2 * 4 * parameters / 10 / 1e9
    assert paid.metrics.usd_per_step - free.metrics.usd_per_step == pytest.approx(expected)


@pytest.mark.parametrize(
    ("order", "places"),
    [("tp-cp-ep-dp-pp", [0, 1, 4, 8]), ("tp-cp-ep-pp-dp", [0, 1, 8, 4])],
)
def test_devices_are_numbered_by_the_rank_order(order, places):
    # The places (0,0,0,0), (1,0,0,0), (0,0,1,0) and (0,0,0,1) of tensor 4, data 2, pipeline 2.
    parallel = scenario(parallel={"pipeline": 2, "tensor": 4, "rank_order": order}).parallel
    numbered = device_numbers(parallel)
    asked = [(0, 0, 0, 0), (1, 0, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)]
    assert [int(numbered[place]) for place in asked] == places
    assert prepare(scenario()).costs.fabric.devices(1) == list(range(8, 16))


def test_unlike_nodes_of_one_site_need_no_links_and_a_plan_cuts_over_them():
    changes = {
        "cluster": {
            "groups": [group | {"site": None} for group in TWO_SITES["groups"]],
            "site_links": [],
            "gpus_per_node": 2,
        },
        "model": {"preset": "llama3-8b", "num_hidden_layers": 8, "seq_length": 2048},
        "parallel": {"pipeline": 2},
        "batch": {"global": 8},
    }
    balanced = ["layers=balanced"]
    asked, even = scenario(**changes, overrides=balanced), scenario(**changes)
    assert asked.cluster.site_of_node == ()
    assert predict(asked).step_time_s < predict(even).step_time_s
    uncut = scenario(**changes, overrides=balanced, uncut=True)
    best, *_ = plan(uncut, schedules=["1f1b"], top=1, num_workers=1).choices
    assert best.step_time_s <= predict(asked).step_time_s


@pytest.mark.parametrize(
    ("cluster", "parallel", "words"),
    [
        ({"site_links": []}, {}, "oslo and rome need a link between them"),
        ({"groups": 5}, {}, "found 5; a list is needed"),
        ({"num_nodes": 3}, {}, "found 3; the groups have 2"),
        ({"other_accelerators": {"0": "h100-sxm"}}, {}, "groups say what every node has"),
        ({"accelerator": "a100-sxm-80"}, {}, "cluster.accelerator: groups say what every node has"),
        (
            {"site_links": [{"between": ["oslo", "bonn"], "latency": 0, "bandwidth": "1 GB/s"}]},
            {},
            "there are: oslo, rome",
        ),
        ({}, {"pipeline": 1, "tensor": 16}, "tensor.*several data centres"),
        ({}, {"pipeline": 1, "tensor": 8, "context": 2}, "context.*several data centres"),
    ],
)
def test_what_cannot_be_is_refused_in_one_message(cluster, parallel, words):
    with pytest.raises(ScenarioError, match=words):
        scenario(cluster=cluster, parallel={"pipeline": 2, "tensor": 4} | parallel)
