"""Traps of real files: each comes out right, is echoed, or is refused with an option that gets past it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from import_samples import DATA, changed, refusal, written

from pipesim.costs.transformer.parameters import model_parameters
from pipesim.importers.readers import import_files

LLAMA_8B = (
    "torchrun --nproc-per-node 8 --nnodes 4 pretrain_gpt.py --tensor-model-parallel-size 2 "
    "--pipeline-model-parallel-size 4 --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 "
    "--num-attention-heads 32 --group-query-attention --num-query-groups 8 --seq-length 8192 "
    "--max-position-embeddings 8192 --position-embedding-type rope --micro-batch-size 1 "
    "--global-batch-size 128 --bf16 --vocab-size 128256 --disable-bias-linear "
    "--untie-embeddings-and-output-weights --sequence-parallel --use-distributed-optimizer"
)
NEMO = """
trainer: {num_nodes: 1, devices: 8, precision: bf16}
model:
  micro_batch_size: 1
  global_batch_size: 64
  num_layers: 24
  hidden_size: 2048
  num_attention_heads: 16
  vocab_size: 32000
"""
NEOX = {
    "pipe_parallel_size": 1,
    "num_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "seq_length": 4096,
    "pos_emb": "rotary",
    "no_weight_tying": True,
    "padded_vocab_size": 32000,
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 8,
}
HF = {
    "model_type": "llama",
    "num_hidden_layers": 8,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "vocab_size": 32000,
}


def script(folder: Path, arguments: str, *, base: str = LLAMA_8B, header: str = "") -> Path:
    path = folder / "run.sh"
    path.write_text(f"{header}{base} {arguments}\n")
    return path


def megatron(folder: Path, arguments: str, **options: Any) -> Any:
    return import_files("megatron", script(folder, arguments), **options)


@pytest.mark.parametrize("flag", ["--swiglu", "--quick-geglu", "--geglu", "--glu-activation geglu"])
def test_gated_activations_of_every_name_have_three_matrices(tmp_path: Path, flag: str) -> None:
    model = written(megatron(tmp_path, flag), tmp_path).model
    assert model is not None
    assert model_parameters(model) == 8_030_261_248  # meta-llama/Llama-3.1-8B
    plain = written(megatron(tmp_path, "--squared-relu"), tmp_path).model
    assert plain is not None
    assert not plain.gated_mlp


@pytest.mark.parametrize(
    ("arguments", "gradient_bytes", "optimizer_bytes"),
    [
        ("", 4, 12),
        ("--grad-reduce-in-bf16", 2, 12),
        ("--main-grads-dtype bf16 --use-precision-aware-optimizer", 2, 12),
        (
            "--grad-reduce-in-bf16 --use-precision-aware-optimizer --main-params-dtype fp16 "
            "--exp-avg-dtype bf16 --exp-avg-sq-dtype bf16",
            2,
            2 + 2 + 2,
        ),
        ("--use-precision-aware-optimizer --exp-avg-dtype fp8 --exp-avg-sq-dtype fp8", 4, 4 + 1 + 1),
        ("--optimizer sgd", 4, 4 + 4),
        ("--optimizer sgd --sgd-momentum 0.0", 4, 4),
    ],
)
def test_bytes_of_gradients_and_optimizer(
    tmp_path: Path, arguments: str, gradient_bytes: int, optimizer_bytes: int
) -> None:
    precision = written(megatron(tmp_path, arguments), tmp_path).precision
    assert (precision.gradient_bytes, precision.optimizer_bytes) == (gradient_bytes, optimizer_bytes)


@pytest.mark.parametrize(
    ("arguments", "optimizer"),
    [
        ("", "sharded"),
        ("--use-megatron-fsdp", "plain"),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim", "sharded"),
        ("--use-custom-fsdp --data-parallel-sharding-strategy optim_grads", "zero2"),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params", "zero3"),
        ("--use-torch-fsdp2 --pipeline-model-parallel-size 1", "zero3"),
    ],
)
def test_what_replicas_share_out(tmp_path: Path, arguments: str, optimizer: str) -> None:
    scenario = written(megatron(tmp_path, f"--swiglu {arguments}"), tmp_path)
    assert scenario.optimizer == optimizer
    assert not scenario.parallel.overlap_gradients


def test_kernels(tmp_path: Path) -> None:
    unfused = written(megatron(tmp_path, "--attention-backend unfused"), tmp_path)
    assert (unfused.efficiency.attention_kernel, unfused.efficiency.loss_kernel) == ("unfused", "unfused")
    fused = written(megatron(tmp_path, "--use-flash-attn --cross-entropy-loss-fusion"), tmp_path)
    assert (fused.efficiency.attention_kernel, fused.efficiency.loss_kernel) == ("flash", "fused")


def test_a_stated_padding_and_tokenizers_by_name(tmp_path: Path) -> None:
    base = LLAMA_8B.replace("--vocab-size 128256", "--tokenizer-type HuggingFaceTokenizer")
    for arguments, rows in (
        ("--pad-vocab-size-to 131072", 131072),
        ("--tokenizer-model Qwen/Qwen3-8B", 152064),
        ("--tokenizer-model /models/Meta-Llama-3-8B", 128256),
        ("--tokenizer-model google/gemma-2-9b", 256000),
    ):
        imported = import_files("megatron", script(tmp_path, arguments, base=base))
        assert imported.mapping["model"]["vocab_size"] == rows
        assert "model.vocab_size" not in imported.placeholders
    unknown = import_files("megatron", script(tmp_path, "--tokenizer-model own/tokens", base=base))
    assert "--set model.vocab_size=N" in unknown.placeholders["model.vocab_size"]


@pytest.mark.parametrize(
    ("header", "launch", "nodes", "per_node"),
    [
        ("#SBATCH --nodes=4\n#SBATCH --gres=gpu:8\n#SBATCH --ntasks-per-node=1\n", "srun python", 4, 8),
        ("#SBATCH -N 4\n#SBATCH --gpus-per-node=h100:8 # all of them\n", "srun python", 4, 8),
        ("#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=16\n#SBATCH --job-name=x\n", "srun python", 2, 16),
        ("#SBATCH --nodes=9\n", "torchrun --nnodes 4 --nproc-per-node 8", 4, 8),
    ],
)
def test_batch_headers_state_nodes(
    tmp_path: Path, header: str, launch: str, nodes: int, per_node: int
) -> None:
    base = LLAMA_8B.replace("torchrun --nproc-per-node 8 --nnodes 4", launch)
    header = header.replace("=h100:8", "=8")
    imported = import_files(
        "megatron", script(tmp_path, "--swiglu", base=base, header=f"#!/bin/bash\n{header}")
    )
    cluster = imported.mapping["cluster"]
    assert (cluster["num_nodes"], cluster["gpus_per_node"]) == (nodes, per_node)
    assert not any("job" in key for key in imported.not_used)


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ("--window-size 127,0 --window-attn-skip-freq 2", "window-size"),
        ("--recompute-granularity selective --recompute-modules moe_act layernorm", "recompute-modules"),
        ("--recompute-modules mlp", "recompute-modules"),
        (
            "--recompute-granularity full --recompute-method uniform --recompute-num-layers 4",
            "recompute-num-layers",
        ),
        ("--fp8-format hybrid --fp8-param-gather", "fp8-param-gather"),
        ("--optimizer-offload-fraction 0.5", "optimizer-offload-fraction"),
        ("--moe-token-dispatcher-type allgather", "moe-token-dispatcher-type"),
        ("--delay-wgrad-compute", "delay-wgrad-compute"),
    ],
)
def test_what_is_not_modelled_is_echoed_with_words(tmp_path: Path, arguments: str, key: str) -> None:
    assert len(megatron(tmp_path, arguments).not_used[key]) > 20


def test_arguments_of_a_second_file_count(tmp_path: Path) -> None:
    more = tmp_path / "more.txt"
    more.write_text("--recompute-granularity full --num-layers-per-virtual-pipeline-stage 2\n--swiglu\n")
    imported = import_files("megatron", [script(tmp_path, ""), more])
    assert imported.mapping["recompute"] == "full"
    assert imported.mapping["parallel"]["virtual_stages"] == 4
    assert imported.mapping["model"]["gated_mlp"]


@pytest.mark.parametrize(
    ("changes", "width"),
    [
        ({"activation": "swiglu", "intermediate_size": 32768}, 11008),  # Llama 2 7B
        ({"activation": "swiglu"}, 5632),  # 2/3 of 16384, halved: 5461, rounded up to 256
        ({"activation": "gelu"}, 16384),
        ({"activation": "swiglu", "mlp_type": "llama"}, 11008),
        ({"activation": "swiglu", "mlp_type": "llama", "intermediate_size": 11008}, 11008),
    ],
)
def test_gated_width_of_neox(tmp_path: Path, changes: dict[str, Any], width: int) -> None:
    path = tmp_path / "a.yml"
    path.write_text(json.dumps(NEOX | changes))
    assert import_files("neox", path, num_gpus=8).mapping["model"]["intermediate_size"] == width


def test_parameters_of_llama_2_from_neox(tmp_path: Path) -> None:
    path = tmp_path / "a.yml"
    path.write_text(json.dumps(NEOX | {"activation": "swiglu", "intermediate_size": 32768}))
    model = written(import_files("neox", path, num_gpus=8), tmp_path).model
    assert model is not None
    assert model_parameters(model) == 6_738_415_616  # meta-llama/Llama-2-7b-hf


def test_gradients_of_nemo_and_deepspeed(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(NEMO + "  encoder_seq_length: 2048\n  optim: {name: fused_adam, grad_sync_dtype: bf16}\n")
    assert written(import_files("nemo", path), tmp_path).precision.gradient_bytes == 2
    stated = ('"stage": 1', '"stage": 1}, "data_types": {"grad_accum_dtype": "bf16"')
    files = [changed(tmp_path, "deepspeed.json", stated), DATA / "deepspeed_arguments.txt"]
    assert written(import_files("deepspeed", files, num_gpus=8), tmp_path).precision.gradient_bytes == 2


def test_a_length_of_the_data_beside_the_models(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(NEMO + "  encoder_seq_length: 8192\n  data: {seq_length: 2048}\n")
    imported = import_files("nemo", path)
    assert imported.mapping["model"]["seq_length"] == 8192
    assert "2048" in imported.inferred["model.seq_length"]
    stated = import_files("nemo", path, overrides=["model.seq_length=2048"])
    assert stated.mapping["model"]["seq_length"] == 2048


def test_fsdp_of_torchtitan(tmp_path: Path) -> None:
    piped = import_files("torchtitan", DATA / "torchtitan_405b_2024.toml")
    assert piped.mapping["optimizer"] == "fsdp"
    assert "whole gradients stay" in piped.inferred["optimizer"]
    assert import_files("torchtitan", DATA / "torchtitan_405b.toml").mapping["optimizer"] == "fsdp"
    hybrid = ("replicate_degree = 1", "replicate_degree = 2")
    imported = import_files("torchtitan", changed(tmp_path, "torchtitan_405b.toml", hybrid))
    assert imported.mapping["parallel"]["data"] == 16
    assert imported.mapping["parallel"]["data_shard"] == 8


@pytest.mark.parametrize(
    ("flavor", "billions"),
    [
        ("deepseek_v3 671B", 671.026),
        ("deepseek_v3 236B", 235.741),
        ("deepseek_v3 16B", 15.706),
        ("llama4 17Bx16E", 107.77),
        ("qwen3 14B", 14.768),
        ("qwen3 30B-A3B", 30.532),
    ],
)
def test_torchtitans_own_flavors(tmp_path: Path, flavor: str, billions: float) -> None:
    name, size = flavor.split()
    model = ('name = "llama3"\nflavor = "405B"', f'name = "{name}"\nflavor = "{size}"')
    path = changed(tmp_path, "torchtitan_405b.toml", model)
    read = written(import_files("torchtitan", path), tmp_path).model
    assert read is not None
    assert model_parameters(read) / 1e9 == pytest.approx(billions, rel=1e-3)


def hf(folder: Path, **changes: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(HF | changes))
    return path


def test_towers_and_prediction_layers_are_echoed(tmp_path: Path) -> None:
    text = {key: value for key, value in HF.items() if key != "model_type"}
    document = {"model_type": "gemma3", "text_config": text | {"model_type": "gemma3_text"}}
    (tmp_path / "vl.json").write_text(json.dumps(document | {"vision_config": {"depth": 32}}))
    imported = import_files("hf", tmp_path / "vl.json")
    assert "vision tower not modelled" in imported.not_used["vision_config"]
    assert imported.mapping["model"]["tie_word_embeddings"]
    path = hf(tmp_path, num_nextn_predict_layers=1, quantization_config={"quant_method": "fp8"})
    notes = import_files("hf", path).not_used
    assert "not modelled" in notes["num_nextn_predict_layers"]
    assert "fp8" in notes["quantization_config"]


REFUSED: list[tuple[str, str, str, str]] = [
    ("--heterogeneous-layers-config-path a.json", "different shapes", "heterogeneous-layers-config-path", ""),
    ("--is-hybrid-model", "state-space", "is-hybrid-model", ""),
    ("--hybrid-override-pattern M-M*", "state-space", "hybrid-override-pattern", ""),
    ("--spec megatron.core.models.mamba.mamba_layer_specs mamba_stack_spec", "not modelled", "spec", ""),
    ("--train-type vera", "of frozen weights, low-rank adapters are modelled", "train-type", ""),
    ("--train-type lora --target-modules gate", "found 'gate'", "target-modules", ""),
    ("--freeze-LM", "frozen", "freeze-LM", ""),
    ("--linear-attention-type gated_delta_net", "linear attention", "linear-attention-type", ""),
    ("--use-torch-fsdp2", "pipeline parallelism", "use-torch-fsdp2", ""),
    ("--optimizer-cpu-offload --main-grads-dtype int4", "found 'int4'", "main-grads-dtype", ""),
    ("--attention-backend slow", "found 'slow'", "attention-backend", ""),
    ("--recompute-granularity some", "found 'some'", "recompute-granularity", ""),
    ("--num-layers 30", "2 would be dropped", "", "layers=[8,8,7,7]"),
    ("--num-layers 3", "cannot fill 4", "", "parallel.pipeline=1"),
    ("--num-layers-per-virtual-pipeline-stage 3", "does not divide the 8",
     "num-layers-per-virtual-pipeline-stage", ""),
    ("--decoder-first-pipeline-num-layers 40", "do not add up", "", "layers=[8,8,8,8]"),
    ("--pipeline-model-parallel-layout 'Et*8|t*8||t*16L'", "stage 2 is empty", "", "layers=[8,8,8,8]"),
    ("--pipeline-model-parallel-layout 'Et*16|t*16L'", "not a multiple", "", "parallel.pipeline=2"),
    ("--hidden-size $WIDTH", "$WIDTH", "", "model.hidden_size=4096"),
    ("--num-attention-heads many", "found 'many'", "", "model.num_attention_heads=32"),
    ("--global-batch-size 6", "not a multiple", "", "batch.global=128"),
    ("--tensor-model-parallel-size 3", "does not divide", "", "parallel.tensor=2"),
    (
        "--num-layers-per-virtual-pipeline-stage 2 --global-batch-size 24",
        "the pipeline ranks divide",
        "",
        "parallel.microbatch_group_size=6",
    ),
    (
        "--num-experts 8 --moe-layer-freq [2,3]",
        "moe-layer-freq",
        "",
        "model.moe_layer_freq=1",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "words", "ignored", "stated"), REFUSED)
def test_every_refusal_names_an_option_that_gets_past_it(
    tmp_path: Path, arguments: str, words: str, ignored: str, stated: str
) -> None:
    path = script(tmp_path, f"--swiglu {arguments}")
    message = refusal(import_files, "megatron", path)
    assert words in message
    if ignored:
        assert f"--ignore {ignored}" in message
        imported = import_files("megatron", path, ignore=[ignored])
        assert "left out" in imported.not_used[ignored]
    else:
        assert any(option in message for option in ("--set", "--gpus", "--define"))
        assert f"--set {stated.partition('=')[0]}" in message or "--gpus" in message
        imported = import_files("megatron", path, overrides=[stated])
    written(imported, tmp_path)


def test_experts_that_one_node_does_not_hold(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(
        "NNODES=${NNODES:-1}\ntorchrun --nproc_per_node 8 --nnodes $NNODES pretrain_gpt.py --num-layers 32 "
        "--hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --num-experts 8 --swiglu "
        "--pipeline-model-parallel-size 4 --expert-model-parallel-size 8 --seq-length 4096 --bf16 "
        "--micro-batch-size 1 --global-batch-size 256 --vocab-size 32000\n"
    )
    message = refusal(import_files, "megatron", path)
    for words in ("8 does not divide", "--define NNODES=", "--gpus", "32 at least"):
        assert words in message
    for options in ({"define": {"NNODES": "4"}}, {"num_gpus": 32}, {"overrides": ["cluster.num_nodes=4"]}):
        parallel = written(import_files("megatron", path, **options), tmp_path).parallel
        assert (parallel.data, parallel.expert) == (8, 8)


@pytest.mark.parametrize(
    ("tool", "name", "text", "words", "ignored"),
    [
        ("nemo", "a.yaml", "  mm_cfg:\n    llm: {freeze: true}\n", "vision towers", "model.mm_cfg"),
        ("nemo", "a.yaml", "  peft: {peft_scheme: ia3}\n", "adapters", "model.peft.peft_scheme"),
        ("neox", "a.yml", '"attention_config": [[["mamba"], 32]]', "found mamba", "attention_config"),
        ("neox", "a.yml", '"attention_config": [[["sparse_fixed"], 32]]', "sparse", "attention_config"),
        ("hf", "c.json", '"layer_types": ["linear_attention", "full_attention"]', "linear", "layer_types"),
        ("hf", "c.json", '"kind": 1, "model_type": "qwen3_next"', "linear attention", "model_type"),
        ("hf", "c.json", '"kind": 1, "model_type": "my_llama"', "known decoders", "model_type"),
        ("hf", "c.json", '"kind": 1, "model_type": "t5"', "an encoder", "model_type"),
        ("hf", "c.json", '"index_topk": 2048', "sparse attention", "index_topk"),
    ],
)
def test_other_models_are_refused_with_the_reason(
    tmp_path: Path, tool: str, name: str, text: str, words: str, ignored: str
) -> None:
    path = tmp_path / name
    if tool == "nemo":
        path.write_text(f"{NEMO}  encoder_seq_length: 2048\n{text}")
    else:
        base = NEOX if tool == "neox" else HF
        path.write_text(json.dumps({**base, **json.loads(f"{{{text}}}")}))
    options = {"num_gpus": 8} if tool == "neox" else {}
    message = refusal(import_files, tool, path, **options)
    assert words in message
    if ignored:
        assert f"--ignore {ignored}" in message
        written(import_files(tool, path, ignore=[ignored], **options), tmp_path)


def test_what_is_not_there_cannot_be_ignored(tmp_path: Path) -> None:
    assert "--ignore: lora-rank is not there" in refusal(
        import_files, "megatron", script(tmp_path, ""), ignore=["lora-rank"]
    )
    assert "--ignore: other is not there" in refusal(import_files, "hf", hf(tmp_path), ignore=["other"])


def test_another_model_in_place_of_an_unknown_flavor(tmp_path: Path) -> None:
    path = changed(tmp_path, "torchtitan_405b.toml", ("405B", "9B"))
    assert "--set model=PRESET" in refusal(import_files, "torchtitan", path)
    imported = import_files("torchtitan", path, overrides=["model=llama3-70b"])
    model = written(imported, tmp_path).model
    assert model is not None
    assert model.num_hidden_layers == 80


@pytest.mark.parametrize(
    ("tool", "name", "options", "sizes", "microbatches", "schedule"),
    [
        ("internevo", "internevo_7b.py", {"num_gpus": 32}, (2, 4, 4, 2), 8, "interleaved-1f1b"),
        ("maxtext", "maxtext_8b.yml", {"num_gpus": 32}, (2, 4, 4, 2), 8, "looped-bfs"),
        ("nemo", "bridge_recipe.py", {"row": "small_llama_64gpu_config"}, (4, 4, 2, 5), 64,
         "interleaved-1f1b"),
        (
            "torchtitan",
            "torchtitan_registry.py",
            {"row": "deepseek_v3_671b_longer", "num_gpus": 256},
            (1, 8, 32, 2),
            32,
            "interleaved-1f1b",
        ),
    ],
)  # fmt: skip
def test_other_formats(
    tmp_path: Path,
    tool: str,
    name: str,
    options: dict[str, Any],
    sizes: tuple[int, ...],
    microbatches: int,
    schedule: str,
) -> None:
    scenario = written(import_files(tool, DATA / name, **options), tmp_path)
    parallel = scenario.parallel
    assert (parallel.tensor, parallel.pipeline, parallel.data, parallel.virtual_stages) == sizes
    assert scenario.batch.num_microbatches == microbatches
    assert scenario.schedule.name == schedule


def test_shapes_of_other_formats(tmp_path: Path) -> None:
    evo = written(import_files("internevo", DATA / "internevo_7b.py", num_gpus=32), tmp_path).model
    assert evo is not None
    # InternLM-7B: 32 layers of 4096, an MLP of 11008 and 103168 tokens.
    assert model_parameters(evo) == 32 * (4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096) + 4096 * (2 * 103168 + 1)
    text = written(import_files("maxtext", DATA / "maxtext_8b.yml", num_gpus=32), tmp_path).model
    assert text is not None
    assert model_parameters(text) == 8_030_261_248  # meta-llama/Llama-3.1-8B


def test_overrides_of_a_recipe(tmp_path: Path) -> None:
    more = tmp_path / "run.sh"
    more.write_text("GBS=256\npython run.py train.global_batch_size=$GBS model.context_parallel_size=1 x=1\n")
    files = [DATA / "bridge_recipe.py", more]
    imported = import_files("nemo", files, row="small_llama_64gpu_config")
    assert imported.mapping["batch"]["global"] == 256
    assert imported.mapping["parallel"]["data"] == 4
    message = refusal(import_files, "nemo", DATA / "bridge_recipe.py")
    assert "--row NAME: small_llama_64gpu_config, two_layers_config" in message
