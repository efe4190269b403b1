"""Orders under hops that vary: a searched order that leaves no slack loses more by them than a plain one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import exp
from typing import Any

import numpy as np
import numpy.typing as npt

from pipesim.costs import CostTable
from pipesim.costs.network.alpha_beta import LinkCost, PointToPoint
from pipesim.evidence.tuning.stage_times import StageTimes
from pipesim.ir.actions import Schedule
from pipesim.prediction import Prepared, predict_prepared
from pipesim.scenario import ResolvedScenario

_RATE = 1e9
"""Nominal bytes per second: a message has the bytes that its hop takes at this rate."""


def step_times(
    prepared: Sequence[Prepared],
    times: Sequence[StageTimes],
    *,
    num_draws: int,
    progress: Callable[[str], None] = lambda _: None,
) -> npt.NDArray[np.float64]:
    """Predict steps whose hops and computations are drawn, shape (orders, draws), seconds.

    The same draw is the same luck for orders of one number of actions.

    Parameters
    ----------
    prepared, times : sequences of Prepared and StageTimes
        Of each order.
    num_draws : int
        Steps of each.
    progress : Callable
        Told what is timed next.
    """
    found = np.empty((len(prepared), num_draws))
    for row, (one, its_times) in enumerate(zip(prepared, times, strict=True)):
        progress(one.schedule.name)
        if not its_times.hop_spread and not its_times.compute_spread:
            found[row] = float(predict_prepared(one, timing="fast").step_time_s)
            continue
        drawn = _drawn(one, its_times)
        for number in range(num_draws):
            found[row, number] = float(predict_prepared(drawn, repeat=number).step_time_s)
    return found


def _drawn(prepared: Prepared, times: StageTimes) -> Prepared:
    jitter = {"network": times.hop_spread, "compute": times.compute_spread}
    scenario: ResolvedScenario = prepared.scenario.with_(jitter=jitter, network={"mode": "ideal"})
    # What is drawn has a mean of one; a median hop is to stay the median.
    costs = hops_as_bytes(prepared.costs, prepared.schedule, factor=exp(times.hop_spread**2 / 2))
    return replace(prepared, scenario=scenario, costs=costs)


def hops_as_bytes(costs: CostTable, schedule: Schedule, *, factor: float = 1.0) -> CostTable:
    """State hops as nominal bytes on links without latency, so that drawn bytes are drawn hops.

    Parameters
    ----------
    costs : CostTable
        With links.
    schedule : Schedule
        Which boundaries lie between which ranks.
    factor : float
        On every hop.
    """
    home = {stage: rank for rank in range(schedule.num_ranks) for stage in schedule.stages_of(rank)}
    hops: npt.NDArray[Any] = np.zeros(costs.num_stages)
    for stage in range(costs.num_stages - 1):
        link = costs.p2p(home[stage], home[stage + 1])
        hops[stage] = factor * float(link.transfer_s(costs.boundary_bytes[stage]))
    host = costs.host
    if host is not None:
        sent = float(host.send_s(float(np.max(costs.boundary_bytes))))
        host = replace(host, per_message_s=sent, per_byte_s=0.0)
    return replace(
        costs,
        boundary_bytes=hops * _RATE,
        point_to_point=PointToPoint.uniform(LinkCost(0.0, _RATE)),
        host=host,
        fabric=None,
    )
