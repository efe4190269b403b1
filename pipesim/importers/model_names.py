"""Models and systems by the names that repositories, recipes and tables give them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pipesim.scenario.presets import get_preset, list_presets

ACCELERATORS = {
    "a100": "a100-sxm-80",
    "h100": "h100-sxm",
    "b200": "b200-sxm",
    "gb200": "gb200",
    "b300": "b300-sxm",
    "gb300": "gb300",
}
"""Presets by the names that NVIDIA's tables, recipes and submissions give their systems."""
_BESIDE = re.compile(
    r"^.*/|modelprovider|meta-|megatron-|-hf\b|-base\b|-instruct\b|-chat\b|-v0\.\d\b|-it\b|-\d{4}$|[^a-z0-9]"
)


def preset_named(name: str) -> str | None:
    """Find the preset of a model's name such as ``meta-llama/Meta-Llama-3-8B``; None where there is none."""
    plain = _plain(name)
    return next((preset.name for preset in list_presets("models") if _plain(preset.name) == plain), None)


def fields_of(model: Mapping[str, Any]) -> dict[str, Any]:
    """Give the fields of a ``model:`` section, those of the preset that it names included."""
    preset = model.get("preset")
    return (get_preset("models", preset, key="model").fields if preset else {}) | dict(model)


def _plain(name: str) -> str:
    return re.sub(r"^llama31(?=8b|70b|405b)", "llama3", _BESIDE.sub("", name.lower()))
