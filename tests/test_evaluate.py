"""The longest path, against one worked out action by action and against closed forms."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from helpers import costs_of, longest_path, random_costs, random_fraction, random_schedule, schedule_of
from hypothesis import given
from hypothesis import strategies as st

from pipesim.errors import DeadlockError
from pipesim.ir.actions import Op
from pipesim.schedules import Shape, generate
from pipesim.timing.longest_path import PreparedSchedule, evaluate

RANDOM = st.randoms(use_true_random=False)


def by_hand(schedule, costs, latency):
    """Ends of all actions, one rank's next action at a time; no columns, no graph."""
    home = {}
    for rank in range(schedule.num_ranks):
        for action in schedule.actions_of(rank):
            for part in action.parts or (action,):
                if part.op is Op.F:
                    home[part[1:4]] = rank
    ended, free = {}, [Fraction(0)] * schedule.num_ranks
    queues = [list(schedule.actions_of(rank)) for rank in range(schedule.num_ranks)]

    def input_of(part):
        """Direction and place of the action whose output a part takes from a neighbouring stage."""
        stage, rest = part.stage, part[2:4]
        if part.op is Op.F:
            return ("F", stage - 1, *rest) if stage else None
        if part.op is Op.W:
            return None
        return ("B", stage + 1, *rest) if stage + 1 < schedule.num_stages else ("F", stage, *rest)

    while any(queues):
        for rank, queue in enumerate(queues):
            if not queue:
                continue
            parts = queue[0].parts or (queue[0],)
            inputs = [source for source in map(input_of, parts) if source]
            if not all(source in ended for source in inputs):
                continue
            there = [ended[key] + (latency if home[key[1:]] != rank else 0) for key in inputs]
            whole = costs.duration(parts[0].op, parts[0].stage)
            if len(parts) == 2:
                whole = costs.pair_s(parts[0].stage, parts[1].stage)
            free[rank] = max([free[rank], *there]) + whole / schedule.num_slices
            for part in parts:
                ended["W" if part.op is Op.W else "F" if part.op is Op.F else "B", *part[1:4]] = free[rank]
            queue.pop(0)
    return ended


@given(RANDOM)
def test_longest_path_equals_working_it_out_one_by_one(random):
    schedule = random_schedule(random)
    latency = random.choice([Fraction(0), random_fraction(random)])
    costs = random_costs(random, schedule, p2p_latency_s=latency)
    spans, ended = longest_path(schedule, costs), by_hand(schedule, costs, latency)
    letter = {Op.F: "F", Op.B: "B", Op.I: "B", Op.W: "W"}
    for row, end in enumerate(spans.end):
        action = schedule.action(row)
        assert end == ended[letter[action.op], *action[1:4]]
    assert spans.makespan == max(ended.values()) - min(spans.start)


@given(p=st.integers(1, 6), m=st.integers(1, 12), name=st.sampled_from(["gpipe", "1f1b"]), times=RANDOM)
def test_gpipe_and_1f1b_closed_form(p, m, name, times):
    forward, backward = random_fraction(times), random_fraction(times)
    spans = longest_path(generate(name, Shape(p, 1, m)), costs_of(p, forward_s=forward, backward_s=backward))
    assert spans.makespan == (m + p - 1) * (forward + backward)


def test_delays_only_where_ranks_differ():
    schedule = schedule_of("0F0 3F0 3B0 0B0", "1F0 2F0 2B0 1B0")
    # 1 + c + 1 + 1 + c + 1 forward, twice that backward, c again at the two crossings back
    costs = costs_of(2, 2, forward_s=2, backward_s=4, p2p_latency_s=Fraction(1, 10))
    assert longest_path(schedule, costs).makespan == 4 + 8 + 4 * Fraction(1, 10)


def test_delays_of_rows_that_receive_nothing_are_ignored():
    schedule = schedule_of("0F0 3F0 3B0 0B0", "1F0 2F0 2B0 1B0")
    assert evaluate(schedule, [1] * 8, [5] * 8).makespan == 8 + 4 * 5


def test_no_delays_means_that_messages_take_no_time():
    schedule = schedule_of("0F0 0B0", "1F0 1B0")
    spans = evaluate(schedule, [1, 2, 1, 2])
    assert (spans.start, spans.end, spans.makespan) == ([0, 4, 1, 2], [1, 6, 2, 4], 6)


def test_transfer_time_of_bytes_on_an_idle_link():
    costs = costs_of(2, p2p_latency_s=Fraction(1, 10), p2p_bytes_per_s=8, boundary_bytes=2)
    spans = longest_path(schedule_of("0F0 0B0", "1F0 1B0"), costs)
    assert spans.makespan == 6 + 2 * (Fraction(1, 10) + Fraction(2, 8))


def test_pairs_by_hand():
    schedule = schedule_of(
        "0F0 0F1 (0F2;0B0)OVERLAP_F_B 0B1 0B2", "1F0 (1F1;1B0)OVERLAP_F_B (1F2;1B1)OVERLAP_F_B 1B2"
    )
    spans = longest_path(schedule, costs_of(2, overlapped_pair_s=Fraction(5, 2)))
    assert spans.start == [0, 1, 4.5, 4.5, 9.5, 11.5, 1, 2, 2, 7, 7, 9.5]
    assert spans.end == [1, 2, 7, 7, 11.5, 13.5, 2, 4.5, 4.5, 9.5, 9.5, 11.5]
    # unless stated, together they take as long as in turn
    assert longest_path(schedule, costs_of(2)).makespan == 15


def test_slices_by_hand():
    schedule = schedule_of("0F0 0F0.1 0B0.1 0B0", "1F0 1F0.1 1B0.1 1B0")
    spans = longest_path(schedule, costs_of(2, forward_s=2, backward_s=4))
    assert spans.end == [1, 2, 7, 9, 2, 3, 5, 7]


def test_later_slices_attend_to_more_and_each_pays_the_overhead():
    parts = {"attention": np.array([Fraction(4)]), "overhead": np.array([Fraction(2)])}
    costs = replace(costs_of(1, forward_s=10), forward_parts_s=parts)
    spans = longest_path(schedule_of("0F0 0F0.1 0B0.1 0B0"), costs)
    # of the 4 left, half each; of attention 1/4 and 3/4; the overhead twice
    assert spans.end == [2 + 1 + 2, 5 + 2 + 3 + 2, 13, 14]


def test_pair_of_slices_takes_a_share_of_the_pairs_time():
    schedule = schedule_of("0F0 0F0.1 (0F1;0B0.1)OVERLAP_F_B (0F1.1;0B0)OVERLAP_F_B 0B1.1 0B1")
    assert longest_path(schedule, costs_of(1, overlapped_pair_s=2)).makespan == 1 + 2 + 2
    assert longest_path(schedule, costs_of(1)).makespan == 6


@given(RANDOM)
def test_prepared_schedule_gives_the_same_times(random):
    schedule = random_schedule(random)
    costs = random_costs(
        random, schedule, p2p_latency_s=random_fraction(random), p2p_bytes_per_s=3, boundary_bytes=2
    )
    exact, compiled = longest_path(schedule, costs), PreparedSchedule.of(schedule).evaluate_costs(costs)
    np.testing.assert_allclose(compiled.start, np.array(exact.start, float), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(compiled.end, np.array(exact.end, float), rtol=1e-12)


def test_deadlock_is_not_run():
    with pytest.raises(DeadlockError, match="rank 0: at 0B1, waits for 1B1 on rank 1"):
        evaluate(schedule_of("0F1 0B1 0F0 0B0", "1F0 1F1 1B1 1B0"), [1] * 8)
