"""What an order is searched for: times of all stages, and how much hops and computations vary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import log
from typing import Any

import numpy as np
import numpy.typing as npt

from pipesim.costs import CostTable, build_costs
from pipesim.errors import PipesimError
from pipesim.evidence.calibration.fit import MeasuredCosts
from pipesim.scenario import ResolvedScenario

ASSUMED_HOP_SPREAD = 0.6
"""Sigma of a hop's delay where none was measured: torch 2.13's runtime on gloo, CPU, our own runs."""
MOST_SPREAD = 1.0
ASSUMED_SPLIT = 1.2
"""I and W together in B, where they never ran apart: torch's split of linear layers took 1.1 to 1.25
(torch 2.13, CPU, our own runs)."""
_NORMAL_P90 = 1.2815515655446004
_HALVES = "half of the backward each"
_FEW = 5
_OF_THE_SCENARIO = (
    "activation_bytes",
    "weight_bytes",
    "gradient_bytes",
    "optimizer_bytes",
    "working_bytes",
    "deferred_bytes",
    "memory_limit_bytes",
)


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Costs of one number of stages, and their spread.

    Parameters
    ----------
    costs : CostTable
        A message's time is that of a hop: from the end of what gave it to the start of what takes it.
    hop_spread, compute_spread : float
        Sigmas of lognormal factors on hops and on computations.
    notes : tuple of str
        What was assumed, or could not be measured.
    """

    costs: CostTable
    hop_spread: float
    compute_spread: float
    notes: tuple[str, ...]


def stated_times(scenario: ResolvedScenario, num_chunks: int) -> StageTimes:
    """Take the scenario's own costs: stated, from a calibrated file, or modelled."""
    costs = build_costs(scenario, num_chunks=num_chunks)
    notes = [f"how much hops vary was not measured: a spread of {ASSUMED_HOP_SPREAD} is assumed"]
    if costs.provenance.get("input and weight gradient") == _HALVES:
        costs = replace(
            costs,
            input_gradient_s=_with_first(costs.input_gradient_s, 0),
            weight_gradient_s=_with_first(costs.weight_gradient_s, costs.backward_s[0]),
        )
        notes.append(
            "I and W are taken as halves of B, but of stage 0: torch leaves nothing to its I, all to its W; "
            "state costs.input_gradient and costs.weight_gradient, or measure them"
        )
    return StageTimes(costs, ASSUMED_HOP_SPREAD, 0.0, tuple(notes))


def measured_times(found: MeasuredCosts, scenario: ResolvedScenario, num_chunks: int) -> StageTimes:
    """Take measured costs; memory, which runs do not measure, from the scenario where it has any."""
    costs, notes = found.costs, list(found.notes)
    try:
        modelled = build_costs(scenario, num_chunks=num_chunks)
    except PipesimError:  # what ran may be none that can be modelled
        modelled = None
    if modelled is not None:
        costs = replace(costs, **{name: getattr(modelled, name) for name in _OF_THE_SCENARIO})
    apart = found.evidence["operations_s"].get("I", {})
    unknown = np.array([str(stage) not in apart for stage in range(costs.num_stages)])
    if unknown.any():
        costs = _with_assumed_split(costs, unknown)
        notes.append(
            f"I and W never ran apart: taken as {ASSUMED_SPLIT} times B together, stage 0's I as nothing, "
            "as in torch; run or profile an order that splits, such as zb-h1 or zb-v, too"
        )
    hop = _spread(found.evidence["message_s"]["sizes"])
    if hop is None:
        notes.append(f"how much hops vary was not measured: a spread of {ASSUMED_HOP_SPREAD} is assumed")
    operations = [one for stages in found.evidence["operations_s"].values() for one in stages.values()]
    return StageTimes(
        costs, ASSUMED_HOP_SPREAD if hop is None else hop, _spread(operations) or 0.0, tuple(notes)
    )


def _with_assumed_split(costs: CostTable, unknown: npt.NDArray[np.bool_]) -> CostTable:
    backward = costs.backward_s
    first = np.arange(costs.num_stages) == 0
    input_s = np.where(first, 0.0, ASSUMED_SPLIT / 2 * backward)
    weight_s = np.where(first, backward, ASSUMED_SPLIT / 2 * backward)
    return replace(
        costs,
        input_gradient_s=np.where(unknown, input_s, costs.input_gradient_s),
        weight_gradient_s=np.where(unknown, weight_s, costs.weight_gradient_s),
    )


def _spread(groups: list[Mapping[str, Any]]) -> float | None:
    """Sigma of the lognormal with these percentiles, median over groups; None where samples are few."""
    sigmas = [
        log(group["p90_s"] / group["p10_s"]) / (2 * _NORMAL_P90)
        for group in groups
        if group["num_samples"] >= _FEW and group["p10_s"] > 0
    ]
    return min(float(np.median(sigmas)), MOST_SPREAD) if sigmas else None


def _with_first(values: Any, first: Any) -> Any:
    changed = values.copy()
    changed[0] = first
    return changed
