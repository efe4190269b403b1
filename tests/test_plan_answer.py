"""A plan that can be acted on: all that it chose, what ties, one row an order, flags that say the same."""

import itertools
from dataclasses import replace

import pytest
import yaml
from test_plan import SMALL, small
from typer.testing import CliRunner

from pipesim.cli.app import app
from pipesim.importers.readers import import_files
from pipesim.prediction import difference, predict
from pipesim.questions.planning import plan
from pipesim.questions.planning.dominance import better_sharing
from pipesim.questions.planning.launch_flags import deepspeed_settings, launch_flags, launch_notes
from pipesim.questions.planning.space import Cut, enumerate_cuts, scenario_of
from pipesim.questions.planning.words import plan_lines, short_choice_table
from pipesim.scenario import scenario_from_mapping
from pipesim.units import format_bytes

TINY = SMALL | {
    "name": "tiny",
    "model": SMALL["model"] | {"num_hidden_layers": 4, "seq_length": 2048},
    "cluster": {"accelerator": "h100-sxm", "num_nodes": 1, "gpus_per_node": 4},
    "batch": {"global": 8},
}
FEW = {"schedules": ("1f1b", "interleaved-1f1b"), "num_workers": 1}


@pytest.fixture(scope="module")
def found():
    return plan(scenario_from_mapping(TINY), framework="megatron", **FEW)


def test_sharing_is_searched_and_what_loses_everywhere_is_left_out():
    scenario = scenario_from_mapping(TINY)
    cuts = enumerate_cuts(scenario, scenario.model, scenario.cluster).cuts
    assert {(cut.sequence_parallel, cut.optimizer) for cut in cuts if cut.tensor > 1 and cut.data > 1} == set(
        itertools.product((True, False), ("sharded", "plain"))
    )
    lost = [cut for cut in cuts if cut.micro == 2 and better_sharing(scenario, cut)]
    assert {better_sharing(scenario, cut) for cut in lost} == {"sequence parallelism", "a sharded optimizer"}
    for cut in lost:
        better = replace(cut, sequence_parallel=cut.tensor > 1)
        if better_sharing(scenario, cut) == "a sharded optimizer":
            better = replace(cut, optimizer="sharded")
        for name, level in itertools.product(("1f1b", "zb-h1"), ("none", "full")):
            mine, theirs = (predict(scenario_of(scenario, one, 1, level, name)) for one in (cut, better))
            assert theirs.step_time_s <= mine.step_time_s * (1 + 1e-9)
            assert theirs.memory <= mine.memory


def test_a_stated_level_of_sharing_stays():
    scenario = scenario_from_mapping(SMALL | {"optimizer": "zero3"})
    cuts = enumerate_cuts(scenario, scenario.model, scenario.cluster).cuts
    assert {cut.optimizer for cut in cuts} == {"zero3"}


def test_equal_orders_are_one_row_and_a_single_rank_has_one():
    """torch runs zb-h1 as InterleavedZeroBubble with one stage a rank."""
    names = ("zb-h1", "interleaved-zb", "1f1b", "gpipe")
    everything = plan(scenario_from_mapping(TINY), schedules=names, num_workers=1, top=40)
    rows = [
        (choice.candidate.cut, choice.candidate.recompute, choice.result.schedule.to_csv())
        for choice in everything.choices
    ]
    assert len(rows) == len(set(rows))
    alone = [choice for choice in everything.choices if choice.candidate.cut.pipeline == 1]
    assert {choice.candidate.schedule for choice in alone} == {"1f1b"}
    assert everything.rejected["the same order as another schedule's"] > 0


def test_the_framework_runs_every_row_by_name_and_the_headroom_is_left(found):
    assert all("Megatron" in choice.result.frameworks for choice in found.choices)
    assert all(choice.result.metrics.fits_headroom for choice in found.choices)
    best = found.recommended
    assert best is found.choices[0] or not difference(best.result, found.choices[0].result).is_certain
    assert best not in found.ties
    for choice in found.choices:
        close = not difference(choice.result, best.result).is_certain
        assert (choice in found.ties) == (close and choice is not best)


