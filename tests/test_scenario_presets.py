"""Presets: every entry is complete, sourced, and usable in a scenario."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from pipesim.cli.app import app
from pipesim.errors import ScenarioError
from pipesim.scenario import Preset, find_preset, get_preset, list_presets, scenario_from_mapping

ALL = list_presets()
ALWAYS = [
    "a100-sxm-80", "h100-sxm", "h200-sxm", "b200-sxm", "mi300x", "nvlink3", "nvlink4", "ib-hdr", "ib-ndr",
    "gpt3-175b", "llama3-8b", "llama3-70b", "llama3-405b", "bloom-176b",
    "dgx-a100", "dgx-h100", "hgx-b200", "gb200-nvl72", "pcie-ethernet", "tpu-v5p-slice",
]  # fmt: skip


def scenario_with(preset: Preset):
    cluster = {
        "accelerator": "a100-sxm-80",
        "num_nodes": 2,
        "gpus_per_node": 1,
        "intra_node": "nvlink3",
        "inter_node": "ib-hdr",
    }
    mapping = {"model": "gpt3-6.7b", "cluster": cluster, "parallel": {"pipeline": 2}, "batch": {"global": 2}}
    match preset.kind:
        case "accelerators":
            cluster["accelerator"] = preset.name
        case "links":
            cluster["inter_node"] = preset.name
        case "models":
            mapping["model"] = preset.name
        case "efficiency":
            mapping["efficiency"] = preset.name
        case "machines":
            mapping["cluster"] = {"machine": preset.name, "num_nodes": 1}
            num_gpus = preset.fields["gpus_per_node"]
            mapping["batch"] = {"global": num_gpus // 2}
    return scenario_from_mapping(mapping)


@pytest.mark.parametrize("preset", ALL, ids=lambda preset: preset.name)
def test_every_preset_resolves_and_says_where_it_is_from(preset: Preset) -> None:
    scenario = scenario_with(preset)
    assert preset.source
    assert preset.date
    if preset.kind == "machines":
        assert scenario.cluster.gpus_per_node == preset.fields["gpus_per_node"]
        assert scenario.cluster.accelerator.name == preset.fields["accelerator"]
        assert scenario.echo["cluster.machine"] == preset.name
        return
    named = {
        "accelerators": scenario.cluster.accelerator,
        "links": scenario.cluster.inter_node,
        "models": scenario.model,
        "efficiency": scenario.efficiency,
    }[preset.kind]
    assert named.name == preset.name
    assert named.source == preset.source


def test_names_are_unique_and_the_promised_ones_are_there() -> None:
    names = [preset.name for preset in ALL]
    assert len(set(names)) == len(names)
    assert set(ALWAYS) <= set(names)


SPARSE_BF16_TFLOPS = {
    "a100-sxm-40": 624, "a100-sxm-80": 624, "a100-pcie-40": 624, "a100-pcie-80": 624, "h100-sxm": 1979,
    "h100-pcie": 1513, "h200-sxm": 1979, "b200-sxm": 4500, "gb200": 5000, "b300-sxm": 4500, "gb300": 5000,
    "l40s": 733, "mi300x": 2615, "mi325x": 2615,
}  # fmt: skip
"""As data sheets print them, with half of the weights left out."""


@pytest.mark.parametrize("name", SPARSE_BF16_TFLOPS)
def test_peak_rates_are_dense(name: str) -> None:
    number, unit = get_preset("accelerators", name).fields["peak"]["bf16"].split()
    assert unit == "TFLOP/s"
    assert 2 * float(number) == pytest.approx(SPARSE_BF16_TFLOPS[name], rel=0.015)


AS_SOURCES_PRINT_THEM = {
    "nvlink2": "300 GB/s", "nvlink3": "600 GB/s", "nvlink4": "900 GB/s", "nvlink5": "1800 GB/s",
    "nvlink4-h800": "400 GB/s", "xgmi-mi250x": "700 GB/s", "xgmi-mi300x": "896 GB/s",
    "xgmi-mi355x": "1071 GB/s", "tpu-ici-v5e": "100 GB/s", "tpu-ici-v6e": "200 GB/s",
    "tpu-ici-v7": "300 GB/s", "neuronlink-v3": "1280 GB/s",
    "tpu-ici-v5p": "200 GB/s", "pcie3-x16": "31.5 GB/s", "pcie4-x16": "62 GB/s", "pcie5-x16": "126 GB/s",
    "ib-edr": "100 Gbit/s", "ib-hdr": "200 Gbit/s", "ib-ndr": "400 Gbit/s", "ib-xdr": "800 Gbit/s",
    "roce-100": "100 Gbit/s", "roce-200": "200 Gbit/s", "roce-400": "400 Gbit/s",
    "efa-v2-p5-400": "400 Gbit/s", "efa-v3-p5en-400": "400 Gbit/s", "efa-v4-p6b200-400": "400 Gbit/s",
    "efa-v4-p6b300-800": "800 Gbit/s", "gcp-tcpxo-200": "200 Gbit/s",
}  # fmt: skip
"""Inside a node both directions in bytes, between nodes one direction in bits."""


def test_links_are_one_direction_in_bytes() -> None:
    printed = {name: text.split() for name, text in AS_SOURCES_PRINT_THEM.items()}
    one_way = {name: float(n) / (8 if unit == "Gbit/s" else 2) for name, (n, unit) in printed.items()}
    links = {link.name: link.fields["bandwidth"].split() for link in list_presets("links")}
    assert {unit for _, unit in links.values()} == {"GB/s"}
    assert {name: float(number) for name, (number, _) in links.items()} == one_way


def test_sets_are_marked_as_borrowed_off_their_accelerators() -> None:
    fitted = {preset.name: not scenario_with(preset).borrowed_for for preset in list_presets("accelerators")}
    measured = {"a100-sxm-80", "h100-sxm", "b200-sxm", "gb200", "b300-sxm", "gb300"}
    assert {name for name, value in fitted.items() if value} == measured


def test_a_changed_copy_changes_nothing_else() -> None:
    get_preset("links", "nvlink3").fields["bandwidth"] = "1 B/s"
    assert get_preset("links", "nvlink3").fields["bandwidth"] == "300 GB/s"


def test_lookup_forgives_case_and_underscores_and_offers_the_nearest() -> None:
    assert find_preset("H100_SXM").kind == "accelerators"
    with pytest.raises(ScenarioError, match=r"'h100-sxn'; did you mean 'h100-sxm'"):
        find_preset("h100-sxn")
    with pytest.raises(ScenarioError, match=r"no preset of links is named 'zzz' \(there are: pcie3-x16"):
        get_preset("links", "zzz")


def test_the_table_is_narrow_and_cuts_no_name() -> None:
    lines = CliRunner().invoke(app, ["presets"]).output.splitlines()
    rows = [tuple(cell.strip() for cell in line.split("|")[1:4]) for line in lines if line.startswith("|")]
    assert [row[:2] for row in rows[2:]] == [(preset.kind, preset.name) for preset in ALL]
    assert max(map(len, lines)) < 140
    figures = {name: words for _, name, words in rows}
    assert figures["roce-100"] == "12.5 GB/s (100 Gbit/s), 90% reached"
    assert figures["h100-sxm"] == "989 TFLOP/s bf16, 79.1 GiB at 3350 GB/s"
    assert figures["pcie-ethernet"] == "8 x a100-pcie-80, 1 x roce-100"


@pytest.mark.parametrize("preset", ALL, ids=lambda preset: preset.name)
def test_one_preset_is_shown_whole(preset: Preset) -> None:
    assert preset.source in CliRunner().invoke(app, ["presets", preset.name]).output
