"""Hugging Face configurations: what is read, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipesim.errors import ScenarioError
from pipesim.scenario import hf_scenario_text, load_scenario, read_hf_config, scenario_from_mapping

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
        ("[" * 100_000, ["not readable as JSON"]),
        ("{" + " " * (1 << 20) + "}", ["larger than 1 MiB"]),
        ({}, ["model_type", "missing", "llama"]),
        ({"model_type": "bert"}, ["model_type", "'bert'", "gpt2"]),
        ({"model_type": ["llama"]}, ["model_type"]),
        (LLAMA | {"num_hidden_layers": "32"}, ["num_hidden_layers", "found '32'", "whole number"]),
        (LLAMA | {"hidden_size": 4096.0}, ["hidden_size", "found 4096.0"]),
        (LLAMA | {"num_attention_heads": 0}, ["num_attention_heads", "found 0"]),
        (LLAMA | {"vocab_size": True}, ["vocab_size", "found True"]),
        (LLAMA | {"tie_word_embeddings": "no"}, ["tie_word_embeddings", "true or false"]),
        (without(LLAMA, "hidden_size"), ["hidden_size", "missing", "n_embd"]),
        (without(LLAMA, "vocab_size"), ["vocab_size", "missing"]),
        (without(LLAMA, "intermediate_size"), ["intermediate_size", "missing"]),
        (without(GPT2, "n_positions"), ["missing", "n_positions"]),
        (LLAMA | {"num_local_experts": 8}, ["num_local_experts", "mixture-of-experts"]),
        (LLAMA | {"n_routed_experts": 256}, ["n_routed_experts", "mixture-of-experts"]),
        (LLAMA | {"kv_lora_rank": 512}, ["kv_lora_rank", "latent attention"]),
    ],
)  # fmt: skip
def test_refusals(tmp_path: Path, config: Any, words: list[str]) -> None:
    path = write(tmp_path, config)
    with pytest.raises(ScenarioError) as caught:
        read_hf_config(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    for word in words:
        assert word in message
    assert "\n" not in message


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
    with pytest.raises(ScenarioError, match=r"none\.json: no such file"):
        load_scenario(scenario_file, ["model.hf=none.json"])


@pytest.mark.parametrize(
    "config",
    [
        LLAMA,
        GPT2,
        LLAMA | {"num_hidden_layers": 1, "num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 64},
        LLAMA | {"_name_or_path": 'odd: "name" # é'},
    ],
)
def test_the_written_scenario_runs_as_it_is(tmp_path: Path, config: dict[str, Any]) -> None:
    path = tmp_path / "out.yaml"
    path.write_text(hf_scenario_text(write(tmp_path, config)))
    scenario = load_scenario(path)
    assert scenario.cluster is not None
    assert scenario.model is not None
    assert scenario.cluster.num_gpus == scenario.parallel.tensor * scenario.parallel.pipeline
    assert scenario.name == scenario.model.name == config.get("_name_or_path", tmp_path.name)
    assert path.read_text().count("placeholder") >= 4


def test_the_shipped_configuration_is_llama3_70b() -> None:
    shipped = read_hf_config(SHIPPED)
    common = {
        "cluster": {"accelerator": "h100-sxm", "num_nodes": 1},
        "parallel": {"pipeline": 8},
        "batch": {"global": 8},
    }
    preset = scenario_from_mapping(common | {"model": "llama3-70b"}).model
    read = scenario_from_mapping(common | {"model": shipped}).model
    assert preset is not None
    assert read is not None
    assert replace(read, name=preset.name, source=preset.source) == preset
