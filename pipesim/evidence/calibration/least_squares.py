"""Robust least squares of a handful of parameters inside a box."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

import numpy as np

from pipesim.evidence.calibration.samples import FloatArray

_COARSE = (0.25, 0.75)
"""Of each parameter's range: where else than at its start a fit begins."""
_NUM_REFINED = 2
_TOLERANCE = 1e-9


def robust_fit(
    residuals: Callable[[FloatArray], FloatArray],
    *,
    start: Sequence[float],
    lower: Sequence[float],
    upper: Sequence[float],
    scale: float,
    weights: FloatArray | None = None,
    near: bool = False,
) -> FloatArray:
    """Minimise the sum of soft-L1 losses of the residuals inside a box.

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
        Whether `start` is near; otherwise the best of it and a coarse lattice are refined.

    Returns
    -------
    FloatArray, shape (parameters,)
        The best parameters found.
    """
    from scipy.optimize import least_squares

    low, span = np.asarray(lower, float), np.asarray(upper, float) - np.asarray(lower, float)
    given = 1.0 if weights is None else weights

    def at(unit: FloatArray) -> FloatArray:
        return residuals(low + unit * span)

    def loss(squares: FloatArray) -> FloatArray:
        """Scipy's soft_l1 and its derivatives, with weights."""
        root = np.sqrt(1 + squares)
        weighted: FloatArray = given * np.array([2 * (root - 1), 1 / root, -0.5 / root**3])
        return weighted

    starts = [np.clip((np.asarray(start, float) - low) / span, 0, 1)]
    if not near:
        starts += map(np.array, product(_COARSE, repeat=len(low)))
        starts.sort(key=lambda unit: loss((at(unit) / scale) ** 2)[0].sum())
    fits = [
        least_squares(at, unit, bounds=(0, 1), loss=loss, f_scale=scale, xtol=_TOLERANCE)
        for unit in starts[:_NUM_REFINED]
    ]
    best: FloatArray = low + span * min(fits, key=lambda fit: fit.cost).x
    return best
