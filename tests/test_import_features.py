"""Settings of other tools for which a scenario has keys: recomputed modules, offload, formats, groups."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from import_samples import DATA, changed, refusal, written

from pipesim.errors import ScenarioError
from pipesim.importers.readers import import_files

DENSE = (
    "torchrun --nproc-per-node 8 --nnodes 4 pretrain_gpt.py --tensor-model-parallel-size 2 "
    "--pipeline-model-parallel-size 4 --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 "
    "--num-attention-heads 32 --seq-length 8192 --max-position-embeddings 8192 --micro-batch-size 1 "
    "--global-batch-size 128 --vocab-size 128256 --sequence-parallel --use-distributed-optimizer --swiglu"
)
EXPERTS = " --num-experts 8 --moe-router-topk 2 --expert-model-parallel-size 4"
BRIDGE: dict[str, Any] = {
    "num_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "seq_length": 4096,
    "vocab_size": 32000,
    "pipeline_model_parallel_size": 4,
}


def megatron(folder: Path, arguments: str, base: str = DENSE) -> Any:
    path = folder / "run.sh"
    path.write_text(f"{base} {'' if '--fp16' in arguments else '--bf16'} {arguments}\n")
    return import_files("megatron", path)


def bridge(folder: Path, model: dict[str, Any], **sections: Any) -> Any:
    path = folder / "run.yaml"
    train = {"global_batch_size": 64, "micro_batch_size": 1}
    path.write_text(json.dumps({"model": BRIDGE | model, "train": train, **sections}))
    return import_files("nemo", path, num_gpus=16)


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ("--recompute-granularity selective --recompute-modules mlp layernorm",
         {"recompute": "selective", "recompute_modules": ["mlp", "layernorm"]}),
        ("--recompute-granularity selective --recompute-modules core_attn", {"recompute": "selective"}),
        ("--recompute-granularity full --recompute-method block --recompute-num-layers 3",
         {"recompute": "full", "recompute_layers": 3}),
        ("--optimizer-cpu-offload --optimizer-offload-fraction 0.5", {"offload": {"optimizer": 0.5}}),
        ("--num-distributed-optimizer-instances 2", {"optimizer": "sharded"}),
        ("--fp8-format hybrid --fp8-recipe mxfp8",
         {"precision": "mxfp8"}),
        ("--enable-cuda-graph", {"cuda_graphs": "partial"}),
        ("--cuda-graph-impl local --cuda-graph-scope full_iteration", {"cuda_graphs": "full"}),
        ("--cuda-graph-impl none", {"cuda_graphs": None}),
        ("--fp4-format e2m1", {"precision": "nvfp4"}),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads --overlap-grad-reduce",
         {"optimizer": "zero2"}),
        ("--use-precision-aware-optimizer --main-params-dtype fp16 --exp-avg-dtype fp8 "
         "--exp-avg-sq-dtype fp8",
         {"precision": {"compute": "bf16", "optimizer_bytes": 4}}),
    ],
)  # fmt: skip
def test_arguments_of_megatron(tmp_path: Path, arguments: str, found: dict[str, Any]) -> None:
    imported = megatron(tmp_path, arguments)
    written(imported, tmp_path)
    assert {key: imported.mapping.get(key) for key in found} == found
    assert "overlap_gradients" not in imported.mapping["parallel"]


def test_sixteen_bit_gradients_of_megatron_in_fp16(tmp_path: Path) -> None:
    """NVIDIA's Megatron Core User Guide, Distributed Optimizer."""
    precision = written(megatron(tmp_path, "--fp16"), tmp_path).precision
    assert (precision.weight_bytes, precision.gradient_bytes, precision.optimizer_bytes) == (2, 2, 16)
    usual = written(megatron(tmp_path, "--fp16 --accumulate-allreduce-grads-in-fp32"), tmp_path).precision
    assert (usual.weight_bytes, usual.gradient_bytes, usual.optimizer_bytes) == (2, 4, 12)


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ("", {"expert": 4, "expert_tensor": None, "expert_dispatch": None}),
        ("--expert-tensor-parallel-size 1", {"expert_tensor": 1}),
        ("--expert-tensor-parallel-size 2", {"expert_tensor": None}),
        ("--moe-token-dispatcher-type flex", {"expert_dispatch": "deepep"}),
        ("--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep",
         {"expert_dispatch": "hybridep"}),
    ],
)  # fmt: skip
def test_experts_of_megatron(tmp_path: Path, arguments: str, found: dict[str, Any]) -> None:
    imported = megatron(tmp_path, arguments, DENSE + EXPERTS)
    written(imported, tmp_path)
    assert {key: imported.mapping["parallel"].get(key) for key in found} == found


