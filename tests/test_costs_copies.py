"""Gradients of a model that a pipeline holds twice."""

from dataclasses import replace
from pathlib import Path

import pytest

from pipesim.costs import build_costs
from pipesim.costs.copies import with_mirrored_copies
from pipesim.costs.network.alpha_beta import all_reduce_s, reduce_scatter_s
from pipesim.prediction import predict
from pipesim.scenario import load_scenario

GPT3 = Path(__file__).parent.parent / "scenarios" / "gpt3-175b-a100.yaml"


def costs_of(*overrides):
    return build_costs(load_scenario(GPT3, overrides), num_chunks=1)


def test_two_replicas_of_two_copies_are_a_ring_of_four():
    costs = costs_of()
    twice = with_mirrored_copies(costs, 8)
    assert (costs.gradient_ring.num_members, twice.gradient_ring.num_members) == (2, 4)
    moved = reduce_scatter_s(1e9, replace(twice.gradient_ring, ramp_s=0, step_latency_s=0, base_latency_s=0))
    assert moved == pytest.approx(3 / 4 * 1e9 / twice.gradient_ring.bytes_per_s, rel=1e-12)


def test_without_replicas_the_two_copies_meet_over_their_link():
    costs = costs_of("parallel.data=1", "cluster.num_nodes=8", "batch.global=64", "optimizer=plain")
    assert costs.gradient_ring is None
    ring = with_mirrored_copies(costs, 8).gradient_ring
    link = costs.p2p(0, 7)
    assert all_reduce_s(1e9, ring) == pytest.approx(1e9 / link.bytes_per_s + 2 * link.latency_s, rel=1e-12)


def replicas_in_a_node(*overrides):
    """Eight replicas of each rank fill a node; of the two ranks with a stage, two nodes with their cards."""
    base = ["parallel.tensor=1", "parallel.data=8", "cluster.num_nodes=8", "batch.global=64"]
    return costs_of("parallel.sequence_parallel=false", *base, *overrides)


def test_rings_over_both_copies_take_all_cards_of_their_nodes():
    costs = replicas_in_a_node()
    port, card = costs.fabric.wiring.port_bytes_per_s, costs.fabric.wiring.nic_bytes_per_s
    assert with_mirrored_copies(costs, 8).gradient_ring.bytes_per_s == min(port, 8 * card)
    shared = with_mirrored_copies(replicas_in_a_node("cluster.nics_per_node=1"), 8)
    assert shared.gradient_ring.bytes_per_s == card


def test_shards_of_all_replicas_share_a_card():
    def more(nics_per_node):
        costs = replicas_in_a_node("optimizer=zero2", f"cluster.nics_per_node={nics_per_node}")
        link = costs.p2p(0, 7)
        added = with_mirrored_copies(costs, 8).fixed_sync_s - costs.fixed_sync_s
        return costs.gradient_bytes / (added - 2 * link.latency_s)

    card = replicas_in_a_node().fabric.wiring.nic_bytes_per_s
    assert more(8) == pytest.approx([card] * 8)
    assert more(1) == pytest.approx([card / 8] * 8)


def test_dualpipe_synchronises_over_both_copies():
    """The ring of four moves 3/4 of what each rank's two stages hold, where the ring of two moved 1/2."""
    from pipesim.prediction import predict

    result = predict(load_scenario(GPT3, ["schedule=dualpipe"]))
    assert result.costs.gradient_ring.num_members == 4
    one_way = predict(load_scenario(GPT3, ["schedule=zb-v"]))
    assert one_way.costs.gradient_ring.num_members == 2
    assert result.metrics.exposed_sync_s > 2 * one_way.metrics.exposed_sync_s


