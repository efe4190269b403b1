"""Times as people have them: lists for any number of stages, units or none, and the floor they set."""

from fractions import Fraction
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipesim.api import Scenario
from pipesim.cli.app import app
from pipesim.costs import build_costs
from pipesim.costs.direct import REGROUPED
from pipesim.errors import PipesimError, ScenarioError
from pipesim.questions.judgement import judge
from pipesim.show.advice_lines import advice_lines
from pipesim.show.remarks import urgent_notes

TEACHING = Path(__file__).parent.parent / "scenarios" / "teaching.yaml"
FORWARD = [20, 20, 22, 30]


def times(forward, backward=None, **options):
    backward = [2 * one for one in forward] if backward is None else backward
    sizes = {"ranks": 4, "microbatches": 8, "forward": forward, "backward": backward}
    return Scenario.times(**{**sizes, **options})


def printed(*arguments):
    flags = ("compare", "--ranks", 4, "--microbatches", 8, *arguments)
    result = CliRunner().invoke(app, [str(one) for one in flags])
    if isinstance(result.exception, PipesimError):
        return str(result.exception)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize(
    ("entries", "num_chunks", "expected"),
    [
        ([1, 2, 3, 4], 1, [1, 2, 3, 4]),
        ([1, 2, 3, 4], 2, ["1/2", "1/2", 1, 1, "3/2", "3/2", 2, 2]),
        ([1, 2, 3, 4, 5, 6, 7, 8], 1, [3, 7, 11, 15]),
        ([1, 2, 3, 4, 5, 6, 7, 8], 2, [1, 2, 3, 4, 5, 6, 7, 8]),
    ],
)
def test_entries_are_added_up_or_split_evenly(entries, num_chunks, expected):
    scenario = times([Fraction(entry) for entry in entries])
    table = build_costs(scenario, num_chunks=num_chunks)
    assert table.forward_s.tolist() == [Fraction(one) for one in expected]
    assert table.backward_s.tolist() == [2 * Fraction(one) for one in expected]
    assert (REGROUPED in table.provenance) == (len(entries) != len(expected))


def test_entries_that_do_not_go_into_the_stages_are_refused():
    with pytest.raises(ScenarioError, match="12 entries, which go into 8 stages"):
        build_costs(times([1.0] * 12), num_chunks=2)


def test_the_step_is_that_of_the_times_added_up_by_hand():
    eight = [1, 2, 3, 4, 5, 6, 7, 8]
    added = [3, 7, 11, 15]
    assert times(eight).predict("1f1b").step_time_s == times(added).predict("1f1b").step_time_s
    assert times(eight, chunks=2).predict("zb-v").step_time_s > 0


def test_what_was_added_up_or_split_is_said_for_those_schedules_alone():
    results = [times(FORWARD).predict("1f1b"), times(FORWARD).predict("zb-v")]
    (note,) = urgent_notes(results, lambda _: [])
    assert note == "note: 4 stated times, split evenly: zb-v v2"
    assert list(urgent_notes(results[:1], lambda _: [])) == []
    out = printed("--forward", ",".join(["1"] * 8), "--backward", 2, "--schedules", "1f1b,zb-v")
    assert "note: 8 stated times, neighbours added up: 1f1b\n" in out


def test_a_list_of_flags_is_the_list_of_a_file():
    flags = ("--forward", "20ms, 20ms,22ms,30 ms", "--backward", "40ms,40ms,44ms,60ms", "--schedules", "1f1b")
    step_s = times([one / 1000 for one in FORWARD]).predict("1f1b").step_time_s
    assert f"USE 1f1b: {1000 * step_s:.4g} ms a step" in printed(*flags)


@pytest.mark.parametrize(
    ("forward", "backward", "p2p", "key"),
    [
        ("11.2ms", "21", None, "costs.backward: found 21.0 without a unit beside costs.forward 11.2ms"),
        ("11.2", "21 ms", None, "costs.forward: found 11.2 without a unit beside costs.backward 21 ms"),
        ("1ms,2ms,3ms,4", "21 ms", None, "costs.forward: found 4.0 without a unit beside costs.forward 1ms"),
        ("1 ms", "2 ms", "0.1", "costs.p2p: found 0.1 without a unit beside costs.forward 1 ms"),
    ],
)
def test_times_without_a_unit_beside_times_with_one_are_refused(forward, backward, p2p, key):
    link = () if p2p is None else ("--p2p", p2p)
    assert key in printed("--forward", forward, "--backward", backward, *link)


def test_zero_needs_no_unit_and_a_file_is_checked_as_flags_are():
    assert "USE" in printed("--forward", "1 ms", "--backward", "2 ms", "--p2p", 0)
    with pytest.raises(ScenarioError, match=r"^costs\.optimizer: found 3 without a unit"):
        times(["1 s"] * 4, ["2 s"] * 4, optimizer=3)
    with pytest.raises(ScenarioError, match=r"found 2 without a unit beside costs\.forward 1 s"):
        Scenario.load(TEACHING, "costs.backward=2")


def test_the_floor_is_the_busiest_rank_and_a_balanced_cut_has_the_mean():
    """Ranks compute 8 x 60, 60, 66 and 90 s: 480, 480, 528 and 720, on average 552."""
    text = "\n".join(advice_lines(judge([times(FORWARD).predict("1f1b")])))
    assert (
        "FLOOR 720 s: rank 3 computes that long, 30 % above the mean. A balanced cut has 552 s a rank: "
        "move layers first."
    ) in text
    assert "FLOOR" not in "\n".join(advice_lines(judge([times([22, 22, 22, 23]).predict("1f1b")])))
