"""Scenarios: the file's schema, presets, and the plain data they end in."""

from pipesim.scenario.entry import load_scenario, need_scenario, scenario_from_mapping
from pipesim.scenario.hf.config import read_hf_config
from pipesim.scenario.layers import split_layers
from pipesim.scenario.loading import read_yaml_mapping
from pipesim.scenario.overrides import apply_overrides, parse_override, plain
from pipesim.scenario.presets import Preset, find_preset, get_preset, list_presets
from pipesim.scenario.resolved import ResolvedScenario

__all__ = [
    "Preset",
    "ResolvedScenario",
    "apply_overrides",
    "find_preset",
    "get_preset",
    "list_presets",
    "load_scenario",
    "need_scenario",
    "parse_override",
    "plain",
    "read_hf_config",
    "read_yaml_mapping",
    "scenario_from_mapping",
    "split_layers",
]
