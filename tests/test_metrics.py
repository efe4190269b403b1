from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from helpers import examples
from hypothesis import given
from hypothesis import strategies as st

from pipesim.costs.direct import direct_costs
from pipesim.device_memory import memory_over_time
from pipesim.ir import lower
from pipesim.metrics import Breakdown, measure, rank_frame
from pipesim.scenario.resolved import DirectCosts
from pipesim.schedules import Shape, generate
from pipesim.timing.engine import simulate


def costs_of(p, v, forward, backward, **more):
    stated = {
        "input_gradient_s": None,
        "weight_gradient_s": None,
        "p2p_latency_s": Fraction(0),
        "p2p_bytes_per_s": None,
        "boundary_bytes": Fraction(0),
        "overlapped_pair_s": None,
        "gradient_sync_s": Fraction(0),
        "optimizer_s": Fraction(0),
        "activation_bytes": Fraction(0),
    }
    direct = DirectCosts(forward_s=forward, backward_s=backward, **{**stated, **more})
    return direct_costs(direct, num_ranks=p, num_chunks=v)


def run(name, p, v, m, costs, **shape_options):
    schedule = generate(name, Shape(p, v, m, shape_options))
    timeline = simulate(lower(schedule), costs)
    return schedule, timeline, measure(timeline, schedule, costs)


def test_the_three_bubbles_of_the_textbook_are_exact():
    costs = costs_of(4, 1, Fraction(1), Fraction(2))
    _, _, metrics = run("1f1b", 4, 1, 8, costs)
    assert metrics.makespan_s == 33
    assert metrics.bubble_ratio == Fraction(3, 11)
    assert metrics.bubble_overhead == Fraction(3, 8)
    assert metrics.span_bubble_ratio == Fraction(3, 11)


def test_idle_time_of_1f1b_is_attributed_as_drawn_by_hand():
    """Rank 2 of p4 m8: warm-up 2 s, 3 s between its actions, cool-down 4 s."""
    costs = costs_of(4, 1, Fraction(1), Fraction(2))
    _, _, metrics = run("1f1b", 4, 1, 8, costs)
    rank = metrics.ranks[2]
    assert rank.breakdown == Breakdown(
        busy_s=24, warmup_s=2, dependency_s=3, p2p_s=0, collective_s=0, cooldown_s=4
    )
    assert rank.idle_s == 9
    assert metrics.ranks[0].breakdown.dependency_s == 9
    assert metrics.ranks[3].breakdown.warmup_s == 3


def test_waiting_for_a_message_starts_where_its_producer_ends():
    """Two ranks, one microbatch: F0, message, F1 B1, message, B0."""
    costs = costs_of(2, 1, Fraction(1), Fraction(2), p2p_latency_s=Fraction(1, 4))
    _, _, metrics = run("gpipe", 2, 1, 1, costs)
    first, last = (rank.breakdown for rank in metrics.ranks)
    assert metrics.makespan_s == Fraction(13, 2)
    assert (first.busy_s, first.dependency_s, first.p2p_s) == (3, Fraction(13, 4), Fraction(1, 4))
    assert (last.warmup_s, last.busy_s, last.cooldown_s) == (Fraction(5, 4), 3, Fraction(9, 4))


