"""Write references out: names of presets and Hugging Face files become the fields they stand for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipesim.errors import ScenarioError
from pipesim.scenario.hf.config import read_hf_model
from pipesim.scenario.presets import Kind, Preset, get_preset, list_presets
from pipesim.units import parse_flops_per_s

CLUSTER_PRESETS: dict[str, Kind] = {
    "accelerator": "accelerators",
    "intra_node": "links",
    "inter_node": "links",
}


def expand(mapping: Mapping[str, Any], *, directory: Path, echo: dict[str, str]) -> dict[str, Any]:
    """Replace every reference by its fields, the user's own fields on top.

    What has the wrong form is left as it is, for the schema to refuse.

    Parameters
    ----------
    mapping : Mapping
        A scenario before validation.
    directory : Path
        Where relative file names start.
    echo : dict
        Receives, by dotted key, what was taken by default.

    Returns
    -------
    dict
        A new mapping without ``preset``, ``hf`` and ``machine`` keys.

    Raises
    ------
    ScenarioError
        An unknown preset, an unreadable configuration file, or two references for one thing.
    """
    result = dict(mapping)
    if "model" in result:
        result["model"] = _model(result["model"], directory, echo)
    if isinstance(result.get("cluster"), dict):
        result["cluster"] = _cluster(result["cluster"], echo)
    efficiency = _efficiency(result.get("efficiency"), result.get("cluster"), echo)
    if efficiency is not None:
        result["efficiency"] = efficiency
    return result


def _model(value: Any, directory: Path, echo: dict[str, str]) -> Any:
    if isinstance(value, dict) and "torch" in value:
        return value
    if isinstance(value, dict) and "hf" in value:
        if "preset" in value:
            raise ScenarioError("names both a preset and an hf file; one is needed", key="model")
        if not isinstance(value["hf"], str):
            raise ScenarioError(f"found {value['hf']!r}; the name of a config.json is needed", key="model.hf")
        read = read_hf_model(directory / value["hf"])
        fields = read.fields
        for key, words in read.not_used.items():
            echo[f"model.hf.{key}"] = f"{words} (not used)"
        own = {key: item for key, item in value.items() if key != "hf"}
        if "seq_length" not in own:
            echo["model.seq_length"] = (
                f"{fields['seq_length']} (not stated; taken from the positions that {value['hf']} allows, "
                "at most 8192)"
            )
        return _merged(fields, own)
    return _preset(value, "models", "model")


def _cluster(value: dict[str, Any], echo: dict[str, str]) -> dict[str, Any]:
    if value.get("groups") and "accelerator" in value:
        raise ScenarioError(
            "groups say what every node has; remove one of the two", key="cluster.accelerator"
        )
    cluster = _of_groups(_machine(value, echo), echo)
    for key, kind in CLUSTER_PRESETS.items():
        if key in cluster:
            cluster[key] = _preset(cluster[key], kind, f"cluster.{key}")
    others = cluster.get("other_accelerators")
    if isinstance(others, dict):
        cluster["other_accelerators"] = {
            rank: _preset(other, "accelerators", f"cluster.other_accelerators.{rank}")
            for rank, other in others.items()
        }
    accelerator = cluster.get("accelerator")
    if cluster.get("intra_node") is None and isinstance(accelerator, dict):
        usual = accelerator.get("intra_node")
        if isinstance(usual, str):
            cluster["intra_node"] = _preset(usual, "links", "cluster.accelerator.intra_node")
            echo["cluster.intra_node"] = f"{usual} (not stated; usual for {accelerator.get('name')})"
    return cluster


def _of_groups(value: dict[str, Any], echo: dict[str, str]) -> dict[str, Any]:
    """Write out what groups of nodes have; the first one's accelerator is the usual one, for presets."""
    groups = value.get("groups")
    if not isinstance(groups, list) or not groups or not all(isinstance(group, dict) for group in groups):
        return value
    written = []
    for at, group in enumerate(groups):
        own = {}
        if "accelerator" in group:
            where = f"cluster.groups[{at}].accelerator"
            own = {"accelerator": _preset(group["accelerator"], "accelerators", where)}
        written.append(group | own)
    numbers = [group.get("num_nodes") for group in groups]
    result = {**value, "groups": written}
    if "num_nodes" not in value and all(isinstance(n, int) and not isinstance(n, bool) for n in numbers):
        result["num_nodes"] = sum(numbers)
        echo["cluster.num_nodes"] = f"{result['num_nodes']} (of all groups)"
    if "accelerator" in written[0]:
        result["accelerator"] = written[0]["accelerator"]
    return result


