"""`pipesim tune`: the best order for measured stage times, kept only where it is one."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from dataclasses import replace
from math import exp, log
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from executor_pool import shared_pool
from helpers import costs_of
from made_up_runs import run_of
from typer.testing import CliRunner

import pipesim
from pipesim.cli.app import app
from pipesim.errors import PipesimError, ScenarioError
from pipesim.evidence.calibration.fit import MeasuredCosts
from pipesim.evidence.tuning.candidates import candidate, with_longer_hops
from pipesim.evidence.tuning.drawn_hops import hops_as_bytes, step_times
from pipesim.evidence.tuning.outcome import RatedOrder, Tuning
from pipesim.evidence.tuning.paired_runs import PairedRuns, run_in_turn
from pipesim.evidence.tuning.stage_times import ASSUMED_HOP_SPREAD, StageTimes, measured_times, stated_times
from pipesim.evidence.tuning.tune import choose, pick
from pipesim.prediction import predict_prepared, prepare_order, schedule_of
from pipesim.schedules import Shape, generate

UNEVEN = """
parallel: {pipeline: 4}
batch: {microbatches: 8}
schedule: {name: 1f1b}
costs:
  forward: [10 ms, 14 ms, 9 ms, 18 ms]
  backward: [20 ms, 27 ms, 18 ms, 36 ms]
  input_gradient: [0 ms, 16 ms, 11 ms, 22 ms]
  weight_gradient: [20 ms, 15 ms, 10 ms, 20 ms]
  p2p: 1.5 ms
