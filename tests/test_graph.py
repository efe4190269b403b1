"""The dependency rule: what follows from it, what validation refuses, what is in flight."""

import re
from fractions import Fraction

import numpy as np
import pytest
from helpers import random_schedule, schedule_of
from hypothesis import given
from hypothesis import strategies as st

from pipesim.errors import DeadlockError, ScheduleError
from pipesim.ir import dependencies, format_grid, held, linear_extension, lower, peak_in_flight, validate
from pipesim.ir.actions import Op, Schedule

RANDOM = st.randoms(use_true_random=False)


def arrow(message: str) -> tuple[int, str] | None:
    """Rank and action that the arrow of a grid points at."""
    header, *lines = message[message.index("step ") :].splitlines()
    starts = [match.start() for match in re.finditer("rank", header)]
    for line in lines:
        if match := re.search(r"(\S+) <-", line):
            return starts.index(match.start()), match[1]
    return None


MALFORMED = [
    # missing
    (["0F0 0B0", "1F0"], "stage 1, microbatch 0 has no B", (1, "1F0")),
    (["0F0 0B0", "1B0"], "stage 1, microbatch 0 has no F", (1, "1B0")),
    (["0F0", "1F0 1B0"], "stage 0, microbatch 0 has no B", (0, "0F0")),
    (["0F0 0B0", "1F0 1I0"], "stage 1, microbatch 0 has no W, which its I calls for", (1, "1I0")),
    (["0F0 0F1 0B0", "1F0 1F1 1B0 1B1"], "stage 0, microbatch 1 has no B", (0, "0F1")),
    (["0F0 0B0 0F2 0B2", "1F0 1B0 1F2 1B2"], "stage 0, microbatch 1 has no F", None),
    (["0F0 0B0", "2F0 2B0"], "stage 1, microbatch 0 has no F", None),
    (["0F0 0B0 0F0.1", "1F0 1F0.1 1B0.1 1B0"], "stage 0, microbatch 0, slice 1 has no B", (0, "0F0.1")),
    (["0F0 0B0", "", "1F0 1B0"], "rank 1 has no action", None),
    # numbers that cannot be meant
    (["0F0 0B0 0F999999999", "1F0 1B0"], "0F999999999 calls for at least", (0, "0F999999999")),
    (["0F0 0B0", "777777777F0 1B0"], "777777777F0 calls for at least", (1, "777777777F0")),
    (["0F0 0B0", "1F0 1B0.88888888"], "1B0.88888888 calls for at least", (1, "1B0.88888888")),
    # doubled
    (["0F0 0F0 0B0", "1F0 1B0"], "0F0 runs a second time", (0, "0F0")),
    (["0F0 0B0 0B0", "1F0 1B0"], "0B0 runs a second backward", (0, "0B0")),
    (["0F0 0I0 0W0 0W0", "1F0 1B0"], "0W0 runs a second time", (0, "0W0")),
    (["0F0 0B0", "1F0 1B0 1F0"], "1F0 runs a second time", (1, "1F0")),
    (["0F0 0B0", "1F0 1B0 1I0 1W0"], "1I0 runs a second backward", (1, "1I0")),
    (["0F0 0B0 (0F0;0B1)OVERLAP_F_B 0F1", "1F0 1B0 1F1 1B1"], "0F0 runs a second time", (0, "0F0")),
    # split and unsplit
    (["0F0 0B0", "1F0 1B0 1W0"], "1W0 follows a full B, which computes W already", (1, "1W0")),
    (["0F0 0W0 0B0", "1F0 1B0"], "0W0 follows a full B", (0, "0W0")),
    # misplaced
    (["0F0 0B0 1B0", "1F0"], "1B0 is not on the rank that ran its F", (0, "1B0")),
    (["0F0 0B0 1W0", "1F0 1I0"], "1W0 is not on the rank that ran its F", (0, "1W0")),
    # out of order on a rank
    (["0F0 0B0", "1B0 1F0"], "1B0 stands before its own F", (1, "1B0")),
    (["0I0 0F0 0W0", "1F0 1B0"], "0I0 stands before its own F", (0, "0I0")),
    (["0F0 0W0 0I0", "1F0 1B0"], "0W0 stands before its own I", (0, "0W0")),
    (["0F0.1 0F0 0B0.1 0B0"], "0F0.1 stands before the F of the slice before", (0, "0F0.1")),
    (["0F0 0F0.1 0B0 0B0.1"], "0B0 stands before the backward of the slice after", (0, "0B0")),
    (["0F0 0F0.1 0I0 0I0.1 0W0 0W0.1"], "0I0 stands before the backward of the slice after", (0, "0I0")),
    # not a computation
    (
        ["0F0 0B0", "1RECV_F0 1F0 1B0"],
        "1RECV_F0 is not a computation; expected F, B, I or W",
        (1, "1RECV_F0"),
    ),
    (["0F0 0SEND_F0 0B0", "1F0 1B0"], "0SEND_F0 is not a computation", (0, "0SEND_F0")),
    (["0F0 0B0 0REDUCE_GRAD", "1F0 1B0"], "0REDUCE_GRAD is not a computation", (0, "0REDUCE_GRAD")),
    (["0UNSHARD 0F0 0B0", "1F0 1B0"], "0UNSHARD is not a computation", (0, "0UNSHARD")),
]