@pytest.mark.parametrize(
    ("model", "sections", "found"),
    [
        ({"recompute_granularity": "selective", "recompute_modules": ["mlp"]}, {},
         {"recompute": "selective", "recompute_modules": ["mlp"]}),
        ({"activations_checkpoint_granularity": "full", "activations_checkpoint_method": "block",
          "activations_checkpoint_num_layers": 2}, {}, {"recompute": "full", "recompute_layers": 2}),
        ({}, {"optimizer": {"optimizer_cpu_offload": True}}, {"offload": {"optimizer": 1.0}}),
        ({"pipeline_model_parallel_size": 1, "cpu_offloading": True, "cpu_offloading_num_layers": 8}, {},
         {"offload": {"activations": 0.25}}),
        ({}, {"ddp": {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim_grads_params"}},
         {"optimizer": "zero3"}),
        ({"fsdp": True, "pipeline_model_parallel_size": 1}, {}, {"optimizer": "zero3"}),
        ({}, {"mixed_precision": "bf16_with_mxfp8_mixed"},
         {"precision": "mxfp8"}),
        ({}, {"mixed_precision": "bf16_with_nvfp4_mixed"}, {"precision": "nvfp4"}),
        ({}, {"mixed_precision": "bf16_mixed", "optimizer": {"exp_avg_dtype": "bf16",
              "exp_avg_sq_dtype": "bf16", "use_precision_aware_optimizer": True}},
         {"precision": {"compute": "bf16", "optimizer_bytes": 8}}),
        ({}, {"mixed_precision": {"recipe": "bf16_mixed", "grad_reduce_in_fp32": False}},
         {"precision": {"compute": "bf16", "gradient_bytes": 2}}),
        ({"attention_backend": "unfused", "cross_entropy_loss_fusion": True}, {},
         {"efficiency": {"attention_kernel": "unfused", "loss_kernel": "fused"}}),
        ({"pipeline_model_parallel_layout": "Et*7|t*9|t*9|t*7L"}, {}, {"layers": [7, 9, 9, 7]}),
        ({"pipeline_model_parallel_layout": [["embedding", *["decoder"] * 7], ["decoder"] * 9,
          ["decoder"] * 9, [*["decoder"] * 7, "loss"]]}, {}, {"layers": [7, 9, 9, 7]}),
    ],
)  # fmt: skip
def test_settings_of_nemo(
    tmp_path: Path, model: dict[str, Any], sections: dict[str, Any], found: dict[str, Any]
) -> None:
    imported = bridge(tmp_path, model, **sections)
    written(imported, tmp_path)
    assert {key: imported.mapping.get(key) for key in found} == found


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ("", {"precision": "bf16", "reshard": None}),
        ('dtype = "bfloat16"', {"precision": {"compute": "bf16", "gradient_bytes": 2, "optimizer_bytes": 4}}),
        ('mixed_precision_reduce = "bfloat16"', {"precision": {"compute": "bf16", "gradient_bytes": 2}}),
        ("enable_cpu_offload = true", {"offload": {"optimizer": 1.0}}),
        ('fsdp_reshard_after_forward = "always"', {"reshard": True}),
    ],
)
def test_settings_of_torchtitan(tmp_path: Path, lines: str, found: dict[str, Any]) -> None:
    path = changed(tmp_path, "torchtitan_405b_2024.toml", ("[training]", f"[training]\n{lines}"))
    imported = import_files("torchtitan", path)
    written(imported, tmp_path)
    mapping = imported.mapping | {"reshard": imported.mapping["parallel"].get("reshard_after_forward")}
    assert {key: mapping.get(key) for key in found} == found


