"""Actions and schedules as text, as torch's CSV and as columns."""

import numpy as np
import pytest
from helpers import random_schedule, schedule_of, texts
from hypothesis import given
from hypothesis import strategies as st

from pipesim.errors import ScheduleError
from pipesim.ir.actions import (
    Action,
    Op,
    Schedule,
    backward,
    forward,
    input_gradient,
    overlap,
    weight_gradient,
)

NUMBERS = st.integers(0, 999_999_999)
WITH_MICROBATCH = [Op.F, Op.B, Op.I, Op.W, Op.SEND_F, Op.RECV_F, Op.SEND_B, Op.RECV_B]
STAGE_ONLY = [Op.UNSHARD, Op.RESHARD, Op.REDUCE_GRAD, Op.REDUCE_EMBEDDING, Op.OPTIMIZER]
OF_A_MICROBATCH = st.tuples(st.sampled_from(WITH_MICROBATCH), NUMBERS, NUMBERS, st.integers(0, 9))
OF_A_STAGE = st.tuples(st.sampled_from(STAGE_ONLY), NUMBERS)
SINGLE = (OF_A_MICROBATCH | OF_A_STAGE).map(lambda fields: Action(*fields))
PAIRS = st.tuples(NUMBERS, NUMBERS, NUMBERS, NUMBERS).map(
    lambda n: overlap(forward(*n[:2]), backward(*n[2:]))
)


@given(SINGLE | PAIRS)
def test_text_round_trip(action):
    assert Action.parse(str(action)) == action


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("2F0", forward(2, 0)),
        ("0B11", backward(0, 11)),
        ("10I3", input_gradient(10, 3)),
        (" 1W2 ", weight_gradient(1, 2)),
        ("1F0.2", forward(1, 0, 2)),
        ("3SEND_F1", Action(Op.SEND_F, 3, 1)),
        ("0RECV_B7", Action(Op.RECV_B, 0, 7)),
        ("1UNSHARD", Action(Op.UNSHARD, 1)),
        ("1RESHARD", Action(Op.RESHARD, 1)),
        ("0REDUCE_GRAD", Action(Op.REDUCE_GRAD, 0)),
        ("0OPTIMIZER", Action(Op.OPTIMIZER, 0)),
        ("(0F7;7B3)OVERLAP_F_B", overlap(forward(0, 7), backward(7, 3))),
    ],
)
def test_text_of_every_operation(text, action):
    assert Action.parse(text) == action
    assert str(action) == text.strip()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "F0",
        "2F",
        "2X0",
        "2f0",
        "2F0garbage",
        "x2F0",
        "-1F0",
        "2F-1",
        "2F0.",
        "2F.1",
        "2 F0",
        "2.0F0",
        "2F0 2F1",
        "2SEND0",
        "SEND_F",
        "2REDUCE_GRAD3",
        "REDUCE_GRAD",
        "2BW0",
        "٣F0",
        "0F9999999999",
        "9999999999F0",
        "()OVERLAP_F_B",
        "(0F1)OVERLAP_F_B",
        "(0F1;0B0)",
        "(0F1,0B0)OVERLAP_F_B",
        "(0F1;0B0;0W0)OVERLAP_F_B",
        "((0F1;0B0)OVERLAP_F_B;0B1)OVERLAP_F_B",
        "0OVERLAP_F_B1",
    ],
)
def test_text_that_is_not_one_action_is_refused(text):
    with pytest.raises(ScheduleError, match="is not an action; expected stage, operation, microbatch"):
        Action.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "(0B0;0F1)OVERLAP_F_B",
        "(0F0;0F1)OVERLAP_F_B",
        "(0F1;0I0)OVERLAP_F_B",
        "(0F1;0W0)OVERLAP_F_B",
        "(0B0;0B1)OVERLAP_F_B",
    ],
)
def test_pair_is_a_forward_and_then_a_full_backward(text):
    with pytest.raises(ScheduleError, match="an overlapped pair is an F and then a full B, found"):
        Action.parse(text)


# The form that torch writes: no header, line r is rank r, one cell a time step, empty cells are idle.
TORCH_STYLE = """\
0F0,0F1,,,0I0,0W0,0I1,0W1
,1F0,1I0,1F1,1I1,1W0,1W1,
"""


def test_torch_csv_with_idle_cells():
    schedule = Schedule.from_csv(TORCH_STYLE)
    assert texts(schedule) == ["0F0 0F1 0I0 0W0 0I1 0W1", "1F0 1I0 1F1 1I1 1W0 1W1"]
    assert (schedule.num_ranks, schedule.num_stages, schedule.num_microbatches) == (2, 2, 2)


