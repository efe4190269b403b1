"""What a legal scenario resolves to, and what is echoed."""

from __future__ import annotations

import copy
from fractions import Fraction
from pathlib import Path

import pytest

from pipesim.errors import ScenarioError
from pipesim.scenario import apply_overrides, load_scenario, scenario_from_mapping
from pipesim.scenario.layers import uneven_words

SCENARIOS = Path(__file__).parents[1] / "scenarios"
GPT3 = {
    "model": {"preset": "gpt3-175b"},
    "cluster": {"accelerator": "a100-sxm-80", "num_nodes": 16, "inter_node": "ib-hdr"},
    "parallel": {"pipeline": 8, "tensor": 8},
    "batch": {"global": 128},
}
DIRECT = {
    "parallel": {"pipeline": 4},
    "batch": {"microbatches": 8},
    "costs": {"forward": "1 s", "backward": "2 s"},
}


def gpt3(**changes: object) -> dict[str, object]:
    return copy.deepcopy(GPT3) | changes


def direct(**costs: object) -> dict[str, object]:
    return copy.deepcopy(DIRECT) | {"costs": DIRECT["costs"] | costs}


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_scenarios_load(path: Path) -> None:
    scenario = load_scenario(path)
    assert scenario.file == str(path)
    borrowed = ["efficiency"] if scenario.torch_model is not None or path.stem == "two-sites" else []
    assert [warning.split()[0] for warning in scenario.warnings] == borrowed
    bases = (scenario.model, scenario.torch_model, scenario.costs)
    assert sum(basis is not None for basis in bases) == 1


def test_inferred_sizes_are_derived_and_echoed() -> None:
    scenario = scenario_from_mapping(gpt3())
    assert scenario.parallel.data == 2
    assert scenario.batch.num_microbatches == 64
    assert scenario.schedule.name == "1f1b"
    assert scenario.echo["parallel.data"].startswith("2 (128 GPUs")
    assert scenario.echo["batch.microbatches"].startswith("64 (global 128")
    assert scenario.echo["layers"] == "even: 12 each on 8 stages (default)"
    defaults = (
        "schedule",
        "recompute",
        "optimizer",
        "batch.micro",
        "cluster.gpus_per_node",
        "parallel.virtual_stages",
    )
    for key in defaults:
        assert "(default)" in scenario.echo[key], key


def test_gpt_conventions() -> None:
    model = scenario_from_mapping(gpt3()).model
    assert model is not None
    assert (model.intermediate_size, model.num_key_value_heads, model.head_dim) == (49152, 96, 128)
    assert (model.tie_word_embeddings, model.biases, model.num_learned_positions) == (True, True, 2048)


def test_preset_hardware_in_si_units() -> None:
    cluster = scenario_from_mapping(gpt3()).cluster
    assert cluster is not None
    assert cluster.num_gpus == 128
    assert cluster.accelerator.peak_flops["bf16"] == 312e12
    assert cluster.accelerator.memory_bytes == 79.25 * 2**30
    assert cluster.intra_node.name == "nvlink3"
    assert cluster.intra_node.bytes_per_s == pytest.approx(240e9)
    assert cluster.inter_node.nominal_bytes_per_s == 25e9
    assert cluster.inter_node.bytes_per_s == pytest.approx(23.5e9)
    assert cluster.inter_node.p2p_latency_s == pytest.approx(20e-6)


def test_preset_with_overrides_says_so() -> None:
    mapping = gpt3()
    mapping["cluster"] = GPT3["cluster"] | {
        "accelerator": {"preset": "A100_SXM_80", "memory": "40 GB", "peak": {"bf16": "300 TFLOP/s"}}
    }
    accelerator = scenario_from_mapping(mapping).cluster.accelerator
    assert accelerator.memory_bytes == 40e9
    assert accelerator.peak_flops["bf16"] == 300e12
    assert accelerator.peak_flops["fp16"] == 312e12
    assert accelerator.source.endswith("changed by the scenario: memory, peak")


def test_hardware_stated_in_full() -> None:
    link = {"bandwidth": "800 Gbit/s", "p2p_latency": "5 us", "hop_latency": "2 us"}
    efficiency = {
        "gemm": "60 %", "gemm_fp8": 0.5, "attention": 0.4, "attention_kernel": "flash", "memory": 0.8,
        "layer_overhead": "0.1 ms", "tensor_collective_factor": 0, "intra_node_bandwidth_factor": 1,
        "unaligned_gemm": 1,
    }  # fmt: skip
    scenario = scenario_from_mapping(
        gpt3(
            cluster={
                "accelerator": {
                    "peak": {"fp16": "100 TFLOP/s"},
                    "memory": "64 GiB",
                    "memory_bandwidth": "1 TB/s",
                },
                "num_nodes": 8,
                "intra_node": link,
                "inter_node": link,
            },
            efficiency=efficiency,
        )
    )
    assert scenario.cluster.inter_node.bytes_per_s == 100e9
    assert scenario.precision.compute == "fp16"
    assert scenario.efficiency.gemm == 0.6
    assert not scenario.borrowed_for
    assert scenario.warnings == ()


def test_efficiency_of_a_relative_is_marked_as_borrowed() -> None:
    mapping = gpt3()
    mapping["cluster"] = GPT3["cluster"] | {"accelerator": "mi300x"}
    scenario = scenario_from_mapping(mapping)
    assert scenario.borrowed_for
    assert any("not fitted on mi300x" in warning for warning in scenario.warnings)
    assert not scenario_from_mapping(gpt3()).borrowed_for


def test_one_efficiency_number_changes_and_the_rest_stays() -> None:
    scenario = scenario_from_mapping(gpt3(), overrides=["efficiency.gemm=0.5"])
    assert scenario.efficiency.gemm == 0.5
    assert scenario.efficiency.layer_overhead_s == pytest.approx(0.59e-3)
    assert "changed by the scenario: gemm" in scenario.efficiency.source


