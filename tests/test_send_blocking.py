"""Sends that hold their sender: engine against evaluator, and by hand."""

from fractions import Fraction

import numpy as np
from helpers import costs_of, examples, makespan, random_costs, random_schedule
from hypothesis import given
from hypothesis import strategies as st

from pipesim.ir import lower
from pipesim.metrics import measure
from pipesim.schedules import Shape, generate
from pipesim.timing.engine import simulate
from pipesim.timing.longest_path import PreparedSchedule

TENTH = Fraction(1, 10)


@given(random=st.randoms(use_true_random=False))
@examples(60)
def test_evaluator_and_engine_agree(random):
    schedule = random_schedule(random)
    costs = random_costs(random, schedule, p2p_latency_s=TENTH)
    timeline = simulate(lower(schedule), costs, p2p="send-blocking")
    compute = timeline.select(timeline.compute)
    spans = PreparedSchedule.of(schedule).evaluate_costs(costs, sends_block=True)
    np.testing.assert_allclose(np.asarray(spans.start), compute.start_s.astype(float), rtol=1e-12)
    np.testing.assert_allclose(np.asarray(spans.end), compute.end_s.astype(float), rtol=1e-12)


def test_two_ranks_by_hand():
    """Rank 0 runs F at 0 and, held by its first message, at 1.1; overlapped it would run at 1."""
    schedule = generate("gpipe", Shape(2, 1, 2))
    timelines = {
        mode: simulate(lower(schedule), costs_of(2, p2p_latency_s=TENTH), p2p=mode)
        for mode in ("overlapped", "send-blocking")
    }
    starts = {mode: t.select(t.compute & (t.rank == 0)).start_s.tolist() for mode, t in timelines.items()}
    assert starts["overlapped"][:2] == [0, 1]
    assert starts["send-blocking"][:2] == [0, 1 + TENTH]


def test_a_ring_of_stages_does_not_deadlock_and_pays_for_every_message():
    """Interleaved stages send to the rank that sends to them, which blocks for ever if receives block too."""
    schedule = generate("interleaved-1f1b", Shape(4, 2, 8))
    costs = costs_of(4, 2, p2p_latency_s=TENTH)
    times = {
        mode: makespan(simulate(lower(schedule), costs, p2p=mode)) for mode in ("overlapped", "send-blocking")
    }
    # Each rank sends at least 2 m v - m messages in the steady state.
    assert times["overlapped"] < times["send-blocking"] <= times["overlapped"] + 2 * 2 * 8 * TENTH + 8 * TENTH
    held = measure(simulate(lower(schedule), costs, p2p="send-blocking"), schedule, costs)
    free = measure(simulate(lower(schedule), costs), schedule, costs)
    assert held.ranks[1].breakdown.p2p_s > free.ranks[1].breakdown.p2p_s