def test_torch_csv_with_communication_and_pairs():
    text = "0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD\n1RECV_F0,(1F0;1B0)OVERLAP_F_B,1SEND_B0\n"
    assert Schedule.from_csv(text).to_csv() == text


def test_old_letters_mean_the_input_gradient_beside_w():
    old = "0F0,0B0,0W0,(0F1;0BW2)OVERLAP_F_B,0BW1\n"
    assert Schedule.from_csv(old).to_csv() == "0F0,0I0,0W0,(0F1;0B2)OVERLAP_F_B,0B1\n"
    without_full_backward = "0F0,0SEND_F0,0B0,0W0\n1RECV_F0,1F0,1B0,1W0,1SEND_B0\n"
    read = Schedule.from_csv(without_full_backward)
    assert texts(read) == ["0F0 0SEND_F0 0I0 0W0", "1RECV_F0 1F0 1I0 1W0 1SEND_B0"]


@pytest.mark.parametrize("text", ["0F0,0B0\n", "0F0,0F1,0I0,0B1,0W0\n"])
def test_new_letters_are_left_alone(text):
    assert Schedule.from_csv(text).to_csv() == text


def test_line_ends_quotes_blanks_and_trailing_empty_lines_are_forgiven():
    assert texts(Schedule.from_csv('0F0 ,"0B0"\r\n1F0,1B0\r\n,,\r\n\r\n')) == ["0F0 0B0", "1F0 1B0"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0F0,0B0\n1F0,,1Q0\n", r"^rank 1, cell 3: '1Q0' is not an action"),
        ("0F0,rank\n", r"^rank 0, cell 2: 'rank' is not an action"),
        ("0F0,(0B0;0F1)OVERLAP_F_B\n", r"^rank 0, cell 2: an overlapped pair is"),
        ("0F0,0W0,0BX0\n", r"^rank 0, cell 3: '0BX0' is not an action"),
        ('0F0,"0B0\n1F0,1B0\n', r"^rank 0, cell 2: .* is not an action"),
        ("", "the file holds no action"),
        ("\n,,\n", "the file holds no action"),
        ("0F0,0B0\r1F0,1B0\r\x00", "is not an action"),
        ("x" * 200_000, "the file is not CSV: field larger than field limit"),
    ],
)
def test_bad_csv_names_rank_and_cell(text, words):
    with pytest.raises(ScheduleError, match=words):
        Schedule.from_csv(text)


@given(st.randoms(use_true_random=False))
def test_csv_round_trip(random):
    schedule = random_schedule(random)
    read = Schedule.from_csv(schedule.to_csv(), name=schedule.name)
    assert read.to_csv() == schedule.to_csv()
    for column in ("offsets", "op", "stage", "microbatch", "slice", "joined"):
        np.testing.assert_array_equal(getattr(read, column), getattr(schedule, column))
    assert (read.num_stages, read.num_microbatches, read.num_slices) == (
        schedule.num_stages,
        schedule.num_microbatches,
        schedule.num_slices,
    )


def test_schedule_as_columns():
    schedule = schedule_of("0F0 (0F1;3B0)OVERLAP_F_B", "1F0.1")
    assert schedule.offsets.tolist() == [0, 3, 4]
    assert schedule.op.tolist() == [Op.F, Op.F, Op.B, Op.F]
    assert schedule.stage.tolist() == [0, 0, 3, 1]
    assert schedule.microbatch.tolist() == [0, 1, 0, 0]
    assert schedule.slice.tolist() == [0, 0, 0, 1]
    assert schedule.joined.tolist() == [False, True, False, False]
    assert schedule.rank.tolist() == [0, 0, 0, 1]
    assert (schedule.num_ranks, schedule.num_stages) == (2, 4)
    assert (schedule.num_microbatches, schedule.num_slices, schedule.num_chunks) == (2, 2, 2)
    assert (schedule.stages_of(0), schedule.stages_of(1)) == ([0, 3], [1])
    assert (schedule.action(2), schedule.action(3)) == (backward(3, 0), forward(1, 0, 1))


def test_compute_only_drops_what_lowering_adds():
    lowered = schedule_of("0F0 0SEND_F0 0RECV_B0 0B0 0REDUCE_GRAD 0OPTIMIZER", "1RECV_F0 1F0 1B0 1SEND_B0")
    assert texts(lowered.select(lowered.op <= Op.W)) == ["0F0 0B0", "1F0 1B0"]


def test_columns_take_17_bytes_an_action():
    orders = ([forward(rank, k) for k in range(10_000)] for rank in range(4))
    schedule = Schedule.from_orders("large", orders)
    columns = (schedule.op, schedule.stage, schedule.microbatch, schedule.slice, schedule.joined)
    assert sum(column.nbytes for column in columns) == 17 * 40_000
