"""What is left of a step bounds it, and a step that takes too long is not simulated to its end."""

from random import Random

import numpy as np
import pytest
from helpers import examples, random_costs, random_schedule
from hypothesis import given
from hypothesis import strategies as st
from test_contends import drawn

from pipesim.errors import PipesimError
from pipesim.prediction import Prediction, predict_within, prepare
from pipesim.scenario import scenario_from_mapping
from pipesim.timing.longest_path import StepProgram


@examples(80)
@given(st.randoms(use_true_random=False))
def test_what_is_left_is_the_longest_path_on(random):
    """No row ends later than the rest of the step allows, and the last one of the slowest rank just then."""
    random = Random(random.random())
    schedule = random_schedule(random)
    costs = random_costs(random, schedule, number=float, p2p_latency_s=0.3, gradient_sync_s=0.7)
    program = StepProgram.of(schedule)
    ends = np.asarray(program.prepared.evaluate_costs(costs).end)
    whole = ends + program.left_s(costs)
    step_s = program.step_time_s(costs)
    assert (whole <= step_s * (1 + 1e-12)).all()
    last = schedule.offsets[1:] - 1
    sync = [sum(float(costs.gradient_sync_s(int(s))) for s in of_rank) for of_rank in program.stages]
    alone = max(ends[last] + sync) + max(program.optimizer_s(costs))
    assert whole.max() == pytest.approx(alone, rel=1e-12)


@examples(40)
@given(st.randoms(use_true_random=False))
def test_only_steps_that_take_longer_are_given_up(random):
    random = Random(random.random())
    mapping = drawn(random)
    try:
        prepared = prepare(scenario_from_mapping(mapping))
    except PipesimError:
        return
    whole = predict_within(prepared, float("inf"))
    assert isinstance(whole, Prediction)
    for share in (0.3, 0.9, 0.999, 1.001):
        found = predict_within(prepared, whole.step_time_s * share)
        if isinstance(found, float):
            assert share < 1
            assert whole.step_time_s * share < found <= whole.step_time_s * (1 + 1e-9)
        else:
            assert found.step_time_s == whole.step_time_s
            assert found.metrics == whole.metrics
        assert share > 0.5 or isinstance(found, float)
