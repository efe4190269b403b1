"""The compiled evaluator gives the engine's numbers, and steps back where it could not."""

from dataclasses import asdict, replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from helpers import costs_of, examples, random_costs, random_schedule
from hypothesis import given
from hypothesis import strategies as st

from pipesim.errors import PipesimError, ScenarioError
from pipesim.ir import lower
from pipesim.ir.actions import Op
from pipesim.metrics import measure
from pipesim.prediction import Programs, predict
from pipesim.scenario import load_scenario, scenario_from_mapping
from pipesim.schedules import Shape, families, generate
from pipesim.timing.engine import simulate
from pipesim.timing.longest_path import StepProgram

SCENARIOS = Path(__file__).parent.parent / "scenarios"
NUMBERS_OF_A_STEP = (
    "step_time_s",
    "makespan_s",
    "exposed_sync_s",
    "hidden_sync_s",
    "optimizer_s",
    "comm_bytes",
)


def assert_same(found, expected):
    """Compare two measures, all numbers in them to a relative 1e-12."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            assert_same(found[key], expected[key])
    elif isinstance(expected, list | tuple):
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    elif expected is None or isinstance(expected, str | bool):
        assert found == expected
    else:
        assert found == pytest.approx(float(expected), rel=1e-12, abs=1e-12)


@examples(150)
@given(st.randoms(use_true_random=False))
def test_random_schedules_step_by_step_as_the_engine(random):
    random = Random(random.random())
    schedule = random_schedule(random)
    costs = random_costs(
        random,
        schedule,
        number=float,
        p2p_latency_s=random.choice([0, 0.3]),
        boundary_bytes=3,
        gradient_sync_s=0.7,
    )
    costs = replace(costs, fixed_sync_s=np.array([random.random() for _ in range(schedule.num_stages)]))
    costs = replace(costs, optimizer_s=np.array([random.random() for _ in range(schedule.num_stages)]))
    engine = simulate(lower(schedule), costs)
    compiled = StepProgram.of(schedule).timeline(costs)
    assert_same(asdict(measure(compiled, schedule, costs)), asdict(measure(engine, schedule, costs)))
    sends_and_computes = ~np.isin(engine.op, (Op.RECV_F, Op.RECV_B))
    for column in ("rank", "op", "stage", "microbatch", "slice", "nbytes"):
        assert (getattr(compiled, column) == getattr(engine, column)[sends_and_computes]).all(), column
    for column in ("start_s", "end_s"):
        expected = getattr(engine, column)[sends_and_computes]
        assert getattr(compiled, column) == pytest.approx(expected, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("name", [name for name, one in families().items() if not one.needs_costs])
def test_every_schedule_on_real_costs_as_the_engine(name):
    base = load_scenario(SCENARIOS / "gpt3-175b-h100.yaml", ["network.p2p=overlapped"])
    for chunks, microbatches in ((1, 12), (2, 16), (4, 16)):
        scenario = base.with_(
            {"parallel.pipeline": 4, "parallel.virtual_stages": chunks, "parallel.data": None},
            batch={"microbatches": microbatches, "global": None},
            cluster={"num_nodes": 4},
            schedule=name,
        )
        try:
            expected = predict(scenario)
        except PipesimError:
            with pytest.raises(PipesimError):
                predict(scenario, timing="compiled")
            continue
        found = predict(scenario, timing="fast")
        assert_same(numbers(found), numbers(expected))
        if found.timed_by == "compiled":
            program = program_of(found)
            assert program.step_time_s(found.costs) == pytest.approx(expected.metrics.step_time_s, rel=1e-12)


def test_messages_that_meet_on_a_link_go_to_the_engine():
    """The loop goes back from rank 1 to rank 0 on the link that gradients take."""
    mapping = {
        "parallel": {"pipeline": 2, "virtual_stages": 3},
        "batch": {"microbatches": 6},
        "costs": {
            "forward": "1 s",
            "backward": "2 s",
            "p2p": {"latency": 0, "bandwidth": "1 GB/s"},
            "boundary": "2 GB",
        },
        "schedule": "interleaved-1f1b",
    }
    scenario = scenario_from_mapping(mapping)
    expected = predict(scenario)
    found = predict(scenario, timing="fast")
    assert found.timed_by == "engine"
    assert_same(numbers(found), numbers(expected))
    alone = predict(scenario, timing="compiled")
    assert alone.timed_by == "compiled alone"
    assert "timed as if nothing shared a wire" in alone.warnings
    assert alone.metrics.makespan_s < expected.metrics.makespan_s
    mapping["costs"]["boundary"] = "1 MB"
    assert predict(scenario_from_mapping(mapping), timing="fast").timed_by == "compiled"


def numbers(prediction):
    return {key: value for key, value in prediction.to_dict().items() if key != "timed_by"}


def program_of(result):
    return StepProgram.of(result.schedule, tied_embedding=result.costs.tied_embedding is not None)


@pytest.mark.parametrize("name", ["1f1b", "interleaved-1f1b", "zb-v", "dualpipe-v"])
def test_sends_that_block_as_the_engine(name):
    changes = [
        "network.p2p=send-blocking",
        "network.mode=ideal",
        f"schedule={name}",
        "parallel.virtual_stages=2",
    ]
    scenario = load_scenario(SCENARIOS / "gpt3-175b-h100.yaml", changes)
    expected = predict(scenario)
    found = predict(scenario, timing="fast")
    assert found.timed_by == ("engine" if name == "dualpipe-v" else "compiled")
    assert_same(numbers(found), numbers(expected))
    if found.timed_by == "compiled":
        program = program_of(found)
        step_time_s = program.step_time_s(found.costs, sends_block=True)
        assert step_time_s == pytest.approx(expected.metrics.step_time_s, rel=1e-12)


def test_blocking_transfers_go_to_the_engine():
    scenario = load_scenario(SCENARIOS / "teaching.yaml", ["network.p2p=blocking", "costs.p2p=0.1 s"])
    found = predict(scenario, timing="fast")
    assert found.timed_by == "engine"
    assert found.metrics.makespan_s == pytest.approx(34.9, rel=1e-12)
    with pytest.raises(ScenarioError, match="need the engine"):
        predict(scenario, timing="compiled")


def test_both_holders_of_a_stage_reduce_it_together():
    schedule = generate("chimera", Shape(4, 1, 8))
    costs = replace(costs_of(4, number=float), fixed_sync_s=np.array([1.0, 2.0, 3.0, 4.0]))
    timeline = StepProgram.of(schedule).timeline(costs)
    for stage in range(4):
        rows = (timeline.op == Op.REDUCE_GRAD) & (timeline.stage == stage)
        assert rows.sum() == 2
        assert len(set(timeline.start_s[rows].tolist())) == len(set(timeline.end_s[rows].tolist())) == 1


def test_a_schedule_is_generated_once_a_shape_and_the_oldest_goes_first():
    kept = Programs(max_rows=100)
    costs = costs_of(2, number=float)
    shape = Shape(2, 1, 8)  # 32 rows
    first = kept.of_shape("1f1b", shape, costs)
    assert kept.of_shape("1f1b", Shape(2, 1, 8), costs) is first
    assert first.program(tied_embedding=False) is first.program(tied_embedding=False)
    assert kept.of_shape("gpipe", shape, costs) is not first
    assert kept.of_shape("1f1b", shape, costs) is first
    for m in (9, 10):
        kept.of_shape("1f1b", Shape(2, 1, m), costs)
    assert kept.of_shape("gpipe", shape, costs) is not None
    assert kept.of_shape("1f1b", shape, costs) is not first
    searched = kept.of_shape("auto", Shape(2, 1, 3, {"budget": 1000}), costs)
    assert kept.of_shape("auto", Shape(2, 1, 3, {"budget": 1000}), costs) is not searched