@examples(60)
@given(
    name=st.sampled_from(["gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "dualpipe-v"]),
    p=st.integers(1, 4),
    v=st.integers(1, 3),
    rounds=st.integers(1, 3),
    seed=st.integers(0, 10**6),
)
def test_the_parts_of_every_rank_add_up_to_the_makespan(name, p, v, rounds, seed):
    v = {"interleaved-1f1b": v, "dualpipe-v": 2}.get(name, 1)
    m = 2 * p * rounds
    draw = np.random.default_rng(seed)
    stages = [tuple(Fraction(int(n), 7) for n in draw.integers(1, 30, p * v)) for _ in range(2)]
    costs = costs_of(p, v, *stages, p2p_latency_s=Fraction(int(draw.integers(0, 9)), 5))
    _, _, metrics = run(name, p, v, m, costs)
    for rank in metrics.ranks:
        assert sum(getattr(rank.breakdown, part) for part in Breakdown.__slots__) == metrics.makespan_s
        assert all(getattr(rank.breakdown, part) >= 0 for part in Breakdown.__slots__)
        assert rank.busy_s + rank.idle_s == metrics.makespan_s
    mean_busy = sum(rank.busy_s for rank in metrics.ranks) / p
    assert metrics.bubble_ratio == 1 - mean_busy / metrics.makespan_s
    assert metrics.bubble_overhead == metrics.makespan_s / mean_busy - 1


def test_step_time_is_makespan_plus_exposed_synchronisation_plus_optimizer():
    """Each rank synchronises for 5 s after its own last backward; the last rank's hides in the cool-down."""
    costs = costs_of(4, 1, Fraction(1), Fraction(2), gradient_sync_s=Fraction(5), optimizer_s=Fraction(1, 2))
    _, _, metrics = run("1f1b", 4, 1, 8, costs)
    assert (metrics.makespan_s, metrics.exposed_sync_s, metrics.optimizer_s) == (33, 5, Fraction(1, 2))
    assert metrics.step_time_s == Fraction(77, 2)
    assert metrics.hidden_sync_s == 5


def test_zero_bubble_v_is_zero_by_the_span_only():
    costs = costs_of(4, 2, Fraction(2), Fraction(4))
    _, _, metrics = run("zb-v", 4, 2, 8, costs)
    assert metrics.span_bubble_ratio == 0
    assert metrics.makespan_s - metrics.ranks[0].busy_s == 3


@pytest.mark.parametrize(
    ("name", "v", "peaks"),
    [("gpipe", 1, [8] * 4), ("1f1b", 1, [4, 3, 2, 1]), ("interleaved-1f1b", 2, [11, 9, 7, 5])],
)
def test_peak_memory_is_in_flight_times_activations(name, v, peaks):
    costs = costs_of(4, v, Fraction(1), Fraction(2), activation_bytes=Fraction(600))
    schedule, timeline, metrics = run(name, 4, v, 8, costs)
    assert [rank.peak_in_flight for rank in metrics.ranks] == peaks
    assert [rank.peak_memory_bytes for rank in metrics.ranks] == [600 * peak / v for peak in peaks]
    for rank, peak in enumerate(peaks):
        seconds, used = memory_over_time(timeline, schedule, costs, rank)
        assert used.max() == 600 * peak / v
        assert used[-1] == 0
        assert (np.diff(seconds) >= 0).all()


def test_without_bytes_or_tokens_there_are_no_such_numbers():
    _, _, metrics = run("1f1b", 2, 1, 2, costs_of(2, 1, Fraction(1), Fraction(2)))
    assert metrics.peak_memory_bytes is None
    assert metrics.fits_memory is None
    assert metrics.tokens_per_s is None
    assert metrics.mfu is None


def test_memory_is_not_known_from_gradients_alone():
    """As a calibration writes them: bytes that were reduced, and no activations."""
    schedule = generate("1f1b", Shape(2, 1, 4))
    plain = costs_of(2, 1, 1, 2)
    costs = replace(plain, gradient_bytes=np.array([12.7e6, 6e6]), memory_limit_bytes=80e9)
    metrics = measure(simulate(lower(schedule), costs), schedule, costs)
    assert metrics.peak_memory_bytes is None
    assert metrics.fits_memory is None
    assert [rank.peak_memory_bytes for rank in metrics.ranks] == [None, None]


def test_communication_counts_each_message_once():
    costs = costs_of(
        4, 1, Fraction(1), Fraction(2), boundary_bytes=Fraction(10), p2p_bytes_per_s=Fraction(1000)
    )
    _, _, metrics = run("1f1b", 4, 1, 8, costs)
    assert metrics.comm_bytes == 2 * 3 * 8 * 10


def test_rank_frame_has_a_line_a_rank():
    _, _, metrics = run("1f1b", 4, 1, 8, costs_of(4, 1, Fraction(1), Fraction(2)))
    frame = rank_frame(metrics)
    assert list(frame["rank"]) == [0, 1, 2, 3]
    assert (frame["busy_s"] + frame["idle_s"] == 33).all()
