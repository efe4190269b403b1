"""A time that is a fixed part and one for every byte, from measured pairs of bytes and seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipesim.evidence.calibration.samples import NO_TABLE, FloatArray


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
class AffineTime:
    """``fixed_s + nbytes * per_byte_s``.

    `per_byte_s` is None where only one size was seen: then `fixed_s` holds for that size alone.
    """

    fixed_s: float
    per_byte_s: float | None
    groups: tuple[SizeGroup, ...]


def fit_line(samples: FloatArray, others: FloatArray = NO_TABLE) -> AffineTime:
    """Fit a line to the medians of all sizes, each weighted by how often it was seen.

    Neither part is allowed to be negative.

    Parameters
    ----------
    samples : array, shape (samples, 2)
        Bytes and seconds that the line is for; without any sample the line is zero.
    others : array, shape (some, 2)
        Taken under other conditions. If they have several sizes they tell how time grows with size, and the
        fixed part is the median of what the samples take beside that.
    """
    everything = np.concatenate([samples, others])
    if not len(everything):
        return AffineTime(0.0, None, ())
    sizes, seconds = _by_size(everything)
    per_byte: float | None = None
    fixed = float(np.median(seconds[0]))
    if len(np.unique(others[:, 0])) > 1 and len(samples):
        _, per_byte = _least_squares(*_by_size(others))
        fixed = max(0.0, float(np.median(samples[:, 1] - samples[:, 0] * per_byte)))
    elif len(sizes) > 1:
        fixed, per_byte = _least_squares(sizes, seconds)
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
    return AffineTime(fixed, per_byte, groups)


def _by_size(samples: FloatArray) -> tuple[FloatArray, list[FloatArray]]:
    sizes, group = np.unique(samples[:, 0], return_inverse=True)
    return sizes, [samples[group == index, 1] for index in range(len(sizes))]


def _least_squares(sizes: FloatArray, samples: Sequence[FloatArray]) -> tuple[float, float]:
    """Fit medians, weighted by their samples, with both coefficients at least 0."""
    from scipy.optimize import nnls

    seconds = np.array([np.median(values) for values in samples])
    weights = np.sqrt([len(values) for values in samples])
    unit = sizes.max()  # so that bytes and the fixed part are of one order
    columns = np.stack([np.ones_like(sizes), sizes / unit], axis=1)
    (fixed, slope), _ = nnls(columns * weights[:, None], seconds * weights)
    return float(fixed), float(slope / unit)
