"""MLPerf's training submissions on NeMo: scripts of exports, which their YAML reads as the environment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pipesim.errors import ScenarioError
from pipesim.importers.model_names import ACCELERATORS
from pipesim.importers.request import Request
from pipesim.importers.shell import Script
from pipesim.scenario.loading import read_yaml_mapping

_VARIABLE = re.compile(r"oc\.env:([A-Za-z_]\w*)")
_SYSTEM = re.compile(r"config_(?:DGX)?(GB[23]00|[AH]100|B[23]00)_", re.IGNORECASE)
NEEDED = ("TENSOR_MODEL_PARALLEL", "PIPELINE_MODEL_PARALLEL", "MINIBS", "DGXNNODES")


def environment_of(script: Script) -> dict[str, str]:
    """Give the variables whose values are known; those that the user states go first."""
    found = {
        name: text
        for name, value in script.variables.values.items()
        if isinstance(value, str) and (text := script.variables.as_set(value)) is not None
    }
    return found | script.variables.pinned


@cache
def _template() -> Mapping[str, Any]:
    return read_yaml_mapping(Path(__file__).parent / "known" / "mlperf.yaml")


def mlperf_document(script: Script, file: str) -> Mapping[str, Any]:
    """Give the YAML that MLPerf's scripts are made for, where no such file is named.

    Raises
    ------
    ScenarioError
        Scripts without MLPerf's variables.
    """
    environment = environment_of(script)
    missing = [name for name in NEEDED if name not in environment]
    if missing:
        raise ScenarioError(
            f"assigns no {missing[0]}, as MLPerf's configurations on NeMo do; name a YAML file first, or "
            f"give it by --define {missing[0]}=VALUE",
            file=file,
        )
    return _template()


def unread(environment: Mapping[str, str], document: Mapping[str, Any]) -> dict[str, str]:
    """Give the variables in capitals that a document does not read, where it reads the environment at all."""
    read = set(_VARIABLE.findall(str(document)))
    if not read:
        return {}
    return {f"${name}": text for name, text in environment.items() if name.isupper() and name not in read}


def accelerator_of(request: Request) -> str | None:
    """Find the accelerator in the names of scripts, such as ``config_DGXH100_64x8x128x4x8_mbs2.sh``."""
    found = [match[1].lower() for path in request.paths if (match := _SYSTEM.match(path.name))]
    return ACCELERATORS[found[-1]] if found else None
