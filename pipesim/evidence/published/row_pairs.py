"""Pairs of published rows that somebody could have chosen between, and whether the right one is faster."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from pipesim.evidence.published.judge import Judged, Report
from pipesim.prediction import SHARE_OF_DIFFERENCE, difference_of, is_cut_alike
from pipesim.scenario import ResolvedScenario
from pipesim.scenario.domain import model_key

_SHARE = 0.9
_ROUNDING = 1e-9
_NOTICEABLE = 0.03
"""Measured difference from which the order counts."""


@dataclass(frozen=True, slots=True)
class RowPair:
    """Two rows of one model on the same devices with the same batch, as logs of the first over the second.

    `is_told_apart` is False where both are one scenario, such as one configuration with two releases.
    `differs_in` is "schedule" or "cut" where number format and release are alike, else "more".
    """

    measured: float
    predicted: float
    half_width: float | None
    is_told_apart: bool
    differs_in: str

    @property
    def counts(self) -> bool:
        """Whether they differ enough, measured, for the order to count."""
        return abs(self.measured) > math.log1p(_NOTICEABLE)

    @property
    def is_in_band(self) -> bool:
        """Whether the measured difference lies within the band of the predicted one."""
        return abs(self.measured - self.predicted) <= (self.half_width or 0.0)

    @property
    def is_ordered_right(self) -> bool:
        """Whether the one that was faster is predicted to be."""
        return self.measured * self.predicted > 0


def pairs_summary(reports: Sequence[Report]) -> dict[str, Any]:
    """Count pairs of step times, how many are ordered right, and how many lie within their bands."""
    pairs = [pair for report in reports for pair in row_pairs(report)]
    counted = [pair for pair in pairs if pair.counts]
    apart = [pair for pair in counted if pair.is_told_apart]
    banded = [pair for pair in pairs if pair.half_width is not None and pair.is_told_apart]
    of_kind = {kind: [pair for pair in banded if pair.differs_in == kind] for kind in ("schedule", "cut")}
    return {
        "pairs": len(pairs),
        "apart_by_3_percent": len(counted),
        "of_unlike_scenarios": len(apart),
        "ordered_right": _share([pair.is_ordered_right for pair in counted]),
        "ordered_right_of_unlike": _share([pair.is_ordered_right for pair in apart]),
        "coverage": _share([pair.is_in_band for pair in banded]),
        "by_what_differs": {
            kind: {
                "pairs": len(found),
                "close": close_half_width([(pair.measured, pair.predicted) for pair in found]),
                "coverage": _share([pair.is_in_band for pair in found]),
            }
            for kind, found in of_kind.items()
        },
    }


def close_half_width(pairs: Sequence[tuple[float, float]]) -> float:
    """Least c for which nine of ten pairs lie within hypot(c, share of the predicted difference); 0 without.

    Parameters
    ----------
    pairs : sequence of tuple
        Measured and predicted logs of the first over the second.
    """
    if not pairs:
        return 0.0
    measured, predicted = np.array(pairs).T
    left = (measured - predicted) ** 2 - (SHARE_OF_DIFFERENCE * predicted) ** 2
    return float(np.quantile(np.sqrt(np.maximum(left, 0.0)), _SHARE))


def row_pairs(report: Report) -> Iterator[RowPair]:
    """Pairs of a set's step times; rows that no smooth model explains are left out."""
    if report.published.quantity != "step_time_s":
        return
    groups: dict[Hashable, list[Judged]] = defaultdict(list)
    for one in report.rows:
        key = None if one.scenario is None or one.row.unexplained else choice_key(one.scenario)
        if key is not None:
            groups[key].append(one)
    for members in groups.values():
        for first, second in combinations(members, 2):
            assert first.scenario is not None
            assert second.scenario is not None
            predicted = math.log((first.predicted or 1.0) / (second.predicted or 1.0))
            yield RowPair(
                measured=math.log(first.row.measured / second.row.measured),
                predicted=predicted,
                half_width=difference_of(
                    (first.scenario, first.scenario.schedule.name or ""),
                    (second.scenario, second.scenario.schedule.name or ""),
                    predicted,
                ).half_width,
                is_told_apart=abs(predicted) > _ROUNDING,
                differs_in=_differs_in(first.scenario, second.scenario),
            )


def _differs_in(first: ResolvedScenario, second: ResolvedScenario) -> str:
    one, other = (
        (s.precision.compute, s.efficiency and (s.efficiency.name, s.efficiency.release))
        for s in (first, second)
    )
    if one != other:
        return "more"
    return "schedule" if is_cut_alike(first, second) else "cut"


def choice_key(scenario: ResolvedScenario) -> Hashable | None:
    """Give what rows must have alike for somebody to choose between them; None where times are stated."""
    model, cluster, batch = scenario.model, scenario.cluster, scenario.batch
    if model is None or cluster is None:
        return None
    return (
        model_key(model),
        model.num_hidden_layers,
        model.vocab_size,
        model.seq_length,
        cluster.accelerator.name,
        scenario.parallel.num_gpus,
        batch.num_microbatches * batch.micro * scenario.parallel.data,
    )


def _share(right: Sequence[bool]) -> float | None:
    return sum(right) / len(right) if right else None
