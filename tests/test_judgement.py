"""What is advised: runs where asked, leaves the headroom, and nothing that also does is clearly faster."""

import math
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim.errors import ScheduleError
from pipesim.questions.judgement import judge, memory_room
from pipesim.scenario.resolved import KeptFree
from pipesim.show.advice_lines import advice_lines

LIMIT, RESERVE, HEADROOM = 100.0, 10.0, 0.1
"""Of 100 bytes 90 are usable and 81 advised."""


def run_of(
    step_time_s, peak, frameworks=("torch",), *, synchronous=True, error_band=0.07, label="x", micro=1
):
    ranks = (SimpleNamespace(rank=0, peak_memory_bytes=peak, peak_in_flight=1, busy_s=1.0),)
    return SimpleNamespace(
        label=label,
        synchronous=synchronous,
        frameworks=frameworks,
        schedule=SimpleNamespace(name=label),
        shape=None,
        band_s=None,
        metrics=SimpleNamespace(
            step_time_s=step_time_s,
            peak_memory_bytes=peak,
            fits_memory=peak <= LIMIT,
            fits_headroom=peak <= 81,
            ranks=ranks,
            mfu=None,
        ),
        breakdown={"compute_s": 0.75 * step_time_s, "bubble_s": 0.25 * step_time_s},
        costs=SimpleNamespace(of_ranks={}, memory_limit_bytes=LIMIT),
        scenario=SimpleNamespace(
            echo={},
            kept_free=KeptFree(RESERVE, HEADROOM),
            costs=None,
            costs_file=None,
            borrowed_for=(),
            torch_model=None,
            model=None,
            cluster=None,
            precision=SimpleNamespace(compute="bf16"),
            parallel=SimpleNamespace(pipeline=2, tensor=1, data=1, context=1, expert=1),
            batch=SimpleNamespace(micro=micro),
            recompute="none",
            sharding="plain",
            efficiency=SimpleNamespace(name="a set", release=None, error_band=error_band),
        ),
    )


frameworks = st.sampled_from([(), ("torch",), ("Megatron",), ("torch", "Megatron")])
runs = st.builds(
    run_of,
    st.sampled_from([1.0, 1.01, 1.04, 1.05, 2.0]),
    st.sampled_from([20, 81, 82, 100, 101]),
    frameworks,
    synchronous=st.booleans(),
)


@given(st.lists(runs, min_size=1, max_size=6), st.sampled_from([None, "megatron"]), st.data())
def test_nothing_that_can_be_advised_as_well_is_clearly_faster(candidates, framework, data):
    own = data.draw(st.sampled_from([None, *candidates]))
    judged = judge(candidates, own=own, framework=framework)
    best = judged.recommended
    assert sorted(map(id, candidates)) == sorted(id(row.run) for row in judged.rows)
    alike = [run for run in candidates if run.synchronous] or candidates
    assert best in alike
    pool = [run for run in alike if framework is None or "Megatron" in run.frameworks] or alike
    assert best in pool
    fitting = [run for run in pool if run.metrics.fits_memory]
    roomy = [run for run in fitting if run.metrics.fits_headroom]
    if not fitting:
        assert best.metrics.peak_memory_bytes == min(run.metrics.peak_memory_bytes for run in pool)
        return
    rivals = roomy or fitting
    assert best in rivals
    fastest_s = min(run.metrics.step_time_s for run in rivals)
    within = [run for run in rivals if run.metrics.step_time_s <= 1.04 * fastest_s]
    assert best in within
    by_name = [run for run in within if run.frameworks]
    if framework is None or pool is not alike:
        assert bool(by_name) == bool(best.frameworks)
    if own in (by_name or within):
        assert best is own


def test_rows_stand_with_what_fits_first_and_each_part_by_step_time():
    given_runs = [run_of(1, 101), run_of(2, 50, synchronous=False), run_of(4, 95), run_of(5, 50)]
    judged = judge(given_runs)
    assert [row.standing for row in judged.rows] == ["no headroom", "fits", "does not fit", "asynchronous"]
    assert judged.recommended is given_runs[3]
    assert [row.tie for row in judged.rows] == [False, True, False, False]


def test_a_gap_inside_the_band_of_the_difference_is_a_tie_and_one_outside_is_none():
    """By hand, in a set without pairs: |d| = 0.04 <= hypot(0.04, 0.3 d) = 0.0418; 0.045 > 0.0422."""
    inside, outside = (judge([run_of(1.0, 10), run_of(math.exp(gap), 10)]) for gap in (0.04, 0.045))
    assert [len(inside.ties), len(outside.ties)] == [1, 0]
    assert inside.tie_band == pytest.approx(math.expm1(math.hypot(0.04, 0.012)))
    assert outside.tie_band == 0.0
    assert "46 published pairs of schedules in all sets, as a set has none" in inside.rows[1].difference.basis


def test_a_gain_has_its_own_error():
    """By hand: d = -0.07, hypot(0.04, 0.021) = 0.04518, so exp(-0.1152) - 1 to exp(-0.0248) - 1."""
    own = run_of(1.0, 10, label="own")
    judged = judge([own, run_of(math.exp(-0.07), 10)], own=own)
    assert judged.gain_difference.is_certain
    assert judged.gain_difference.between == pytest.approx((-0.1088, -0.0245), abs=1e-4)
    found = judged.to_dict()
    assert found["difference"]["between"] == pytest.approx([-0.1088, -0.0245], abs=1e-4)
    assert [(one["schedule"], one["is_certain"]) for one in found["differences"]] == [("own", True)]
    assert "-6.8 % (nine in ten between -11 % and -2.5 %)." in lines_of(
        *[r.run for r in judged.rows], own=own
    )