def test_offload_of_deepspeed_and_maxtext(tmp_path: Path) -> None:
    config = json.loads((DATA / "deepspeed.json").read_text())
    config["zero_optimization"]["offload_optimizer"] = {"device": "cpu", "pin_memory": True, "ratio": 0.5}
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(config))
    imported = import_files("deepspeed", [path, DATA / "deepspeed_arguments.txt"])
    assert imported.mapping["offload"] == {"optimizer": 0.5}
    assert not any("offload" in key for key in imported.not_used)
    path = tmp_path / "m.yml"
    path.write_text((DATA / "maxtext_8b.yml").read_text() + "optimizer_memory_host_offload: True\n")
    imported = import_files("maxtext", path, num_gpus=32)
    assert imported.mapping["offload"] == {"optimizer": 1.0}


def test_groups_of_replicas_and_parts_of_stages_of_internevo(tmp_path: Path) -> None:
    path = changed(
        tmp_path,
        "internevo_7b.py",
        ("zero1=dict(size=-1", "zero1=dict(size=2"),
        ("    checkpoint=False", "    checkpoint=0.5"),
    )
    imported = import_files("internevo", path, num_gpus=32)
    written(imported, tmp_path)
    assert imported.mapping["parallel"]["data_shard"] == 2
    assert (imported.mapping["recompute"], imported.mapping["recompute_layers"]) == ("full", 2)


def test_what_the_user_states_goes_before_what_goes_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(
        f"{DENSE} --bf16 --recompute-granularity selective --recompute-modules mlp "
        "--num-distributed-optimizer-instances 2\n"
    )
    for override in ("recompute=full", "recompute=none", "optimizer=plain", "parallel.data_shard=4"):
        written(import_files("megatron", path, overrides=[override]), tmp_path)


