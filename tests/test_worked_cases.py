"""Decisions that people have: the advice runs where they asked, leaves room, and nothing like it is faster.

A 70B on 32 nodes of 8 H100, a 13B on 4 nodes of 8 A100 of 40 GB that share one card of 100 Gb/s, and stage
times from a profiler.
"""

from itertools import product

import pytest

from pipesim import Scenario, compare
from pipesim.prediction import difference
from pipesim.questions.judgement import judge
from pipesim.questions.memory_advice import changes_for_memory
from pipesim.show.advice_lines import advice_lines

LLAMA70 = {
    "name": "Llama-3 70B on 256 H100",
    "model": "llama3-70b",
    "cluster": {"accelerator": "h100-sxm", "num_nodes": 32, "gpus_per_node": 8, "inter_node": "ib-ndr"},
    "parallel": {"pipeline": 4, "tensor": 4, "data": 16, "virtual_stages": 5, "sequence_parallel": True},
    "batch": {"global": 256, "micro": 1},
    "optimizer": "sharded",
}
GPT13 = {
    "name": "13B on 32 A100 of 40 GB",
    "model": "gpt3-13b",
    "cluster": {
        **{"accelerator": "a100-sxm-40", "num_nodes": 4, "gpus_per_node": 8},
        **{"inter_node": "roce-100", "nics_per_node": 1},
    },
    "parallel": {"pipeline": 4, "tensor": 2, "data": 4, "virtual_stages": 2, "sequence_parallel": True},
    "batch": {"global": 64, "micro": 2},
    "optimizer": "sharded",
    "recompute": "selective",
}
SCHEDULES = ["1f1b", "interleaved-1f1b", "zb-h1", "zb-v", "gpipe"]


@pytest.mark.parametrize(
    ("case", "framework"), list(product((LLAMA70, GPT13), (None, "megatron", "torch", "deepspeed")))
)
def test_the_advice_can_be_run_has_room_and_is_not_beaten(case, framework, judgements):
    judged = judgements(case, framework)
    best = judged.best
    assert best.standing == "fits"
    assert judged.memory.free_share >= 0.05
    assert best.runs_by == "name"
    wanted = judged.framework
    assert wanted is None or wanted in best.run.frameworks
    for row in judged.rows:
        if row.standing == "fits" and row.runs_by == "name":
            assert best.run.step_time_s <= row.run.step_time_s or not row.difference.is_certain
    assert {row.run.label for row in judged.ties} == {
        row.run.label
        for row in judged.rows
        if row is not best
        and row.standing == "fits"
        and (wanted is None or row.runs_by != "")
        and not difference(row.run, best.run).is_certain
    }


@pytest.fixture(scope="module")
def judgements():
    made = {}

    def judged(case, framework):
        if case["name"] not in made:
            made[case["name"]] = compare(Scenario.of(case), schedules=SCHEDULES, timing="fast")
        compared = made[case["name"]]
        return judge(compared.results, own=compared.judged.own, framework=framework)

    return judged


def test_what_does_not_fit_gets_sequence_parallelism_before_recomputation():
    """With 1F1B it is enough alone; with five chunks a rank it goes with recomputation, and is faster so."""
    scenario = Scenario.of(LLAMA70).with_({"parallel.sequence_parallel": False})
    for schedule, chunks, key in (
        ("1f1b", 1, "parallel.sequence_parallel=true"),
        ("interleaved-1f1b", 5, "parallel.sequence_parallel=true, recompute=full"),
    ):
        result = scenario.predict(schedule, chunks=chunks)
        assert not result.metrics.fits_headroom
        first, *others = changes_for_memory(result)
        assert str(first) == key
        assert first.fits
        assert all(first.least_step_s <= other.least_step_s for other in others)
        again = first.scenario.predict()
        assert again.metrics.fits_headroom
        assert again.memory == first.peak_memory_bytes


def test_profiled_times_show_the_floor_before_a_schedule():
    """Ranks of 60, 60, 66 and 90 ms for each of 8 microbatches: 720 ms, and 552 on average."""
    times = {
        "forward": ["20 ms", "20 ms", "22 ms", "30 ms"],
        "backward": ["40 ms", "40 ms", "44 ms", "60 ms"],
    }
    compared = compare(Scenario.times(ranks=4, microbatches=8, **times), schedules=["1f1b", "gpipe", "zb-h1"])
    best = compared.judged.recommended
    assert best.step_time_s >= 0.72
    text = "\n".join(advice_lines(compared.judged))
    assert "FLOOR 720 ms: rank 3 computes that long, 30 % above the mean." in text
    assert "A balanced cut has 552 ms a rank: move layers first." in text


@pytest.mark.parametrize("name", ["auto", "zb-auto"])
def test_searched_orders_leave_the_headroom(name):
    options = {"budget": 100_000} if name == "auto" else {}
    tight = Scenario.of(GPT13).with_(
        {"parallel.virtual_stages": 1, "recompute": "none", "batch": {"global": 32, "micro": 1}}
    )
    peaks = []
    for headroom in (0.0, 0.3):
        result = tight.with_({"headroom": headroom}).predict(name, **options)
        usable = 39.5 * 2**30 - 2 * 2**30
        assert result.costs.memory_budget_bytes == pytest.approx((1 - headroom) * usable)
        assert result.memory <= (1 - headroom) * usable
        assert result.metrics.fits_headroom
        peaks.append(result.memory)
    assert peaks[1] < peaks[0]
