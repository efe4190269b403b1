"""A plan with a time limit: what is given up is left, what is best so far is confirmed, the end is kept."""

import time

import pytest
from test_plan import small

from pipesim.questions.call_pool import CallPool
from pipesim.questions.planning import plan
from pipesim.questions.planning.bounds import CutTask, bound_cut
from pipesim.questions.planning.plan import _Clock
from pipesim.questions.planning.refinement import Refinement
from pipesim.questions.planning.space import enumerate_cuts


def search_of(pool, until_s, schedules=("1f1b", "interleaved-1f1b")):
    scenario = small()
    cuts = enumerate_cuts(scenario, scenario.model, scenario.cluster).cuts[:40]
    bounds = [bound for cut in cuts for bound in bound_cut(CutTask(scenario, cut, schedules)).bounds]
    return Refinement(scenario, bounds, 2, pool, 1, until_s)


def test_what_is_given_up_is_left():
    with CallPool() as pool:
        search = search_of(pool, time.monotonic() - 1)
        before = search.num_left
        assert before > 20
        assert search.refine(lambda _: None)
        assert (search.num_left, search.num_untimed, search.timed) == (before, before, [])
        search.until_s = None
        assert search.refine(lambda _: None)
        timed = len(search.timed)
        search.until_s = time.monotonic() - 1
        assert search.refine(lambda _: None, confirm_now=True)
        assert (search.confirmed, search.num_left - search.num_untimed) == ([], timed)


def test_the_best_timed_is_confirmed_and_is_not_certain():
    with CallPool() as pool:
        search = search_of(pool, time.monotonic() + 600)
        search.refine(lambda _: None)
        least = min(one.least_step_s for one in search.timed)
        search.refine(lambda _: None, confirm_now=True)
        (found,) = search.confirmed
        assert found.timed.least_step_s == least
        assert search.num_untimed > 0


def test_cuts_that_the_time_did_not_last_for_leave_nothing_certain(monkeypatch):
    """The clock stands after the first cuts: bounding ends, what it found is timed and confirmed."""
    looks = iter([False])
    shares = {0.4: lambda: next(looks, True), 0.6: lambda: True, 1.0: lambda: False}
    monkeypatch.setattr(_Clock, "is_past", lambda _, share: shares[share]())
    found = plan(small(), schedules="1f1b", num_workers=1, top=1, time_limit_s=600)
    assert found.num_certain == 0
    assert not found.certain
    assert "none is certain" in found.certainty
    assert "cuts untried" in found.certainty


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_pool_ends_in_time_and_can_be_used_again(num_workers):
    with CallPool(num_workers) as pool:
        list(pool.run(time.sleep, [0.0] * num_workers))
        started = time.monotonic()
        done = [one.task for one in pool.run(time.sleep, [0.01, 1.0, 600.0], until_s=started + 0.5)]
        assert 0.01 in done
        assert 600.0 not in done
        assert [one.task for one in pool.run(time.sleep, [0.0])] == [0.0]