def test_a_schedule_in_use_that_is_advised_differs_by_nothing():
    own = run_of(1.0, 10, label="own")
    found = judge([own, run_of(2.0, 10)], own=own).to_dict()
    assert (str(found["saved_share"]), found["difference"]) == ("0.0", None)


def test_cuts_are_less_sure_than_schedules():
    cuts = judge([run_of(1.0, 10), run_of(math.exp(0.05), 10, micro=2)])
    assert len(cuts.ties) == 1
    assert "268 published pairs of cuts in all sets" in cuts.rows[1].difference.basis


def test_narrow_bands_of_both_bound_the_difference_and_stated_times_have_none():
    narrow = [run_of(1.0, 10, error_band=0.01), run_of(1.015, 10, error_band=0.01)]
    assert not judge(narrow).ties
    assert judge(narrow).rows[1].difference.half_width == pytest.approx(math.sqrt(2) * math.log(1.01))
    wide = [run_of(1.0, 10), run_of(1.015, 10)]
    assert len(judge(wide).ties) == 1
    for run in wide:
        run.scenario.costs = "stated"
    assert not judge(wide).ties
    assert judge(wide).to_dict()["differences"][0]["between"] is None


def test_measured_times_are_told_apart_as_published_ones_were():
    """By hand: 0.018 <= hypot(0.018, 0.0054) = 0.01879; 0.0195 > hypot(0.018, 0.00585) = 0.01893."""
    for gap, num_ties in ((0.018, 1), (0.0195, 0)):
        measured = [run_of(1.0, 10), run_of(math.exp(gap), 10)]
        for run in measured:
            run.scenario.efficiency, run.scenario.costs_file = None, "costs.yaml"
        judged = judge(measured)
        assert len(judged.ties) == num_ties
        assert "timed from measured passes" in judged.rows[1].difference.basis


def test_an_unknown_framework_is_refused():
    with pytest.raises(ScheduleError, match="there are: torch, Megatron, DeepSpeed"):
        judge([run_of(1, 1)], framework="jax")


def test_memory_is_that_of_the_device_with_the_least_left():
    run = run_of(1, 50)
    run.metrics.ranks += (SimpleNamespace(rank=1, peak_memory_bytes=40, peak_in_flight=1, busy_s=1.0),)
    run.costs.of_ranks = {1: SimpleNamespace(memory_limit_bytes=60.0)}
    room = memory_room(run)
    assert (room.peak_bytes, room.limit_bytes, room.usable_bytes) == (40, 60, 50)
    assert room.free_share == pytest.approx(0.2)


def lines_of(*candidates, **options):
    return "\n".join(advice_lines(judge(candidates, **options)))


def test_lines_say_the_gain_only_against_another_schedule_and_what_it_is_worth():
    own, clear, close = (
        run_of(2.0, 10, label="own", error_band=0.3),
        run_of(1.0, 10, label="clear", error_band=0.3),
        run_of(1.97, 10, label="close"),
    )
    assert "vs own, the schedule in the scenario: -50.0 % (nine in ten between -60 % and -38 %)." in lines_of(
        own, clear, own=own
    )
    assert "It is the schedule in the scenario. A tie within 4.1 %: close." in lines_of(own, close, own=own)
    assert "the schedule in the scenario" not in lines_of(clear)
    worse = run_of(1.0, 101, label="own", error_band=0.3)
    text = lines_of(worse, run_of(2.0, 10, label="fits", error_band=0.3), own=worse)
    assert "+100.0 % (nine in ten between +62 % and +147 %); that does not fit in memory." in text


def test_lines_say_what_is_faster_and_why_it_is_not_advised():
    best = run_of(2.0, 10, ("Megatron",), label="named")
    full = run_of(1.0, 90, ("Megatron",), label="full")
    other = run_of(1.5, 10, label="elsewhere")
    text = lines_of(best, full, other, framework="megatron")
    assert "Faster, but not advised: full -50.0 % (no headroom), elsewhere -25.0 % (not in Megatron)." in text
    assert "Runs in Megatron." in text
    assert "not advised" not in lines_of(best)
    near = run_of(1.99, 10, label="near")
    assert "A tie within 4.1 %: near." in lines_of(best, near, own=best)
    assert "A tie" not in lines_of(best, near, own=best, framework="megatron")


def test_lines_say_when_nothing_leaves_the_headroom_nothing_fits_or_no_framework_runs_it():
    assert "less than the headroom of 10 %" in lines_of(run_of(1, 85))
    assert "less than the headroom" not in lines_of(run_of(1, 80))
    assert "into the reserve" in lines_of(run_of(1, 95))
    nothing = lines_of(run_of(1, 120, label="a"), run_of(2, 110, label="b"))
    assert nothing.startswith("NOTHING FITS in the devices' memory. The least needs b:")
    assert "does not fit" in nothing.splitlines()[2]
    assert "DeepSpeed runs none of these by name; torch runs this one." in lines_of(
        run_of(1, 10), framework="deepspeed"
    )
    assert "No framework runs it by name." in lines_of(run_of(1, 10, ()))
    assert "trains differently" in lines_of(run_of(1, 10, synchronous=False))
    assert "trains differently" not in lines_of(run_of(1, 10))
