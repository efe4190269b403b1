"""What is advised: runs where asked, leaves the headroom, and nothing that also does is clearly faster."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim.errors import ScheduleError
from pipesim.questions.judgement import SCHEDULE_BAND, judge, memory_room
from pipesim.scenario.resolved import KeptFree
from pipesim.show.advice_lines import advice_lines

LIMIT, RESERVE, HEADROOM = 100.0, 10.0, 0.1
"""Of 100 bytes 90 are usable and 81 advised."""


def run_of(step_time_s, peak, frameworks=("torch",), *, synchronous=True, error_band=0.07, label="x"):
    ranks = (SimpleNamespace(rank=0, peak_memory_bytes=peak, peak_in_flight=1, busy_s=1.0),)
    return SimpleNamespace(
        label=label,
        synchronous=synchronous,
        frameworks=frameworks,
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
            efficiency=SimpleNamespace(error_band=error_band),
        ),
    )


frameworks = st.sampled_from([(), ("torch",), ("Megatron",), ("torch", "Megatron")])
runs = st.builds(
    run_of,
    st.sampled_from([1.0, 1.01, 1.05, 2.0]),
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
    within = [
        run
        for run in rivals
        if run.metrics.step_time_s <= min(r.metrics.step_time_s for r in rivals) * (1 + SCHEDULE_BAND)
    ]
    assert best in within
    by_name = [run for run in within if run.frameworks]
    assert bool(by_name) == bool(best.frameworks)
    if own in (by_name or within):
        assert best is own


def test_rows_stand_with_what_fits_first_and_each_part_by_step_time():
    given_runs = [run_of(1, 101), run_of(2, 50, synchronous=False), run_of(4, 95), run_of(5, 50)]
    judged = judge(given_runs)
    assert [row.standing for row in judged.rows] == ["no headroom", "fits", "does not fit", "asynchronous"]
    assert judged.recommended is given_runs[3]
    assert [row.tie for row in judged.rows] == [False, True, False, False]


def test_the_band_is_narrowed_to_that_of_the_efficiency_and_stated_times_have_none():
    runs_ = [run_of(1.0, 10, error_band=0.01), run_of(1.015, 10, error_band=0.01)]
    assert [judge(runs_).band, len(judge(runs_).ties)] == [0.01, 0]
    wide = [run_of(1.0, 10), run_of(1.015, 10)]
    assert [judge(wide).band, len(judge(wide).ties)] == [SCHEDULE_BAND, 1]
    for run in wide:
        run.scenario.costs = "stated"
    assert [judge(wide).band, len(judge(wide).ties)] == [0.0, 0]


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
        run_of(2.0, 10, label="own"),
        run_of(1.0, 10, label="clear"),
        run_of(1.97, 10, label="close"),
    )
    assert "vs own, the schedule in the scenario: -50.0 % (+-21 %)." in lines_of(own, clear, own=own)
    assert "It is the schedule in the scenario. A tie within 5 %: close." in lines_of(own, close, own=own)
    assert "the schedule in the scenario" not in lines_of(clear)
    worse = run_of(1.0, 101, label="own")
    assert "+100.0 % (+-21 %); that does not fit in memory." in lines_of(
        worse, run_of(2.0, 10, label="fits"), own=worse
    )


def test_lines_say_what_is_faster_and_why_it_is_not_advised():
    best = run_of(2.0, 10, ("Megatron",), label="named")
    full = run_of(1.0, 90, ("Megatron",), label="full")
    other = run_of(1.5, 10, label="elsewhere")
    text = lines_of(best, full, other, framework="megatron")
    assert "Faster, but not advised: full -50.0 % (no headroom), elsewhere -25.0 % (not in Megatron)." in text
    assert "Runs in Megatron." in text
    assert "not advised" not in lines_of(best)
    near = run_of(1.99, 10, label="near")
    assert "A tie within 5 %: near." in lines_of(best, near, own=best)
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
