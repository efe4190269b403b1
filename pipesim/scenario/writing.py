"""A scenario as a file that loads as the same scenario."""

from __future__ import annotations

import os
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import yaml

from pipesim.errors import ScenarioError
from pipesim.files import write_text
from pipesim.scenario.entry import scenario_from_mapping
from pipesim.scenario.loading import parse_yaml
from pipesim.scenario.overrides import apply_changes
from pipesim.scenario.resolved import ResolvedScenario

_FILES = (("model", "hf"), ("costs", "file"), ("schedule", "csv"))
"""Keys that name a file, relative to the scenario's own."""
_INEXACT = ("weight_gradient_share", "activations", "boundary", "skips")
"""Of ``costs:``, what is no time."""


def scenario_text(scenario: ResolvedScenario, folder: str | Path) -> str:
    """Write a scenario's keys as YAML for a file in a folder.

    Raises
    ------
    ScenarioError
        If the scenario was not made from keys, or its model is code that is looked for beside its file.
    """
    if not scenario.keys:
        raise ScenarioError("was not made from the keys of a scenario, so there is nothing to write")
    origin = Path(scenario.file).parent if scenario.file else Path()
    if scenario.torch_model is not None and not os.path.samefile(origin, folder):
        raise ScenarioError(
            f"names code that is looked for in {origin}; write the scenario there", key="model.torch"
        )
    moved = {}
    for section, key in _FILES:
        stated = scenario.keys.get(section)
        if isinstance(stated, Mapping) and isinstance(stated.get(key), str):
            moved[section] = {**stated, key: os.path.relpath(origin / stated[key], folder)}
    plain = _plain(apply_changes(scenario.keys, moved), "")
    text: str = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=110)
    return text


def write_scenario(scenario: ResolvedScenario, path: str | Path) -> None:
    """Write a file that loads as the scenario, whole or not at all.

    Raises
    ------
    ScenarioError
        As for `scenario_text`; if it cannot be written, or would not load.
    """
    text = scenario_text(scenario, Path(path).parent)
    scenario_from_mapping(parse_yaml(text, file=str(path)), file=str(path))
    write_text(path, text)


def _plain(value: Any, path: str) -> Any:
    """Give what YAML writes; stated costs, which may be exact, stay so."""
    if isinstance(value, Mapping):
        return {str(key): _plain(below, f"{path}{key}.") for key, below in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(below, path) for below in value]
    if isinstance(value, Fraction):
        section, _, key = path.partition(".")
        is_exact = section == "costs" and not key.startswith(_INEXACT)
        return f"{value.numerator}/{value.denominator} s" if is_exact else float(value)
    return value