def test_groups_that_do_not_divide_the_replicas(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(f"{DENSE} --bf16 --num-distributed-optimizer-instances 3\n")
    assert "3 groups" in refusal(import_files, "megatron", path)


RECIPE = """
def base():
    cfg = {common}()
    cfg.model = AutoBridge.from_hf_pretrained("meta-llama/Meta-Llama-3-8B").to_megatron_provider()
    cfg.train.global_batch_size = 256
    return cfg


def narrow():
    cfg = base()
    cfg.mixed_precision = get_mixed_precision_config("bf16_with_mxfp8_mixed")
    cfg.mixed_precision.grad_reduce_in_fp32 = False
    return cfg
"""


def test_a_recipe_of_bridge_stands_on_what_it_begins_with(tmp_path: Path) -> None:
    path = tmp_path / "recipe.py"
    path.write_text(RECIPE.format(common="_pretrain_common"))
    imported = import_files("nemo", path, row="base", num_gpus=8)
    assert imported.mapping["batch"] == {"global": 256, "micro": 2}
    assert (imported.mapping["optimizer"], imported.mapping["precision"]) == ("sharded", "bf16")
    assert imported.mapping["parallel"]["overlap_gradients"] is True
    narrow = import_files("nemo", path, row="narrow", num_gpus=8).mapping["precision"]
    assert narrow == {"compute": "mxfp8", "gradient_bytes": 2}
    path.write_text(RECIPE.format(common="_my_own"))
    own = import_files("nemo", path, row="base", num_gpus=8, overrides=["batch.micro=1"])
    assert any("_my_own" in words for words in own.not_used.values())


LIMITS = [
    ("megatron", "--num-virtual-stages-per-pipeline-rank 2 --global-batch-size 24",
     "the pipeline ranks divide", "parallel.microbatch_group_size=6"),
    ("megatron", "--num-virtual-stages-per-pipeline-rank 2 --pipeline-model-parallel-size 2 "
     "--no-overlap-p2p-communication", "more than two ranks", "network.p2p=overlapped"),
    ("megatron", "--context-parallel-size 2 --seq-length 8190", "multiple of 2 x", "model.seq_length=8192"),
    ("megatron", "--fp16 --num-experts 8 --expert-model-parallel-size 4", "in fp16", "precision=bf16"),
    ("megatron", "--cpu-offloading-num-layers 8", "only without a pipeline", "offload.activations=0"),
    ("megatron", "--pipeline-model-parallel-size 1 --cpu-offloading-num-layers 8 "
     "--recompute-granularity selective", "does not recompute", "offload.activations=0"),
    ("maxtext", "num_pipeline_microbatches: 2", "the pipeline's stages divide", "batch.microbatches=8"),
    ("internevo", "micro_num=8", "the pipeline ranks divide", "batch.microbatches=8"),
]  # fmt: skip


@pytest.mark.parametrize(("tool", "text", "words", "stated"), LIMITS)
def test_what_a_framework_refuses_is_said_with_its_source_and_a_way_out(
    tmp_path: Path, tool: str, text: str, words: str, stated: str
) -> None:
    options = {} if tool == "megatron" else {"num_gpus": 32}
    if tool == "megatron":
        path = tmp_path / "run.sh"
        path.write_text(f"{DENSE} {'' if '--fp16' in text else '--bf16'} {text}\n")
    elif tool == "maxtext":
        path = changed(tmp_path, "maxtext_8b.yml", ("num_pipeline_microbatches: 8", text))
    else:
        path = changed(tmp_path, "internevo_7b.py", (text, "micro_num=6"))
    message = refusal(import_files, tool, path, **options)
    assert words in message
    assert ".py" in message
    assert f"--set {stated.partition('=')[0]}" in message
    written(import_files(tool, path, overrides=[stated], **options), tmp_path)


def test_workloads_of_bridges_performance_tests(tmp_path: Path) -> None:
    path = DATA / "bridge_workloads.py"
    assert "LLAMA31_405B_PRETRAIN_CONFIG_GB300_BF16_V1" in refusal(import_files, "nemo", path)
    plain = import_files("nemo", path, row="LLAMA31_405B_PRETRAIN_CONFIG_H100_FP8_CS_V2")
    parallel = written(plain, tmp_path).parallel
    assert (parallel.tensor, parallel.pipeline, parallel.context, parallel.data) == (8, 8, 2, 8)
    assert plain.mapping["layers"] == [1, *[2] * 62, 1]
    assert plain.mapping["batch"] == {"global": 1536, "micro": 1}
    assert plain.mapping["precision"] == {"compute": "fp8", "gradient_bytes": 2}
    assert plain.not_used["model.extra_knob"] == "3"
    sharded = import_files("nemo", path, row="LLAMA31_405B_PRETRAIN_CONFIG_GB300_BF16_V1")
    written(sharded, tmp_path)
    assert sharded.mapping["optimizer"] == "zero3"
    assert sharded.mapping["offload"] == {"activations": 0.333333}
    assert sharded.mapping["cluster"]["accelerator"] == "gb300"
    adapted = import_files("nemo", path, row="LLAMA3_70B_LORA_CONFIG_H100_BF16_V1")
    written(adapted, tmp_path)
    assert adapted.mapping["trainable"] == {"lora_rank": 32, "lora_modules": ["attention", "mlp"]}


@pytest.mark.parametrize(
    ("arguments", "base", "found"),
    [
        ("--train-type lora --lora-rank 64 --lora-alpha 128", DENSE,
         {"lora_rank": 64, "lora_modules": ["attention", "mlp"]}),
        ("--train-type lora", DENSE + EXPERTS,
         {"lora_rank": 8, "lora_modules": ["attention", "mlp", "experts"]}),
        ("--tuner-type lora --target-modules linear_qkv linear_proj", DENSE,
         {"lora_rank": 8, "lora_modules": ["attention"]}),
        ("--train-type full", DENSE, None),
        ("--train-type full --lora-rank 8", DENSE, None),
    ],
)  # fmt: skip
def test_adapters_of_megatron_swift(
    tmp_path: Path, arguments: str, base: str, found: dict[str, Any] | None
) -> None:
    imported = megatron(tmp_path, arguments, base)
    written(imported, tmp_path)
    assert imported.mapping.get("trainable") == found
    assert not any("lora" in key for key in imported.not_used)


@pytest.mark.parametrize(
    ("sections", "found"),
    [
        ({"peft": {"scheme": "lora", "dim": 16, "target_modules": ["linear_qkv", "linear_proj"]}},
         {"lora_rank": 16, "lora_modules": ["attention"]}),
        ({"peft": None}, None),
        ({"peft": {"peft_scheme": "none"}}, None),
    ],
)  # fmt: skip
def test_adapters_of_nemo(tmp_path: Path, sections: dict[str, Any], found: dict[str, Any] | None) -> None:
    imported = bridge(tmp_path, {}, **sections)
    written(imported, tmp_path)
    assert imported.mapping.get("trainable") == found


def test_adapters_of_another_kind_and_of_parts(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(f"{DENSE} --bf16 --train-type vera\n")
    assert "--ignore train-type" in refusal(import_files, "megatron", path)
    partly = megatron(tmp_path, "--train-type lora --target-modules q_proj v_proj")
    assert "all of the attention" in partly.not_used["target-modules"]


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ("--cp-comm-type p2p", ("ring", None)),
        ("--cp-comm-type all_gather", ("all-gather", None)),
        ("--cp-comm-type a2a", ("ulysses", None)),
        ("--cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes 2 2", ("hierarchical", 2)),
        ("", (None, None)),
    ],
)
def test_how_context_is_shared(tmp_path: Path, arguments: str, found: tuple[str | None, int | None]) -> None:
    base = DENSE.replace("--pipeline-model-parallel-size 4", "--pipeline-model-parallel-size 2")
    imported = megatron(tmp_path, f"--context-parallel-size 4 {arguments}", base)
    written(imported, tmp_path)
    parallel = imported.mapping["parallel"]
    assert (parallel.get("context_exchange"), parallel.get("context_inner")) == found