def test_everything_chosen_is_printed_and_ties_are_named(found):
    use, certain, memory, limits, cost = plan_lines(found, 1e12)
    cut = found.recommended.candidate.cut
    assert use.startswith(f"USE t{cut.tensor} p{cut.pipeline} d{cut.data}, ")
    for words in (f"micro {cut.micro}", f"{cut.optimizer} optimizer", found.recommended.result.label):
        assert words in use
    assert ("sequence parallel" in use) == cut.sequence_parallel
    assert certain.startswith("Certain: no other of ")
    numbers = [str(found.choices.index(choice) + 1) for choice in found.ties]
    assert (f"Row{'s' * (len(numbers) > 1)} {', '.join(numbers)} tie" in certain) == bool(numbers)
    assert memory.startswith("MEMORY ")
    assert limits.startswith("Limits: computing ")
    assert "1 trillion tokens take" in cost
    marks = [row[-1] for row in short_choice_table(found).rows]
    assert marks.count("<-") == 1
    assert marks.count("=") == len(found.ties)


@pytest.mark.parametrize("columns", [80, 120])
def test_no_line_of_a_plan_is_longer_than_the_terminal(columns, tmp_path):
    file = tmp_path / "asked.yaml"
    file.write_text(yaml.safe_dump(TINY))
    few = ["--schedules", "1f1b", "--workers", "1", "--max-nodes", "1", "--assumptions"]
    result = CliRunner().invoke(app, ["plan", str(file), *few], env={"COLUMNS": str(columns)})
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert max(len(line) for line in lines if str(tmp_path) not in line) <= columns
    assert lines[0] == "tiny"
    assert lines[1].startswith("USE ")
    assert "torch: --parallelism.tensor_parallel_degree" in result.stdout
    assert 'ds_config.json: {"train_batch_size": 8,' in " ".join(result.stdout.split())


def run_of(cut, num_chunks, schedule, recompute="none"):
    return predict(scenario_of(small(), cut, num_chunks, recompute, schedule))


@pytest.mark.parametrize(
    ("cut", "num_chunks", "schedule", "recompute"),
    [
        (Cut(2, 2, 1, 1, 2, 2, True, "sharded"), 2, "interleaved-1f1b", "none"),
        (Cut(4, 1, 1, 1, 2, 1, False, "plain"), 1, "1f1b", "full"),
        (Cut(2, 2, 2, 1, 1, 2, False, "sharded"), 1, "1f1b", "none"),
    ],
)
def test_megatron_reads_the_configuration_from_the_flags(cut, num_chunks, schedule, recompute, tmp_path):
    result = run_of(cut, num_chunks, schedule, recompute)
    model = (
        "--num-layers 8 --hidden-size 2048 --num-attention-heads 16 --seq-length 4096 --bf16 "
        "--max-position-embeddings 4096 --tokenizer-type NullTokenizer --vocab-size 32000"
    )
    flags = " ".join(launch_flags(result, "Megatron"))
    (tmp_path / "run.sh").write_text(
        f"torchrun --nproc-per-node 4 --nnodes 2 pretrain_gpt.py {model} {flags}\n"
    )
    read = import_files("megatron", tmp_path / "run.sh", overrides=["cluster.accelerator=h100-sxm"])
    parallel, batch = read.mapping["parallel"], read.mapping["batch"]
    assert (parallel["pipeline"], parallel["tensor"]) == (cut.pipeline, cut.tensor)
    assert parallel.get("context", 1) == cut.context
    assert parallel.get("virtual_stages", 1) == num_chunks
    assert parallel.get("sequence_parallel", False) == cut.sequence_parallel
    assert (batch["global"], batch["micro"]) == (32, cut.micro)
    assert read.mapping.get("optimizer", "plain") == cut.optimizer
    assert read.mapping.get("recompute", "none") == recompute