@pytest.mark.parametrize(("orders", "words", "at"), MALFORMED, ids=[words for _, words, _ in MALFORMED])
def test_malformed_schedule_is_refused_with_an_arrow(orders, words, at):
    with pytest.raises(ScheduleError, match=re.escape(words)) as caught:
        validate(schedule_of(*orders))
    assert not isinstance(caught.value, DeadlockError)
    if at is not None:
        assert arrow(str(caught.value)) == at
        assert f"rank {at[0]}" in str(caught.value)


def test_stage_stays_on_its_rank():
    with pytest.raises(
        ScheduleError, match="0F1 runs on rank 1, stage 0 of microbatch 0 on rank 0"
    ) as caught:
        validate(schedule_of("0F0 0B0 1F1 1B1", "1F0 1B0 0F1 0B1", "2F0 2B0 2F1 2B1"))
    assert arrow(str(caught.value)) == (1, "0F1")


def test_two_model_replicas_mirror_whole_microbatches():
    validate(schedule_of("0F0 1F1 1B1 0B0", "0F1 1F0 1B0 0B1"))
    with pytest.raises(ScheduleError, match="1F1 runs on rank 0") as caught:
        validate(schedule_of("0F0 0F1 1F1 1B1 0B1 0B0", "1F0 1B0"))
    assert arrow(str(caught.value)) == (0, "1F1")


@given(RANDOM)
def test_every_schedule_that_can_run_is_accepted(random):
    validate(random_schedule(random))


@given(RANDOM)
def test_loss_of_any_action_is_noticed(random):
    whole = random_schedule(random)
    lost = random.randrange(len(whole.op))
    kept = np.arange(len(whole.op)) != lost
    rest = whole.select(kept)
    complete = (rest.num_stages, rest.num_microbatches, rest.num_slices)
    assert complete == (whole.num_stages, whole.num_microbatches, whole.num_slices)
    with pytest.raises(ScheduleError, match=r"has no (F|B|W)|rank \d has no action|calls for"):
        validate(rest)


@given(RANDOM)
def test_action_put_in_twice_is_noticed(random):
    whole = random_schedule(random)
    orders = [list(whole.actions_of(rank)) for rank in range(whole.num_ranks)]
    twice = random.choice([action for order in orders for action in order])
    random.choice(orders).append(twice)
    with pytest.raises(ScheduleError, match=r"a second (time|backward)"):
        validate(Schedule.from_orders("doubled", orders))


def test_deadlock_names_what_each_rank_holds_and_waits_for():
    with pytest.raises(DeadlockError) as caught:
        validate(schedule_of("0F1 0B1 0F0 0B0", "1F0 1F1 1B1 1B0", "2F0 2F1 2B1 2B0"))
    assert str(caught.value).splitlines() == [
        "the schedule deadlocks; each rank holds, and waits for:",
        "  rank 0: at 0B1, waits for 1B1 on rank 1",
        "  rank 1: at 1F0, waits for 0F0 on rank 0",
        "  rank 2: at 2F0, waits for 1F0 on rank 1",
    ]