"""
BUDGET = 100_000
steps_of_tuning = importlib.import_module("pipesim.evidence.tuning.tune")


SHORT = {
    "forward": ["2 ms"] * 4,
    "input_gradient": ["0 s", "3 ms", "2 ms", "4 ms"],
    "weight_gradient": ["4 ms", "3 ms", "2 ms", "4 ms"],
    "backward": ["4 ms", "6 ms", "4 ms", "8 ms"],
}


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> pipesim.Scenario:
    file = tmp_path_factory.mktemp("tune") / "uneven.yaml"
    file.write_text(UNEVEN)
    return pipesim.Scenario.load(file)


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"NUM_DRAWS": 4, "_CALIBRATION_STEPS": 2, "_WARMUP": 0, "_RETRIES": 0}.items():
        monkeypatch.setattr(steps_of_tuning, name, value)
    monkeypatch.setattr(steps_of_tuning, "SEARCH_BUDGET", BUDGET)


@pytest.fixture(scope="module")
def tuned(uneven: pipesim.Scenario) -> Tuning:
    return chosen(uneven)


def chosen(scenario: pipesim.Scenario, **how: Any) -> Tuning:
    times = {1: stated_times(scenario, 1)}
    return choose(scenario, schedule_of(scenario), times, budget=BUDGET, **how)


def test_a_faster_order_is_found_and_is_what_the_road_predicts(uneven, tuned, tmp_path) -> None:
    found = tuned
    assert found.best.candidate.searched
    assert not found.best_named.candidate.searched
    assert found.best.step_time_s < found.best_named.step_time_s <= found.in_use.step_time_s
    middle, low, high = found.gain
    assert 0.05 < low <= middle <= high < 0.12
    csv = tmp_path / "best.csv"
    found.write(csv)
    again = uneven.with_(schedule={"csv": str(csv)}).predict().step_time_s
    assert again == pytest.approx(found.best.to_dict()["step_time_without_spread_s"], rel=1e-12)
    assert found.in_use.to_dict()["step_time_without_spread_s"] == uneven.predict().step_time_s
    assert max(found.best.to_dict()["peak_in_flight"]) <= 4
    assert any("no rank holds more than 4 microbatches" in words for words in found.notes)


def test_more_memory_is_used_where_it_is_allowed(uneven, tuned) -> None:
    more = chosen(uneven, max_in_flight=8).best.candidate.prediction
    assert more.step_time_s <= tuned.best.candidate.prediction.step_time_s * (1 + 1e-9)
    assert more.metrics.ranks[0].peak_in_flight <= 8


def test_the_order_in_use_is_kept_where_nothing_is_gained() -> None:
    """One rank: nothing waits, so no order is faster."""
    alone = pipesim.Scenario.times(ranks=1, microbatches=4, forward=1.0, backward=2.0)
    found = chosen(alone)
    assert found.best is found.kept is found.in_use
    assert found.gain == (0, 0, 0)


def test_times_that_nobody_split_leave_nothing_to_the_first_stages_input_gradient() -> None:
    """As torch does it."""
    halves = pipesim.Scenario.times(ranks=2, microbatches=4, forward=1.0, backward=2.0)
    costs = stated_times(halves, 1).costs
    assert costs.input_gradient_s.tolist() == [0, 1]
    assert costs.weight_gradient_s.tolist() == [2, 1]


def made(seconds: list[float], *, searched: bool) -> RatedOrder:
    scenario = pipesim.Scenario.times(ranks=2, microbatches=2, forward=1.0, backward=2.0)
    one = candidate(scenario, generate("1f1b", Shape(2, 1, 2)), stated_times(scenario, 1), searched=searched)
    return RatedOrder(one, np.array(seconds))


def test_a_named_order_wins_ties_and_the_one_in_use_all_of_them() -> None:
    used, named, searched = (made([s], searched=is_found) for s, is_found in ((100, 0), (95, 0), (94.2, 1)))
    assert pick(used, [named, searched]) is named
    assert pick(used, [named, made([94.0], searched=True)]).candidate.searched
    assert pick(used, [made([99.2], searched=False)]) is used
    assert pick(used, [made([99.2], searched=True)]) is used


def test_a_drawn_hop_has_the_measured_median_and_spread() -> None:
    """F, hop, F and B, hop, B: 1 + 1 + 2 + 2 s and two hops of 0.5 s, each times a lognormal."""
    scenario = pipesim.Scenario.times(ranks=2, microbatches=1, forward=1.0, backward=2.0, p2p=0.5)
    order, costs = schedule_of(scenario), pipesim.build_costs(scenario, num_chunks=1)
    prepared = prepare_order(scenario, order, costs)
    as_bytes = replace(prepared, costs=hops_as_bytes(costs, order))
    assert predict_prepared(as_bytes).step_time_s == pytest.approx(7.0, rel=1e-12)
    (drawn,) = step_times([prepared], [StageTimes(costs, 0.6, 0.0, ())], num_draws=200)
    hops = drawn - 6
    assert np.median(hops) == pytest.approx(2 * 0.5 * exp(0.6**2 / 4), rel=0.1)  # of a sum of two
    assert hops.mean() == pytest.approx(2 * 0.5 * exp(0.6**2 / 2), rel=0.1)
    (still,) = step_times([prepared], [StageTimes(costs, 0.0, 0.0, ())], num_draws=3)
    assert still == pytest.approx([7.0] * 3, rel=1e-12)
    longer = predict_prepared(prepare_order(scenario, order, with_longer_hops(costs, 3)))
    assert longer.step_time_s == pytest.approx(9.0, rel=1e-12)


def test_spreads_come_from_what_was_measured() -> None:
    scenario = pipesim.Scenario.times(ranks=2, microbatches=2, forward=1.0, backward=2.0, activations="1 GB")
    costs = replace(pipesim.build_costs(scenario, num_chunks=1), activation_bytes=np.zeros(2))
    sizes = [{"num_samples": 50, "p10_s": 1.0, "p90_s": 4.0}, {"num_samples": 2, "p10_s": 1.0, "p90_s": 9.0}]
    evidence = {"message_s": {"sizes": sizes}, "operations_s": {"F": {"0": sizes[1]}}}
    times = measured_times(MeasuredCosts(costs, evidence, ()), scenario, 1)
    assert times.hop_spread == pytest.approx(log(4) / (2 * 1.2815515655446))
    assert times.compute_spread == 0
    assert times.costs.activation_bytes.tolist() == [1e9, 1e9]
    assert times.costs.input_gradient_s.tolist() == [0, 1.2], "I and W never ran apart"
    assert times.costs.weight_gradient_s.tolist() == [2, 1.2]
    none = measured_times(MeasuredCosts(costs, evidence | {"message_s": {"sizes": []}}, ()), scenario, 1)
    assert none.hop_spread == ASSUMED_HOP_SPREAD
    assert any("assumed" in words for words in none.notes)


def test_orders_run_by_turns_and_the_pairs_are_judged() -> None:
    said: list[str] = []

    def run(name: str) -> Callable[[], Any]:
        def once() -> Any:
            said.append(name)
            return run_of(generate("1f1b", Shape(2, 1, 2)), costs_of(2, number=float))

        return once

    paired = run_in_turn(run("before"), run("after"), num_rounds=3)
    assert said == ["before", "after", "after", "before", "before", "after"]
    assert paired.gain == 0
    assert paired.lost
    ten = np.ones(10)
    assert not PairedRuns(ten, 0.9 * ten, 5).lost
    assert PairedRuns(ten, 0.9 * ten, 5).conclusive
    assert PairedRuns(ten, 0.9 * ten, 10).conclusive, "a coin falls ten times alike in 1 of 512 cases"
    most = np.array([0.9] * 8 + [1.1] * 2)  # 8 of 10 or more: 2 * 56 / 1024
    assert PairedRuns(ten, most, 5).conclusive
    assert not PairedRuns(ten, most, 6).conclusive
    assert PairedRuns(ten, np.array([0.5] * 4 + [1.01] * 6), 0).lost
    assert PairedRuns(ten, np.array([0.5] * 5 + [1.01] * 5), 0).lost
    assert PairedRuns(ten, np.array([0.9] * 8 + [1.1] * 2), 0).gain == pytest.approx(0.1)


def test_what_lost_is_not_kept(tuned) -> None:
    found = tuned
    ten = np.ones(10)
    for after, kept in ((1.01 * ten, found.in_use), (0.95 * ten, found.best)):
        judged = Tuning(found.in_use, found.choices, found.best, PairedRuns(ten, after, 0), ())
        assert judged.kept is kept


def test_times_come_from_runs_of_ones_own(uneven, tmp_path) -> None:
    """What the run took, not what the scenario says: stages of 2 and 4 s, all split in halves."""
    costs = costs_of(4, number=float, forward_s=(2.0, 2.0, 2.0, 4.0), backward_s=(4.0, 4.0, 4.0, 8.0))
    for name, schedule in (("whole", "1f1b"), ("split", "zb-h1")):
        run_of(generate(schedule, Shape(4, 1, 8)), costs).write(tmp_path / f"{name}.json")
    found = pipesim.tune(uneven, tmp_path / "whole.json", tmp_path / "split.json", budget=BUDGET)
    least = 8 * (4 + 8) + 3 * 2  # all of the last rank's work, which waits for three forwards
    assert least <= found.best.step_time_s < found.in_use.step_time_s
    assert found.in_use.to_dict()["step_time_without_spread_s"] == pytest.approx(
        predict_prepared(prepare_order(uneven, schedule_of(uneven), costs)).step_time_s
    )
    other = pipesim.Scenario.times(ranks=3, microbatches=8, forward=1.0, backward=2.0)
    with pytest.raises(ScenarioError, match="4 stages, the scenario 3 ranks"):
        pipesim.tune(other, tmp_path / "whole.json")


@pytest.mark.parametrize(("error", "said"), [(0.02, 0), (-0.05, 1)])
def test_times_that_do_not_predict_their_own_run_are_doubted(error, said) -> None:
    runner = SimpleNamespace(disturbed_calibration=[], base=SimpleNamespace(step_time_error=error))
    assert len(steps_of_tuning._doubts(runner)) == said
    assert (
        len(steps_of_tuning._doubts(SimpleNamespace(**vars(runner) | {"disturbed_calibration": ["x"]})))
        == said + 1
    )


def test_the_verb_measures_and_verifies_on_the_device(uneven, tmp_path) -> None:
    pytest.importorskip("torch")
    said: list[str] = []
    found = pipesim.tune(
        uneven.with_(batch={"microbatches": 4}, costs=SHORT),
        device="emulated",
        verify=1,
        budget=BUDGET,
        pool=shared_pool(),
        progress=said.append,
    )
    assert "round 1 of 1" in said
    assert found.paired is not None
    document = json.loads(json.dumps(found.to_dict()))
    assert document["best"]["stages_of_rank"] == [[0], [1], [2], [3]]
    assert document["measured"]["rounds"] == 1
    assert found.kept in (found.in_use, found.best)


def test_ranks_that_share_a_gpu_need_our_executor(uneven, monkeypatch) -> None:
    monkeypatch.setattr(steps_of_tuning, "share_one_gpu", lambda *_: True)
    with pytest.raises(ScenarioError, match="--runtime pipesim"):
        pipesim.tune(uneven, device="cpu")


def test_the_command_line(uneven, tmp_path) -> None:
    csv = tmp_path / "best.csv"
    asked = ["tune", uneven.file, "-o", str(csv), "--set", "batch.microbatches=4"]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 0, result.output
    assert "auto instead of 1f1b: predicted to save" in result.stdout
    assert "stages to build: rank 0: 0, rank 1: 1" in result.stdout
    for wrong, words in (
        (["--verify", "10"], "needs a device to run on"),
        (["--chunks", "0"], "whole numbers of at least 1"),
        (["--device", "tpu"], "found device 'tpu'"),
    ):
        error = CliRunner().invoke(app, [*asked, *wrong]).exception
        assert isinstance(error, PipesimError)
        assert words in str(error)
    with pytest.raises(ScenarioError, match="times are of 2 chunks a rank"):
        choose(uneven, schedule_of(uneven), {2: stated_times(uneven, 1)})
