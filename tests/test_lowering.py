"""Lowering: the sends, receives, reductions and optimizer steps that follow from the computations."""

from collections import Counter

import pytest
from helpers import random_schedule, schedule_of, texts
from hypothesis import given
from hypothesis import strategies as st

from pipesim.errors import DeadlockError
from pipesim.ir import embedding_copies, lower
from pipesim.ir.actions import RECEIVES, SENDS, Action, Op, Schedule
from pipesim.schedules import Shape, generate

RANDOM = st.randoms(use_true_random=False)


def transfers(schedule: Schedule, rank: int) -> list[tuple[bool, tuple]]:
    """What a rank sends (True) and receives (False) in order, each named by direction and consumer."""
    found = []
    for action in schedule.actions_of(rank):
        if action.op in SENDS or action.op in RECEIVES:
            towards_end = action.op in (Op.SEND_F, Op.RECV_F)
            step = (1 if towards_end else -1) if action.op in SENDS else 0
            key = (towards_end, action.stage + step, action.microbatch, action.slice)
            found.append((action.op in SENDS, key))
    return found


def expected_messages(schedule: Schedule) -> set[tuple]:
    """Messages of a compute-only schedule, from the places of its forwards alone."""
    home = {
        action[1:4]: rank
        for rank in range(schedule.num_ranks)
        for row in range(schedule.offsets[rank], schedule.offsets[rank + 1])
        if (action := schedule.action(row)).op is Op.F
    }
    crossing = [
        (stage, k, part)
        for stage, k, part in home
        if stage and home[stage, k, part] != home[stage - 1, k, part]
    ]
    return {(True, *key) for key in crossing} | {(False, key[0] - 1, *key[1:]) for key in crossing}


def shapes():
    for p, m in [(1, 3), (2, 1), (2, 6), (4, 8), (5, 3), (8, 16)]:
        yield from (("gpipe", Shape(p, 1, m)), ("1f1b", Shape(p, 1, m)))
        yield from (("interleaved-1f1b", Shape(p, v, 2 * p)) for v in (1, 2, 3))


SCHEDULES = [generate(name, shape) for name, shape in shapes()] + [
    # V placement: rank r holds stages r and 2p - 1 - r
    schedule_of("0F0 0F1 3F0 3B0 3F1 3B1 0B0 0B1", "1F0 2F0 1F1 2F1 2B0 1B0 2B1 1B1"),
    schedule_of("0F0 1F1 1B1 0B0", "0F1 1F0 1B0 0B1"),
]


def test_named_schedules_exchange_what_their_placement_calls_for():
    for schedule in SCHEDULES:
        for receive in ("early", "late"):
            check_messages(schedule, lower(schedule, receive=receive))


@given(RANDOM, st.sampled_from(["early", "late"]))
def test_every_message_has_one_send_and_one_receive(random, receive):
    schedule = random_schedule(random)
    check_messages(schedule, lower(schedule, receive=receive))


def check_messages(schedule, lowered):
    ends = [end for rank in range(schedule.num_ranks) for end in transfers(lowered, rank)]
    assert Counter(ends) == Counter(
        (sends, key) for key in expected_messages(schedule) for sends in (True, False)
    )
    assert texts(lowered.select(lowered.op <= Op.W)) == texts(schedule)
    for rank in range(schedule.num_ranks):
        computed = set()
        received = set()
        for row in range(lowered.offsets[rank], lowered.offsets[rank + 1]):
            action = lowered.action(row)
            work = ("F" if action.op in (Op.F, Op.SEND_F, Op.RECV_F) else "B", *action[1:4])
            if action.op in SENDS:
                assert work in computed
            elif action.op in RECEIVES:
                assert work not in computed
                received.add(work)
            elif action.op in (Op.F, Op.B, Op.I):
                computed.add(work)
        assert received <= computed


def check_mirrored(lowered):
    """Both ranks of a pair see the same messages in one order, so that a transport may match by order."""
    per_rank = [transfers(lowered, rank) for rank in range(lowered.num_ranks)]
    rank_of = {(sends, key): rank for rank, ends in enumerate(per_rank) for sends, key in ends}
    for here, ends in enumerate(per_rank):
        for there in range(here):
            shared = [(sends, key) for sends, key in ends if rank_of[not sends, key] == there]
            mirrored = [(not sends, key) for sends, key in per_rank[there] if rank_of[not sends, key] == here]
            assert shared == mirrored


def runs_under_strict_rendezvous(lowered) -> bool:
    """Let every rank do one thing at a time, where a send and its receive must be at hand together."""
    orders = [[(sends, key) for sends, key in transfers(lowered, rank)] for rank in range(lowered.num_ranks)]
    heads = {rank: 0 for rank, order in enumerate(orders) if order}
    while heads:
        offered = {orders[rank][head]: rank for rank, head in heads.items()}
        met = [(sends, key) for sends, key in offered if (not sends, key) in offered]
        if not met:
            return False
        for end in met:
            rank = offered[end]
            heads[rank] += 1
            if heads[rank] == len(orders[rank]):
                del heads[rank]
    return True


def test_named_schedules_lowered_early_mirror_each_other():
    for schedule in SCHEDULES:
        lowered = lower(schedule)
        check_mirrored(lowered)
        assert runs_under_strict_rendezvous(lowered)