def test_flags_are_for_frameworks_that_run_the_schedule_by_name():
    result = run_of(Cut(2, 2, 1, 1, 2, 2, True, "sharded"), 2, "zb-v")
    assert launch_flags(result, "Megatron") == launch_flags(result, "DeepSpeed") == []
    flags = launch_flags(result, "torch")
    assert "--parallelism.pipeline_parallel_schedule ZBVZeroBubble" in flags
    assert "--parallelism.pipeline_parallel_layers_per_stage 2" in flags
    assert "--training.local_batch_size 16" in flags
    assert "--parallelism.pipeline_parallel_first_stage_less_layers 0" in flags
    assert "--parallelism.pipeline_parallel_last_stage_less_layers 0" in flags
    assert "--parallelism.data_parallel_replicate_degree 2" in flags
    assert "--parallelism.data_parallel_shard_degree 1" in flags
    (note,) = launch_notes(result, "torch")
    assert "no flag for sharded optimizer states alone" in note
    whole = run_of(Cut(2, 2, 1, 1, 2, 2, True, "plain"), 2, "zb-v").metrics.peak_memory_bytes
    assert f"keeps them whole, {format_bytes(whole, both=False)} in all; " in note
    plain = run_of(Cut(2, 2, 1, 1, 2, 2, True, "plain"), 1, "1f1b")
    assert launch_flags(plain, "DeepSpeed")[-1] == "--deepspeed_config ds_config.json"
    settings = deepspeed_settings(plain)
    assert settings["zero_optimization"] == {"stage": 0}
    assert settings["train_batch_size"] == 2 * settings["gradient_accumulation_steps"] * 2 == 32


def test_no_flags_for_what_does_not_fit_as_they_launch_it():
    cut, memory = Cut(2, 2, 1, 1, 2, 2, True, "sharded"), "{preset: h100-sxm, memory: 5.5 GB}"
    result = predict(scenario_of(small(cluster__accelerator=memory), cut, 2, "none", "zb-v"))
    assert result.fits
    assert launch_flags(result, "torch") == []
    (note,) = launch_notes(result, "torch")
    assert "which does not fit, so no flags are given" in note


@pytest.mark.parametrize(
    ("layers", "chunks", "schedule", "flags"),
    [
        # ceil(8 / 1) = 8 stages, 4 a rank
        (
            8,
            4,
            "interleaved-1f1b",
            ["layers_per_stage 1", "first_stage_less_layers 0", "last_stage_less_layers 0"],
        ),
        # ceil(9 / 2) = 5, not 6
        (9, 3, "interleaved-1f1b", None),
        # ceil(5 / 2) = 3, not 4: without L two stages a rank are made of 5 layers
        (5, 2, "interleaved-1f1b", ["first_stage_less_layers 0", "last_stage_less_layers 0"]),
        (7, 1, "1f1b", ["layers_per_stage 4", "first_stage_less_layers 0", "last_stage_less_layers 0"]),
        # torchtitan: "Multi-stage schedule requires at least 2 stages per rank"
        (8, 1, "zb-h1", None),
    ],
)
def test_torchtitan_gets_flags_for_cuts_that_it_makes(layers, chunks, schedule, flags):
    cut = {
        "model": SMALL["model"] | {"num_hidden_layers": layers},
        "parallel": {"pipeline": 2, "tensor": 2, "data": 2, "virtual_stages": chunks},
        "schedule": schedule,
        "optimizer": "fsdp",
    }
    result = predict(scenario_from_mapping(SMALL | cut))
    prefix = "--parallelism.pipeline_parallel_"
    found = [flag.removeprefix(prefix) for flag in launch_flags(result, "torch") if "layers" in flag]
    assert found == (flags or [])
    notes = launch_notes(result, "torch")
    assert bool(notes) == (flags is None)
    assert all(f"no such cut by flag: {layers} layers on {2 * chunks} stages" in note for note in notes)
    assert "--parallelism.data_parallel_shard_degree 2" in launch_flags(result, "torch")
