"""Ranks with other accelerators, and gathers of shared-out parameters as idle time with a name."""

import numpy as np
import pytest

from pipesim.costs import build_costs
from pipesim.costs.rows import step_durations
from pipesim.errors import ScenarioError
from pipesim.ir import lower
from pipesim.prediction import predict
from pipesim.scenario import scenario_from_mapping
from pipesim.schedules import Shape, generate

MAPPING = {
    "model": "llama3-8b",
    "cluster": {"machine": "dgx-h100", "num_nodes": 1},
    "parallel": {"pipeline": 4, "tensor": 1, "data": 2},
    "batch": {"global": 16},
}


def scenario(*overrides):
    return scenario_from_mapping(MAPPING, overrides=overrides)


def durations(asked):
    costs = build_costs(asked, num_chunks=1)
    schedule = lower(generate("1f1b", Shape(4, 1, 8), costs))
    return step_durations(schedule, costs), schedule


def test_a_rank_takes_the_times_of_its_own_accelerator():
    """Under one and the same efficiency, which belongs to the software."""
    usual, schedule = durations(scenario())
    slow, _ = durations(scenario("cluster.accelerator=a100-sxm-80", "efficiency=h100-nemo"))
    mixed, _ = durations(scenario("cluster.other_accelerators.2=a100-sxm-80"))
    here = schedule.rank == 2
    assert (mixed[~here] == usual[~here]).all()
    assert (mixed[here] == slow[here]).all()
    assert mixed[here].sum() > 1.5 * usual[here].sum()


def test_the_slowest_rank_sets_the_pace_and_the_others_wait():
    even, mixed = (
        predict(scenario()),
        predict(scenario("cluster.other_accelerators={'3': a100-sxm-80}")),
    )
    assert mixed.metrics.makespan_s > 1.5 * even.metrics.makespan_s
    assert np.argmax([rank.busy_s for rank in mixed.metrics.ranks]) == 3
    rent = (3 * 2.95 + 1.29) / 4
    assert mixed.metrics.usd_per_step == pytest.approx(8 * rent * mixed.metrics.step_time_s / 3600)
    peaks = [989e12, 989e12, 989e12, 312e12]
    assert mixed.costs.peak_flops_per_gpu == pytest.approx(sum(peaks) / 4)


def test_memory_is_that_of_each_rank():
    small = "cluster.other_accelerators={'0': {preset: a100-sxm-80, memory: 10 GB}}"
    assert predict(scenario()).metrics.fits_memory
    assert not predict(scenario(small)).metrics.fits_memory


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("cluster.other_accelerators.4=h100-sxm", "cluster.other_accelerators"),
        ("cluster.other_accelerators.1=h1000", "cluster.other_accelerators.1"),
    ],
)
def test_bad_input(override, key):
    with pytest.raises(ScenarioError) as caught:
        scenario(override)
    assert caught.value.key.startswith(key)


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1", "dualpipe-v"])
def test_gathers_are_idle_time_with_a_name(schedule):
    plain = predict(scenario(f"schedule={schedule}")).metrics
    shared = predict(scenario(f"schedule={schedule}", "optimizer=zero3")).metrics
    for rank in plain.ranks:
        assert rank.breakdown.collective_s == 0
    for rank in shared.ranks:
        parts = rank.breakdown
        assert parts.collective_s > 0
        total = parts.busy_s + parts.warmup_s + parts.dependency_s + parts.p2p_s
        assert total + parts.collective_s + parts.cooldown_s == pytest.approx(shared.makespan_s)
    assert shared.bubble_ratio > plain.bubble_ratio
    assert [rank.busy_s for rank in shared.ranks] == pytest.approx([rank.busy_s for rank in plain.ranks])


HALF = [{"num_nodes": 1, "accelerator": name} for name in ("h100-sxm", "a100-sxm-80")]


@pytest.mark.parametrize(
    "changes",
    [
        {"cluster.other_accelerators": {"2": "a100-sxm-80"}},
        {"cluster": {"machine": "dgx-a100", "num_nodes": 2, "groups": HALF}, "parallel.data": 4},
    ],
)
def test_a_set_that_is_borrowed_for_some_of_the_accelerators_has_the_wide_band(changes):
    asked = predict(scenario_from_mapping(MAPPING).with_(changes), timing="fast")
    assert asked.band.share == pytest.approx(0.5)
    assert any("h100-nemo was not fitted on a100-sxm-80" in words for words in asked.warnings)
    assert predict(scenario(), timing="fast").band.share < 0.3
