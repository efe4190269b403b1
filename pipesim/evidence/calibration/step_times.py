"""A user's own cluster from a few measured step times: what they tell, what they leave open, what follows.

Each quantity that may be otherwise on a cluster of one's own starts from its preset, with the spread that
published clusters show. Measured steps pull it; where they cannot, it keeps preset and spread. The spreads
that remain give the error band of every other configuration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipesim.errors import ScenarioError
from pipesim.evidence.published import Predictor
from pipesim.evidence.published.tables import Line, read_table_file
from pipesim.scenario import ResolvedScenario, load_scenario
from pipesim.scenario.resolved import Efficiency
from pipesim.units import parse_time_s

FloatArray = npt.NDArray[np.float64]

STEP_TIME, SCENARIO = "step_time", "scenario"
"""Columns of the table; every other one is a key of the scenario, by its dotted path."""
REPEAT_SCATTER = 0.003
"""Of a measured step time, as a share: the mean over some steps of one run."""
MODEL_SCATTER = 0.015
"""Of a prediction where every quantity is known: repeats in published tables differ by 1 to 2 %."""
IDENTIFIED_BELOW = 0.5
"""A quantity counts as identified where the measurements leave less than this share of its spread."""
_RATES = ("gemm", "gemm_fp8", "attention")
_FARTHEST = 4
"""Spreads that a quantity may move."""
_ROUNDS = 12
_STEP = 1e-3


@dataclass(frozen=True, slots=True)
class Quantity:
    """Something to calibrate.

    Parameters
    ----------
    name, words : str
        For the output.
    spread : float
        Standard deviation over clusters: of the logarithm, for a step overhead as a share of the step time.
    """

    name: str
    words: str
    spread: float


QUANTITIES = (
    Quantity("speed", "rate of computing, as a factor on the preset's", 0.20),
    Quantity("step_overhead", "time of a step beside all that is modelled", 0.20),
    Quantity("layer_overhead", "overhead of a layer, as a factor on the preset's", 0.50),
    Quantity("tensor_collectives", "time of tensor-parallel collectives, as a factor", 0.50),
    Quantity("inter_node_bandwidth", "bandwidth between nodes, as a factor", 0.35),
)
"""Presets of one kind of accelerator differ by about these."""


@dataclass(frozen=True, slots=True)
class Step:
    """A line of the table: a configuration, and its step time where it was measured."""

    label: str
    scenario: ResolvedScenario
    step_time_s: float | None


@dataclass(frozen=True, slots=True)
class Found:
    """A quantity after calibration; `spread` is what is left of `Quantity.spread`."""

    quantity: Quantity
    value: float
    spread: float

    @property
    def identified(self) -> bool:
        """Whether the measurements say something about it."""
        return self.spread < IDENTIFIED_BELOW * self.quantity.spread


@dataclass(frozen=True, slots=True)
class Forecast:
    """A configuration predicted with the calibrated quantities.

    Nine of ten steps should lie between `low_s` and `high_s`.
    """

    step: Step
    predicted_s: float
    low_s: float
    high_s: float

    @property
    def error(self) -> float | None:
        """Signed, where a step time was measured."""
        return None if self.step.step_time_s is None else self.predicted_s / self.step.step_time_s - 1


@dataclass(frozen=True, slots=True)
class StepCalibration:
    """What a table of step times says of a cluster."""

    efficiency: Efficiency
    inter_node_factor: float
    found: tuple[Found, ...]
    forecasts: tuple[Forecast, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "efficiency": self.efficiency_keys(),
            "inter_node_bandwidth_factor": self.inter_node_factor,
            "quantities": [
                {
                    "name": one.quantity.name,
                    "value": one.value,
                    "spread": one.spread,
                    "spread_before": one.quantity.spread,
                    "identified": one.identified,
                }
                for one in self.found
            ],
            "rows": [
                {
                    "label": one.step.label,
                    "measured_step_time_s": one.step.step_time_s,
                    "predicted_step_time_s": one.predicted_s,
                    "low_s": one.low_s,
                    "high_s": one.high_s,
                    "step_time_error": one.error,
                }
                for one in self.forecasts
            ],
        }

    def efficiency_keys(self) -> dict[str, Any]:
        """``efficiency:`` keys of a scenario on this cluster."""
        e = self.efficiency
        return {
            "name": e.name,
            "gemm": round(e.gemm, 5),
            "gemm_fp8": round(e.gemm_fp8, 5),
            "attention": round(e.attention, 5),
            "attention_kernel": e.attention_kernel,
            "memory": round(e.memory, 5),
            "layer_overhead": f"{1e3 * e.layer_overhead_s:.5g} ms",
            "tensor_collective_factor": round(e.tensor_collective_factor, 5),
            "intra_node_bandwidth_factor": e.intra_node_bandwidth_factor,
            "unaligned_gemm": e.unaligned_gemm,
            "grouped_gemm": e.grouped_gemm,
            "overlap_slowdown": e.overlap_slowdown,
            "loss_kernel": e.loss_kernel,
            "weight_gradient_placeholders": e.weight_gradient_placeholders,
            "step_overhead": f"{e.step_overhead_s:.6g} s",
            "error_band": None if e.error_band is None else round(e.error_band, 4),
            "source": e.source,
        }


def read_steps(path: str | Path, scenario: str | Path | None = None) -> list[Step]:
    """Read a CSV of configurations; an empty step time asks for a prediction.

    Parameters
    ----------
    path : str or Path
        Columns: ``step_time`` (seconds, or with a unit); ``scenario`` with a file for each line, relative to
        the table; and any keys of the scenario by their dotted path, such as ``batch.global``.
    scenario : str or Path, optional
        The scenario of lines that name none.

    Raises
    ------
    ScenarioError
        If the table or a scenario cannot be read, or no step time is stated.
    """
    steps = [_read_step(line, Path(path), scenario) for line in read_table_file(path)]
    if all(step.step_time_s is None for step in steps):
        raise ScenarioError("no line has a step time, so there is nothing to calibrate from", file=str(path))
    without = next((step for step in steps if step.scenario.efficiency is None), None)
    if without is not None:
        raise ScenarioError(
            f"{without.label}: its costs are stated, so nothing can be calibrated; needed: model and cluster",
            file=str(path),
        )
    return steps


def _read_step(line: Line, table: Path, scenario: str | Path | None) -> Step:
    named = line.get(SCENARIO)
    if named:
        file = table.parent / named
    elif scenario is not None:
        file = Path(scenario)
    else:
        raise ScenarioError(
            "names no scenario; add a column 'scenario', or give a scenario file",
            file=line.file,
            key=f"line {line.number}",
        )
    overrides = [f"{key}={line[key]}" for key in line if key not in (SCENARIO, STEP_TIME) and line[key]]
    cell = line[STEP_TIME]
    seconds = None if not cell else _seconds(cell, line)
    try:
        resolved = load_scenario(file, overrides)
    except ScenarioError as error:
        if not str(error.file).startswith("--set "):
            raise
        raise ScenarioError(error.message, file=line.file, key=f"line {line.number}, {error.key}") from None
    return Step(", ".join(overrides) or file.stem, resolved, seconds)


def _seconds(cell: str, line: Line) -> float:
    key = f"line {line.number}, {STEP_TIME}"
    try:
        seconds = float(cell)
    except ValueError:
        seconds = float(parse_time_s(cell, key=key, file=line.file))
    if not 0 < seconds < float("inf"):
        raise ScenarioError(f"found {cell!r}; a positive time is needed", file=line.file, key=key)
    return seconds


def calibrate_steps(steps: Sequence[Step]) -> StepCalibration:
    """Calibrate the quantities to the measured steps and predict all of them.

    The most probable values under independent normal spreads (Gauss-Newton), and from the curvature there
    what spread is left.
    """
    measured = [step for step in steps if step.step_time_s is not None]
    problem = _Problem(min(step.step_time_s or 0.0 for step in measured))
    target = np.log([step.step_time_s or 0.0 for step in measured])
    values = np.zeros(len(QUANTITIES))
    spreads = np.array([quantity.spread for quantity in QUANTITIES])
    for _ in range(_ROUNDS):
        logs, jacobian = problem.logs_and_jacobian(measured, values)
        normal = jacobian.T @ jacobian / REPEAT_SCATTER**2 + np.diag(1 / spreads**2)
        gradient = jacobian.T @ (target - logs) / REPEAT_SCATTER**2 - values / spreads**2
        values = np.clip(
            values + np.linalg.solve(normal, gradient), -_FARTHEST * spreads, _FARTHEST * spreads
        )
    _, jacobian = problem.logs_and_jacobian(measured, values)
    covariance = np.linalg.inv(jacobian.T @ jacobian / REPEAT_SCATTER**2 + np.diag(1 / spreads**2))
    found = tuple(
        Found(quantity, problem.shown(quantity, value), float(np.sqrt(covariance[i, i])))
        for i, (quantity, value) in enumerate(zip(QUANTITIES, values.tolist(), strict=True))
    )
    logs, jacobian = problem.logs_and_jacobian(steps, values)
    variance = np.einsum("ij,jk,ik->i", jacobian, covariance, jacobian) + MODEL_SCATTER**2
    nine_of_ten = 1.645 * np.sqrt(variance)
    forecasts = tuple(
        Forecast(step, *np.exp([log, log - band, log + band]).tolist())
        for step, log, band in zip(steps, logs, nine_of_ten, strict=True)
    )
    changed = problem.scenario(measured[0].scenario, values)
    assert changed.efficiency is not None
    measured_bands = [band for step, band in zip(steps, nine_of_ten, strict=True) if step.step_time_s]
    efficiency = replace(
        changed.efficiency,
        name=f"{changed.efficiency.name}, calibrated",
        source=f"{len(measured)} measured step times, starting from {changed.efficiency.name}",
        error_band=float(np.expm1(max(measured_bands))),
        fitted=True,
    )
    return StepCalibration(efficiency, float(np.exp(values[4])), found, forecasts)


class _Problem:
    """Log step times as a function of the quantities, each 0 at its preset."""

    def __init__(self, overhead_unit_s: float) -> None:
        self.predictor = Predictor()
        self.overhead_unit_s = overhead_unit_s

    def shown(self, quantity: Quantity, value: float) -> float:
        return value * self.overhead_unit_s if quantity.name == "step_overhead" else float(np.exp(value))

    def scenario(self, scenario: ResolvedScenario, values: FloatArray) -> ResolvedScenario:
        speed, step_overhead, layer_overhead, collectives, inter_node = values.tolist()
        efficiency, cluster = scenario.efficiency, scenario.cluster
        assert efficiency is not None
        assert cluster is not None
        factor = float(np.exp(speed))
        changed: Mapping[str, Any] = {
            **{name: min(1.0, getattr(efficiency, name) * factor) for name in _RATES},
            "layer_overhead_s": efficiency.layer_overhead_s * float(np.exp(layer_overhead)) / factor,
            "tensor_collective_factor": efficiency.tensor_collective_factor * float(np.exp(collectives)),
            "step_overhead_s": efficiency.step_overhead_s + step_overhead * self.overhead_unit_s,
        }
        link = cluster.inter_node
        link = replace(link, bytes_per_s=link.bytes_per_s * float(np.exp(inter_node)))
        return replace(
            scenario, efficiency=replace(efficiency, **changed), cluster=replace(cluster, inter_node=link)
        )

    def logs(self, steps: Sequence[Step], values: FloatArray) -> FloatArray:
        seconds = [self.predictor.step_time_s(self.scenario(step.scenario, values)) for step in steps]
        return np.log(seconds)

    def logs_and_jacobian(self, steps: Sequence[Step], values: FloatArray) -> tuple[FloatArray, FloatArray]:
        logs = self.logs(steps, values)
        columns = []
        for index in range(len(values)):
            moved = values.copy()
            moved[index] += _STEP
            columns.append((self.logs(steps, moved) - logs) / _STEP)
        return logs, np.stack(columns, axis=1)
