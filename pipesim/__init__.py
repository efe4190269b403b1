"""Predict pipeline-parallel training before buying hardware, and check the prediction on real devices.

The names below load on first use, so that importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "Action": "pipesim.ir.actions",
    "CostTable": "pipesim.costs",
    "Op": "pipesim.ir.actions",
    "PipesimError": "pipesim.errors",
    "Schedule": "pipesim.ir.actions",
    "Shape": "pipesim.schedules",
    "Timeline": "pipesim.ir.timeline",
    "build_costs": "pipesim.costs",
    "compare": "pipesim.questions",
    "generate": "pipesim.schedules",
    "load_scenario": "pipesim.scenario",
    "lower": "pipesim.ir",
    "measure": "pipesim.metrics",
    "scenario_from_mapping": "pipesim.scenario",
    "simulate": "pipesim.timing.engine",
    "simulate_scenario": "pipesim.questions",
}
__all__ = sorted(_HOMES)
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pipesim' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]