def test_one_node_needs_no_link_between_nodes() -> None:
    cluster = {"accelerator": "h100-sxm", "num_nodes": 1, "gpus_per_node": 8}
    scenario = scenario_from_mapping(gpt3(cluster=cluster, parallel={"pipeline": 8}))
    assert scenario.cluster.inter_node == scenario.cluster.intra_node
    assert "cluster.inter_node" not in scenario.echo


def test_tensor_across_nodes_is_legal_with_a_warning() -> None:
    scenario = scenario_from_mapping(gpt3(parallel={"pipeline": 4, "tensor": 16}))
    assert any("larger than a node of 8" in warning for warning in scenario.warnings)


def test_uneven_layers_are_counted_and_warned_of() -> None:
    scenario = scenario_from_mapping(
        gpt3(parallel={"pipeline": 7, "tensor": 8, "data": 1}), overrides=["cluster.num_nodes=7"]
    )
    assert scenario.echo["layers"] == "even: 14 14 14 14 14 13 13 on 7 stages (default)"
    assert "96 layers on 7 stages leave a remainder of 5" in str(uneven_words(scenario, 7))
    assert uneven_words(scenario, 8) is None


def test_layers_as_a_list() -> None:
    counts = [13, 12, 12, 12, 12, 12, 12, 11]
    scenario = scenario_from_mapping(gpt3(layers=counts))
    assert scenario.layers.per_stage == tuple(counts)
    assert scenario.echo["layers"] == "list: 13 12 12 12 12 12 12 11 on 8 stages"


def test_microbatches_give_the_global_batch() -> None:
    scenario = scenario_from_mapping(gpt3(batch={"microbatches": 64, "micro": 2}))
    assert scenario.batch.global_size == 64 * 2 * 2


def test_direct_costs() -> None:
    scenario = scenario_from_mapping(direct(p2p="100 ms", activations=["1 GB", "1 GB", "2 GB", "1 GB"]))
    assert (scenario.costs.forward_s, scenario.costs.backward_s) == (1.0, 2.0)
    assert scenario.costs.p2p_latency_s == pytest.approx(0.1)
    assert scenario.costs.p2p_bytes_per_s is None
    assert scenario.costs.activation_bytes == (1e9, 1e9, 2e9, 1e9)
    assert scenario.costs.input_gradient_s is None
    assert scenario.batch.global_size is None
    assert scenario.echo["costs.weight_gradient_share"] == "0.5 of the backward (default)"


def test_direct_costs_with_a_link() -> None:
    costs = scenario_from_mapping(
        direct(p2p={"latency": "10 us", "bandwidth": "25 GB/s"}, boundary="64 MB")
    ).costs
    assert (costs.p2p_latency_s, costs.p2p_bytes_per_s, costs.boundary_bytes) == (
        pytest.approx(1e-5),
        25e9,
        64e6,
    )


def test_direct_costs_stay_exact() -> None:
    third = Fraction(1, 3)
    costs = scenario_from_mapping(
        direct(forward=third, backward=[third] * 4, p2p=third, optimizer=third, gradient_sync=third)
    ).costs
    assert costs.forward_s == costs.p2p_latency_s == costs.optimizer_s == costs.gradient_sync_s == third
    assert costs.backward_s == (third,) * 4
    assert isinstance(costs.p2p_latency_s, Fraction)


def test_the_backward_in_parts() -> None:
    mapping = direct(input_gradient=[0, "1 s", "1 s", "1 s"], weight_gradient=["1 s", "1 s", "1 s", "2 s"])
    del mapping["costs"]["backward"]
    costs = scenario_from_mapping(mapping).costs
    assert costs.backward_s == (1, 2, 2, 3)
    costs = scenario_from_mapping(direct(weight_gradient_share="25 %")).costs
    assert (costs.input_gradient_s, costs.weight_gradient_s) == (1.5, 0.5)


def test_files_are_relative_to_the_scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "deep" / "x.yaml"
    file.parent.mkdir()
    file.write_text(
        "parallel: {pipeline: 2}\nbatch: {microbatches: 4}\ncosts: {file: c.yaml}\nschedule: {csv: s.csv}\n"
    )
    scenario = load_scenario(Path("deep") / "x.yaml")
    assert scenario.costs_file == str(file.parent / "c.yaml")
    assert scenario.schedule.csv == str(file.parent / "s.csv")
    assert scenario.costs is None
    assert scenario.name == "x"


def test_schedule_options_pass_through() -> None:
    scenario = scenario_from_mapping(direct() | {"schedule": {"name": "zb-h1", "limit": 3}})
    assert (scenario.schedule.name, scenario.schedule.options) == ("zb-h1", {"limit": 3})


def test_overrides_set_values_and_make_mappings() -> None:
    original = gpt3()
    changed = apply_overrides(
        original,
        [
            "cluster.inter_node.bandwidth=100 Gbit/s",
            "network.p2p=blocking",
            "parallel.data=null",
            "layers=[1, 2]",
        ],
    )
    assert changed["cluster"]["inter_node"] == {"preset": "ib-hdr", "bandwidth": "100 Gbit/s"}
    assert changed["network"] == {"p2p": "blocking"}
    assert changed["parallel"]["data"] is None
    assert changed["layers"] == [1, 2]
    assert original == GPT3


def test_a_wrong_override_is_blamed_on_the_override(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError) as caught:
        load_scenario(SCENARIOS / "gpt3-175b-a100.yaml", ["seed=1", "parallel.virtual_stages=97"])
    assert str(caught.value).startswith("--set parallel.virtual_stages=97: parallel.virtual_stages: ")
