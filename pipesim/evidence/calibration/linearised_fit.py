"""Robust least squares where every look at the rows is dear: linear around the best parameters so far.

Parameters may be anchored: an expectation with a spread for each, which decides what the rows leave open.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipesim.evidence.calibration.samples import FloatArray

_STEP = 0.05
"""Of a parameter's unit, for slopes."""
_NUM_ROUNDS = 8
_CLOSE = 0.01
"""Of a parameter's unit: how far the last round may move it."""


@dataclass(frozen=True, slots=True)
class Unknowns:
    """Parameters of a fit; arrays have shape (parameters,).

    Parameters
    ----------
    start, lower, upper : FloatArray
        Where to begin, and the box.
    unit : FloatArray
        Scale of each; its spread where it is anchored.
    is_anchored : bool
        Whether the start is an expectation that pulls.
    """

    start: FloatArray
    lower: FloatArray
    upper: FloatArray
    unit: FloatArray
    is_anchored: bool


@dataclass(frozen=True, slots=True)
class Linear:
    """Residuals of rows, shape (rows,), as a linear function of parameters, shape (parameters,)."""

    at: FloatArray
    residuals: FloatArray
    slopes: FloatArray

    @classmethod
    def around(
        cls, residuals: Callable[[FloatArray], FloatArray], at: FloatArray, unknowns: Unknowns
    ) -> Linear:
        """Take slopes at some parameters."""
        here = residuals(at)
        columns = []
        for index, unit in enumerate(unknowns.unit):
            step = _STEP * unit
            moved = at.copy()
            moved[index] += -step if at[index] + step > unknowns.upper[index] else step
            columns.append((residuals(moved) - here) / (moved[index] - at[index]))
        return cls(at, here, np.array(columns).T)

    def of(self, values: FloatArray) -> FloatArray:
        """Residuals at other parameters."""
        found: FloatArray = self.residuals + self.slopes @ (values - self.at)
        return found

    def best(
        self, unknowns: Unknowns, rows: npt.NDArray[np.intp] | slice, weights: FloatArray | None = None
    ) -> FloatArray:
        """Parameters with the least sum of soft-L1 losses of some rows' residuals."""
        from scipy.optimize import least_squares

        low, high = unknowns.lower, unknowns.upper
        given = np.ones(len(self.residuals)) if weights is None else weights
        num_anchors = len(low) if unknowns.is_anchored else 0
        given = np.concatenate([given[rows], np.ones(num_anchors)])

        def misfit(unit_values: FloatArray) -> FloatArray:
            values = unknowns.start + unit_values * unknowns.unit
            anchors = unit_values[:num_anchors]
            return np.concatenate([self.residuals[rows] + self.slopes[rows] @ (values - self.at), anchors])

        def loss(squares: FloatArray) -> FloatArray:
            root = np.sqrt(1 + squares)
            weighted: FloatArray = given * np.array([2 * (root - 1), 1 / root, -0.5 / root**3])
            return weighted

        box = ((low - unknowns.start) / unknowns.unit, (high - unknowns.start) / unknowns.unit)
        begin = np.clip((self.at - unknowns.start) / unknowns.unit, box[0] + 1e-9, box[1] - 1e-9)
        fit = least_squares(misfit, begin, bounds=box, loss=loss)
        best: FloatArray = unknowns.start + fit.x * unknowns.unit
        return best


def linearised_fit(
    residuals: Callable[[FloatArray], FloatArray],
    unknowns: Unknowns,
    *,
    start: FloatArray | None = None,
    weights: FloatArray | None = None,
) -> Linear:
    """Minimise the sum of soft-L1 losses; give the residuals around the parameters found.

    Parameters
    ----------
    residuals : Callable
        From parameters to residuals, in units of their scatter.
    unknowns : Unknowns
        The parameters.
    start : FloatArray, optional
        Where to begin, in place of the unknowns' own.
    weights : FloatArray, shape (rows,), optional
        Weight of each row's loss; all alike by default.
    """
    linear = Linear.around(residuals, unknowns.start if start is None else start, unknowns)
    for _ in range(_NUM_ROUNDS):
        values = linear.best(unknowns, slice(None), weights)
        moved = np.abs(values - linear.at) / unknowns.unit
        linear = Linear.around(residuals, values, unknowns)
        if moved.max() < _CLOSE:
            break
    return linear
