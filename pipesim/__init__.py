"""Predict pipeline-parallel training before buying hardware, and check the prediction on real devices.

The names below load on first use, so that importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "Action": "pipesim.ir.actions",
    "CostTable": "pipesim.costs",
    "Lowered": "pipesim.ir.actions",
    "Op": "pipesim.ir.actions",
    "PipesimError": "pipesim.errors",
    "Prediction": "pipesim.prediction",
    "Scenario": "pipesim.api",
    "Schedule": "pipesim.ir.actions",
    "Shape": "pipesim.schedules",
    "Timeline": "pipesim.ir.timeline",
    "build_costs": "pipesim.costs",
    "calibrate": "pipesim.evidence.calibration.sources:calibrate_measured",
    "compare": "pipesim.questions",
    "execute": "pipesim.questions.execution:execute_scenario",
    "generate": "pipesim.schedules",
    "goodput": "pipesim.questions",
    "load_order": "pipesim.prediction",
    "lower": "pipesim.ir",
    "measure": "pipesim.metrics",
    "plan": "pipesim.questions.planning",
    "predict": "pipesim.prediction",
    "simulate": "pipesim.timing.engine",
    "sweep": "pipesim.questions.sweep",
    "torch_schedule": "pipesim.executor.torch_runtime",
    "tune": "pipesim.evidence.tuning",
    "validate": "pipesim.evidence.validation",
}
__all__ = sorted(_HOMES)
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pipesim' has no attribute {name!r}")
    module, _, attribute = _HOMES[name].partition(":")
    return getattr(importlib.import_module(module), attribute or name)


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]
