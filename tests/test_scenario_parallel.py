"""Context and expert parallelism, rank order, experts and latent attention in a scenario."""

from __future__ import annotations

from typing import Any

import pytest

from pipesim.errors import ScenarioError
from pipesim.scenario import scenario_from_mapping
from pipesim.scenario.resolved import RANK_ORDER, LatentAttention, ResolvedScenario

DEEPSEEK = {
    "model": "deepseek-v3",
    "cluster": {"accelerator": "h100-sxm", "num_nodes": 16, "inter_node": "ib-ndr"},
    "parallel": {"pipeline": 4, "tensor": 2, "context": 2, "expert": 8, "sequence_parallel": True},
    "batch": {"microbatches": 8},
}
MIXTRAL = DEEPSEEK | {"model": "mixtral-8x7b"}
LLAMA = {
    "model": "llama3-70b",
    "cluster": {"accelerator": "h100-sxm", "num_nodes": 8, "inter_node": "ib-ndr"},
    "parallel": {"pipeline": 4, "tensor": 4},
    "batch": {"microbatches": 8},
}
DIRECT = {
    "parallel": {"pipeline": 4},
    "batch": {"microbatches": 8},
    "costs": {"forward": "1 s", "backward": "2 s"},
}


def load(base: dict[str, Any], *overrides: str) -> ResolvedScenario:
    return scenario_from_mapping(base, overrides=overrides)


def test_replicas_are_what_the_other_axes_leave() -> None:
    scenario = load(DEEPSEEK)
    assert scenario.parallel.data == 8
    assert (
        scenario.echo["parallel.data"] == "8 (128 GPUs (16 nodes x 8) / (tensor 2 x context 2 x pipeline 4))"
    )
    assert (scenario.parallel.num_gpus, scenario.parallel.num_replicas) == (128, 16)
    assert scenario.batch.global_size == 8 * 8


def test_without_them_there_is_one_of_each() -> None:
    parallel = load(LLAMA).parallel
    assert (parallel.context, parallel.expert, parallel.rank_order) == (1, 1, RANK_ORDER)
    assert load(LLAMA).echo["parallel.rank_order"] == "tp-cp-ep-dp-pp (default)"


@pytest.mark.parametrize(
    ("text", "order"),
    [
        ("tp-cp-ep-dp-pp", RANK_ORDER),
        ("TP-PP-DP", ("tp", "pp", "dp", "cp", "ep")),
        ("tp-cp-pp-dp", ("tp", "cp", "pp", "dp", "ep")),
        ("dp-tp-pp", ("dp", "tp", "pp", "cp", "ep")),
    ],
)
def test_rank_orders(text: str, order: tuple[str, ...]) -> None:
    scenario = load(LLAMA, f"parallel.rank_order={text}")
    assert scenario.parallel.rank_order == order
    assert "parallel.rank_order" not in scenario.echo


def test_sizes_that_stated_costs_do_not_follow_are_echoed() -> None:
    echo = load(DIRECT, "parallel.tensor=4", "parallel.context=2", "batch.micro=3").echo
    assert echo["parallel.tensor"] == "4 (only counts devices: stated costs stay as they are)"
    assert echo["parallel.context"] == "2 (only counts devices: stated costs stay as they are)"
    assert echo["batch.micro"] == "3 (stated costs stay as they are)"
    assert "stay as they are" not in str(load(DIRECT).echo)


def test_experts_in_part_of_the_layers() -> None:
    experts = load(DEEPSEEK).model.experts
    assert experts is not None
    assert (experts.num_experts, experts.num_experts_per_tok, experts.intermediate_size) == (256, 8, 2048)
    assert experts.shared_intermediate_size == 2048
    assert experts.in_layer == (False,) * 3 + (True,) * 58
    every_other = load(MIXTRAL, "model.moe_layer_freq=2", "model.intermediate_size=14336").model.experts
    assert every_other.in_layer == (True, False) * 16
    listed = [0, 0, 1, 1] * 8
    stated = load(MIXTRAL, f"model.moe_layer_freq={listed}", "model.intermediate_size=14336").model.experts
    assert stated.in_layer == (False, False, True, True) * 8
    assert load(LLAMA).model.experts is None


def test_imbalance_has_a_default_with_its_source() -> None:
    assert load(MIXTRAL).model.experts.imbalance == 1.04
    assert "2408.15664" in load(MIXTRAL).echo["model.expert_imbalance"]
    stated = load(MIXTRAL, "model.expert_imbalance=1.5")
    assert stated.model.experts.imbalance == 1.5
    assert "model.expert_imbalance" not in stated.echo


def test_latent_attention() -> None:
    model = load(DEEPSEEK).model
    assert model.latent_attention == LatentAttention(1536, 512, 128, 64, 128)
    assert (model.head_dim, model.num_key_value_heads) == (192, 128)
    assert load(DEEPSEEK, "model.q_lora_rank=null").model.latent_attention.q_lora_rank is None


def test_a_model_of_experts_alone_needs_no_other_width() -> None:
    scenario = load(MIXTRAL)
    assert scenario.model.intermediate_size == 14336
    assert "every layer has experts" in scenario.echo["model.intermediate_size"]


