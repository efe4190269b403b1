"""Hugging Face configurations: what is read, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from import_samples import refusal

from pipesim.errors import ScenarioError
from pipesim.importers.readers import import_files
from pipesim.importers.scenario_file import scenario_text
from pipesim.scenario import load_scenario, read_hf_config, scenario_from_mapping
from pipesim.scenario.loading import parse_yaml

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
}
GPT2 = {
    "model_type": "gpt2",
    "n_layer": 12,
    "n_embd": 768,
    "n_head": 12,
    "n_positions": 1024,
    "vocab_size": 50257,
}
MIXTRAL = LLAMA | {
    "model_type": "mixtral",
    "vocab_size": 32000,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 4096,
}
QWEN3_MOE = {
    "model_type": "qwen3_moe",
    "num_hidden_layers": 48,
    "hidden_size": 2048,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
}
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "head_dim": 64,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "n_group": 8,
    "topk_group": 4,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 129280,
    "max_position_embeddings": 163840,
}
SHIPPED = Path(__file__).parents[1] / "scenarios" / "configs" / "llama3-70b.json"


def write(folder: Path, config: Any) -> Path:
    path = folder / "config.json"
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    return path


def without(config: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name != key}


def test_llama(tmp_path: Path) -> None:
    model = read_hf_config(write(tmp_path, LLAMA))
    for key in ("num_hidden_layers", "hidden_size", "num_key_value_heads", "intermediate_size", "vocab_size"):
        assert model[key] == LLAMA[key]
    assert model["seq_length"] == 8192
    assert (model["gated_mlp"], model["biases"], model["tie_word_embeddings"]) == (True, False, False)
    assert model["num_learned_positions"] == 0


def test_gpt2_names_and_conventions(tmp_path: Path) -> None:
    model = read_hf_config(write(tmp_path, GPT2 | {"n_inner": None}))
    assert (model["num_hidden_layers"], model["hidden_size"], model["num_attention_heads"]) == (12, 768, 12)
    assert model["intermediate_size"] == 3072
    assert model["num_learned_positions"] == model["seq_length"] == 1024
    assert (model["gated_mlp"], model["biases"], model["tie_word_embeddings"]) == (False, True, True)


def test_opt_pads_its_positions(tmp_path: Path) -> None:
    config = without(LLAMA, "intermediate_size") | {
        "model_type": "opt",
        "ffn_dim": 16384,
        "max_position_embeddings": 2048,
    }
    model = read_hf_config(write(tmp_path, config))
    assert (model["num_learned_positions"], model["intermediate_size"]) == (2050, 16384)


def test_head_dim_and_tied_embeddings_are_taken(tmp_path: Path) -> None:
    model = read_hf_config(write(tmp_path, LLAMA | {"head_dim": 256, "tie_word_embeddings": True}))
    assert (model["head_dim"], model["tie_word_embeddings"]) == (256, True)


def test_a_sliding_window_bounds_the_default_sequence(tmp_path: Path) -> None:
    mistral = LLAMA | {"model_type": "mistral", "sliding_window": 4096}
    assert read_hf_config(write(tmp_path, mistral))["seq_length"] == 4096
    unused = mistral | {"use_sliding_window": False}
    assert read_hf_config(write(tmp_path, unused))["seq_length"] == 8192


def resolved(model: str | dict[str, Any]) -> Any:
    common = {
        "cluster": {"accelerator": "h100-sxm", "num_nodes": 1},
        "parallel": {"pipeline": 8},
        "batch": {"global": 8},
    }
    return scenario_from_mapping(common | {"model": model}).model


@pytest.mark.parametrize(
    ("config", "preset"),
    [
        (MIXTRAL, "mixtral-8x7b"),
        (QWEN3_MOE, "qwen3-30b-a3b"),
        (DEEPSEEK_V3, "deepseek-v3"),
        (
            without(without(DEEPSEEK_V3, "n_routed_experts"), "n_shared_experts")
            | {"num_routed_experts": 256, "num_shared_experts": 1},
            "deepseek-v3",
        ),
    ],
)
def test_experts_and_latent_attention_equal_the_presets(
    tmp_path: Path, config: dict[str, Any], preset: str
) -> None:
    read = resolved(read_hf_config(write(tmp_path, config)) | {"seq_length": 4096})
    known = resolved(preset)
    if all(read.experts.in_layer):  # no layer has a plain MLP, whose width then says nothing
        known = replace(known, intermediate_size=read.intermediate_size)
    assert replace(read, name=known.name, source=known.source) == known


def test_sparse_step_and_dense_layers_of_qwen(tmp_path: Path) -> None:
    """Layer i has experts if i + 1 is a multiple of the step and i is not listed."""
    config = QWEN3_MOE | {"num_hidden_layers": 8, "decoder_sparse_step": 2, "mlp_only_layers": [3]}
    in_layer = resolved(read_hf_config(write(tmp_path, config))).experts.in_layer
    assert [layer for layer, has in enumerate(in_layer) if has] == [1, 5, 7]


def test_shared_experts_by_their_width(tmp_path: Path) -> None:
    config = QWEN3_MOE | {"model_type": "qwen2_moe", "shared_expert_intermediate_size": 5632}
    assert resolved(read_hf_config(write(tmp_path, config))).experts.shared_intermediate_size == 5632


@pytest.mark.parametrize("config", [without(LLAMA, "model_type"), without(GPT2, "model_type")])
def test_without_a_model_type_the_keys_decide(tmp_path: Path, config: dict[str, Any]) -> None:
    assert read_hf_config(write(tmp_path, config))["gated_mlp"] == ("n_embd" not in config)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("", ["empty"]),
        ("{", ["not JSON", "line 1"]),
        ("[1]", ["no JSON object"]),
        ("3", ["no JSON object"]),
        ('{"a": 1, "a": 2}', ["duplicate key 'a'"]),
        ('{"a": NaN}', ["NaN is not JSON"]),
        ("[" * 100_000, ["not readable as JSON"]),
        ("{" + " " * (1 << 20) + "}", ["larger than 1 MiB"]),
        ({}, ["model_type", "missing", "llama"]),
        ({"model_type": "bert"}, ["model_type", "'bert'", "gpt2"]),
        ({"model_type": ["llama"]}, ["model_type"]),
        (LLAMA | {"num_hidden_layers": "32"}, ["num_hidden_layers", "found '32'", "whole number"]),
        (LLAMA | {"hidden_size": 4096.0}, ["hidden_size", "found 4096.0"]),
        (LLAMA | {"num_attention_heads": 0}, ["num_attention_heads", "found 0"]),
        (LLAMA | {"vocab_size": True}, ["vocab_size", "found true"]),
        (LLAMA | {"tie_word_embeddings": "no"}, ["tie_word_embeddings", "true or false"]),
        (without(LLAMA, "hidden_size"), ["hidden_size", "missing", "n_embd"]),
        (without(LLAMA, "vocab_size"), ["vocab_size", "missing"]),
        (without(LLAMA, "intermediate_size"), ["intermediate_size", "missing"]),
        (without(GPT2, "n_positions"), ["missing", "n_positions"]),
        (LLAMA | {"num_local_experts": 8}, ["num_experts_per_tok", "missing"]),
        (LLAMA | {"n_routed_experts": -1}, ["n_routed_experts", "found -1"]),
        (without(MIXTRAL, "intermediate_size"), ["moe_intermediate_size", "width of one expert"]),
        (QWEN3_MOE | {"mlp_only_layers": [0, "1"]}, ["mlp_only_layers", "layer numbers"]),
        (QWEN3_MOE | {"mlp_only_layers": 3}, ["mlp_only_layers", "layer numbers"]),
        (QWEN3_MOE | {"decoder_sparse_step": 2, "num_hidden_layers": 10**9}, ["num_hidden_layers", "100000"]),
        (DEEPSEEK_V3 | {"n_shared_experts": 1.5}, ["n_shared_experts", "found 1.5"]),
        (LLAMA | {"kv_lora_rank": 512}, ["qk_nope_head_dim", "missing"]),
    ],
)  # fmt: skip
def test_refusals(tmp_path: Path, config: Any, words: list[str]) -> None:
    path = write(tmp_path, config)
    message = refusal(read_hf_config, path)
    assert message.startswith(str(path))
    for word in words:
        assert word in message


def test_a_scenario_takes_the_file_beside_it(tmp_path: Path) -> None:
    write(tmp_path, LLAMA)
    scenario_file = tmp_path / "s.yaml"
    scenario_file.write_text(
        "model: {hf: config.json}\n"
        "cluster: {accelerator: h100-sxm, num_nodes: 1}\n"
        "parallel: {pipeline: 8}\nbatch: {global: 8}\n"
    )
    scenario = load_scenario(scenario_file)
    assert scenario.model is not None
    assert scenario.model.num_key_value_heads == 8
    assert scenario.model.seq_length == 8192
    assert "not stated" in scenario.echo["model.seq_length"]
    stated = load_scenario(scenario_file, ["model.seq_length=4096"])
    assert "model.seq_length" not in stated.echo
    with pytest.raises(ScenarioError, match=r"none\.json: cannot be read: no such file"):
        load_scenario(scenario_file, ["model.hf=none.json"])


@pytest.mark.parametrize(
    "config",
    [
        LLAMA,
        GPT2,
        LLAMA | {"num_hidden_layers": 1, "num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 64},
        LLAMA | {"_name_or_path": 'odd: "name" # é'},
        MIXTRAL,
        QWEN3_MOE | {"num_hidden_layers": 8, "mlp_only_layers": [0, 2]},
        DEEPSEEK_V3,
    ],
)
def test_the_written_scenario_runs_as_it_is(tmp_path: Path, config: dict[str, Any]) -> None:
    path = tmp_path / "out.yaml"
    path.write_text(scenario_text(import_files("hf", write(tmp_path, config))))
    scenario = load_scenario(path)
    assert scenario.cluster is not None
    assert scenario.model is not None
    assert scenario.cluster.num_gpus == scenario.parallel.num_gpus
    assert scenario.name == scenario.model.name == config.get("_name_or_path", tmp_path.name)
    sections = parse_yaml(path.read_text()).keys()
    lines = path.read_text().splitlines()
    whole = {key for key in sections if lines[_line(lines, f"{key}:") - 1].startswith("# placeholder: ")}
    assert sections - whole == {"name", "model", "cluster"}
    cluster = lines[_line(lines, "cluster:") + 1 : _line(lines, "# placeholder: tensor")]
    assert all("  # placeholder: " in line for line in cluster)
    assert "  # placeholder: " in lines[_line(lines, "  seq_length:")]


def _line(lines: list[str], start: str) -> int:
    return next(number for number, line in enumerate(lines) if line.startswith(start))


def test_what_the_user_sets_is_no_placeholder(tmp_path: Path) -> None:
    imported = import_files("hf", write(tmp_path, LLAMA), overrides=["cluster.accelerator=a100-sxm-80"])
    assert "cluster.accelerator" not in imported.placeholders
    assert "cluster.num_nodes" in imported.placeholders


def test_the_shipped_configuration_is_llama3_70b() -> None:
    preset, read = resolved("llama3-70b"), resolved(read_hf_config(SHIPPED))
    assert replace(read, name=preset.name, source=preset.source) == preset
