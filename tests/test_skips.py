"""Skip connections: further messages between ranks that are no neighbours, timed, held and refused."""

from dataclasses import replace
from fractions import Fraction
from random import Random

import numpy as np
import pytest
from executor_pool import shared_pool
from helpers import costs_of, random_costs, random_schedule, schedule_of

from pipesim.costs.rows import row_delays, row_durations, skip_delays
from pipesim.costs.table import Skip
from pipesim.device_memory import skips_waiting
from pipesim.errors import ScenarioError, ScheduleError
from pipesim.evidence.calibration.from_runs import samples_of_run
from pipesim.evidence.validation import validate
from pipesim.executor.run import read_run
from pipesim.executor.torch_runtime import torch_schedule
from pipesim.ir import dependencies, find_hang, lower
from pipesim.ir.actions import SENDS, Op
from pipesim.prediction import predict
from pipesim.questions.execution import execute_scenario
from pipesim.scenario import scenario_from_mapping
from pipesim.schedules import Shape, generate
from pipesim.schedules.frameworks import FRAMEWORKS, check_schedule
from pipesim.timing.engine import simulate
from pipesim.timing.longest_path import PreparedSchedule, StepProgram, evaluate


def with_skips(schedule, costs, *skips):
    costs = replace(costs, skips=tuple(Skip(*skip) for skip in skips))
    return replace(schedule, skips=costs.skip_ends), costs


def test_a_slow_skip_holds_up_its_taker_and_its_gradient_the_source():
    # Three ranks, one microbatch, F 1, B 2, neighbours free. The skip takes 10: F of stage 2 starts at 1 + 10
    # and not at 2, ends at 12, its B at 14; the gradient of the skip is back at 24, that of the chain at 16.
    schedule, costs = with_skips(
        generate("1f1b", Shape(3, 1, 1)), costs_of(3, p2p_bytes_per_s=1), (0, 2, Fraction(10))
    )
    timeline = simulate(lower(schedule), costs)
    starts = {
        (op, stage): start
        for op, stage, start in zip(timeline.op, timeline.stage, timeline.start_s, strict=True)
    }
    assert [starts[Op.F, stage] for stage in range(3)] == [0, 1, 11]
    assert [starts[Op.B, stage] for stage in (2, 1, 0)] == [12, 14, 24]
    sent = timeline.select(np.isin(timeline.op, SENDS))
    assert sum(sent.nbytes) == 20
    assert [(op, rank) for op, rank in zip(sent.op, sent.rank, strict=True) if op >= Op.SEND_SKIP_F] == [
        (Op.SEND_SKIP_F, 0),
        (Op.SEND_SKIP_B, 2),
    ]


def test_a_v_placement_keeps_the_skips_of_mirrored_stages_on_their_rank():
    shape = Shape(4, 2, 4)
    skips = tuple((stage, 7 - stage) for stage in range(4))
    lowered = lower(replace(generate("1f1b-v", shape), skips=skips))
    assert not np.isin(lowered.op, (Op.SEND_SKIP_F, Op.SEND_SKIP_B)).any()
    lowered = lower(replace(generate("interleaved-1f1b", shape), skips=skips))
    assert (lowered.op == Op.SEND_SKIP_F).sum() == (lowered.op == Op.RECV_SKIP_B).sum() == 4 * 4


def drawn(random):
    schedule = random_schedule(random)
    while schedule.num_slices > 1 or schedule.num_stages == 1:
        schedule = random_schedule(random)
    link = {"p2p_latency_s": Fraction(1, random.randint(1, 5)), "p2p_bytes_per_s": random.randint(1, 5)}
    costs = random_costs(random, schedule, boundary_bytes=random.randint(0, 5), **link)
    ends = {tuple(sorted(random.sample(range(schedule.num_stages), 2))) for _ in range(random.randint(1, 4))}
    return with_skips(schedule, costs, *((*end, Fraction(random.randint(0, 20), 3)) for end in sorted(ends)))


@pytest.mark.parametrize("seed", range(60))
def test_engine_and_longest_path_agree_exactly_and_the_compiled_one_to_1e_9(seed):
    schedule, costs = drawn(Random(seed))
    needs = dependencies(schedule)
    exact = evaluate(
        schedule,
        row_durations(schedule, costs).tolist(),
        row_delays(schedule, needs, costs).tolist(),
        skip_delays(schedule, needs, costs).tolist(),
    )
    for receive in ("early", "late"):
        timeline = simulate(lower(schedule, receive=receive), costs, network="ideal")
        compute = timeline.select(timeline.compute)
        assert compute.start_s.tolist() == exact.start
        assert compute.end_s.tolist() == exact.end
    compiled = PreparedSchedule.of(schedule).evaluate_costs(costs)
    assert np.allclose(np.asarray(compiled.end, float), np.array(exact.end, float), rtol=1e-9, atol=0)
    assert find_hang(lower(schedule, receive="batched"), "grouped") is None
    mine, engine = StepProgram.of(schedule).timeline(costs), simulate(lower(schedule), costs, network="ideal")
    kept = engine.select(~np.isin(engine.op, (Op.RECV_F, Op.RECV_B, Op.RECV_SKIP_F, Op.RECV_SKIP_B)))
    for column in ("rank", "op", "stage", "microbatch", "slice"):
        assert getattr(mine, column).tolist() == getattr(kept, column).tolist()
    assert np.allclose(mine.end_s, kept.end_s.astype(float), rtol=1e-9)
    assert np.allclose(mine.nbytes, kept.nbytes.astype(float))


