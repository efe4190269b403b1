"""Ranks, replicas and steps that are not alike."""

import json

import numpy as np
import pytest
from helpers import costs_of
from typer.testing import CliRunner

from pipesim.cli.app import app
from pipesim.costs import build_costs
from pipesim.costs.rows import step_durations
from pipesim.costs.variation import vary
from pipesim.errors import ScenarioError
from pipesim.ir import lower
from pipesim.ir.actions import Op
from pipesim.prediction import predict, prepare, repeat
from pipesim.questions import compare
from pipesim.scenario import scenario_from_mapping
from pipesim.scenario.resolved import Jitter
from pipesim.schedules import Shape, generate
from pipesim.timing.engine import simulate

DIRECT = {
    "parallel": {"pipeline": 4},
    "batch": {"microbatches": 8},
    "costs": {"forward": 1, "backward": 2},
}
ON_A_CLUSTER = {
    "model": "llama3-8b",
    "cluster": {"machine": "dgx-h100", "num_nodes": 4},
    "parallel": {"pipeline": 4, "tensor": 2, "data": 4},
    "batch": {"global": 32},
}


def scenario(mapping, *overrides):
    return scenario_from_mapping(mapping, overrides=overrides)


def lowered(num_ranks=4, num_microbatches=8):
    return lower(generate("1f1b", Shape(num_ranks, 1, num_microbatches)))


def draw(schedule, jitter, **chosen):
    costs = costs_of(schedule.num_ranks, number=float)
    return vary(schedule, costs, jitter, **({"num_replicas": 2, "seed": 1} | chosen))


def test_spreads_have_mean_one_and_their_sigma():
    schedule = lowered(16, 64)
    base = step_durations(schedule, costs_of(16, number=float))
    busy = base > 0
    factors = draw(schedule, Jitter(compute=0.1)).durations[:, busy] / base[busy]
    assert factors.mean() == pytest.approx(1, abs=0.01)
    assert np.log(factors).std() == pytest.approx(0.1, rel=0.05)
    of_devices = draw(schedule, Jitter(devices=0.1)).durations[:, busy] / base[busy]
    assert len(np.unique(of_devices.round(12))) == 2 * 16
    messages = draw(schedule, Jitter(network=0.2)).byte_factors
    sends = np.isin(schedule.op, (Op.SEND_F, Op.SEND_B))
    assert (messages[:, ~sends] == 1).all()
    assert np.log(messages[:, sends]).std() == pytest.approx(0.2, rel=0.05)


def test_draws_depend_on_seed_and_repeat_and_devices_not_on_the_schedule():
    jitter = Jitter(compute=0.1, devices=0.1)
    first = draw(lowered(), jitter).durations
    assert (first == draw(lowered(), jitter).durations).all()
    assert (first != draw(lowered(), jitter, seed=2).durations).any()
    assert (first != draw(lowered(), jitter, repeat=1).durations).any()
    only_devices = Jitter(devices=0.1)
    short, long = (draw(lowered(4, m), only_devices).durations for m in (2, 8))
    assert set(short.round(12).ravel()) == set(long.round(12).ravel())


def test_a_slow_rank_is_slow_in_all_it_does():
    result = predict(scenario(DIRECT, "jitter.slow_ranks.2=1.5"))
    assert [rank.busy_s for rank in result.metrics.ranks] == pytest.approx([24, 24, 36, 24])
    even = predict(scenario(DIRECT))
    # Rank 2 starts after two forwards and is never idle but for 1.5 before its first backward (its second
    # forward is done at 5, the last rank's first backward at 6.5); two backwards follow its last.
    assert result.metrics.makespan_s == pytest.approx(2 + 8 * 4.5 + 1.5 + 2 * 2)
    assert even.metrics.makespan_s == 8 * 3 + 3 * 3


def test_the_same_scenario_gives_the_same_bytes():
    asked = scenario(ON_A_CLUSTER, "jitter={compute: 0.02, devices: 0.02, network: 0.05}")
    first, second = predict(asked).events, predict(asked).events
    assert first.start_s.tobytes() == second.start_s.tobytes()
    assert first.end_s.tobytes() == second.end_s.tobytes()
    other = predict(asked.with_(seed=7)).events
    assert first.end_s.tobytes() != other.end_s.tobytes()


def test_the_step_ends_with_the_slowest_replica():
    asked = scenario(ON_A_CLUSTER, "jitter={devices: 0.05}", "optimizer=plain")
    alone = scenario(ON_A_CLUSTER)
    result, even = predict(asked), predict(alone)
    schedule = lower(result.schedule)
    varied = vary(schedule, result.costs, asked.jitter, num_replicas=4, seed=asked.seed)
    every = simulate(schedule, result.costs, num_replicas=4, durations=varied.durations)
    ends = [every.end_s[(every.replica == r) & every.compute].max() for r in range(4)]
    assert len(set(ends)) == 4
    assert result.events.replica[0] == int(np.argmax(ends))
    assert every.end_s.max() == result.events.end_s.max() > even.events.end_s.max()


def test_no_jitter_drawn_is_no_jitter():
    still = predict(scenario(ON_A_CLUSTER, "jitter={compute: 0}"))
    assert still.metrics == predict(scenario(ON_A_CLUSTER)).metrics


