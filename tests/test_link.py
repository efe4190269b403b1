"""One link and one collective on a clock of their own, in exact arithmetic."""

from fractions import Fraction

import pytest
from helpers import examples, random_fraction
from hypothesis import example, given
from hypothesis import strategies as st

from pipesim.costs.network.alpha_beta import LinkCost
from pipesim.timing.engine.collective import RunningCollective
from pipesim.timing.engine.link import Mail
from pipesim.timing.engine.simulated_clock import Clock

TIMES = st.builds(Fraction, st.integers(0, 24), st.integers(1, 4))
SIZES = st.builds(Fraction, st.integers(0, 30), st.integers(1, 3))


def arrivals(sent, *, latency_s=Fraction(0), bytes_per_s: Fraction | None = Fraction(1)):
    """Arrival of each (time, bytes) on one link."""
    clock = Clock()
    link = LinkCost(latency_s, bytes_per_s)
    mail = Mail(clock, [link], [0] * len(sent), [nbytes for _, nbytes in sent])
    received: dict[int, Fraction] = {}

    def sender(message, time_s):
        yield clock.timeout(time_s)
        mail.send(message, clock.now)

    def receiver(message):
        yield mail.after(message)
        received[message] = clock.now

    for message, (time_s, _) in enumerate(sent):
        clock.process(sender(message, time_s))
        clock.process(receiver(message))
    clock.run()
    assert [received[message] for message in range(len(sent))] == mail.arrived_s
    assert mail.sent_s == [time_s for time_s, _ in sent]
    return mail.arrived_s


def shared_equally(sent, latency_s, bytes_per_s):
    """The same, by stepping from one change on the wire to the next and keeping what each has left."""
    left, passed, now = {}, {}, Fraction(0)
    coming = sorted((time_s, message) for message, (time_s, _) in enumerate(sent))
    while coming or left:
        if not left:
            now = max(now, coming[0][0])
        while coming and coming[0][0] <= now:
            message = coming.pop(0)[1]
            left[message] = sent[message][1]
        for message in [message for message, amount in left.items() if amount == 0]:
            del left[message]
            passed[message] = now
        if left:
            until = now + min(left.values()) * len(left) / bytes_per_s
            if coming:
                until = min(until, coming[0][0])
            share = (until - now) * bytes_per_s / len(left)
            left = {message: amount - share for message, amount in left.items()}
            now = until
    return [passed[message] + latency_s for message in range(len(sent))]


def test_alone_it_is_latency_plus_bytes_over_bandwidth():
    sent = [(Fraction(3), Fraction(10))]
    assert arrivals(sent, latency_s=Fraction(1, 7), bytes_per_s=Fraction(4)) == [
        3 + Fraction(1, 7) + Fraction(10, 4)
    ]


@given(start=TIMES, nbytes=SIZES, latency=TIMES, bandwidth=st.integers(1, 9))
def test_alone_as_the_cost_table_says(start, nbytes, latency, bandwidth):
    link = LinkCost(latency, Fraction(bandwidth))
    found = arrivals([(start, nbytes)], latency_s=latency, bytes_per_s=Fraction(bandwidth))
    assert found == [start + link.transfer_s(nbytes)] == [start + latency + nbytes / bandwidth]


def test_two_equal_at_once_take_the_time_of_both():
    assert arrivals([(0, 5), (0, 5)], latency_s=Fraction(1, 2), bytes_per_s=Fraction(2)) == [5.5, 5.5]


def test_one_behind_the_other_do_not_meet():
    assert arrivals([(0, 5), (5, 5)]) == [5, 10]


def test_staggered_by_hand():
    # 0..2: A alone, 4 left. 2..3: A and B, 3.5 and 1.5 left. 3..7.5: all three, B passes with A at 2 and C at
    # 2.5. 7.5..11.5: A and C, A passes. Then C alone has 0.5 left.
    assert arrivals([(0, 6), (2, 2), (3, 4)]) == [11.5, 7.5, 12]


