"""What torch, Megatron and DeepSpeed take, by name and as a file."""

import pytest

from pipesim.errors import ScheduleError
from pipesim.ir import lower
from pipesim.ir.actions import Schedule
from pipesim.prediction import predict
from pipesim.scenario import scenario_from_mapping
from pipesim.schedules import Shape, generate
from pipesim.schedules.frameworks import FRAMEWORKS, check_csv, check_schedule, verdict


def accepted(name, shape):
    return {framework for framework in FRAMEWORKS if verdict(name, shape, framework).accepts}


@pytest.mark.parametrize(
    ("name", "shape", "frameworks"),
    [
        ("1f1b", Shape(4, 1, 8), {"torch", "Megatron", "DeepSpeed"}),
        ("1f1b", Shape(4, 1, 3), {"Megatron", "DeepSpeed"}),
        ("gpipe", Shape(4, 1, 1), {"torch"}),
        ("interleaved-1f1b", Shape(4, 2, 8), {"torch", "Megatron"}),
        ("interleaved-1f1b", Shape(4, 2, 10), {"torch"}),
        ("interleaved-1f1b", Shape(4, 2, 10, {"microbatch_group_size": 5}), {"torch", "Megatron"}),
        ("interleaved-1f1b", Shape(4, 2, 5), {"torch"}),
        ("interleaved-1f1b", Shape(4, 2, 5, {"microbatch_group_size": 5}), {"torch", "Megatron"}),
        ("interleaved-1f1b", Shape(4, 2, 3), {"torch"}),
        ("interleaved-1f1b", Shape(4, 2, 18), set()),
        ("interleaved-1f1b", Shape(4, 2, 18, {"microbatch_group_size": 9}), {"Megatron"}),
        ("interleaved-1f1b", Shape(4, 2, 18, {"microbatch_group_size": 4}), set()),
        ("zb-h1", Shape(4, 1, 9), set()),
        ("zb-v", Shape(4, 2, 3), {"torch"}),
        ("dualpipe-v", Shape(4, 2, 8), {"torch"}),
        ("dualpipe", Shape(4, 1, 8), set()),
        ("v-half", Shape(4, 2, 8), set()),
        ("pipedream", Shape(4, 1, 8), set()),
    ],
)
def test_who_takes_it_by_name(name, shape, frameworks):
    assert accepted(name, shape) == frameworks


def test_reasons_are_those_of_the_framework():
    assert verdict("1f1b", Shape(4, 1, 3), "TORCH").reasons == ("needs m >= p",)
    refused = verdict("interleaved-1f1b", Shape(4, 2, 18, {"microbatch_group_size": 4}), "megatron")
    assert refused.reasons == ("needs p <= N <= m and m mod N = 0 or >= p (N = p unless stated)",)
    assert verdict("zb-v", Shape(4, 2, 8), "Megatron").reasons == ("has no zb-v schedule",)
    with pytest.raises(ScheduleError, match=r"'jax'.*torch, Megatron, DeepSpeed"):
        verdict("zb-v", Shape(4, 2, 8), "jax")


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        ("chimera", Shape(4, 1, 8), "stage 1 stands on ranks 1 and 2"),
        ("dualpipe", Shape(4, 1, 8), "stage 1 stands on ranks 1 and 2"),
        ("seq1f1b", Shape(4, 1, 8), "no slices"),
    ],
)
def test_files_that_torch_cannot_load(name, shape, words):
    (reason,) = check_csv(generate(name, shape).to_csv(), "torch")
    assert words in reason


def test_a_file_suits_megatron_and_deepspeed_only_if_it_is_their_own_order():
    own = generate("1f1b", Shape(4, 1, 8)).to_csv()
    assert check_csv(own, "DeepSpeed") == check_csv(own, "Megatron") == ()
    (reason,) = check_csv(generate("gpipe", Shape(4, 1, 8)).to_csv(), "DeepSpeed")
    assert "differs first on rank 0, action 5: 0F4 for 0B0" in reason
    interleaved = generate("interleaved-1f1b", Shape(4, 2, 8))
    assert check_schedule(interleaved, "Megatron") == ()
    (reason,) = check_schedule(interleaved, "DeepSpeed")
    assert "has no interleaved-1f1b schedule" in reason
    (reason,) = check_schedule(generate("zb-h1", Shape(2, 1, 4)), "Megatron")
    assert "0I0 for 0B0" in reason


def lines(schedule):
    return schedule.to_csv().splitlines()


def test_what_is_wrong_with_the_file_itself_comes_first_and_alone():
    first, second = lines(generate("1f1b", Shape(2, 1, 3)))
    (reason,) = check_csv(f"{first}\n{second.replace('1B2', '1B1')}", "torch")
    assert "1B1 runs a second backward" in reason
    with pytest.raises(ScheduleError, match="rank 0, cell 1"):
        check_csv(first.replace("0F0", "0F0garbage") + "\n" + second, "torch")


def with_messages():
    schedule = lower(generate("1f1b", Shape(2, 1, 2)))
    return schedule.select(schedule.op != schedule.op.max())


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("1RECV_F1,", "", "rank 1: 1RECV_F1 is missing"),
        ("1RECV_F1", "1RECV_F1,1RECV_F1", "1RECV_F1 stands there 2 times"),
        ("1F0", "1F0,1SEND_F0", "1SEND_F0 sends or receives what nobody needs"),
        ("1F0", "1F0,", "no empty cell"),
    ],
)
def test_communication_in_a_file_is_checked(old, new, words):
    text = with_messages().to_csv()
    assert check_csv(text, "torch") == ()
    assert old in text
    (reason,) = check_csv(text.replace(old, new, 1), "torch")
    assert words in reason


def test_a_file_whose_messages_never_meet_is_refused():
    first, second = lines(with_messages())
    late = second.replace("1RECV_F0,", "").replace("1SEND_B0,", "1SEND_B0,1RECV_F0,")
    first = first.replace("0RECV_B0,", "").replace("0SEND_F0", "0RECV_B0,0SEND_F0")
    (reason,) = check_csv(f"{first}\n{late}", "torch")
    assert "sends and receives never meet" in reason


def test_an_optimizer_action_is_not_torchs():
    written = Schedule.from_csv(lower(generate("1f1b", Shape(2, 1, 2))).to_csv())
    assert check_schedule(written, "torch") == (
        "torch has no OPTIMIZER action; it steps the optimizer outside the schedule",
    )


@pytest.mark.parametrize(
    ("num_microbatches", "stated", "words"),
    [
        (8, {}, "4 (default: p)"),
        (5, {}, "5 (default: m / max(1, m // p), as torch; Megatron-LM's default of p = 4 refuses m = 5)"),
        (5, {"microbatch_group_size": 5}, "5 (stated)"),
    ],
)
def test_the_group_that_a_scenario_runs_with_is_said(num_microbatches, stated, words):
    """F 1 and B 2 over two chunks, m 5 in one group of 5: 19.5 s, stated or not."""
    asked = scenario_from_mapping(
        {
            "parallel": {"pipeline": 4, "virtual_stages": 2} | stated,
            "batch": {"microbatches": num_microbatches},
            "schedule": "interleaved-1f1b",
            "costs": {"forward": "1 s", "backward": "2 s"},
        }
    )
    result = predict(asked)
    assert result.inferred["parallel.microbatch_group_size"] == words
    assert result.metrics.makespan_s == pytest.approx(3 * num_microbatches + 4.5)