@pytest.mark.parametrize(
    ("word", "level"),
    [
        ("plain", "plain"),
        ("sharded", "sharded"),
        ("zero2", "zero2"),
        ("zero3", "zero3"),
        ("zero1", "sharded"),
        ("fsdp", "fsdp"),
    ],
)
def test_optimizer_levels(word: str, level: str) -> None:
    scenario = load(LLAMA, f"optimizer={word}")
    assert scenario.optimizer == level


BAD = [
    (DEEPSEEK, ["parallel.context=3"], "parallel", ["context 3", "24 does not divide", "128 GPUs"]),
    (DEEPSEEK, ["model.seq_length=4098"], "parallel.context", ["2 x 2", "4098", "two chunks"]),
    (LLAMA, ["parallel.context=2", "parallel.tensor=8", "parallel.pipeline=1", "model.seq_length=8196",
             "parallel.sequence_parallel=true"], "parallel.tensor", ["8196 / context 2"]),
    (DEEPSEEK, ["parallel.expert=3"], "parallel.expert", ["3 does not divide data 8 x context 2 = 16"]),
    (DEEPSEEK, ["parallel.expert=64"], "parallel.expert", ["64 does not divide", "= 16"]),
    (MIXTRAL, ["parallel.expert=16"], "parallel.expert", ["16 does not divide the model's 8 experts"]),
    (LLAMA, ["parallel.expert=4"], "parallel.expert", ["the model has no experts"]),
    (DEEPSEEK, ["parallel.sequence_parallel=false"], "parallel.sequence_parallel", ["experts", "true"]),
    (DEEPSEEK, ["model.moe_intermediate_size=2049"], "parallel.tensor", ["moe_intermediate_size 2049"]),
    (LLAMA, ["parallel.rank_order=tp-dp"], "parallel.rank_order", ["leaves out pp", "4"]),
    (LLAMA, ["parallel.rank_order=tp-tp-dp-pp"], "parallel.rank_order", ["at most once"]),
    (LLAMA, ["parallel.rank_order=tensor-data"], "parallel.rank_order", ["tp, cp, ep, dp, pp"]),
    (DEEPSEEK, ["parallel.rank_order=tp-cp-ep-pp-dp"], "parallel.rank_order", ["context = expert"]),
    (DIRECT, ["parallel.expert=2"], "parallel.expert", ["no effect"]),
    (DIRECT, ["parallel.rank_order=tp-dp-pp"], "parallel.rank_order", ["no effect"]),
    (LLAMA, ["model.num_experts=8"], "model.num_experts_per_tok", ["missing"]),
    (LLAMA, ["model.num_experts=8", "model.num_experts_per_tok=2"], "model.moe_intermediate_size",
     ["missing"]),
    (LLAMA, ["model.first_k_dense_replace=3"], "model.first_k_dense_replace", ["without model.num_experts"]),
    (LLAMA, ["model.v_head_dim=3"], "model.v_head_dim", ["without model.kv_lora_rank"]),
    (MIXTRAL, ["model.num_experts_per_tok=9"], "model.num_experts_per_tok", ["9", "there are 8"]),
    (MIXTRAL, ["model.expert_imbalance=0.9"], "model.expert_imbalance", ["at least 1"]),
    (MIXTRAL, ["model.moe_layer_freq=[1, 0]"], "model.moe_layer_freq", ["2 entries", "32 layers"]),
    (MIXTRAL, ["model.moe_layer_freq=[1, 2]"], "model.moe_layer_freq", ["found [1, 2]", "0 or 1"]),
    (MIXTRAL, ["model.moe_layer_freq=0"], "model.moe_layer_freq", ["found 0"]),
    (MIXTRAL, ["model.first_k_dense_replace=32"], "model.first_k_dense_replace", ["none of the 32 layers"]),
    (MIXTRAL, ["model.moe_layer_freq=2"], "model.intermediate_size", ["gated"]),
    (MIXTRAL, ["model.num_shared_experts=1", "model.shared_expert_intermediate_size=7"],
     "model.shared_expert_intermediate_size", ["is 14336"]),
    (DEEPSEEK, ["model.v_head_dim=null"], "model.v_head_dim", ["missing"]),
    (DEEPSEEK, ["model.head_dim=128"], "model.head_dim", ["no effect with latent attention"]),
    (DEEPSEEK, ["model.num_key_value_heads=8"], "model.num_key_value_heads", ["each of 128 heads"]),
    (LLAMA, ["optimizer=zero4"], "optimizer", ["zero2, zero3"]),
    (LLAMA, ["efficiency.grouped_gemm=1.2"], "efficiency.grouped_gemm", ["at most 1"]),
    (LLAMA, ["efficiency.loss_kernel=fast"], "efficiency.loss_kernel", ["unfused, fused"]),
]  # fmt: skip


@pytest.mark.parametrize(("base", "overrides", "key", "words"), BAD, ids=lambda value: str(value)[:60])
def test_one_message_names_the_key(
    base: dict[str, Any], overrides: list[str], key: str, words: list[str]
) -> None:
    with pytest.raises(ScenarioError) as caught:
        load(base, *overrides)
    message = str(caught.value)
    assert caught.value.key == key
    for word in words:
        assert word in message
    assert "\n" not in message
