"""What is of the wrong kind or size is refused with a message, never given a number."""

import numpy as np
import pytest
from helpers import costs_of

from pipesim.errors import ScheduleError
from pipesim.ir import lower
from pipesim.metrics import measure
from pipesim.schedules import Shape, generate
from pipesim.timing.engine import simulate
from pipesim.timing.longest_path import StepProgram

SCHEDULE = generate("1f1b", Shape(4, 1, 8))
COSTS = costs_of(4, number=float)


def test_the_engine_refuses_a_schedule_without_messages():
    with pytest.raises(
        ScheduleError, match=r"found Schedule, which has no messages yet; needed: pipesim\.lower"
    ):
        simulate(SCHEDULE, COSTS)


def test_costs_of_another_number_of_stages():
    words = "1f1b has 4 stages, the costs are of 8"
    with pytest.raises(ScheduleError, match=words):
        simulate(lower(SCHEDULE), costs_of(8, number=float))
    with pytest.raises(ScheduleError, match=words):
        StepProgram.of(SCHEDULE).step_time_s(costs_of(8, number=float))
    with pytest.raises(ScheduleError, match=words):
        measure(simulate(lower(SCHEDULE), COSTS), SCHEDULE, costs_of(8, number=float))


@pytest.mark.parametrize(("name", "shape"), [("gpipe", Shape(4, 1, 8)), ("1f1b", Shape(4, 1, 4))])
def test_metrics_of_another_schedules_timeline(name, shape):
    timeline = simulate(lower(generate(name, shape)), COSTS)
    with pytest.raises(ScheduleError, match="is not one step of one replica of 1f1b, which has 64"):
        measure(timeline, SCHEDULE, COSTS)


def test_metrics_of_two_replicas_at_once():
    with pytest.raises(
        ScheduleError, match="the timeline of 128 computations is not one step of one replica"
    ):
        measure(simulate(lower(SCHEDULE), COSTS, num_replicas=2), SCHEDULE, COSTS)


def test_what_is_lowered_is_not_lowered_again():
    for of_schedules in (lower, StepProgram.of):
        with pytest.raises(
            ScheduleError, match=r"1f1b is lowered already; its computations are its \.schedule"
        ):
            of_schedules(lower(SCHEDULE))


def test_a_schedule_with_communication_is_no_authored_one():
    written = type(SCHEDULE).from_csv(lower(SCHEDULE).to_csv())
    with pytest.raises(ScheduleError, match=r"holds communication; drop it with \.compute_only\(\)"):
        lower(written)
    assert np.array_equal(written.compute_only().op, SCHEDULE.op)