def test_repeats():
    asked = scenario(DIRECT, "jitter={compute: 0.05}")
    prepared = prepare(asked)
    repeats = repeat(prepared, 12)
    assert repeats.num_repeats == 12
    assert repeats.step_time_s.p50 < repeats.step_time_s.p95
    assert repeats.slowdown == pytest.approx(repeats.step_time_s.mean / 33)
    assert 1 < repeats.slowdown < 1.1
    assert repeats == repeat(prepared, 12)
    with pytest.raises(ScenarioError, match="all repeats would be alike"):
        repeat(prepare(scenario(DIRECT)), 3)
    slow = prepare(scenario(DIRECT, "jitter.slow_ranks.0=1.1"))
    assert repeat(slow, 1).slowdown > 1
    with pytest.raises(ScenarioError, match="alike"):
        repeat(slow, 2)


def test_which_schedule_suffers_least_from_a_slow_rank():
    asked = scenario(DIRECT, "jitter={slow_ranks: {'1': 1.1}, compute: 0.02}")
    comparison = compare(asked, schedules=["gpipe", "1f1b", "zb-h1"], num_repeats=5)
    slowdowns = {
        r.schedule.name: one.slowdown for r, one in zip(comparison.results, comparison.repeats, strict=True)
    }
    assert min(slowdowns.values()) > 1.03
    assert slowdowns["zb-h1"] > slowdowns["1f1b"]


def test_command_line():
    flags = ["--ranks", "4", "--microbatches", "8", "--forward", "1", "--backward", "2"]
    asked = ["compare", *flags, "--schedules", "1f1b,gpipe", "--slow-rank", "2=1.1", "--repeats"]
    run = CliRunner().invoke(app, [*asked, "3", "--set", "jitter.compute=0.01", "--json"])
    assert run.exit_code == 0
    results = json.loads(run.output)["results"]
    assert [result["repeats"]["num_repeats"] for result in results] == [3, 3]
    assert results[0]["repeats"]["step_time_s"].keys() == {"mean", "p50", "p95"}
    table = CliRunner().invoke(app, [*asked, "1"])
    assert "times without jitter" in table.output


@pytest.mark.parametrize(
    ("mapping", "override", "key", "word"),
    [
        (DIRECT, "jitter.slow_ranks.4=1.1", "jitter.slow_ranks", "ranks are 0 to 3"),
        (DIRECT, "jitter.slow_ranks={'1': 0}", "jitter.slow_ranks[1]", "above zero"),
        (DIRECT, "jitter.compute=-1", "jitter.compute", "at least zero"),
        (DIRECT, "jitter.gpus=1", "jitter.gpus", "unknown key"),
        (ON_A_CLUSTER, "cluster.degraded_nodes={'4': 0.5}", "cluster.degraded_nodes", "nodes are 0 to 3"),
    ],
)
def test_bad_input(mapping, override, key, word):
    with pytest.raises(ScenarioError) as caught:
        scenario(mapping, override)
    assert caught.value.key == key
    assert word in str(caught.value)


def test_a_degraded_node_slows_what_crosses_its_cards():
    even = predict(scenario(ON_A_CLUSTER))
    degraded = predict(scenario(ON_A_CLUSTER, "cluster.degraded_nodes.1=0.1"))
    assert degraded.metrics.makespan_s > even.metrics.makespan_s
    assert degraded.metrics.exposed_sync_s >= even.metrics.exposed_sync_s


EXPERTS = {
    "model": {"preset": "qwen3-30b-a3b", "expert_imbalance": 1.5},
    "cluster": {"machine": "dgx-h100", "num_nodes": 2},
    "parallel": {"pipeline": 2, "expert": 8},
    "batch": {"microbatches": 64},
    "jitter": {"experts": 0.2},
}


def test_loads_of_experts_are_drawn_by_stage_and_microbatch():
    """Half as many tokens again take half of what doubles with them; the mean stays, within its error."""
    asked = scenario_from_mapping(EXPERTS)
    prepared = prepare(asked)
    lowered = lower(prepared.schedule)
    costs = prepared.costs
    even = step_durations(lowered, costs)
    drawn = vary(lowered, costs, asked.jitter, num_replicas=1, seed=3).durations[0]
    forwards = (lowered.op == Op.F) & (lowered.stage == 1)
    load = 1 + (drawn - even)[forwards] / costs.busiest_s[Op.F][1]
    assert load.std() == pytest.approx(0.2, rel=0.25)
    assert load.mean() == pytest.approx(1, abs=0.06)
    assert load.min() >= 1 / 1.5 - 1e-12
    # The same tokens come back.
    backwards = (lowered.op == Op.B) & (lowered.stage == 1)
    by_microbatch = np.argsort(lowered.microbatch[forwards]), np.argsort(lowered.microbatch[backwards])
    again = 1 + (drawn - even)[backwards] / costs.busiest_s[Op.B][1]
    assert again[by_microbatch[1]] == pytest.approx(load[by_microbatch[0]])
    heavier = build_costs(asked.with_({"model.expert_imbalance": 2.25}), num_chunks=1)
    assert heavier.forward_s[1] - costs.forward_s[1] == pytest.approx(costs.busiest_s[Op.F][1] / 2)


def test_uneven_loads_cost_time_and_one_replica_stands_for_all():
    asked = scenario_from_mapping(EXPERTS)
    uneven, even = predict(asked), predict(asked.with_(jitter=None))
    assert uneven.step_time_s > even.step_time_s
    assert not asked.jitter.sets_replicas_apart
    assert asked.jitter.random
    assert asked.jitter.without_chance() is None
    with pytest.raises(ScenarioError, match="only where experts are shared out"):
        asked.with_({"parallel.expert": 1})
