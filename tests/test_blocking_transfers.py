"""Transfers that hold both ranks: batches of several chunks, files as they stand, waits by cause."""

from pathlib import Path
from random import Random

import pytest
from helpers import random_costs, random_schedule
from hypothesis import given
from hypothesis import strategies as st

from pipesim.errors import DeadlockError, ScheduleError
from pipesim.ir import find_hang, lower
from pipesim.ir.actions import SENDS
from pipesim.prediction import load_csv, predict
from pipesim.scenario import scenario_from_mapping
from pipesim.schedules import Shape, families, generate
from pipesim.timing.engine import simulate

ONE_BY_ONE = """\
0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1
1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1
"""
CROSSED = """\
0F0,0SEND_F0,0F1,0SEND_F1,0F2,0SEND_F2,0RECV_B0,0B0,0RECV_B1,0B1,0RECV_B2,0B2
1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1,1RECV_F2,1F2,1B2,1SEND_B2
"""


def scenario(num_ranks, num_chunks, num_microbatches, p2p="0 s", **more):
    return scenario_from_mapping(
        {
            "parallel": {"pipeline": num_ranks, "virtual_stages": num_chunks},
            "batch": {"microbatches": num_microbatches},
            "schedule": "interleaved-1f1b",
            "costs": {"forward": f"{num_chunks} s", "backward": f"{2 * num_chunks} s", "p2p": p2p},
            "network": {"p2p": "blocking"},
        }
        | more
    )


@pytest.mark.parametrize(("p", "v", "m"), [(4, 2, 8), (4, 3, 12), (8, 4, 32), (2, 4, 6), (3, 2, 9)])
def test_interleaved_runs_in_batches_as_megatron_does_without_overlap(p, v, m):
    """Where messages are free it takes what 2104.04473 says: m (F + B) and a bubble of (p - 1)(F + B) / v."""
    metrics = predict(scenario(p, v, m)).metrics
    assert metrics.makespan_s == pytest.approx(3 * v * m + 3 * (p - 1))
    # Waiting for a partner is no transfer.
    assert all(rank.breakdown.p2p_s == 0 for rank in metrics.ranks)


def test_waits_add_up_and_only_moving_messages_are_p2p():
    metrics = predict(scenario(4, 2, 8, p2p="0.5 s")).metrics
    free = predict(scenario(4, 2, 8)).metrics
    assert metrics.makespan_s > free.makespan_s
    for rank in metrics.ranks:
        parts = rank.breakdown
        total = parts.busy_s + parts.warmup_s + parts.dependency_s + parts.p2p_s + parts.cooldown_s
        assert total == pytest.approx(metrics.makespan_s)
        # A rank takes part in at most 2 x 2 x 2 x 8 transfers, and in some of them at a time.
        assert 0 < parts.p2p_s <= 64 * 0.5


@given(st.integers(0, 2**32 - 1).map(Random))
def test_no_ranks_wait_in_a_circle(random):
    schedule = random_schedule(random)
    lowered = lower(schedule, receive="batched")
    assert find_hang(lowered, "grouped") is None
    timeline = simulate(lowered, random_costs(random, schedule, p2p_latency_s=1), p2p="blocking")
    assert len(timeline.op) == len(lowered.op)


@pytest.mark.parametrize("name", sorted(name for name, one in families().items() if not one.needs_costs))
def test_every_named_schedule_has_batches(name):
    chunks = families()[name].chunks or 2
    lowered = lower(generate(name, Shape(4, chunks, 8)), receive="batched")
    assert find_hang(lowered, "grouped") is None


def write(folder: Path, text: str) -> str:
    (folder / "order.csv").write_text(text)
    return str(folder / "order.csv")


def of_file(folder, text, num_microbatches, p2p="0.1 s"):
    more = {"schedule": {"csv": write(folder, text)}}
    return scenario(2, 1, num_microbatches, p2p, **more)


def test_a_file_is_run_as_it_stands(tmp_path):
    """Both ranks exchange in one place; by hand 0, .1 F0, 1.1 F0, 2.1 B0 to 4.1, then .1, and so on."""
    metrics = predict(of_file(tmp_path, ONE_BY_ONE, 2)).metrics
    assert metrics.makespan_s == pytest.approx(9.3)


def test_a_crossed_order_hangs_under_blocking(tmp_path):
    with pytest.raises(DeadlockError) as caught:
        predict(of_file(tmp_path, CROSSED, 3))
    assert "rank 0: at 0SEND_F1, for 1RECV_F1 on rank 1" in str(caught.value)
    assert "rank 1: at 1SEND_B0, for 0RECV_B0 on rank 0" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            ("1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1", "1RECV_F1,1RECV_F0,1F0,1B0,1SEND_B0"),
            "1RECV_F1 stands before 1RECV_F0",
        ),
        (("0SEND_F0,", ""), "0SEND_F0 is missing"),
        (("0SEND_F1,", "0SEND_F1,0SEND_F1,"), "0SEND_F1 stands there 2 times"),
    ],
)
def test_messages_of_a_file_are_checked(tmp_path, change, words):
    path = write(tmp_path, ONE_BY_ONE.replace(*change))
    with pytest.raises(ScheduleError, match=words) as caught:
        load_csv(path)
    assert str(caught.value).startswith(path)


def test_sends_of_one_direction_keep_their_order_whatever_the_others_do():
    schedule = generate("1f1b", Shape(4, 1, 8))
    lowered = lower(schedule)
    assert find_hang(lowered, "exchanged") is None
    assert (lowered.op[: lowered.offsets[1]] == SENDS[0]).sum() == 8
