"""A user's own cluster from a few measured step times: what they tell, what they leave open, what follows.

Each quantity that may be otherwise on a cluster of one's own starts from its preset, with the spread that
published clusters show. Measured steps pull it; where they cannot, it keeps preset and spread. The spreads
that remain give the error band of every other configuration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipesim.errors import ScenarioError
from pipesim.evidence.calibration.domains import found_domain
from pipesim.evidence.calibration.row_samples import has_experts
from pipesim.evidence.published.tables import TableLine, read_table_file
from pipesim.prediction import Programs, predict
from pipesim.scenario import ResolvedScenario, load_scenario
from pipesim.scenario.hardware import Link
from pipesim.scenario.resolved import Efficiency
from pipesim.show.glossary import STEPS_FILE
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
_STEP = 1e-3
_TOLERANCE = 1e-10
_TRIALS = 20
"""Values tried at most: 10 to 15 settle. Times that contradict each other never do, and have a wide band."""


@dataclass(frozen=True, slots=True)
class ClusterQuantity:
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
    ClusterQuantity("speed", "rate of computing, as a factor on the preset's", 0.20),
    ClusterQuantity("step_overhead", "time of a step beside all that is modelled", 0.20),
    ClusterQuantity("layer_overhead", "overhead of a layer, as a factor on the preset's", 0.50),
    ClusterQuantity("tensor_collectives", "time of tensor-parallel collectives, as a factor", 0.50),
    ClusterQuantity("inter_node_bandwidth", "bandwidth between nodes, as a factor", 0.35),
)
"""Presets of one kind of accelerator differ by about these."""


@dataclass(frozen=True, slots=True)
class Step:
    """A line of the table: a configuration, and its step time where it was measured."""

    label: str
    scenario: ResolvedScenario
    step_time_s: float | None


@dataclass(frozen=True, slots=True)
class Estimate:
    """A quantity after calibration; `spread` is what is left of `ClusterQuantity.spread`."""

    quantity: ClusterQuantity
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
    """What a table of step times says of a cluster.

    Parameters
    ----------
    scenario : ResolvedScenario
        That of the first measured line, on the cluster as calibrated: a file of it predicts these times.
    inter_node_factor : float
        On the bandwidth between nodes.
    found : tuple of Estimate
        Every quantity.
    forecasts : tuple of Forecast
        Every line.
    """

    scenario: ResolvedScenario
    inter_node_factor: float
    found: tuple[Estimate, ...]
    forecasts: tuple[Forecast, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "efficiency": dict(self.scenario.keys["efficiency"]),
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
    try:
        lines = read_table_file(path)
    except ScenarioError as error:
        raise ScenarioError(
            f"{error.message}; needed: {STEPS_FILE}", file=error.file, key=error.key
        ) from None
    steps = [_read_step(line, Path(path), scenario) for line in lines]
    if all(step.step_time_s is None for step in steps):
        raise ScenarioError("no line has a step time, so there is nothing to calibrate from", file=str(path))
    without = next((step for step in steps if step.scenario.efficiency is None), None)
    if without is not None:
        raise ScenarioError(
            f"{without.label}: its costs are stated, so nothing can be calibrated; needed: model and cluster",
            file=str(path),
        )
    return steps


def _read_step(line: TableLine, table: Path, scenario: str | Path | None) -> Step:
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


def _seconds(cell: str, line: TableLine) -> float:
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

    The most probable values under independent normal spreads, within what a scenario may state, and from the
    curvature there what spread is left. Where the measured steps lie farther off than that explains, the
    bands are as wide as they lie off.
    """
    from scipy.optimize import least_squares

    measured = [step for step in steps if step.step_time_s is not None]
    problem = _StepTimes(measured)
    spreads = np.array([quantity.spread for quantity in QUANTITIES])
    lower = np.maximum(-_FARTHEST * spreads, problem.least_values())
    fit = least_squares(
        problem.residuals,
        np.maximum(0.0, lower),
        jac=problem.jacobian,
        bounds=(lower, _FARTHEST * spreads),
        method="dogbox",  # it leaves a bound on which it starts
        max_nfev=_TRIALS,
        **{f"{name}tol": _TOLERANCE for name in "xfg"},
    )
    values: FloatArray = fit.x
    covariance = np.linalg.inv(fit.jac.T @ fit.jac)
    found = tuple(
        Estimate(quantity, problem.shown(quantity, value), float(np.sqrt(covariance[i, i])))
        for i, (quantity, value) in enumerate(zip(QUANTITIES, values.tolist(), strict=True))
    )
    logs = problem.logs(steps, values)
    slopes = problem.slopes(steps, values, logs)
    variance = np.einsum("ij,jk,ik->i", slopes, covariance, slopes) + MODEL_SCATTER**2
    misfit = max(
        abs(log - np.log(step.step_time_s))
        for log, step in zip(logs, steps, strict=True)
        if step.step_time_s is not None
    )
    nine_of_ten = np.maximum(1.645 * np.sqrt(variance), misfit)
    forecasts = tuple(
        Forecast(step, *np.exp([log, log - band, log + band]).tolist())
        for step, log, band in zip(steps, logs, nine_of_ten, strict=True)
    )
    of_measured = [band for step, band in zip(steps, nine_of_ten, strict=True) if step.step_time_s]
    first = measured[0].scenario
    assert first.efficiency is not None
    changes = problem.changes(first, values)
    changes["efficiency"] |= {
        "name": f"{first.efficiency.name}, calibrated",
        "source": f"{len(measured)} measured step times, starting from {first.efficiency.name}",
        **_band_keys(measured, max(of_measured)),
    }
    return StepCalibration(first.with_(changes), float(np.exp(values[4])), found, forecasts)


