"""Orders to choose from: named schedules that torch's runtime takes, and those searched for these times."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pipesim.costs import CostTable
from pipesim.costs.network.alpha_beta import LinkCost
from pipesim.errors import PipesimError
from pipesim.evidence.tuning.stage_times import StageTimes
from pipesim.ir import peak_in_flight
from pipesim.ir.actions import Schedule
from pipesim.ir.torch_limits import torch_refusals
from pipesim.prediction import Prediction, Prepared, predict_prepared, prepare_order, shape_of
from pipesim.scenario import ResolvedScenario
from pipesim.schedules import families, family, generate

SEARCHED = "auto"
HOP_FACTORS = (1.0, 1.6, 2.5)
"""Searches suppose hops so many times as long: an order found for longer ones has slack."""


@dataclass(frozen=True, slots=True, eq=False)
class CandidateOrder:
    """An order with its nominal prediction."""

    prepared: Prepared
    times: StageTimes
    prediction: Prediction
    searched: bool

    @property
    def order(self) -> Schedule:
        """Compute only."""
        return self.prepared.schedule

    @property
    def label(self) -> str:
        """Name, with its chunks where it has more than one."""
        chunks = self.order.num_stages // self.order.num_ranks
        return self.order.name if chunks == 1 else f"{self.order.name} v{chunks}"

    @property
    def key(self) -> bytes:
        """The same of the same order."""
        order = self.order
        return b"".join(
            column.tobytes() for column in (order.offsets, order.op, order.stage, order.microbatch)
        )


def candidate(
    scenario: ResolvedScenario, order: Schedule, times: StageTimes, *, searched: bool
) -> CandidateOrder:
    """Predict an order with these times."""
    prepared = prepare_order(scenario, order, times.costs)
    return CandidateOrder(prepared, times, predict_prepared(prepared, timing="fast"), searched)


def named_candidates(
    scenario: ResolvedScenario, times: Mapping[int, StageTimes], allowed: Callable[[CandidateOrder], bool]
) -> Iterator[CandidateOrder]:
    """Generate every named schedule that torch's runtime takes, is allowed, and has costs for its chunks."""
    for one in families().values():
        if one.name == SEARCHED or not one.synchronous or one.num_model_replicas > 1:
            continue
        for num_chunks, of_stages in times.items():
            if one.chunks not in (None, num_chunks):
                continue
            shape = shape_of(scenario, one, num_chunks=num_chunks)
            try:
                order = generate(one.name, shape, of_stages.costs)
                found = candidate(scenario, order, of_stages, searched=False)
            except PipesimError:
                continue
            if not list(torch_refusals(order)) and allowed(found):
                yield found


def searched_candidates(
    scenario: ResolvedScenario,
    times: Mapping[int, StageTimes],
    options: Mapping[int, Mapping[str, Any]],
    progress: Callable[[str], None],
) -> Iterator[CandidateOrder]:
    """Search an order for each number of chunks, and for hops as long as measured and longer.

    `options` are those of the schedule ``auto``, by chunks.
    """
    for num_chunks, of_stages in times.items():
        shape = shape_of(
            scenario, family(SEARCHED), num_chunks=num_chunks, options=options.get(num_chunks, {})
        )
        for factor in HOP_FACTORS:
            progress(f"{num_chunks} chunks a rank, hops x {factor:g}")
            order = generate(SEARCHED, shape, with_longer_hops(of_stages.costs, factor))
            yield candidate(scenario, order, of_stages, searched=True)


def with_longer_hops(costs: CostTable, factor: float) -> CostTable:
    """Multiply what every message takes."""
    links = costs.point_to_point

    def longer(link: LinkCost) -> LinkCost:
        rate = link.bytes_per_s
        return LinkCost(link.latency_s * factor, None if rate is None else rate / factor)

    rates = tuple((src, dst, rate / factor) for src, dst, rate in links.pair_rates)
    slower = replace(links, intra=longer(links.intra), inter=longer(links.inter), pair_rates=rates)
    return replace(costs, point_to_point=slower)


def within(limit: int | None, costs: CostTable) -> Callable[[CandidateOrder], bool]:
    """Allow what fits in memory; where nothing says what that is, so many microbatches on a rank's stages."""

    def allowed(one: CandidateOrder) -> bool:
        if costs.memory_limit_bytes is not None and one.prediction.fits is not None:
            return one.prediction.fits
        chunks = one.order.num_stages // one.order.num_ranks
        return limit is None or bool(np.max(peak_in_flight(one.order)) <= limit * chunks)

    return allowed
