"""Pairs of published rows that somebody could have chosen between, and whether the right one is faster."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from pipesim.evidence.published.judge import Judged, Report
from pipesim.prediction import difference_half_width
from pipesim.scenario import ResolvedScenario
from pipesim.scenario.domain import model_key

_NOTICEABLE = 0.03
"""Measured difference from which the order counts."""


@dataclass(frozen=True, slots=True)
class RowPair:
    """Two rows of one model on the same devices with the same batch, as logs of the first over the second.

    `is_told_apart` is False where both are one scenario, such as one configuration with two releases.
    """

    measured: float
    predicted: float
    half_width: float | None
    is_told_apart: bool

    @property
    def counts(self) -> bool:
        """Whether they differ enough, measured, for the order to count."""
        return abs(self.measured) > math.log1p(_NOTICEABLE)

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
    return {
        "pairs": len(pairs),
        "apart_by_3_percent": len(counted),
        "of_unlike_scenarios": len(apart),
        "ordered_right": _share([pair.is_ordered_right for pair in counted]),
        "ordered_right_of_unlike": _share([pair.is_ordered_right for pair in apart]),
        "coverage": _share(
            [abs(pair.measured - pair.predicted) <= (pair.half_width or 0.0) for pair in banded]
        ),
    }


def row_pairs(report: Report) -> Iterator[RowPair]:
    """Pairs of a set's step times; rows that no smooth model explains are left out."""
    if report.published.quantity != "step_time_s":
        return
    groups: dict[Hashable, list[Judged]] = defaultdict(list)
    for one in report.rows:
        if one.scenario is not None and not one.row.unexplained and one.scenario.cluster is not None:
            groups[_same(one.scenario)].append(one)
    for members in groups.values():
        for first, second in combinations(members, 2):
            assert first.scenario is not None
            assert second.scenario is not None
            predicted = math.log((first.predicted or 1.0) / (second.predicted or 1.0))
            yield RowPair(
                measured=math.log(first.row.measured / second.row.measured),
                predicted=predicted,
                half_width=difference_half_width(
                    (first.scenario, first.scenario.schedule.name or ""),
                    (second.scenario, second.scenario.schedule.name or ""),
                    predicted,
                ),
                is_told_apart=predicted != 0.0,
            )


def _same(scenario: ResolvedScenario) -> Hashable:
    model, cluster, batch = scenario.model, scenario.cluster, scenario.batch
    assert model is not None
    assert cluster is not None
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
