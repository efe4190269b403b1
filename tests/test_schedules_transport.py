"""Which transports let the sends and receives of a schedule meet."""

from itertools import product

import pytest
from helpers import schedule_of

from pipesim.errors import DeadlockError, ScheduleError
from pipesim.ir import TRANSPORTS, find_hang, lower, needed_transport
from pipesim.schedules import Shape, families, family, generate

FIXED = sorted(name for name, chosen in families().items() if not chosen.needs_costs)


@pytest.mark.parametrize("name", FIXED)
def test_early_receives_are_safe_one_by_one(name):
    chosen = family(name)
    for p, m in product((2, 4, 6), (1, 4, 12, 18)):
        shape = Shape(p, chosen.chunks or 2, m)
        try:
            chosen.check(shape)
        except ScheduleError:
            continue
        assert needed_transport(lower(generate(name, shape))) == "rendezvous"


def test_late_receives_ask_for_more_than_early_ones():
    needed = {
        name: needed_transport(lower(generate(name, Shape(4, v, 8)), receive="late"))
        for name, v in (("gpipe", 1), ("1f1b", 1), ("zb-v", 2))
    }
    assert needed == {"gpipe": "rendezvous", "1f1b": "grouped", "zb-v": "buffered"}


BOTH_SEND_FIRST = ("0F0 0SEND_F0 0RECV_B0 0B0", "1F0 1SEND_B0 1RECV_F0 1B0")
CROSSED = ("0SEND_F0 0SEND_F1 0F0 0F1", "1RECV_F1 1RECV_F0 1F0 1F1")


@pytest.mark.parametrize(
    ("orders", "hangs"),
    [
        (("0F0 0SEND_F0", "1RECV_F0 1F0"), []),
        (BOTH_SEND_FIRST, ["rendezvous"]),
        (CROSSED, ["rendezvous"]),
        (("0SEND_F0 0F0 0RECV_B0", "1SEND_B0 1F0 1RECV_F0"), ["rendezvous", "grouped"]),
        (("0RECV_B0 0F0 0SEND_F0", "1RECV_F0 1F0 1SEND_B0"), list(TRANSPORTS)),
    ],
)
def test_hand_made_messages(orders, hangs):
    schedule = schedule_of(*orders)
    assert [transport for transport in TRANSPORTS if find_hang(schedule, transport)] == hangs
    if len(hangs) < len(TRANSPORTS):
        assert needed_transport(schedule) == list(TRANSPORTS)[len(hangs)]
    else:
        with pytest.raises(DeadlockError, match="rank 1: at 1RECV_F0, for 0SEND_F0 on rank 0"):
            needed_transport(schedule)


def test_a_hang_names_where_each_rank_stands_and_what_it_waits_for():
    text = find_hang(schedule_of(*BOTH_SEND_FIRST, "2F0"), "rendezvous")
    assert text.splitlines()[1:] == [
        "  rank 0: at 0SEND_F0, for 1RECV_F0 on rank 1",
        "  rank 1: at 1SEND_B0, for 0RECV_B0 on rank 0",
        "  rank 2: nothing",
    ]


@pytest.mark.parametrize(
    "orders", [("0SEND_F0", "1F0"), ("0SEND_F0 0SEND_F0", "1RECV_F0"), ("0F0", "1RECV_F0")]
)
def test_a_message_with_one_end_is_an_error(orders):
    with pytest.raises(ScheduleError, match="one send and one receive"):
        needed_transport(schedule_of(*orders))