def test_small_one_overtakes_a_large_one_already_on_the_wire():
    # A would pass at 100. B comes at 10, takes 2 until 12, and A passes 1 later than alone.
    assert arrivals([(0, 100), (10, 1)]) == [101, 12]


def test_small_ones_that_come_together_overtake():
    assert arrivals([(0, 100), (10, 1), (10, 1)]) == [102, 13, 13]


def test_overtaken_again_while_overtaking():
    # B (10 bytes) comes at 10 and would pass at 30; C (1 byte) comes at 12 with B at 9 and A at 89 and passes
    # at 15 with B at 8; then B takes 16 more.
    assert arrivals([(0, 100), (10, 10), (12, 1)]) == [111, 31, 15]


def test_message_that_comes_when_another_has_just_passed():
    assert arrivals([(0, 4), (4, 4), (4, 2)]) == [4, 10, 8]


def test_nothing_to_carry_takes_latency_alone():
    assert arrivals([(0, 8), (1, 0), (1, 0)], latency_s=Fraction(1, 3)) == [
        8 + Fraction(1, 3),
        1 + Fraction(1, 3),
        1 + Fraction(1, 3),
    ]


def test_without_a_bandwidth_size_costs_nothing_and_nobody_waits():
    sent = [(0, 10**12), (0, 1), (1, 5)]
    assert arrivals(sent, latency_s=Fraction(2), bytes_per_s=None) == [2, 2, 3]


def test_latency_occupies_nothing():
    assert arrivals([(0, 1), (1, 1)], latency_s=Fraction(50)) == [51, 52]


@examples(300)
@given(
    sent=st.lists(st.tuples(TIMES, SIZES), min_size=1, max_size=12),
    latency=TIMES,
    bandwidth=st.builds(Fraction, st.integers(1, 9), st.integers(1, 4)),
)
@example(
    sent=[(Fraction(0), Fraction(8)), (Fraction(8), Fraction(8))], latency=Fraction(0), bandwidth=Fraction(1)
)
def test_any_flows_equal_a_second_account_of_equal_sharing(sent, latency, bandwidth):
    assert arrivals(sent, latency_s=latency, bytes_per_s=bandwidth) == shared_equally(
        sent, latency, bandwidth
    )


@given(sent=st.lists(st.tuples(TIMES, SIZES), min_size=1, max_size=12))
def test_floats_come_close_to_fractions_and_end(sent):
    exact = shared_equally(sent, Fraction(1, 3), Fraction(7, 3))
    in_floats = [(float(time_s), float(nbytes)) for time_s, nbytes in sent]
    found = arrivals(in_floats, latency_s=1 / 3, bytes_per_s=7 / 3)
    assert found == pytest.approx([float(time_s) for time_s in exact], rel=1e-12)


def test_many_at_once_and_real_numbers():
    sent = [(1e-3 * k, 33_554_432.0) for k in range(200)]
    found = arrivals(sent, latency_s=5e-6, bytes_per_s=25e9)
    exact = shared_equally([(Fraction(t), Fraction(n)) for t, n in sent], Fraction(5e-6), Fraction(25e9))
    assert found == pytest.approx([float(time_s) for time_s in exact], rel=1e-12)


# Collectives


@given(st.lists(TIMES, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_collective_starts_with_its_last_member_and_ends_for_all_at_once(arrive, random):
    clock, duration, ends = Clock(), random_fraction(random), []
    collective = RunningCollective(clock, len(arrive), duration)

    def member(time_s):
        yield clock.timeout(time_s)
        yield collective.join()
        ends.append(clock.now)

    for time_s in arrive:
        clock.process(member(time_s))
    clock.run()
    assert collective.started_s == max(arrive)
    assert ends == [max(arrive) + duration] * len(arrive)


def test_collective_that_lacks_a_member_never_starts():
    clock = Clock()
    collective = RunningCollective(clock, 2, Fraction(1))
    collective.join()
    clock.run()
    assert collective.started_s is None
