"""What ranks spend between computations, and steps replayed with durations of their own."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from helpers import costs_of, examples, makespan, random_costs, random_schedule
from hypothesis import given
from hypothesis import strategies as st

from pipesim.costs.file import read_cost_table, write_cost_table
from pipesim.costs.host import HostCost
from pipesim.costs.rows import row_durations
from pipesim.errors import ScenarioError
from pipesim.ir import lower
from pipesim.ir.actions import Op
from pipesim.prediction import predict_prepared, prepare
from pipesim.scenario import scenario_from_mapping
from pipesim.schedules import Shape, generate
from pipesim.timing.engine import simulate
from pipesim.timing.longest_path import PreparedSchedule

TENTH = Fraction(1, 10)
HOST = HostCost(Fraction(1, 20), Fraction(1, 50), Fraction(1, 30), Fraction(1, 4))


@pytest.mark.parametrize("sends_block", [False, True])
@given(random=st.randoms(use_true_random=False))
@examples(40)
def test_evaluator_and_engine_agree(sends_block, random):
    schedule = random_schedule(random)
    costs = random_costs(random, schedule, p2p_latency_s=TENTH, boundary_bytes=3)
    costs = replace(costs, host=HOST)
    mode = "send-blocking" if sends_block else "overlapped"
    timeline = simulate(lower(schedule), costs, p2p=mode)
    compute = timeline.select(timeline.compute)
    spans = PreparedSchedule.of(schedule).evaluate_costs(costs, sends_block=sends_block)
    np.testing.assert_allclose(np.asarray(spans.start), compute.start_s.astype(float), rtol=1e-12)
    np.testing.assert_allclose(np.asarray(spans.end), compute.end_s.astype(float), rtol=1e-12)


def test_two_ranks_by_hand():
    """Rank 0: F 0 to 1, its message until 1.11 (1/20 + 3/50), a gap of 1/30, then the next F."""
    schedule = generate("gpipe", Shape(2, 1, 2))
    costs = replace(costs_of(2, p2p_latency_s=TENTH, boundary_bytes=3), host=HOST)
    timeline = simulate(lower(schedule), costs)
    first = timeline.select(timeline.compute & (timeline.rank == 0))
    assert first.start_s[1] == 1 + Fraction(11, 100) + Fraction(1, 30)
    sends = timeline.select((timeline.rank == 0) & (timeline.op == Op.SEND_F))
    assert (sends.start_s[0], sends.end_s[0]) == (1, 1 + TENTH)
    last_end = timeline.end_s[timeline.op < Op.OPTIMIZER].max()
    assert timeline.start_s[timeline.op == Op.OPTIMIZER].tolist() == [last_end + Fraction(1, 4)] * 2
    blocking = simulate(lower(schedule, receive="late"), replace(costs, host=HOST), p2p="blocking")
    first = blocking.select(blocking.compute & (blocking.rank == 0))
    assert first.start_s[1] == 1 + TENTH + Fraction(1, 30)


@given(random=st.randoms(use_true_random=False))
@examples(40)
def test_stated_durations_take_the_place_of_the_costs(random):
    schedule = random_schedule(random)
    costs, other = random_costs(random, schedule), random_costs(random, schedule)
    lowered = lower(schedule)
    stated = simulate(lowered, other, durations=row_durations(lowered, costs))
    asked = simulate(lowered, costs)
    assert stated.start_s.tolist() == asked.start_s.tolist()
    with pytest.raises(ValueError, match="durations for"):
        simulate(lowered, costs, durations=np.ones(3))


def test_costs_without_a_host_are_not_touched():
    lowered = lower(generate("zb-v", Shape(4, 2, 8)))
    costs = costs_of(4, 2, p2p_latency_s=TENTH)
    nothing = replace(costs, host=HostCost())
    assert makespan(simulate(lowered, costs)) == makespan(simulate(lowered, nothing))
    held = replace(costs, host=HOST)
    assert makespan(simulate(lowered, costs)) < makespan(simulate(lowered, held))


def test_the_compiled_evaluator_leaves_host_costs_to_the_engine():
    mapping = {"name": "x", "parallel": {"pipeline": 4}, "batch": {"microbatches": 6}, "schedule": "1f1b"}
    scenario = scenario_from_mapping({**mapping, "costs": {"forward": 1, "backward": 2, "p2p": 0.1}})
    costs = replace(costs_of(4, number=float, p2p_latency_s=0.1), host=HostCost(0.05, 0, 0.01, 0.5))
    found = predict_prepared(replace(prepare(scenario), costs=costs), timing="fast")
    assert found.timed_by == "engine"
    assert found.events.end_s.max() == simulate(lower(found.schedule), costs).end_s.max()


def test_host_and_evidence_in_a_file(tmp_path):
    path = tmp_path / "costs.yaml"
    costs = replace(costs_of(2, number=float), host=HostCost(1e-5, 2e-10, 3e-6))
    write_cost_table(costs, path, evidence={"runs": ["a.json"], "steps": 3, "residuals_s": [1e-6]})
    assert read_cost_table(path).host == costs.host
    path.write_text(path.read_text().replace("per_byte_s", "per_bit_s"))
    with pytest.raises(ScenarioError, match=r"host\.per_bit_s"):
        read_cost_table(path)
