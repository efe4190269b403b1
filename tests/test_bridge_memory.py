"""Configurations that NVIDIA ran must fit: layouts of its summaries with its recipes' settings."""

import pytest
from bridge_layouts import bridge

from pipesim.costs.transformer.parameters import model_parameters
from pipesim.device_memory import fits_memory, peak_memory_by_rank
from pipesim.evidence.published.tables import read_table
from pipesim.prediction import Programs, prepare
from pipesim.scenario import scenario_from_mapping

# Row: percent above the device's memory. They lack what makes them fit: as printed, without sharding or
# chunks, the first's weights and gradients alone take 282 GB.
EXCESS = {
    "LLAMA3_70B DGX-GB300 64 NVFP4 FSDP0 TP1 PP1 VPPn/a CP1 EPn/a MBS2 (26.02.01)": 97,
    "LLAMA3_70B DGX-GB300 64 MXFP8 FSDP0 TP1 PP4 VPPn/a CP1 EPn/a MBS2 (26.02.01)": 36,
}


@pytest.fixture(scope="module")
def rows():
    return bridge(read_table("nvidia_bridge_perf.csv"))


def test_94_in_100_of_the_configurations_that_ran_fit(rows):
    stated = [row for row in rows if row.left_out is None]
    assert len(stated) == 89
    programs, excess = Programs(), {}
    for row in stated:
        prepared = prepare(scenario_from_mapping(row.scenario), programs=programs)
        memory = peak_memory_by_rank(prepared.schedule, prepared.costs)
        if not fits_memory(memory, prepared.costs):
            excess[row.label] = round(100 * (max(memory) / prepared.costs.memory_limit_bytes - 1))
    assert excess == EXCESS
    assert len(excess) / len(stated) <= 0.06


def test_rows_that_do_not_state_what_is_needed_say_so(rows):
    reasons = [row.left_out for row in rows if row.left_out is not None]
    assert sorted({(reason, reasons.count(reason)) for reason in reasons}) == [
        ("the table does not state the chunks of a rank", 3),
        ("the table does not state the number format", 11),
    ]


def test_every_recipe_has_its_source_and_is_used(rows):
    recipes = read_table("nvidia_bridge_recipes.csv")
    assert all(recipe["source"].startswith("github:NVIDIA") for recipe in recipes)
    settings = {
        (tuple(row.scenario.get("recompute_modules", ())), row.scenario.get("offload", {}).get("activations"))
        for row in rows
        if row.scenario is not None
    }
    assert (("mla_up_proj", "mlp"), None) in settings
    assert ((), 0.5) in settings


def test_gpt_oss_120b_has_the_published_parameters():
    """116.83 billion (arXiv 2508.10925, table 1); 40 million of them are biases, which are left out."""
    scenario = scenario_from_mapping(
        {
            "model": "gpt-oss-120b",
            "cluster": {"machine": "dgx-h100", "num_nodes": 8},
            "parallel": {"pipeline": 4, "expert": 8},
            "batch": {"global": 64},
        }
    )
    biases = 36 * 128 * (2 * 2880 + 2880)
    assert model_parameters(scenario.model) + biases == pytest.approx(116.83e9, rel=1e-4)
