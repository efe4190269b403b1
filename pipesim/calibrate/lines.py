"""A time that is a fixed part and one for every byte, from measured pairs of bytes and seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pipesim.calibrate.samples import FloatArray


@dataclass(frozen=True, slots=True)
class SizeGroup:
    """All samples of one size: how many, their median and percentiles, and what the line gives."""

    nbytes: float
    num_samples: int
    median_s: float
    p10_s: float
    p90_s: float
    fitted_s: float

    def to_dict(self) -> dict[str, Any]:
        """Plain data, with the residual."""
        return {
            "bytes": self.nbytes,
            "num_samples": self.num_samples,
            "median_s": self.median_s,
            "p10_s": self.p10_s,
            "p90_s": self.p90_s,
            "residual_s": self.median_s - self.fitted_s,
        }


@dataclass(frozen=True, slots=True)
class Line:
    """``fixed_s + nbytes * per_byte_s``.

    `per_byte_s` is None where only one size was seen: then `fixed_s` holds for that size alone.
    """

    fixed_s: float
    per_byte_s: float | None
    groups: tuple[SizeGroup, ...]


def fit_line(samples: FloatArray, typical: FloatArray | None = None) -> Line:
    """Fit a line to the medians of all sizes, each weighted by how often it was seen.

    Neither part is allowed to be negative.

    Parameters
    ----------
    samples : array, shape (samples, 2)
        Bytes and seconds; without any the line is zero.
    typical : array, shape (some, 2), optional
        Those of them that the line is for. The others tell how time grows with size, and the fixed part is
        the median of what these take beside that.
    """
    if not len(samples):
        return Line(0.0, None, ())
    sizes, group = np.unique(samples[:, 0], return_inverse=True)
    seconds = [samples[group == index, 1] for index in range(len(sizes))]
    medians = np.array([np.median(values) for values in seconds])
    weights = np.array([len(values) for values in seconds], float)
    per_byte: float | None = None
    fixed = float(medians[0])
    if len(sizes) > 1:
        fixed, per_byte = _least_squares(sizes, medians, weights)
    if typical is not None and len(typical):
        fixed = max(0.0, float(np.median(typical[:, 1] - typical[:, 0] * (per_byte or 0.0))))
    groups = tuple(
        SizeGroup(
            float(size),
            len(values),
            float(np.median(values)),
            float(np.percentile(values, 10)),
            float(np.percentile(values, 90)),
            fixed + float(size) * (per_byte or 0.0),
        )
        for size, values in zip(sizes, seconds, strict=True)
    )
    return Line(fixed, per_byte, groups)


def _least_squares(sizes: FloatArray, seconds: FloatArray, weights: FloatArray) -> tuple[float, float]:
    """Weighted least squares with both coefficients at least 0; of two, one bound is enough to try each."""
    mean_size = np.average(sizes, weights=weights)
    mean_s = np.average(seconds, weights=weights)
    spread = np.average((sizes - mean_size) ** 2, weights=weights)
    slope = np.average((sizes - mean_size) * (seconds - mean_s), weights=weights) / spread
    fixed = mean_s - slope * mean_size
    if slope < 0:
        return max(0.0, float(mean_s)), 0.0
    if fixed < 0:
        through_zero = np.average(sizes * seconds, weights=weights) / np.average(sizes**2, weights=weights)
        return 0.0, max(0.0, float(through_zero))
    return float(fixed), float(slope)
