"""Our orders in torch's runtime, as a user's script builds them; gradients: test_executor_against_torch."""

from types import SimpleNamespace

import pytest
from helpers import texts
from typer.testing import CliRunner

import pipesim
from pipesim.cli.app import app
from pipesim.errors import PipesimError, ScheduleError
from pipesim.ir import lower
from pipesim.schedules import Shape, generate
from pipesim.schedules.frameworks import settings_by_name
from pipesim.schedules.torchtitan_settings import torchtitan_settings

pytest.importorskip("torch.distributed.pipelining.schedules")


def run(*arguments):
    """Exit status, and what was printed or the message."""
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if isinstance(result.exception, PipesimError):
        return 2, str(result.exception)
    return result.exit_code, result.stdout


def stages(order, rank, built=None, **other):
    """What torch's runtime reads of stages before a step."""
    kept = {"group_size": order.num_ranks, "num_stages": order.num_stages, "submod": None, **other}
    built = order.stages_of(rank) if built is None else built
    return [SimpleNamespace(group_rank=rank, stage_index=stage, **kept) for stage in built]


@pytest.mark.parametrize(("name", "chunks"), [("1f1b", 1), ("zb-v", 2), ("interleaved-zb", 2), ("hanayo", 4)])
def test_the_runtime_runs_the_order(name, chunks):
    order = generate(name, Shape(4, chunks, 8))
    for rank in (0, 3):
        runtime = pipesim.torch_schedule(order, stages(order, rank), loss_fn=lambda y, t: y)
        assert [str(a) for a in runtime.pipeline_order[rank]] == texts(order)[rank].split()
        with_messages = pipesim.torch_schedule(lower(order), stages(order, rank))
        lowered = [str(a) for a in lower(order).actions_of(rank) if a.op.name != "OPTIMIZER"]
        assert [str(a) for a in with_messages.pipeline_order_with_comms[rank]] == lowered


def test_stages_of_another_placement_are_refused_before_they_crash():
    order = generate("zb-v", Shape(2, 2, 4))
    with pytest.raises(
        ScheduleError, match=r"has stages \[0, 3\] on rank 0, found \[0, 2\].*rank 1: \[1, 2\]"
    ):
        pipesim.torch_schedule(order, stages(order, 0, built=[0, 2]))
    with pytest.raises(ScheduleError, match="has 2 processes in the pipeline's group, found 4"):
        pipesim.torch_schedule(order, stages(order, 0, group_size=4))
    with pytest.raises(ScheduleError, match="has 4 stages, found 2"):
        pipesim.torch_schedule(order, stages(order, 0, num_stages=2))
    with pytest.raises(ScheduleError, match="torch gives a stage one rank"):
        pipesim.torch_schedule(generate("dualpipe", Shape(4, 1, 8)), stages(order, 0))
    with pytest.raises(ScheduleError, match="no stages were given"):
        pipesim.torch_schedule(order, [])


SCENARIO = """
parallel: {pipeline: 2, virtual_stages: 2}
batch: {microbatches: 4}
schedule: {name: auto, placement: wave, budget: 100000}
costs: {forward: [1, 2, 1, 1], input_gradient: [1, 2, 1, 1], weight_gradient: [1, 1, 1, 1], p2p: 0}
"""


def test_the_order_found_for_a_scenario_is_exported(tmp_path):
    scenario, csv = tmp_path / "s.yaml", tmp_path / "s.csv"
    scenario.write_text(SCENARIO)
    status, out = run("schedule", "export", scenario, "-o", csv)
    assert status == 0
    assert "stages to build: rank 0: 0 3, rank 1: 1 2" in out
    assert "parallelism.pipeline_parallel_schedule = ZBVZeroBubble" in out
    found = pipesim.Scenario.load(scenario).predict()
    assert csv.read_text() == found.schedule.to_csv()
    assert texts(pipesim.load_order(scenario)) == texts(pipesim.load_order(csv)) == texts(found.schedule)
    status, message = run("schedule", "export", scenario, "--ranks", 4, "-o", csv)
    assert status == 2
    assert "--ranks is for schedules by name" in message
    assert run("schedule", "export", scenario, "--set", "batch.microbatches=6", "-o", csv)[0] == 0
    assert pipesim.load_order(csv).num_microbatches == 6
    with pytest.raises(PipesimError, match="is for scenarios"):
        pipesim.load_order(csv, "batch.microbatches=8")


def test_an_order_for_no_times_says_so(tmp_path):
    csv = tmp_path / "s.csv"
    _, out = run("schedule", "export", "auto", "--ranks", 2, "--microbatches", 4, "-o", csv)
    assert "made for F = I = W = 1 on every rank" in out
    _, out = run("schedule", "export", "1f1b", "-o", csv)
    assert "note" not in out


@pytest.mark.parametrize(
    ("name", "chunks", "taken"),
    [("zb-h1", 1, "1F1B"), ("interleaved-zb", 3, "Interleaved1F1B"), ("v-half", 2, "ZBVZeroBubble")],
)
def test_torchtitan_places_the_stages_by_a_named_schedule(name, chunks, taken):
    settings = torchtitan_settings(generate(name, Shape(4, chunks, 8)), "best.csv")
    assert settings["pipeline_parallel_schedule"] == taken
    assert settings["pipeline_parallel_schedule_csv"] == "best.csv"


def test_torchtitan_has_no_waves_of_more_than_two():
    with pytest.raises(ScheduleError, match="cannot place the stages of hanayo"):
        torchtitan_settings(generate("hanayo", Shape(4, 4, 8)), "best.csv")


def test_megatron_and_deepspeed_get_flags_for_their_own_orders_only():
    plain = settings_by_name(generate("1f1b", Shape(4, 1, 8)))
    assert plain["Megatron"] == "--pipeline-model-parallel-size 4 with 8 microbatches a step"
    assert plain["DeepSpeed"] == "PipelineModule(num_stages=4), gradient_accumulation_steps 8"
    chunked = settings_by_name(generate("interleaved-1f1b", Shape(4, 2, 8)))
    assert "--num-virtual-stages-per-pipeline-rank 2" in chunked["Megatron"]
    assert "DeepSpeed" not in chunked
    assert settings_by_name(generate("zb-v", Shape(4, 2, 8))) == {}