def test_what_a_skip_brings_waits_at_its_taker_and_its_gradient_at_the_source():
    # Rank 2 gets the tensor of microbatch 1 behind its 2F0: it lies there beside 2B0, then 2F1 takes it.
    # Rank 0 gets each gradient right before the backward that takes it, and has it to that one's end.
    order = schedule_of("0F0 0F1 0B0 0B1", "1F0 1F1 1B0 1B1", "2F0 2B0 2F1 2B1")
    schedule, costs = with_skips(order, costs_of(3), (0, 2, Fraction(7)))
    assert skips_waiting(schedule, costs).tolist() == [0, 0, 7, 7] + [0] * 4 + [0, 7, 0, 0]


COSTS = {
    "forward": "1 s",
    "backward": "2 s",
    "p2p": {"latency": "0 s", "bandwidth": "1 GB/s"},
    "boundary": "1 MB",
    "skips": [{"source": 0, "target": 3, "bytes": "4 GB"}],
}


def stated(**changes):
    mapping = {"parallel": {"pipeline": 4}, "batch": {"microbatches": 8}, "costs": COSTS, "schedule": "1f1b"}
    return scenario_from_mapping(mapping | changes)


@pytest.mark.parametrize("mode", ["overlapped", "send-blocking", "blocking"])
def test_a_scenario_states_skips_and_every_way_to_send_them_ends(mode):
    found = predict(stated(network={"p2p": mode}))
    without = predict(stated(network={"p2p": mode}, costs=COSTS | {"skips": []}))
    assert found.step_time_s > without.step_time_s
    assert found.metrics.comm_bytes == pytest.approx(without.metrics.comm_bytes + 2 * 8 * 4e9)
    for rank in found.metrics.ranks:
        parts = rank.breakdown
        total = sum(getattr(parts, name) for name in parts.__dataclass_fields__)
        assert total == pytest.approx(found.metrics.makespan_s)


@pytest.mark.parametrize("name", ["auto", "zb-auto", "zb-h1"])
def test_orders_made_for_costs_carry_the_skips_too(name):
    found = predict(stated(schedule={"name": name, **({"budget": 20_000} if name == "auto" else {})}))
    assert found.schedule.skips == ((0, 3),)


def test_frameworks_that_send_to_neighbours_only_refuse_with_the_reason():
    found = predict(stated())
    assert found.frameworks == ()
    for framework in FRAMEWORKS:
        assert "neighbouring stages only; skip connections go from stage 0 to 3" in "".join(
            check_schedule(found.schedule, framework)
        )
    with pytest.raises(ScheduleError, match="torch sends between neighbouring stages only"):
        torch_schedule(found.schedule, [])
    near = predict(stated(costs=COSTS | {"skips": [{"source": 0, "target": 1, "bytes": "1 MB"}]}))
    assert near.frameworks == FRAMEWORKS


def test_what_cannot_be_is_refused_in_one_message():
    with pytest.raises(ScenarioError, match=r"skips\[0\].target.*after 3"):
        stated(costs=COSTS | {"skips": [{"source": 3, "target": 1}]})
    with pytest.raises(ScenarioError, match="names stage 9; stages are 0 to 3"):
        predict(stated(costs=COSTS | {"skips": [{"source": 0, "target": 9}]}))
    with pytest.raises(ScheduleError, match="cuts the sequence into slices"):
        predict(stated(schedule="seq1f1b"))


def test_a_run_with_skips_is_written_and_read_and_no_calibration_takes_it(tmp_path):
    pytest.importorskip("torch")
    costs = COSTS | {"forward": "1 ms", "backward": "2 ms", "boundary": "8 kB"}
    costs |= {"skips": [{"source": 0, "target": 2, "bytes": "8 kB"}]}
    asked = stated(parallel={"pipeline": 3}, batch={"microbatches": 3}, costs=costs)
    found = execute_scenario(asked, device="emulated", num_steps=2, warmup=1, pool=shared_pool())
    found.save(tmp_path / "run.json")
    read = read_run(tmp_path / "run.json")
    assert read.schedule.skips == ((0, 2),)
    sent = read.timeline.select(read.timeline.op == Op.SEND_SKIP_F)
    assert len(sent.op) == 2 * 3
    assert set(sent.nbytes) == {8000}
    with pytest.raises(ScenarioError, match="skip connections, whose messages a calibration"):
        samples_of_run(read, "run.json")
    with pytest.raises(ScenarioError, match="pipesim execute runs it"):
        validate(asked, device="emulated")