@given(RANDOM)
def test_lowered_early_any_schedule_is_safe_for_transports_that_match_by_order(random):
    lowered = lower(random_schedule(random))
    check_mirrored(lowered)
    assert runs_under_strict_rendezvous(lowered)


def test_rendezvous_check_can_fail():
    crossed = schedule_of("0RECV_B0 0SEND_F1", "1RECV_F1 1SEND_B0")
    assert not runs_under_strict_rendezvous(crossed)
    # Why interleaved 1F1B needs buffered sends wherever receives stand late.
    interleaved = generate("interleaved-1f1b", Shape(4, 2, 8))
    assert not runs_under_strict_rendezvous(lower(interleaved, receive="late"))


@given(RANDOM)
def test_late_puts_a_receive_right_before_its_consumer_and_a_send_right_behind_its_producer(random):
    schedule = random_schedule(random)
    messages = expected_messages(schedule)
    lowered = lower(schedule, receive="late")
    for rank in range(schedule.num_ranks):
        expected = []
        for action in schedule.actions_of(rank):
            units = action.parts or (action,)
            for part in units:
                towards_end = part.op is Op.F
                if part.op is not Op.W and (towards_end, *part[1:4]) in messages:
                    expected.append(Action(Op.RECV_F if towards_end else Op.RECV_B, *part[1:4]))
            expected.append(action)
            for part in units:
                towards_end = part.op is Op.F
                step = 1 if towards_end else -1
                if part.op is not Op.W and (towards_end, part.stage + step, *part[2:4]) in messages:
                    expected.append(Action(Op.SEND_F if towards_end else Op.SEND_B, *part[1:4]))
        body = [a for a in lowered.actions_of(rank) if a.op not in (Op.REDUCE_GRAD, Op.OPTIMIZER)]
        assert body == expected


def test_lowering_by_hand():
    schedule = schedule_of("0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1")
    assert texts(lower(schedule)) == [
        "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1 0REDUCE_GRAD 0OPTIMIZER",
        "1RECV_F0 1F0 1RECV_F1 1B0 1SEND_B0 1F1 1B1 1SEND_B1 1REDUCE_GRAD 1OPTIMIZER",
    ]
    assert texts(lower(schedule, receive="late")) == [
        "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1 0REDUCE_GRAD 0OPTIMIZER",
        "1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1 1REDUCE_GRAD 1OPTIMIZER",
    ]


def test_neighbours_on_one_rank_exchange_nothing():
    v_shaped = lower(schedule_of("0F0 3F0 3B0 0B0", "1F0 2F0 2B0 1B0"))
    assert texts(v_shaped) == [
        "0F0 0SEND_F0 3RECV_F0 3F0 3B0 3SEND_B0 0RECV_B0 0B0 3REDUCE_GRAD 0REDUCE_GRAD 0OPTIMIZER",
        "1RECV_F0 1F0 2F0 2SEND_F0 2RECV_B0 2B0 1B0 1SEND_B0 2REDUCE_GRAD 1REDUCE_GRAD 1OPTIMIZER",
    ]


def test_lowering_equals_torch_op_for_op():
    torch_schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    for schedule in SCHEDULES[:-1]:  # torch knows no second model replica
        rank_of = {stage: rank for rank in range(schedule.num_ranks) for stage in schedule.stages_of(rank)}
        compute = {
            rank: [torch_schedules._Action.from_str(str(action)) for action in schedule.actions_of(rank)]
            for rank in range(schedule.num_ranks)
        }
        lowered = torch_schedules._add_send_recv(compute, rank_of.__getitem__, schedule.num_stages)
        ours = lower(schedule)
        for rank, theirs in lowered.items():
            body = ours.actions_of(rank)[: len(theirs)]
            assert list(map(str, body)) == list(map(str, theirs)), (schedule.name, rank)
            rest = [action.op for action in ours.actions_of(rank)[len(theirs) :]]
            assert rest == [Op.REDUCE_GRAD] * len(schedule.stages_of(rank)) + [Op.OPTIMIZER]


def test_a_deadlock_is_said_rather_than_waited_for():
    stuck = Schedule.from_csv("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n")
    with pytest.raises(DeadlockError, match="rank 0: at 0B0, waits for 1B0"):
        lower(stuck)


@pytest.mark.parametrize(
    ("name", "num_chunks", "expected"),
    [
        ("1f1b", 1, {0: 0, 3: 3}),
        ("interleaved-1f1b", 2, {0: 0, 3: 7}),
        ("zb-v", 2, {}),  # rank 0 has the first and the last stage, and needs one copy only
        ("dualpipe", 1, {}),
    ],
)
def test_ranks_with_a_copy_of_a_tied_embedding_add_up_its_gradients_before_the_optimizer(
    name: str, num_chunks: int, expected: dict[int, int]
) -> None:
    schedule = generate(name, Shape(4, num_chunks, 8))
    assert embedding_copies(schedule) == expected
    lowered = lower(schedule, tied_embedding=True)
    for rank in range(4):
        last = lowered.actions_of(rank)[-2]
        assert (last.op is Op.REDUCE_EMBEDDING) == (rank in expected)
        if rank in expected:
            assert last.stage == expected[rank]
    assert embedding_copies(generate("1f1b", Shape(1, 1, 2))) == {}