def test_how_torchtitan_and_maxtext_share_context(tmp_path: Path) -> None:
    for method, found in (
        ("", "all-gather"),
        ('\ncontext_parallel_rotate_method = "alltoall"', "ring"),
        ('\ncontext_parallel_strategy = "kv_allgather"', "all-gather"),
    ):
        degree = "context_parallel_degree = "
        path = changed(tmp_path, "torchtitan_405b.toml", (f"{degree}1", f"{degree}2{method}"))
        imported = import_files("torchtitan", path, num_gpus=128)
        assert imported.mapping["parallel"]["context_exchange"] == found
    path = tmp_path / "m.yml"
    text = (DATA / "maxtext_8b.yml").read_text()
    path.write_text(f"{text}ici_context_parallelism: 2\ncontext_parallel_strategy: ring\n")
    assert import_files("maxtext", path, num_gpus=32).mapping["parallel"]["context_exchange"] == "ring"


def test_prediction_layers(tmp_path: Path) -> None:
    plain = megatron(tmp_path, "--mtp-num-layers 2")
    assert plain.mapping["model"]["num_nextn_predict_layers"] == 2
    elsewhere = "--mtp-num-layers 1 --pipeline-model-parallel-layout 'Et*8|t*8|t*8|t*8m|L' "
    path = tmp_path / "five.sh"
    path.write_text(
        DENSE.replace("--nnodes 4", "--nnodes 5").replace("parallel-size 4", "parallel-size 5")
        + f" --bf16 {elsewhere} --global-batch-size 120\n"
    )
    imported = import_files("megatron", path)
    written(imported, tmp_path)
    assert imported.mapping["model"]["num_nextn_predict_layers"] == 1
    assert "stage 3" in imported.not_used["mtp-num-layers"]
    imported = bridge(tmp_path, {"mtp_num_layers": 1})
    written(imported, tmp_path)
    assert imported.mapping["model"]["num_nextn_predict_layers"] == 1
    assert "num_nextn_predict_layers" not in bridge(tmp_path, {"mtp_num_layers": None}).mapping["model"]


def test_nemo_in_o1_keeps_all_in_32_bits(tmp_path: Path) -> None:
    imported = bridge(tmp_path, {"megatron_amp_O2": False}, trainer={"precision": "bf16"})
    precision = written(imported, tmp_path).precision
    assert (precision.weight_bytes, precision.gradient_bytes, precision.optimizer_bytes) == (4, 4, 8)
    assert precision.activation_format == "32-bit"


@pytest.mark.parametrize(
    "key", ["attention_backend", "cp_comm_type", "recompute_modules", "hierarchical_context_parallel_sizes"]
)
def test_a_list_of_lists_where_words_belong_is_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(ScenarioError, match=f"{key}: found "):
        bridge(tmp_path, {key: [["flash"]]})
