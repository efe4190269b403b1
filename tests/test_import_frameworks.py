"""Readers of torchtitan, DeepSpeed, GPT-NeoX and nanotron files: facts, traps, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from import_samples import DATA, changed, refusal, written

from pipesim.importers.deepspeed import filled_layers
from pipesim.importers.readers import import_files

# torchtitan


def test_torchtitan_405b_fills_its_degree_from_the_world(tmp_path: Path) -> None:
    imported = import_files("torchtitan", [DATA / "torchtitan_405b.toml"])
    scenario = written(imported, tmp_path)
    parallel = scenario.parallel
    assert (parallel.tensor, parallel.pipeline, parallel.context, parallel.data) == (8, 1, 1, 16)
    assert (scenario.batch.micro, scenario.batch.num_microbatches) == (2, 1)
    assert scenario.model is not None
    assert (scenario.model.num_hidden_layers, scenario.model.seq_length) == (126, 8192)
    assert (scenario.recompute, scenario.precision.compute) == ("full", "fp8")
    assert "128 H100 GPUs" in imported.inferred["number of GPUs"]
    assert (
        import_files("torchtitan", [DATA / "torchtitan_405b.toml"], num_gpus=64).mapping["parallel"]["data"]
        == 8
    )


@pytest.mark.parametrize(
    ("overrides", "chosen", "words"),
    [
        ((), "h100-torchtitan", "h100-torchtitan (runs of torchtitan on h100-sxm"),
        (("cluster.accelerator=b200-sxm",), None, "no set of torchtitan on 'b200-sxm'"),
        (("efficiency=h100-nemo",), "h100-nemo", None),
    ],
)
def test_torchtitan_is_timed_with_its_own_set(
    tmp_path: Path, overrides: tuple[str, ...], chosen: str | None, words: str | None
) -> None:
    imported = import_files("torchtitan", [DATA / "torchtitan_405b.toml"], overrides=overrides)
    assert imported.mapping.get("efficiency") == chosen
    assert (words or "") in imported.inferred.get("efficiency", "")
    assert ("efficiency" in imported.inferred) == (words is not None)
    used = written(imported, tmp_path).efficiency
    assert used is not None
    assert used.name == (chosen or "b200-nemo")


def test_torchtitan_microbatches_of_2024_are_the_pipeline_degree(tmp_path: Path) -> None:
    imported = import_files("torchtitan", [DATA / "torchtitan_405b_2024.toml"])
    scenario = written(imported, tmp_path)
    parallel, batch = scenario.parallel, scenario.batch
    assert (parallel.tensor, parallel.pipeline, parallel.data, parallel.virtual_stages) == (8, 8, 8, 2)
    assert (batch.num_microbatches, batch.micro) == (8, 4)
    assert scenario.schedule.name == "interleaved-1f1b"
    assert "default at that time" in imported.inferred["batch.microbatches"]
    assert "here 32" in imported.inferred["batch.microbatches"]
    overhead = {chunks: (parallel.pipeline - 1) / (chunks * batch.num_microbatches) for chunks in (1, 2)}
    assert (1 + overhead[1]) / (1 + overhead[2]) == pytest.approx(1.304, abs=1e-3)


@pytest.mark.parametrize(
    ("replacements", "microbatches", "micro"),
    [
        ([("batch_size = 32", "local_batch_size = 32")], 32, 1),
        ([("[experimental]", "[experimental]\npipeline_parallel_microbatches = 16")], 16, 2),
        ([("[experimental]", "[experimental]\npipeline_parallel_microbatch_size = 2")], 16, 2),
    ],
)
def test_torchtitan_microbatches(
    tmp_path: Path, replacements: list[tuple[str, str]], microbatches: int, micro: int
) -> None:
    scenario = written(
        import_files("torchtitan", [changed(tmp_path, "torchtitan_405b_2024.toml", *replacements)]), tmp_path
    )
    assert (scenario.batch.num_microbatches, scenario.batch.micro) == (microbatches, micro)


@pytest.mark.parametrize(
    ("stated", "name", "chunks"),
    [
        ("GPipe", "gpipe", 1),
        ("1F1B", "1f1b", 1),
        ("interleaved_1f1b", "interleaved-1f1b", 2),
        ("LoopedBFS", "looped-bfs", 2),
        ("InterleavedZeroBubble", "interleaved-zb", 2),
        ("ZBVZeroBubble", "zb-v", 2),
        ("DualPipeV", "dualpipe-v", 2),
    ],
)
def test_torchtitan_schedules(tmp_path: Path, stated: str, name: str, chunks: int) -> None:
    path = changed(tmp_path, "torchtitan_405b_2024.toml", ("Interleaved1F1B", stated))
    mapping = import_files("torchtitan", [path]).mapping
    assert (mapping["schedule"], mapping["parallel"]["virtual_stages"]) == (name, chunks)
    assert sum(mapping["layers"]) == 126


@pytest.mark.parametrize(
    ("line", "layers"),
    [
        ("pipeline_parallel_layers_per_stage = 8", [7, *[8] * 14, 7]),
        ("pipeline_parallel_layers_per_stage = 4", [3, *[4] * 30, 3]),
        ("pipeline_parallel_first_stage_less_layers = 3", [6, 9, *[8] * 13, 7]),
        ('pipeline_parallel_split_points = "' + ",".join(f"layers.{n}" for n in range(6, 126, 8)) + '"',
         [6, *[8] * 15]),
    ],
)  # fmt: skip
def test_torchtitan_layers(tmp_path: Path, line: str, layers: list[int]) -> None:
    path = changed(tmp_path, "torchtitan_405b_2024.toml", ("[experimental]", f"[experimental]\n{line}"))
    assert sum(layers) == 126
    assert import_files("torchtitan", [path]).mapping["layers"] == layers


def test_torchtitan_launch_script_wins(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(
        'PP=8\ntorchrun --nproc_per_node=8 -m torchtitan.train --job.config_file "$CONFIG" \\\n'
        "  --parallelism.pipeline_parallel_degree $PP --parallelism.data-parallel-shard-degree=2 \\\n"
        "  --training.local_batch_size 16\n"
    )
    imported = import_files("torchtitan", [DATA / "torchtitan_405b.toml", script])
    parallel = imported.mapping["parallel"]
    assert (parallel["pipeline"], parallel["data"]) == (8, 2)
    assert (
        imported.inferred["parallelism.pipeline_parallel_degree"] == "8 (the launch script; the file says 1)"
    )
    assert imported.mapping["batch"] == {"global": 32, "micro": 1}


@pytest.mark.parametrize(
    ("replacements", "options", "words"),
    [
        ([("405B", "9B")], {}, "model.flavor: found 'llama3' '9B'"),
        ([("Interleaved1F1B", "Sideways")], {}, "found 'Sideways'; known: GPipe"),
        ([("batch_size = 32", "batch_size = 1")], {}, "local batch of 1 does not fall into 8 microbatches"),
        ([("batch_size = 32", 'batch_size = "32"')], {}, "training.batch_size: found '32'"),
        ([("shard_degree = 8", "shard_degree = -1")], {"num_gpus": 96}, "-1 cannot be"),
        ([("pipeline_parallel_degree = 8", "pipeline_parallel_degree = 1000000000")], {}, "at most 100000"),
        ([], {"num_gpus": 256}, "tensor 8 x pipeline 8 x data 8 = 512, but the run has 256 GPUs"),
        ([("[model]", "[model")], {}, "is not TOML"),
        ([("[model]", "[other]")], {}, "no [model] and [training]"),
        ([("[experimental]", "[experimental]\npipeline_parallel_layers_per_stage = 9")], {},
         "15 stages on 8 ranks"),
        ([("[experimental]", '[experimental]\npipeline_parallel_split_points = "layers.9,layers.3"')], {},
         "rising"),
        ([('"Interleaved1F1B"', '"PipelineScheduleMulti"\npipeline_parallel_schedule_csv = "../../x.csv"')],
         {}, "lies outside the file's folder"),
        ([('mode = "full"', 'mode = "half"')], {}, "allowed: none, selective, full"),
        ([("batch_size = 32", "local_batch_size = 32\nbatch_size = 16")], {}, "they mean the same"),
    ],
)  # fmt: skip
def test_torchtitan_refusals(
    tmp_path: Path, replacements: list[tuple[str, str]], options: dict[str, Any], words: str
) -> None:
    path = changed(tmp_path, "torchtitan_405b_2024.toml", *replacements)
    assert words in refusal(import_files, "torchtitan", [path], **options)


def test_torchtitan_schedule_csv_beside_the_file(tmp_path: Path) -> None:
    csv = ('"Interleaved1F1B"', '"PipelineScheduleMulti"\npipeline_parallel_schedule_csv = "order.csv"')
    path = changed(tmp_path, "torchtitan_405b_2024.toml", csv)
    assert import_files("torchtitan", [path]).mapping["schedule"] == {"csv": str(tmp_path / "order.csv")}


# DeepSpeed


def test_deepspeed_json_with_arguments(tmp_path: Path) -> None:
    files = [DATA / "deepspeed.json", DATA / "deepspeed_arguments.txt"]
    scenario = written(import_files("deepspeed", files, num_gpus=8), tmp_path)
    assert scenario.model is not None
    assert (scenario.model.num_hidden_layers, scenario.model.hidden_size) == (24, 1024)
    assert (scenario.parallel.tensor, scenario.parallel.pipeline, scenario.parallel.data) == (2, 2, 2)
    assert (scenario.batch.micro, scenario.batch.global_size, scenario.batch.num_microbatches) == (1, 16, 8)
    assert (scenario.optimizer, scenario.precision.compute) == ("sharded", "fp16")


def test_deepspeed_json_alone_leaves_placeholders(tmp_path: Path) -> None:
    imported = import_files("deepspeed", [DATA / "deepspeed.json"])
    scenario = written(imported, tmp_path)
    assert (scenario.batch.micro, scenario.batch.global_size) == (1, 16)
    assert scenario.optimizer == "sharded"
    assert {"model", "parallel.tensor", "parallel.data"} <= set(imported.placeholders)


@pytest.mark.parametrize(
    ("stage", "arguments", "hidden"), [(1, False, True), (2, False, False), (1, True, False)]
)
def test_deepspeed_hides_reductions_with_zero_1_and_no_pipeline(
    tmp_path: Path, stage: int, arguments: bool, hidden: bool
) -> None:
    stated = ('"stage": 1', f'"stage": {stage}, "overlap_comm": true')
    files = [changed(tmp_path, "deepspeed.json", stated)]
    imported = import_files(
        "deepspeed", [*files, DATA / "deepspeed_arguments.txt"] if arguments else files, num_gpus=8
    )
    assert written(imported, tmp_path).parallel.overlap_gradients == hidden
    assert ("zero_optimization.overlap_comm" in imported.not_used) != hidden


def test_deepspeed_json_inside_a_script(tmp_path: Path) -> None:
    scenario = written(import_files("deepspeed", [DATA / "deepspeed_bloom.sh"]), tmp_path)
    parallel = scenario.parallel
    assert (parallel.tensor, parallel.pipeline, parallel.data) == (4, 12, 8)
    assert scenario.batch.num_microbatches == 128
    assert scenario.layers.per_stage == (5, *[6] * 10, 5)
    assert (scenario.recompute, scenario.precision.compute) == ("full", "bf16")
    assert scenario.model is not None
    assert (scenario.model.num_hidden_layers, scenario.model.hidden_size) == (70, 14336)
    assert scenario.model.num_learned_positions == 0


@pytest.mark.parametrize(("total", "microbatches"), [(512, 32), (1024, 64), (1536, 96), (2048, 128)])
def test_deepspeed_bloom_tuning_grid(total: int, microbatches: int) -> None:
    imported = import_files("deepspeed", [DATA / "deepspeed_bloom.sh"], define={"GLOBAL": str(total)})
    assert imported.inferred["batch.microbatches"].startswith(f"{microbatches} ")


def test_deepspeed_fills_stages() -> None:
    assert filled_layers(78, 12) == [7] * 11 + [1]
    assert filled_layers(70, 12, ends=1) == [5, *[6] * 10, 5]
    assert filled_layers(42, 16) == [3] * 14 + [0, 0]
    assert filled_layers(44, 4) == [11] * 4


@pytest.mark.parametrize(
    ("config", "arguments", "options", "words"),
    [
        ({"train_batch_size": 32}, "", {}, "found 32 in the JSON, 16 among the arguments"),
        ({"train_micro_batch_size_per_gpu": 3}, "", {}, "found 3 in the JSON, 1 among the arguments"),
        ({"gradient_accumulation_steps": 5}, "", {}, "16 is not micro 1 x accumulation 5"),
        ({"gradient_accumulation_steps": 4}, "", {"num_gpus": 8},
         "4 microbatches x micro 1 x data 2 = 8, but"),
        ({"zero_optimization": {"stage": 3}}, "", {}, "refuses ZeRO 2 and 3"),
        ({"zero_optimization": {"stage": 9}}, "", {}, "0, 1, 2 or 3"),
        ({"train_batch_size": "16"}, "", {}, "train_batch_size: found '16'"),
        ({"bf16": {"enabled": True}}, "", {}, "bf16 and fp16 are both enabled"),
        ({}, "--num-layers 3 --pipeline-model-parallel-size 2 --hidden-size 8", {}, "missing"),
        ({}, "--pipeline-model-parallel-size 16 --num-layers 42", {}, "leaves nothing for rank 14, 15"),
        ({}, "--pipeline-model-parallel-size 1000000000", {}, "at most 100000"),
    ],
)  # fmt: skip
def test_deepspeed_refusals(
    tmp_path: Path, config: dict[str, Any], arguments: str, options: dict[str, Any], words: str
) -> None:
    document = json.loads((DATA / "deepspeed.json").read_text()) | config
    (tmp_path / "ds.json").write_text(json.dumps(document))
    text = (DATA / "deepspeed_arguments.txt").read_text()
    for word in ("--num-layers 24", "--pipeline-model-parallel-size 2"):
        if word.split()[0] in arguments:
            text = text.replace(word, "")
    text = text if "--hidden-size" not in arguments else ""
    (tmp_path / "arguments.txt").write_text(f"{text}\n{arguments}\n")
    files = [tmp_path / "ds.json", tmp_path / "arguments.txt"]
    assert words in refusal(import_files, "deepspeed", files, **options)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not JSON: line 1"),
        ('{"a": 1, "a": 2}', "duplicate key 'a'"),
        ('{"a": NaN}', "NaN is not JSON"),
        ("{}", "train_micro_batch_size_per_gpu: missing"),
        ("[1]", "0 DeepSpeed configurations found"),
        ("", "0 DeepSpeed configurations found"),
        ('{"a":' + "[" * 100_000, "not readable as JSON"),
    ],
)
def test_deepspeed_other_files(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "ds.json"
    path.write_text(text)
    assert words in refusal(import_files, "deepspeed", [path])


# GPT-NeoX


def test_neox_20b(tmp_path: Path) -> None:
    imported = import_files("neox", [DATA / "neox_20b.yml"])
    scenario = written(imported, tmp_path)
    model, parallel = scenario.model, scenario.parallel
    assert model is not None
    assert scenario.cluster is not None
    assert (model.num_hidden_layers, model.hidden_size, model.num_attention_heads) == (44, 6144, 64)
    assert (model.vocab_size, model.tie_word_embeddings, model.num_learned_positions) == (50432, False, 0)
    assert (scenario.cluster.num_gpus, parallel.tensor, parallel.pipeline, parallel.data) == (96, 2, 4, 12)
    assert (scenario.batch.micro, scenario.batch.num_microbatches) == (4, 32)
    assert (scenario.optimizer, scenario.recompute, scenario.precision.compute) == ("sharded", "full", "fp16")
    overhead = (parallel.pipeline - 1) / scenario.batch.num_microbatches
    assert 100 * overhead == pytest.approx(9.4, abs=0.05)
    assert 100 * overhead / (1 + overhead) == pytest.approx(8.6, abs=0.05)
    assert "96 A100s" in imported.inferred["number of GPUs"]
    assert not parallel.overlap_gradients
    assert "after the last backward" in imported.not_used["zero_optimization.overlap_comm"]


def test_neox_files_add_up_and_snake_case_is_the_same(tmp_path: Path) -> None:
    first = changed(tmp_path, "neox_20b.yml", ('  "pipe-parallel-size": 4,\n', ""))
    second = tmp_path / "local.yml"
    second.write_text("pipe_parallel_size: 2  # fewer ranks\n")
    mapping = import_files("neox", [first, second], num_gpus=16).mapping
    assert (mapping["parallel"]["pipeline"], mapping["parallel"]["data"]) == (2, 4)
    second.write_text('{"pipe_parallel_size": 2, "num_layers": 3}')
    assert "num_layers: is stated twice" in refusal(import_files, "neox", [first, second])


@pytest.mark.parametrize(
    ("replacements", "words"),
    [
        ([('"num-layers": 44', '"num-layers": "44"')], "num_layers: found '44'"),
        ([('"num-layers": 44', '"num-layers": 0')], "num_layers: found 0"),
        ([('"num-layers": 44', '"num-layers": 10'), ('size": 4', 'size": 8'), ("96 A", "16 A")],
         "nothing for rank 5"),
        ([('size": 4', 'size": 1000000000')], "pipe_parallel_size: found 1000000000; a whole number"),
        ([('"hidden-size": 6144,\n', "")], "hidden_size: missing"),
        ([('"seq-length": 2048', '"seq-length": 2048, "seq_length": 4096')], "is stated twice"),
        ([('"stage": 1', '"stage": 2')], "refuses ZeRO 2 and 3"),
        ([("96 A100s", "100 A100s")], "tensor 2 x pipeline 4 = 8 does not divide the run's 100 GPUs"),
        ([('"train_micro_batch_size_per_gpu": 4,\n', "")], "missing"),
        ([("{\n", "[\n"), ("\n}\n", "\n]\n")], "while parsing a flow node"),
        ([('"split": "995,4,1"', '"split": !!python/object/apply:os.system ["true"]')], "constructor"),
    ],
)  # fmt: skip
def test_neox_refusals(tmp_path: Path, replacements: list[tuple[str, str]], words: str) -> None:
    assert words in refusal(import_files, "neox", [changed(tmp_path, "neox_20b.yml", *replacements)])


# nanotron


def test_nanotron(tmp_path: Path) -> None:
    scenario = written(import_files("nanotron", DATA / "nanotron_tiny.yaml"), tmp_path)
    model, parallel = scenario.model, scenario.parallel
    assert model is not None
    assert (model.num_hidden_layers, model.hidden_size, model.vocab_size) == (28, 2048, 128256)
    assert (parallel.data, parallel.pipeline, parallel.tensor) == (4, 1, 2)
    assert (scenario.batch.micro, scenario.batch.num_microbatches, model.seq_length) == (3, 1, 4096)
    assert (parallel.sequence_parallel, scenario.precision.compute) == (True, "bf16")


def test_nanotron_pipeline(tmp_path: Path) -> None:
    path = changed(
        tmp_path,
        "nanotron_tiny.yaml",
        ("  pp: 1\n", "  pp: 4\n"),
        ("replica: 1", "replica: 8"),
        ("pp_engine: 1f1b", "pp_engine: afab"),
        ("zero_stage: 0", "zero_stage: 1"),
    )
    mapping = import_files("nanotron", path).mapping
    assert (mapping["schedule"], mapping["layers"], mapping["optimizer"]) == ("gpipe", "balanced", "sharded")
    assert mapping["batch"] == {"global": 96, "micro": 3}


@pytest.mark.parametrize(
    ("replacements", "options", "words"),
    [
        ([("  pp: 1\n", "  pp: 8\n")], {}, "asks for at least pipeline ranks - 1 microbatches"),
        ([("  dp: 4\n", "  dp: 10\n"), ("  pp: 1\n", "  pp: 35\n"), ("  tp: 2\n", "  tp: 16\n"),
          ("replica: 1", "replica: 192"), ("layers: 28", "layers: 105")], {"num_gpus": 3360},
         "tensor 16 x pipeline 35 x data 10 = 5600, but the run has 3360 GPUs"),
        ([("pp_engine: 1f1b", "pp_engine: zigzag")], {}, "found 'zigzag'; known: 1f1b, afab"),
        ([("  tp: 2\n", '  tp: "2"\n')], {}, "parallelism.tp: found '2'"),
        ([("  tp: 2\n", "")], {}, "parallelism.tp: missing"),
        ([("tokens:", "token:")], {}, "tokens: missing"),
        ([("hidden_size: 2048", "hidden_size: 2048.5")], {}, "found 2048.5"),
        ([("  tp: 2\n", "  tp: 2\n  tp: 4\n")], {}, "duplicate key 'tp'"),
    ],
)  # fmt: skip
def test_nanotron_refusals(
    tmp_path: Path, replacements: list[tuple[str, str]], options: dict[str, Any], words: str
) -> None:
    assert words in refusal(
        import_files, "nanotron", changed(tmp_path, "nanotron_tiny.yaml", *replacements), **options
    )