def test_deadlock_tells_who_is_done_and_shows_pairs_whole():
    with pytest.raises(DeadlockError) as caught:
        validate(schedule_of("0F0 3F0 3B0 0B0", "1F0 (2F0;1B0)OVERLAP_F_B 2B0"))
    assert str(caught.value).splitlines()[1:] == [
        "  rank 0: at 3F0, waits for 2F0 on rank 1",
        "  rank 1: at (2F0;1B0)OVERLAP_F_B, waits for 2B0 on rank 1",
    ]
    with pytest.raises(DeadlockError, match="rank 0: done"):
        linear_extension(*_with_dependencies(schedule_of("0F0", "1B0 1F0")))


def _with_dependencies(schedule):
    return schedule, dependencies(schedule)


def test_pair_may_not_hold_its_own_forward():
    with pytest.raises(DeadlockError, match=re.escape("at (0F0;0B0)OVERLAP_F_B, waits for 0F0 on rank 0")):
        validate(schedule_of("(0F0;0B0)OVERLAP_F_B"))


def test_grid_shows_the_surroundings_of_the_arrow():
    schedule = schedule_of(" ".join(f"0F{k}" for k in range(20)), "1F0 1F1")
    assert format_grid(schedule, 10, around=1).splitlines() == [
        "step  rank 0   rank 1",
        "9     0F9",
        "10    0F10 <-",
        "11    0F11",
    ]
    assert format_grid(schedule, 21, around=1).splitlines()[1:] == [
        "0     0F0      1F0",
        "1     0F1      1F1 <-",
        "2     0F2",
    ]


@given(RANDOM)
def test_linear_extension_is_one(random):
    schedule = random_schedule(random)
    needs = dependencies(schedule)
    order = linear_extension(schedule, needs)
    position = np.argsort(order)
    assert sorted(order) == list(range(len(schedule.op)))
    for row, producer in enumerate(needs.producer):
        assert producer == -1 or position[producer] < position[row]
    for rank in range(schedule.num_ranks):
        assert (np.diff(position[schedule.rows_of(rank)]) > 0).all()


def test_dependencies_by_hand():
    schedule = schedule_of("0F0 0I0 0W0", "1F0 1B0")
    needs = dependencies(schedule)
    assert needs.producer.tolist() == [-1, 4, -1, 0, 3]
    assert needs.consumer.tolist() == [3, -1, -1, -1, 1]
    assert needs.crosses.tolist() == [False, True, False, True, False]


@given(RANDOM)
def test_held_against_counting_one_by_one(random):
    schedule = random_schedule(random)
    amounts = [Fraction(random.randint(1, 9), random.randint(1, 9)) for _ in range(schedule.num_stages)]
    # Recomputation can leave more than there was.
    deferred = [Fraction(random.randint(0, 9), 4) for _ in range(schedule.num_stages)]
    expected, peaks = [], []
    for rank in range(schedule.num_ranks):
        now, count, peak = Fraction(0), 0, 0
        for row in range(schedule.offsets[rank], schedule.offsets[rank + 1]):
            action = schedule.action(row)
            amount, left = amounts[action.stage], deferred[action.stage]
            now += {Op.F: amount, Op.B: -amount, Op.I: left - amount, Op.W: -left}[action.op]
            count += {Op.F: 1, Op.B: -1, Op.I: 0, Op.W: -1}[action.op]
            peak = max(peak, count)
            expected.append(now)
        assert now == count == 0
        peaks.append(peak)
    assert held(schedule, np.array(amounts, object), np.array(deferred, object)).tolist() == expected
    assert peak_in_flight(schedule).tolist() == peaks
    as_float = held(schedule, np.array(amounts, float), np.array(deferred, float))
    np.testing.assert_allclose(as_float, np.array(expected, float), atol=1e-12)


def test_whole_amounts_keep_the_fraction_that_i_leaves():
    schedule = schedule_of("0F0 0I0 0W0")
    assert held(schedule, np.array([3]), np.array([1.5])).tolist() == [3, 1.5, 0]


@given(RANDOM)
def test_lowering_leaves_what_is_in_flight_alone(random):
    schedule = random_schedule(random)
    lowered = lower(schedule)
    ones = np.ones(schedule.num_stages, np.int64)
    np.testing.assert_array_equal(held(lowered, ones)[lowered.op <= Op.W], held(schedule, ones))
    np.testing.assert_array_equal(peak_in_flight(lowered), peak_in_flight(schedule))


def test_pair_takes_its_forward_before_it_gives_back_its_backward():
    assert peak_in_flight(schedule_of("0F0 (0F1;0B0)OVERLAP_F_B 0B1")).tolist() == [2]
