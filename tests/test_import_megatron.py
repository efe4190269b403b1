"""Megatron-LM's arguments: the facts of published configurations come out, and their traps are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from import_samples import DATA, refusal, written

from pipesim.errors import ScenarioError
from pipesim.importers.readers import import_files

ARGUMENTS = {
    "num-layers": 24,
    "hidden-size": 1024,
    "num-attention-heads": 16,
    "seq-length": 1024,
    "max-position-embeddings": 1024,
    "micro-batch-size": 1,
    "global-batch-size": 64,
    "tensor-model-parallel-size": 1,
    "pipeline-model-parallel-size": 4,
}


def as_script(folder: Path, **arguments: Any) -> Path:
    """Write a script of the usual arguments, changed: None leaves one out, True is a flag."""
    lines = []
    for name, value in {
        **ARGUMENTS,
        **{key.replace("_", "-"): value for key, value in arguments.items()},
    }.items():
        if value is not None:
            lines.append(f"--{name}" + ("" if value is True else f" {value}"))
    path = folder / "run.sh"
    path.write_text("python pretrain_gpt.py \\\n  " + " \\\n  ".join(lines) + "\n")
    return path


def as_yaml(path: Path, **arguments: Any) -> Path:
    pairs = {**ARGUMENTS, **{key.replace("_", "-"): value for key, value in arguments.items()}}
    lines = [f"  --{name}: {value}" for name, value in pairs.items() if value is not None]
    path.parent.mkdir(exist_ok=True)
    path.write_text("MODEL_ARGS:\n" + "\n".join(lines) + "\n")
    return path


def test_175b_script_with_arrays(tmp_path: Path) -> None:
    imported = import_files("megatron", [DATA / "megatron_175b.sh"], define={"NNODES": "192"})
    scenario = written(imported, tmp_path)
    model, parallel = scenario.model, scenario.parallel
    assert model is not None
    assert scenario.cluster is not None
    assert (model.num_hidden_layers, model.hidden_size, model.num_attention_heads) == (96, 12288, 96)
    assert (model.seq_length, model.vocab_size, model.intermediate_size) == (2048, 51200, 49152)
    assert (parallel.tensor, parallel.pipeline, parallel.data, parallel.virtual_stages) == (8, 16, 12, 1)
    assert scenario.cluster.num_gpus == 1536
    assert (scenario.batch.micro, scenario.batch.global_size, scenario.batch.num_microbatches) == (
        1,
        1536,
        128,
    )
    assert scenario.schedule.name == "1f1b"
    assert "50257" in imported.inferred["model.vocab_size"]
    assert "rampup-batch-size" in imported.not_used


def test_a_template_of_one_node_is_not_taken_at_its_word(tmp_path: Path) -> None:
    imported = import_files("megatron", [DATA / "megatron_175b.sh"])
    assert "not filled in" in imported.inferred["launcher"]
    assert "parallel.data" in imported.placeholders
    scenario = written(imported, tmp_path)
    assert (scenario.parallel.data, scenario.batch.num_microbatches) == (1, 1536)


TABLE = {
    "1.7B": (4, 1, 1, 1, 16, 512, 24, 2304, None),
    "3.6B": (8, 2, 1, 1, 16, 512, 30, 3072, None),
    "7.5B": (16, 4, 1, 1, 16, 512, 36, 4096, None),
    "18B": (32, 8, 1, 1, 8, 1024, 40, 6144, None),
    "39B": (64, 8, 2, 1, 4, 1536, 48, 8192, None),
    "76B": (128, 8, 4, 3, 2, 1792, 60, 10240, 3.6),
    "145B": (192, 8, 8, 2, 2, 2304, 80, 12288, 7.3),
    "310B": (240, 8, 16, 2, 1, 2160, 96, 16384, 5.2),
    "530B": (315, 8, 35, 3, 1, 2520, 105, 20480, 4.05),
    "1T": (384, 8, 64, 1, 1, 3072, 128, 25600, 12.3),
}


@pytest.mark.parametrize("size", TABLE)
def test_table_of_sizes_by_if_and_elif(tmp_path: Path, size: str) -> None:
    nodes, tensor, pipeline, chunks, micro, total, layers, hidden, bubble_percent = TABLE[size]
    files = [DATA / "megatron_table_sizes.sh", DATA / "megatron_table_arguments.sh"]
    imported = import_files("megatron", files, define={"SIZE": size})
    scenario = written(imported, tmp_path)
    assert scenario.model is not None
    assert scenario.cluster is not None
    assert scenario.cluster.num_nodes == nodes
    assert (scenario.model.num_hidden_layers, scenario.model.hidden_size) == (layers, hidden)
    parallel, batch = scenario.parallel, scenario.batch
    assert (parallel.tensor, parallel.pipeline, parallel.virtual_stages) == (tensor, pipeline, chunks)
    assert (batch.micro, batch.global_size) == (micro, total)
    assert scenario.recompute == "full"
    assert scenario.schedule.name == ("interleaved-1f1b" if chunks > 1 else "1f1b")
    if bubble_percent is not None:
        overhead = 100 * (pipeline - 1) / (chunks * batch.num_microbatches)
        assert overhead == pytest.approx(bubble_percent, abs=0.06)


def test_the_assigned_size_counts_where_none_is_given() -> None:
    files = [DATA / "megatron_table_sizes.sh", DATA / "megatron_table_arguments.sh"]
    assert import_files("megatron", files).mapping["model"]["num_hidden_layers"] == 24


def test_a_size_that_the_script_does_not_know_leaves_its_variables_open() -> None:
    files = [DATA / "megatron_table_sizes.sh", DATA / "megatron_table_arguments.sh"]
    with pytest.raises(ScenarioError, match=r"hangs on \$TP, which is not assigned; give it by --define"):
        import_files("megatron", files, define={"SIZE": "9T"})


def test_yaml_of_a_functional_test(tmp_path: Path) -> None:
    imported = import_files("megatron", [DATA / "megatron_test_7b.yaml"])
    scenario = written(imported, tmp_path)
    model = scenario.model
    assert model is not None
    assert (model.num_hidden_layers, model.hidden_size, model.num_key_value_heads) == (32, 4096, 8)
    assert (model.seq_length, model.vocab_size) == (8192, 131073)
    assert (model.tie_word_embeddings, model.gated_mlp) == (False, False)
    assert (scenario.parallel.pipeline, scenario.parallel.virtual_stages, scenario.parallel.data) == (4, 8, 2)
    assert scenario.batch.num_microbatches == 4
    assert scenario.optimizer == "sharded"
    assert "parallel.data" in imported.placeholders
    assert scenario.parallel.overlap_gradients
    assert "overlap-grad-reduce" not in imported.not_used


def test_weights_gathered_beside_the_forward_are_said_not_to_be_modelled(tmp_path: Path) -> None:
    path = as_yaml(tmp_path / "m.yaml", num_layers=12, overlap_param_gather=True)
    assert "not modelled" in import_files("megatron", [path]).not_used["overlap-param-gather"]


def test_uneven_first_and_last_stage(tmp_path: Path) -> None:
    path = as_yaml(
        tmp_path / "m.yaml",
        num_layers=12,
        decoder_first_pipeline_num_layers=2,
        decoder_last_pipeline_num_layers=2,
    )
    assert import_files("megatron", [path]).mapping["layers"] == [2, 4, 4, 2]


@pytest.mark.parametrize(
    ("arguments", "layers", "chunks"),
    [
        ({}, None, 1),
        ({"num_layers_per_virtual_pipeline_stage": 2}, None, 3),
        ({"num_virtual_stages_per_pipeline_rank": 2}, None, 2),
        ({"decoder_first_pipeline_num_layers": 3}, [3, 7, 7, 7], 1),
        ({"decoder_last_pipeline_num_layers": 3}, [7, 7, 7, 3], 1),
        (
            {"decoder_first_pipeline_num_layers": 4, "decoder_last_pipeline_num_layers": 4}
            | {"num_virtual_stages_per_pipeline_rank": 2},
            [2, 4, 4, 2, 2, 4, 4, 2],
            2,
        ),
        (
            {"num_layers": 22}
            | {"account_for_embedding_in_pipeline_split": True, "account_for_loss_in_pipeline_split": True},
            [5, 6, 6, 5],
            1,
        ),
        (
            {"num_layers": 22, "num_layers_per_virtual_pipeline_stage": 3}
            | {"account_for_embedding_in_pipeline_split": True, "account_for_loss_in_pipeline_split": True},
            [2, 3, 3, 3, 3, 3, 3, 2],
            2,
        ),
        ({"pipeline_model_parallel_layout": "'E(tt|)*4(tttt|)*3ttttL'"}, [2, 2, 2, 2, 4, 4, 4, 4], 2),
        ({"pipeline_model_parallel_layout": r"E\(t*6\|\)*4L", "pipeline_model_parallel_size": 5},
         [6, 6, 6, 6, 0], 1),
        ({"pipeline_model_parallel_layout": r"Et*24\|L", "pipeline_model_parallel_size": 1}, [24, 0], 2),
    ],
)  # fmt: skip
def test_cuts(tmp_path: Path, arguments: dict[str, Any], layers: list[int] | None, chunks: int) -> None:
    mapping = import_files("megatron", [as_script(tmp_path, **arguments)]).mapping
    assert mapping.get("layers") == layers
    assert mapping["parallel"]["virtual_stages"] == chunks


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"num_layers": 30}, ["30 layers on 4", "28", "2 would be dropped", "2 x 8, 2 x 7"]),
        ({"num_layers": 40, "pipeline_model_parallel_size": 16},
         ["32", "8 would be dropped", "8 x 3, 8 x 2"]),
        ({"num_layers": 3}, ["cannot fill 4"]),
        ({"num_layers_per_virtual_pipeline_stage": 4}, ["found 4", "6 layers of a rank"]),
        ({"num_virtual_stages_per_pipeline_rank": 4}, ["6 layers on 4", "2 would be dropped"]),
        ({"num_virtual_stages_per_pipeline_rank": 2, "num_layers_per_virtual_pipeline_stage": 3},
         ["one of them"]),
        ({"decoder_first_pipeline_num_layers": 2}, ["22 layers on 3", "1 would be dropped"]),
        ({"decoder_first_pipeline_num_layers": 25}, ["do not add up"]),
        ({"pipeline_model_parallel_layout": "'Et*12|t*12L'"}, ["2 stages on 4 ranks"]),
        ({"pipeline_model_parallel_layout": "'Et*6|t*6||t*12L'"}, ["stage 2 is empty"]),
        ({"pipeline_model_parallel_layout": "'Et*6|t*6|t*6|t*5L'"}, ["holds 23 layers, the model has 24"]),
        ({"pipeline_model_parallel_layout": "'Et*6|t*6|t*6|t*6mmL'", "mtp_num_layers": 1},
         ["holds 2 prediction"]),
        ({"pipeline_model_parallel_layout": "'Et*6|t*6|t*6|t*6L'",
          "num_virtual_stages_per_pipeline_rank": 2}, ["one of them"]),
        ({"num_layers": "24.5"}, ["num-layers", "found '24.5'"]),
        ({"num_layers": "many"}, ["num-layers", "found 'many'"]),
        ({"num_layers": -4}, ["num-layers", "at least 1"]),
        ({"num_layers": 99999999999}, ["num-layers", "at most"]),
        ({"num_layers": 10**9, "pipeline_model_parallel_size": 10**9},
         ["pipeline-model-parallel-size", "at most 100000"]),
        ({"num_layers": 10**9, "num_layers_per_virtual_pipeline_stage": 1},
         ["num-layers", "at most 100000"]),
        ({"num_layers": "$LAYERS"}, ["num-layers", "$LAYERS", "--define"]),
        ({"hidden_size": None}, ["hidden-size", "missing"]),
        ({"micro_batch_size": None}, ["micro-batch-size", "missing"]),
        ({"num_attention_heads": 17}, ["num_attention_heads", "17 heads do not divide"]),
        ({"global_batch_size": 63, "micro_batch_size": 2}, ["63", "not a multiple"]),
        ({"tensor_model_parallel_size": 3}, ["tensor", "3 does not divide"]),
        ({"recompute_granularity": "some"}, ["recompute-granularity", "full, selective"]),
        ({"num_experts": 6, "expert_model_parallel_size": 4, "swiglu": True}, ["4 does not divide"]),
        ({"num_experts": 8, "moe_layer_freq": "'__import__(1)'"}, ["moe-layer-freq", "[0]*3+[1]*11"]),
    ],
)  # fmt: skip
def test_refusals(tmp_path: Path, arguments: dict[str, Any], words: list[str]) -> None:
    message = refusal(import_files, "megatron", [as_script(tmp_path, **arguments)])
    assert message.startswith("run.sh: ")
    for word in words:
        assert word in message


def test_sizes_that_do_not_multiply_to_the_gpus(tmp_path: Path) -> None:
    path = as_script(tmp_path, tensor_model_parallel_size=8, pipeline_model_parallel_size=8)
    with pytest.raises(ScenarioError, match=r"tensor 8 x pipeline 8 = 64 does not divide the run's 96 GPUs"):
        import_files("megatron", [path], num_gpus=96)


def test_a_batch_that_the_replicas_do_not_divide(tmp_path: Path) -> None:
    path = as_script(
        tmp_path, tensor_model_parallel_size=8, pipeline_model_parallel_size=8, global_batch_size=32
    )
    with pytest.raises(ScenarioError, match=r"global batch 32 is not a multiple of micro 1 x data 23"):
        import_files("megatron", [path], num_gpus=1472)


def test_without_a_global_batch_there_is_one_microbatch(tmp_path: Path) -> None:
    imported = import_files("megatron", [as_script(tmp_path, global_batch_size=None)], num_gpus=8)
    assert imported.mapping["batch"] == {"global": 2, "micro": 1}
    assert "single microbatch" in imported.inferred["batch.microbatches"]


DEEPSEEK_PROXY = {
    "num_layers": 14,
    "hidden_size": 7168,
    "ffn_hidden_size": 18432,
    "num_attention_heads": 128,
    "kv_channels": 128,
    "seq_length": 4096,
    "max_position_embeddings": 4096,
    "position_embedding_type": "rope",
    "swiglu": "true",
    "disable_bias_linear": "true",
    "untie_embeddings_and_output_weights": "true",
    "sequence_parallel": "true",
    "multi_latent_attention": "true",
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_head_dim": 128,
    "qk_pos_emb_head_dim": 64,
    "v_head_dim": 128,
    "mtp_num_layers": 1,
    "num_experts": 64,
    "moe_layer_freq": "([0]*3+[1]*11)",
    "moe_ffn_hidden_size": 2048,
    "moe_shared_expert_intermediate_size": 2048,
    "moe_router_topk": 8,
    "tensor_model_parallel_size": 2,
    "pipeline_model_parallel_size": 4,
    "pipeline_model_parallel_layout": r"Et*2\\|\\(tt\\|\\)*5t\\|tmL",
    "expert_model_parallel_size": 16,
    "expert_tensor_parallel_size": 1,
    "global_batch_size": 512,
    "bf16": "true",
}


def test_experts_and_a_layout_in_a_folder_that_says_something_else(tmp_path: Path) -> None:
    path = as_yaml(tmp_path / "proxy_tp1pp4emp16_release" / "model_config.yaml", **DEEPSEEK_PROXY)
    imported = import_files("megatron", [path])
    scenario = written(imported, tmp_path)
    model = scenario.model
    assert model is not None
    assert model.experts is not None
    assert model.latent_attention is not None
    assert (model.num_hidden_layers, model.intermediate_size) == (14, 18432)
    experts = model.experts
    assert (experts.num_experts, experts.num_experts_per_tok, experts.intermediate_size) == (64, 8, 2048)
    assert experts.in_layer == (False,) * 3 + (True,) * 11
    assert model.latent_attention.kv_lora_rank == 512
    assert scenario.layers.per_stage == (2, 2, 2, 2, 2, 2, 1, 1)
    parallel = scenario.parallel
    assert (parallel.tensor, parallel.pipeline, parallel.virtual_stages, parallel.data) == (2, 4, 2, 8)
    assert (parallel.expert, parallel.expert_tensor) == (16, 1)
    assert model.num_nextn_predict_layers == 1
    assert "mtp-num-layers" not in imported.not_used
    note = imported.inferred["name proxy_tp1pp4emp16_release"]
    assert note == "says tp1, the file says tensor 2: the file counts"


def test_a_stage_of_a_prediction_layer_alone(tmp_path: Path) -> None:
    layout = "Et*3|(tt|)*29,m|L"
    changed = {
        "num_layers": 61,
        "moe_layer_freq": "([0]*3+[1]*58)",
        "pipeline_model_parallel_size": 16,
        "pipeline_model_parallel_layout": f'"{layout}"',
    }
    imported = import_files("megatron", [as_yaml(tmp_path / "m.yaml", **DEEPSEEK_PROXY | changed)])
    scenario = written(imported, tmp_path)
    assert scenario.layers.per_stage == (3, *[2] * 29, 1, 0)
    assert scenario.parallel.virtual_stages == 2
    assert scenario.model is not None
    assert scenario.model.num_hidden_layers == 62
    assert "stage 30" in imported.not_used["mtp-num-layers"]


def test_yaml_with_defaults_from_the_environment(tmp_path: Path) -> None:
    run = tmp_path / "pretrain.yaml"
    layout = "Et*1|" + "t*1|" * 30 + "t*1,L"
    run.write_text(
        "work_group: ${TEAM:lab}\n"
        "modules:\n  pre_trainer:\n    framework: megatron\n    overrides:\n"
        "      micro_batch_size: 2\n      global_batch_size: 4096\n      seq_length: ${SEQ:4096}\n"
        "      tensor_model_parallel_size: ${TP:1}\n      pipeline_model_parallel_size: ${PP:16}\n"
        f'      pipeline_model_parallel_layout: "{layout}"\n'
        "      recompute_granularity: full\n      recompute_layer_ids: [0, 3, 4]\n"
    )
    model = tmp_path / "model.yaml"
    model.write_text("hidden_size: 1024\nnum_attention_heads: 16\ntokenizer_type: GPT2BPETokenizer\n")
    imported = import_files("megatron", [run, model])
    scenario = written(imported, tmp_path)
    assert (scenario.parallel.pipeline, scenario.parallel.virtual_stages) == (16, 2)
    assert scenario.model is not None
    assert scenario.model.num_hidden_layers == 32
    assert "0 3 4" in imported.not_used["recompute-layer-ids"]
    other = import_files("megatron", [run, model], define={"PP": "8"})
    assert other.mapping["parallel"]["virtual_stages"] == 4


@pytest.mark.parametrize(
    ("define", "schedule", "microbatches"),
    [({}, "1f1b", 4), ({"ZERO_BUBBLE": "1"}, "zb-2p", 4), ({"ZERO_BUBBLE": "1", "LIMIT": "2"}, "zb-1p", 4)],
)
def test_zero_bubble_script(define: dict[str, str], schedule: str, microbatches: int) -> None:
    imported = import_files("megatron", [DATA / "megatron_zero_bubble.sh"], define=define)
    mapping = imported.mapping
    assert (mapping["model"]["num_hidden_layers"], mapping["model"]["hidden_size"]) == (8, 8192)
    assert mapping["model"]["seq_length"] == 4096
    assert (mapping["parallel"]["tensor"], mapping["parallel"]["pipeline"]) == (2, 2)
    assert (mapping["batch"]["global"], mapping["schedule"]) == (8, schedule)
    assert mapping["precision"] == {"compute": "fp16", "gradient_bytes": 2, "optimizer_bytes": 16}
    assert mapping["network"] == {"p2p": "blocking"}
    assert "model.vocab_size" in imported.placeholders
    assert "FP32" in "".join(imported.inferred)


def test_two_training_commands_that_differ(tmp_path: Path) -> None:
    path = as_script(tmp_path)
    path.write_text(path.read_text() + path.read_text().replace("--num-layers 24", "--num-layers 48"))
    with pytest.raises(ScenarioError, match="more than one training command"):
        import_files("megatron", [path])


def test_launch_arguments_beside_the_training_arguments(tmp_path: Path) -> None:
    path = as_script(tmp_path)
    launch = "torchrun --nproc-per-node 4 --nnodes=2 pretrain_gpt.py"
    path.write_text(path.read_text().replace("python pretrain_gpt.py", launch).rstrip() + " $UNSET\n")
    mapping = import_files("megatron", [path]).mapping
    assert (mapping["cluster"]["num_nodes"], mapping["cluster"]["gpus_per_node"]) == (2, 4)
    assert mapping["parallel"]["data"] == 2


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.sh", "echo hello\n", "no arguments of Megatron-LM"),
        ("a.yaml", "a: 1\n", "no arguments of Megatron-LM"),
        ("a.yaml", "- 1\n", "no arguments of Megatron-LM"),
        ("a.json", '{"a": 1}', "holds JSON"),
        ("a.sh", "", "no arguments of Megatron-LM"),
    ],
)
def test_other_files(tmp_path: Path, name: str, text: str, words: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ScenarioError, match=words):
        import_files("megatron", [path])
