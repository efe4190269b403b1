"""Megatron-Bridge's Python recipes as the settings that its YAML would hold."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pipesim.errors import ScenarioError
from pipesim.importers.model_names import preset_named
from pipesim.importers.overriding import with_overrides
from pipesim.importers.python_configuration import (
    ARGUMENTS,
    CALLED,
    PythonConfiguration,
    chosen_function,
)
from pipesim.importers.request import Request
from pipesim.reading import read_text
from pipesim.scenario.loading import read_yaml_mapping
from pipesim.scenario.settings import Settings, Unknown


def recipe_settings(request: Request) -> Settings:
    """Follow a recipe's function, and lay the further files over what it returns.

    Raises
    ------
    ScenarioError
        No such function, or one that builds no model.
    """
    path = request.paths[0]
    configuration = PythonConfiguration(read_text(path), file=str(path))
    name = chosen_function(request, configuration)
    values = configuration.result_of(name)
    model = values.get("model")
    if not isinstance(model, dict):
        raise ScenarioError("sets no cfg.model, as Megatron-Bridge's recipes do", file=str(path), key=name)
    model = dict(model)
    called = model.pop(CALLED, "")
    arguments = model.pop(ARGUMENTS, [])
    named = [text for text in (*arguments, called) if isinstance(text, str)]
    preset = next((found for text in named if (found := preset_named(text))), None)
    if preset is not None:
        model["preset"] = preset
    elif "num_layers" not in model:
        model["preset"] = Unknown(f"the shape of {' '.join(named)[:80]}, which is in Megatron-Bridge's code")
    precision, peft = values.get("mixed_precision"), values.get("peft")
    begun = values.pop(CALLED, "")
    values = {key: _without_calls(value) for key, value in {**values, "model": model}.items()}
    if isinstance(precision, dict):
        values["mixed_precision"] = {**_without_calls(precision), "recipe": _kind(precision)}
    if isinstance(peft, dict):
        values["peft"] = {**_without_calls(peft), "scheme": _kind(peft)}
    values = _over_defaults(values, begun, configuration.not_followed)
    settings = request.settings(with_overrides(values, request, {}), str(path))
    request.settings(configuration.not_followed, str(path))
    gpus = re.search(r"_(\d{1,7})gpus?_", name)
    if request.num_gpus is None and gpus is not None:
        request.num_gpus = int(gpus[1])
    return settings


@cache
def _defaults() -> Mapping[str, Mapping[str, Any]]:
    return read_yaml_mapping(Path(__file__).parent / "known" / "bridge_defaults.yaml")


def _over_defaults(values: dict[str, Any], begun: str, not_followed: dict[str, str]) -> dict[str, Any]:
    """Lay a recipe over what it begins with, where that is one of Megatron-Bridge's own beginnings."""
    common = _defaults().get(begun)
    if common is None:
        return values
    for line in [line for line, words in not_followed.items() if f"{begun}()" in words]:
        del not_followed[line]
    strategy = {"data_parallel_sharding_strategy": "optim_grads_params"}
    result = dict(values)
    for key, section in common.items():
        stated = values.get(key)
        if key == "dataset" and "seq_length" in values["model"]:
            continue
        if isinstance(section, dict) and isinstance(stated, dict):
            of_fsdp = strategy if key == "ddp" and stated.get("use_megatron_fsdp") else {}
            result[key] = (
                section
                | of_fsdp
                | {name: section.get(name) if item is None else item for name, item in stated.items()}
            )
        elif key not in values:
            result[key] = section
    return result


def _kind(value: dict[str, Any]) -> str:
    """Name what is called, or what it is given: ``LoRA(dim=8)`` or ``default_peft_config("lora")``."""
    texts = [text for text in value.get(ARGUMENTS, []) if isinstance(text, str)]
    return texts[0] if texts else str(value.get(CALLED, "")).rpartition(".")[2]


def _without_calls(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: _without_calls(item) for key, item in value.items() if key not in (CALLED, ARGUMENTS)}
