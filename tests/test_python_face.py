"""The face for notebooks: what it gives, how short it prints, and what it says of a mistake."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from executor_pool import shared_pool
from matplotlib.figure import Figure

import pipesim
from pipesim.errors import PipesimError
from pipesim.schedules import families_named

SCENARIOS = Path(__file__).parent.parent / "scenarios"
MOST_CHARACTERS = 2500
"""Of what a cell prints: a dozen lines."""
TIMES = {"ranks": 4, "microbatches": 8, "forward": 1, "backward": 2}


@pytest.fixture(scope="module")
def gpt3():
    return pipesim.Scenario.load(SCENARIOS / "gpt3-175b-a100.yaml")


def times(**others):
    return pipesim.Scenario.times(**{**TIMES, **others})


def refused(words, action, *arguments, **options):
    with pytest.raises(PipesimError, match=words) as caught:
        action(*arguments, **options)
    assert len(str(caught.value).splitlines()) == 1


def test_with_leaves_the_original_and_is_what_a_file_would_be(gpt3):
    other = gpt3.with_(parallel={"pipeline": 16, "data": 1}, schedule="zb-v")
    assert (gpt3.parallel.pipeline, gpt3.schedule.name) == (8, "1f1b")
    stated = ("parallel.pipeline=16", "parallel.data=1", "schedule=zb-v")
    assert other == pipesim.Scenario.load(gpt3.file, *stated)
    assert other == gpt3.with_({"parallel.pipeline": 16, "parallel.data": 1, "schedule.name": "zb-v"})
    assert isinstance(other, pipesim.Scenario)


def test_of_and_times_take_overrides_as_load_does():
    by_flag = times(schedule="zb-h1")
    assert pipesim.Scenario.times("schedule=zb-h1", **TIMES).predict().step_time_s == 27
    assert by_flag.predict().step_time_s == 27
    assert pipesim.Scenario.of(by_flag.keys, "batch.microbatches=4").batch.num_microbatches == 4


def test_numbers_of_numpy_and_pandas_are_numbers():
    plain = pipesim.Scenario.times(ranks=4, microbatches=8, forward=[1, 2, 1, 1], backward=[2.0] * 4)
    series = pd.Series([2.0] * 4)
    for forward in (np.array([1, 2, 1, 1]), (1, 2, np.int64(1), np.float64(1))):
        ranks = np.int64(4)
        given = pipesim.Scenario.times(ranks=ranks, microbatches=8, forward=forward, backward=series)
        assert given == plain
    assert times().with_({"batch.microbatches": np.int64(4)}).batch.num_microbatches == 4


def test_mistakes_in_a_scenario_are_one_message(gpt3):
    refused(r"^with_: paralel: unknown key; did you mean 'parallel'", gpt3.with_, paralel={"pipeline": 4})
    refused(r"^with_: parallel.pipelin: unknown key; did you mean", gpt3.with_, parallel={"pipelin": 4})
    refused(r"^with_: parallel: found 4; a mapping", gpt3.with_, parallel=4)
    refused(r"found 'parallel.pipeline=4'; needed: a mapping", gpt3.with_, "parallel.pipeline=4")
    refused(r"found the key 4; keys are text", gpt3.with_, {4: 4})
    refused(r"found str; needed: a mapping", pipesim.Scenario.of, gpt3.file)
    refused(r"found dict; needed: the name of a file", pipesim.Scenario.load, {})
    refused(r"found dict; needed: KEY=VALUE", pipesim.Scenario.load, gpt3.file, {"seed": 1})
    refused(r"costs.actvations: unknown key; did you mean", times, actvations="1 GB")


@pytest.mark.parametrize(
    "ask",
    [
        pipesim.predict,
        pipesim.compare,
        pipesim.plan,
        pipesim.goodput,
        lambda asked: pipesim.sweep(asked, {"seed": [1]}),
        lambda asked: pipesim.execute(asked, device="emulated"),
        lambda asked: pipesim.validate(asked, device="emulated"),
    ],
)
def test_questions_refuse_what_is_no_scenario(ask):
    refused(r"found str; needed: a scenario, as Scenario\.load", ask, "scenarios/teaching.yaml")


def test_a_prediction_has_floats_frames_and_figures(gpt3):
    found = gpt3.predict("interleaved-1f1b", chunks=4)
    for number in (found.step_time_s, found.makespan_s, found.bubble_ratio, found.memory, *found.band_s):
        assert type(number) is float
    parts = found.breakdown
    assert {type(part) for part in parts.values()} <= {float, type(None)}
    assert sum(part for part in parts.values() if part) == pytest.approx(found.step_time_s)
    assert list(found.ranks["rank"]) == list(range(8))
    idle_s = found.ranks[["warmup_s", "dependency_s", "p2p_s", "collective_s", "cooldown_s"]].sum(axis=1)
    assert idle_s.to_numpy() == pytest.approx(found.ranks["idle_s"].to_numpy())
    computing = found.timeline[found.timeline["op"].isin(["F", "B"])]
    assert computing["end_s"].max() == found.makespan_s
    assert isinstance(found.gantt(), Figure)
    assert isinstance(found.memory_plot(), Figure)
    assert found.gantt()._repr_png_()[:4] == b"\x89PNG"


def test_exact_numbers_stay_exact():
    found = times(forward=Fraction(1), backward=Fraction(2)).predict()
    assert found.bubble_ratio == Fraction(3, 11)
    assert isinstance(found.step_time_s, Fraction)
    assert found.step_time_s == 33


def test_exact_numbers_survive_a_file(tmp_path):
    third = Fraction(1, 3)
    saved = times(forward=third, backward=[Fraction(2, 7)] * 4, p2p=0.1).with_(
        {"costs.weight_gradient_share": Fraction(1, 4), "costs.activations": Fraction(0)}
    )
    saved.save(tmp_path / "exact.yaml")
    loaded = pipesim.Scenario.load(tmp_path / "exact.yaml")
    assert loaded.costs == saved.costs
    assert loaded.costs.forward_s == third
    assert loaded.predict().step_time_s == saved.predict().step_time_s
    assert isinstance(loaded.predict().step_time_s, Fraction)


def test_options_are_those_of_the_schedule_or_refused(gpt3):
    interleaved = gpt3.with_({"schedule": "interleaved-1f1b"})
    assert interleaved.predict(microbatch_group_size=16).memory > interleaved.predict().memory
    refused("1f1b: unknown option 'microbatch_group_size'", gpt3.predict, microbatch_group_size=16)
    refused("at least one rank, one chunk", gpt3.predict, "interleaved-1f1b", chunks=0)
    refused("whole numbers", gpt3.predict, "interleaved-1f1b", chunks="4")


def test_a_csv_has_its_own_chunks(tmp_path):
    path = tmp_path / "order.csv"
    path.write_text(times().predict("zb-v").schedule.to_csv())
    scenario = times().with_(schedule={"csv": str(path)})
    assert scenario.predict().step_time_s == times().predict("zb-v").step_time_s
    refused("schedule.csv: a CSV has its own chunks", scenario.predict, chunks=2)


def test_compare_takes_one_name_or_several_and_draws():
    alone = pipesim.compare(times(), schedules="zb_h1")
    assert list(alone.frame["schedule"]) == ["zb-h1"]
    both = pipesim.compare(times(), schedules=["1f1b", "interleaved-1f1b"], chunks=2)
    assert list(both.frame["schedule"]) == ["1f1b", "interleaved-1f1b v2"]
    assert both.frame["step_time_s"].tolist() == [33.0, 28.5]
    assert len(both.gantt().axes) == 2
    assert [one.name for one in families_named(["zb_v", "1f1b", "zb-v"])] == ["zb-v", "1f1b"]


def test_a_sweep_needs_no_file_and_varies_several_keys_together():
    found = pipesim.sweep(
        times(), {("parallel.pipeline", "batch.microbatches"): [(2, 4), (4, np.int64(8))], "schedule": "1f1b"}
    )
    frame = found.frame
    assert list(frame.columns[:3]) == ["parallel.pipeline", "batch.microbatches", "schedule"]
    assert frame["bubble_ratio"].tolist() == pytest.approx([1 / 5, 3 / 11])
    counts = pipesim.sweep(times(), {"batch.microbatches": np.array([4, 8])}).frame["batch.microbatches"]
    assert counts.tolist() == [4, 8]
    failed = pipesim.sweep(times(), {"batch.microbatches": [8, 0]})
    assert [row["row"] for row in failed.failed] == [1]
    assert "1 failed" in repr(failed)


def test_mistakes_in_a_sweep_are_one_message():
    refused("schedule: found no value", pipesim.sweep, times(), {"schedule": []})
    refused("needed at least once", pipesim.sweep, times(), {})
    refused("needed: a mapping", pipesim.sweep, times(), [4, 8])
    refused(r"found Fraction\(1, 3\)", pipesim.sweep, times(), {"costs.p2p": [Fraction(1, 3)]})
    refused("2 values for 1 keys|1 values for 2 keys", pipesim.sweep, times(), {("seed", "name"): [(1,)]})
    refused("occurs twice", pipesim.sweep, times(), {"seed": [1, 1]})
    refused("batch.microbatch: unknown key", pipesim.sweep, times(), {"batch.microbatch": [4]})


def small():
    return pipesim.Scenario.of(
        {
            "name": "small",
            "model": {
                "num_hidden_layers": 4,
                "hidden_size": 1024,
                "num_attention_heads": 8,
                "vocab_size": 32000,
                "seq_length": 2048,
            },
            "cluster": {"accelerator": "h100-sxm", "num_nodes": 1, "gpus_per_node": 4},
            "parallel": {"pipeline": 2},
            "batch": {"global": 8},
        }
    )


def test_the_best_of_a_plan_is_a_scenario(tmp_path):
    found = pipesim.plan(small(), top=2, schedules="1f1b", num_workers=1)
    assert isinstance(found.best, pipesim.Scenario)
    assert found.best.predict().step_time_s == found.frame["step_time_s"][0]
    assert found.best.predict().step_time_s <= small().predict().step_time_s
    found.best.save(tmp_path / "best.yaml")
    assert pipesim.Scenario.load(tmp_path / "best.yaml").predict().step_time_s == found.choices[0].step_time_s


@pytest.fixture(scope="module")
def run():
    pytest.importorskip("torch")
    scenario = pipesim.Scenario.times(
        ranks=2, microbatches=4, forward=["4 ms", "8 ms"], backward=["8 ms", "16 ms"]
    )
    return pipesim.execute(scenario, device="emulated", num_steps=3, warmup=1, pool=shared_pool())


def test_a_run_has_frames_and_a_figure(run):
    assert list(run.ranks["rank"]) == [0, 1]
    computing = run.timeline[run.timeline["op"].isin(["F", "B"])]
    assert len(computing) == 2 * 4 * 2
    assert computing["start_s"].min() == 0
    assert set(run.timeline["step"]) <= {0, 1, 2}
    assert isinstance(run.gantt(), Figure)
    assert run.step_time_s >= 4 * (0.008 + 0.016)  # what the busiest rank sleeps


def test_calibration_takes_runs_and_files_and_writes_costs(run, tmp_path):
    run.save(tmp_path / "run.json")
    by_file, found = pipesim.calibrate(tmp_path / "run.json"), pipesim.calibrate(run)
    pd.testing.assert_frame_equal(found.frame, by_file.frame, rtol=1e-6)
    pd.testing.assert_frame_equal(found.frame, pipesim.calibrate(run.run).frame)
    assert found.frame["forward_s"].tolist() == pytest.approx([0.004, 0.008], rel=1e-6)
    found.save(tmp_path / "costs.yaml")
    measured = run.scenario.with_(costs={"file": str(tmp_path / "costs.yaml")})
    assert measured.predict("gpipe").ranks["busy_s"].tolist() == pytest.approx([0.048, 0.096], rel=1e-6)
    refused("found nothing to calibrate from", pipesim.calibrate)
    refused("found list; needed: a run", pipesim.calibrate, [run])


def test_a_cell_prints_little(gpt3, run):
    comparison = pipesim.compare(times())
    shape = pipesim.Shape(4, 1, 8)
    schedule = pipesim.generate("1f1b", shape)
    costs = pipesim.build_costs(times(), num_chunks=1)
    timeline = pipesim.simulate(pipesim.lower(schedule), costs)
    plan = pipesim.plan(small(), top=1, schedules="1f1b", num_workers=1)
    shown = [
        *(gpt3, gpt3.predict(), comparison, comparison.results[0], run, run.run, pipesim.calibrate(run)),
        *(schedule, pipesim.lower(schedule), costs, timeline, plan, plan.choices),
        *(pipesim.sweep(times(), {"batch.microbatches": range(4, 40)}), pipesim.goodput(gpt3)),
    ]
    for one in shown:
        assert len(repr(one)) < MOST_CHARACTERS, type(one)
        if hasattr(one, "_repr_html_"):
            assert len(one._repr_html_()) < 4 * MOST_CHARACTERS, type(one)


def test_html_of_a_cell_is_escaped():
    named = times().with_(name="<b>me</b>")
    for one in (named, named.predict()):
        assert "<b>" not in one._repr_html_()
        assert "&lt;b&gt;me" in one._repr_html_()
