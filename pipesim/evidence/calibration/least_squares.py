"""Robust least squares of a handful of parameters, in numpy alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

_STEP = 1e-4
_PATTERN_STEPS = (0.1, 0.03, 0.01)
"""Shares of each parameter's range."""
_NEAR_STEPS = (0.02,)
_PATTERN_ROUNDS = 10
_MAX_ROUNDS = 60
_TOLERANCE = 1e-7


@dataclass(frozen=True, slots=True)
class Fit:
    """Where a fit ended.

    Parameters
    ----------
    values : FloatArray, shape (parameters,)
        The best parameters.
    residuals : FloatArray, shape (rows,)
        At those parameters.
    jacobian : FloatArray, shape (rows, parameters)
        Change of the residuals for a relative change of each parameter's range.
    """

    values: FloatArray
    residuals: FloatArray
    jacobian: FloatArray


def robust_fit(
    residuals: Callable[[FloatArray], FloatArray],
    *,
    start: Sequence[float],
    lower: Sequence[float],
    upper: Sequence[float],
    scale: float,
    weights: FloatArray | None = None,
    near: bool = False,
) -> Fit:
    """Minimise the sum of pseudo-Huber losses of the residuals inside a box.

    A pattern search that any jump of the residuals leaves unharmed, then Levenberg-Marquardt steps.

    Parameters
    ----------
    residuals : Callable
        From parameters, shape (parameters,), to residuals, shape (rows,).
    start, lower, upper : sequence of float, shape (parameters,)
        Where to begin, and the box.
    scale : float
        Residuals well above it count linearly, so that an outlier pulls no harder than any other row.
    weights : FloatArray, shape (rows,), optional
        Weight of each row's loss; all alike by default.
    near : bool
        Whether `start` is near, so that the search need not begin with large steps.
    """
    low, span = np.asarray(lower, float), np.asarray(upper, float) - np.asarray(lower, float)

    def at(unit: FloatArray) -> FloatArray:
        return residuals(low + unit * span)

    def loss(r: FloatArray) -> float:
        return float(np.sum(given * (np.sqrt(1 + (r / scale) ** 2) - 1)))

    unit = np.clip((np.asarray(start, float) - low) / span, 0, 1)
    r = at(unit)
    given = np.ones_like(r) if weights is None else weights
    unit, r = _pattern_search(at, loss, unit, r, _NEAR_STEPS if near else _PATTERN_STEPS)
    damping = 1e-3
    for _ in range(_MAX_ROUNDS):
        jacobian = _jacobian(at, unit, r)
        weight = given / np.sqrt(1 + (r / scale) ** 2)
        gradient = jacobian.T @ (weight * r)
        # A parameter at its bound that wants to leave the box stays there.
        free = ~(((unit <= 0) & (gradient > 0)) | ((unit >= 1) & (gradient < 0)))
        if not free.any():
            break
        normal = (jacobian[:, free] * weight[:, None]).T @ jacobian[:, free]
        moved = 0.0
        while damping < 1e9:
            ridge = damping * (np.diag(np.diag(normal)) + 1e-12 * np.eye(len(normal)))
            step = np.zeros_like(unit)
            step[free] = -np.linalg.solve(normal + ridge, gradient[free])
            candidate = np.clip(unit + step, 0, 1)
            tried = at(candidate)
            if loss(tried) < loss(r):
                moved = float(np.abs(candidate - unit).max())
                unit, r, damping = candidate, tried, max(damping / 10, 1e-9)
                break
            damping *= 10
        if moved < _TOLERANCE:
            break
    return Fit(low + unit * span, r, _jacobian(at, unit, r))


def _pattern_search(
    at: Callable[[FloatArray], FloatArray],
    loss: Callable[[FloatArray], float],
    unit: FloatArray,
    r: FloatArray,
    steps: Sequence[float],
) -> tuple[FloatArray, FloatArray]:
    """Move one parameter at a time by ever smaller steps while that helps."""
    best = loss(r)
    for step in steps:
        for _ in range(_PATTERN_ROUNDS):
            before = best
            for index in range(len(unit)):
                for sign in (1, -1):
                    candidate = unit.copy()
                    candidate[index] = min(1.0, max(0.0, unit[index] + sign * step))
                    tried = at(candidate)
                    if loss(tried) < best:
                        unit, r, best = candidate, tried, loss(tried)
                        break
            if best == before:
                break
    return unit, r


def _jacobian(at: Callable[[FloatArray], FloatArray], unit: FloatArray, r: FloatArray) -> FloatArray:
    columns = []
    for index in range(len(unit)):
        moved = unit.copy()
        sign = 1 if unit[index] + _STEP <= 1 else -1
        moved[index] += sign * _STEP
        columns.append((at(moved) - r) / (sign * _STEP))
    return np.stack(columns, axis=1)