def _machine(value: dict[str, Any], echo: dict[str, str]) -> dict[str, Any]:
    """Lay the user's fields over those of the machine that they name."""
    own = {key: item for key, item in value.items() if key != "machine"}
    if "machine" not in value:
        return own
    name = value["machine"]
    if not isinstance(name, str):
        raise ScenarioError(f"found {name!r}; the name of a machine is needed", key="cluster.machine")
    preset = get_preset("machines", name, key="cluster.machine")
    changed = f"; stated anew: {', '.join(sorted(own.keys() & preset.fields.keys()))}"
    echo["cluster.machine"] = preset.name + (changed if own.keys() & preset.fields.keys() else "")
    fields = {key: item for key, item in preset.fields.items() if key not in ("source", "date", "notes")}
    return fields | own


def _efficiency(value: Any, cluster: Any, echo: dict[str, str]) -> Any:
    accelerator = cluster.get("accelerator") if isinstance(cluster, dict) else None
    usual = accelerator.get("efficiency") if isinstance(accelerator, dict) else None
    if value is None:
        if not isinstance(usual, str):
            return _of_nearest_relative(accelerator, echo)
        echo["efficiency"] = (
            f"{usual} (not stated; the set for {accelerator.get('name') if accelerator else ''})"
        )
        return _preset(usual, "efficiency", "cluster.accelerator.efficiency")
    if isinstance(value, dict) and "preset" not in value and isinstance(usual, str):
        value = {"preset": usual} | value
    return _preset(value, "efficiency", "efficiency")


def _of_nearest_relative(accelerator: Any, echo: dict[str, str]) -> Any:
    """Efficiency of the fitted accelerator whose peak rate is nearest; whatever has no rate gets none."""
    stated = _peak_flops(accelerator) if isinstance(accelerator, dict) else None
    if stated is None:
        return None
    fitted = {name for preset in list_presets("efficiency") for name in preset.fields["fitted_on"]}
    relatives = [preset for preset in list_presets("accelerators") if preset.name in fitted]

    def distance(preset: Preset) -> float:
        return abs(math.log((_peak_flops(preset.fields) or math.inf) / stated))

    nearest = min(relatives, key=distance)
    usual = str(nearest.fields["efficiency"])
    echo["efficiency"] = f"{usual} (not stated; borrowed from {nearest.name}, the nearest in peak rate)"
    return _preset(usual, "efficiency", "efficiency")


def _peak_flops(accelerator: Mapping[str, Any]) -> float | None:
    peaks = accelerator.get("peak")
    rate = (peaks.get("bf16") or peaks.get("fp16")) if isinstance(peaks, dict) else None
    try:
        return parse_flops_per_s(rate)
    except ScenarioError:
        return None  # the schema refuses it with its key


def _preset(value: Any, kind: Kind, key: str) -> Any:
    if isinstance(value, str):
        value = {"preset": value}
    if not isinstance(value, dict) or "preset" not in value:
        return value
    name = value["preset"]
    if not isinstance(name, str):
        raise ScenarioError(f"found {name!r}; the name of a preset is needed", key=f"{key}.preset")
    preset = get_preset(kind, name, key=key)
    return _merged({"name": preset.name} | preset.fields, {k: v for k, v in value.items() if k != "preset"})


def _merged(fields: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Lay the user's fields over a preset's, and say in the source that they are the user's."""
    result = dict(fields)
    for key, item in own.items():
        below = result.get(key)
        result[key] = {**below, **item} if isinstance(below, dict) and isinstance(item, dict) else item
    changed = sorted(key for key in own if key in fields and key not in ("name", "source", "seq_length"))
    if changed and "source" not in own:
        result["source"] = (
            f"{fields.get('source', 'the preset')}; changed by the scenario: {', '.join(changed)}"
        )
    return result