def test_two_copies_in_one_node_share_its_wires():
    """Two devices, no replicas: each rank holds both stages, whose gradients meet over the node's link."""
    from pipesim.prediction import predict

    small = GPT3.with_name("two-gpus.yaml")
    overrides = ["schedule=dualpipe", "batch.global=16", "model.tie_word_embeddings=false"]
    one_way = predict(load_scenario(small, overrides[1:]))
    both_ways = predict(load_scenario(small, overrides))
    assert one_way.metrics.exposed_sync_s == 0
    costs = both_ways.costs
    alone_s = sum(costs.gradient_sync_s(stage) for stage in range(2))
    assert both_ways.metrics.exposed_sync_s == pytest.approx(alone_s, rel=1e-9)
    assert alone_s > costs.gradient_bytes.sum() / costs.p2p(0, 1).bytes_per_s


@pytest.mark.parametrize("level", ["zero2", "zero3"])
def test_shards_of_both_copies_are_added_up(level):
    costs = costs_of(f"optimizer={level}")
    link, more = costs.p2p(0, 7), with_mirrored_copies(costs, 8).fixed_sync_s - costs.fixed_sync_s
    assert more == pytest.approx(costs.gradient_bytes / link.bytes_per_s + 2 * link.latency_s, rel=1e-12)
    # Without replicas nothing is shared out, and the copies all-reduce.
    alone = costs_of("parallel.data=1", "cluster.num_nodes=8", "batch.global=64", f"optimizer={level}")
    assert with_mirrored_copies(alone, 8).sync_steps(0)[0].collective.nbytes == alone.gradient_bytes[0]


def test_stated_costs_stay_as_stated():
    from pipesim.scenario import scenario_from_mapping

    stated = scenario_from_mapping(
        {
            "parallel": {"pipeline": 4},
            "batch": {"microbatches": 8},
            "costs": {"forward": "1 s", "backward": "2 s", "gradient_sync": "3 s"},
        }
    )
    costs = build_costs(stated, num_chunks=1)
    assert with_mirrored_copies(costs, 4) is costs


def peak_gb(*overrides):

    return max(rank.peak_memory_bytes for rank in predict(load_scenario(GPT3, overrides)).metrics.ranks) / 1e9


def test_optimizer_state_is_sharded_over_both_copies():
    """Four hold each stage's state, two in each copy; with it in each copy alone it would be 79 GB."""
    costs = costs_of()
    twice = with_mirrored_copies(costs, 8)
    assert twice.optimizer_bytes == pytest.approx(costs.optimizer_bytes / 2)
    assert twice.optimizer_s == pytest.approx(costs.optimizer_s / 2)
    assert peak_gb("schedule=dualpipe") == pytest.approx(62, rel=0.02)
    whole = costs_of("optimizer=plain")
    assert with_mirrored_copies(whole, 8).optimizer_bytes == pytest.approx(whole.optimizer_bytes)


def test_a_rank_with_both_ends_has_one_embedding():
    """51200 x 12288 values on eight devices, each of 18 bytes: 1.4 GB."""
    from pipesim.costs.copies import for_schedule
    from pipesim.schedules import Shape, generate

    costs = build_costs(load_scenario(GPT3, ["optimizer=plain", "schedule=zb-v"]), num_chunks=2)
    on_v = for_schedule(costs, generate("zb-v", Shape(8, 2, 64)))
    in_loop = for_schedule(costs, generate("interleaved-1f1b", Shape(8, 2, 64)))

    def state(table):
        return float((table.weight_bytes + table.gradient_bytes + table.optimizer_bytes).sum())

    copy = 51200 * 12288 / 8 * 18
    assert copy == pytest.approx(1.4e9, rel=0.02)
    assert state(costs) - state(on_v) == pytest.approx(copy)
    assert state(in_loop) == state(costs)
    assert on_v.optimizer_s[-1] < costs.optimizer_s[-1]
    untied = build_costs(load_scenario(GPT3, ["model.tie_word_embeddings=false"]), num_chunks=2)
    assert state(for_schedule(untied, generate("zb-v", Shape(8, 2, 64)))) == state(untied)