def _band_keys(measured: Sequence[Step], half_width: float) -> dict[str, Any]:
    """Narrow the domain of the measured steps to what they tell; other models keep their band.

    Where the set has no rows of their kind, the band is stated for whatever follows.
    """
    scenarios = [step.scenario for step in measured]
    efficiency, experts = scenarios[0].efficiency, has_experts(scenarios[0])
    assert efficiency is not None
    if experts not in {domain.experts for domain in efficiency.domains}:
        return {"error_band": min(1.0, float(np.expm1(half_width)))}
    own = found_domain(scenarios, half_width)
    domains = [domain.with_own(own) if domain.experts == experts else domain for domain in efficiency.domains]
    return {"domains": [domain.model_dump(mode="json") for domain in domains]}


class _StepTimes:
    """Log step times as a function of the quantities, each 0 at its preset.

    Overheads of a step are counted in the shortest measured step.
    """

    def __init__(self, measured: Sequence[Step]) -> None:
        self.measured = measured
        self.target = np.log([step.step_time_s or 0.0 for step in measured])
        self.overhead_unit_s = min(step.step_time_s or 0.0 for step in measured)
        self.spreads = np.array([quantity.spread for quantity in QUANTITIES])
        self.programs = Programs()
        self._tried = np.empty(0), np.empty(0)

    def shown(self, quantity: ClusterQuantity, value: float) -> float:
        return value * self.overhead_unit_s if quantity.name == "step_overhead" else float(np.exp(value))

    def least_values(self) -> FloatArray:
        """Values below which a scenario could not state them: no overhead is negative."""
        presets = [step.scenario.efficiency for step in self.measured]
        overhead_s = min(preset.step_overhead_s for preset in presets if preset is not None)
        least = np.full(len(QUANTITIES), -np.inf)
        least[[quantity.name for quantity in QUANTITIES].index("step_overhead")] = (
            -overhead_s / self.overhead_unit_s
        )
        return least

    def changes(self, scenario: ResolvedScenario, values: FloatArray) -> dict[str, Any]:
        """Keys of a scenario on the cluster that the values describe."""
        speed, step_overhead, layer_overhead, collectives, inter_node = values.tolist()
        efficiency, cluster = scenario.efficiency, scenario.cluster
        assert efficiency is not None
        assert cluster is not None
        factor = float(np.exp(speed))
        overhead_s = max(0.0, efficiency.step_overhead_s + step_overhead * self.overhead_unit_s)
        layer_s = efficiency.layer_overhead_s * float(np.exp(layer_overhead)) / factor
        keys = {
            **efficiency_keys(efficiency, cluster.device_names(scenario.parallel.pipeline)),
            **{name: min(1.0, getattr(efficiency, name) * factor) for name in _RATES},
            "layer_overhead": f"{layer_s!r} s",
            "tensor_collective_factor": efficiency.tensor_collective_factor * float(np.exp(collectives)),
            "step_overhead": f"{overhead_s!r} s",
        }
        changes: dict[str, Any] = {"efficiency": keys}
        if cluster.num_nodes > 1:
            changes["cluster.inter_node"] = link_keys(cluster.inter_node, float(np.exp(inter_node)))
        return changes

    def logs(self, steps: Sequence[Step], values: FloatArray) -> FloatArray:
        seconds = [
            predict(
                step.scenario.with_(self.changes(step.scenario, values)),
                timing="fast",
                programs=self.programs,
            ).step_time_s
            for step in steps
        ]
        logs: FloatArray = np.log(np.array(seconds, float))
        return logs

    def slopes(self, steps: Sequence[Step], values: FloatArray, logs: FloatArray) -> FloatArray:
        """Change of the logs for a change of each value, shape (steps, quantities)."""
        columns = []
        for index in range(len(values)):
            moved = values.copy()
            moved[index] += _STEP
            columns.append((self.logs(steps, moved) - logs) / _STEP)
        return np.stack(columns, axis=1)

    def residuals(self, values: FloatArray) -> FloatArray:
        self._tried = values.copy(), self.logs(self.measured, values)
        misfit = (self._tried[1] - self.target) / REPEAT_SCATTER
        return np.concatenate([misfit, values / self.spreads])

    def jacobian(self, values: FloatArray) -> FloatArray:
        logs = self._tried[1] if np.array_equal(self._tried[0], values) else self.logs(self.measured, values)
        slopes = self.slopes(self.measured, values, logs)
        return np.concatenate([slopes / REPEAT_SCATTER, np.diag(1 / self.spreads)])


def efficiency_keys(efficiency: Efficiency, accelerators: list[str]) -> dict[str, Any]:
    """``efficiency:`` section of a scenario with a resolved set, fitted on the accelerators of a cluster."""
    stated: dict[str, Any] = efficiency.model_dump(mode="json", by_alias=True, exclude_none=True)
    if efficiency.peak is not None:
        stated["peak"] = {name: f"{rate!r} FLOP/s" for name, rate in efficiency.peak.rates.items()}
    return stated | {"fitted_on": list(dict.fromkeys(accelerators))}


def link_keys(link: Link, factor: float) -> dict[str, Any]:
    """Section of a scenario with a resolved link whose bandwidth is multiplied by a factor."""
    keys: dict[str, Any] = link.model_dump(mode="json", by_alias=True, exclude_none=True)
    keys["bandwidth"] = f"{float(link.nominal_bytes_per_s * factor)!r} B/s"
    if link.switches is not None:
        keys["in_network"]["bandwidth"] = f"{link.switches.bytes_per_s!r} B/s"
    return keys
