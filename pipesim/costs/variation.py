"""Durations that differ from rank to rank, from replica to replica and from one action to the next.

Spreads are lognormal with a mean of one, so that jitter by itself makes nothing faster or slower on average;
that they are lognormal is an assumption, no published fit of a distribution is known.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipesim.costs.documents import Packing
from pipesim.costs.rows import attention_s, busiest_s, step_durations
from pipesim.costs.table import CostTable
from pipesim.ir.actions import SENDS, Lowered
from pipesim.ir.shape import check_replicas
from pipesim.scenario.resolved import Jitter

FloatArray = npt.NDArray[np.float64]


class Variation(NamedTuple):
    """Seconds of each row, and what the bytes of each message are multiplied with; shape (replicas, rows)."""

    durations: npt.NDArray[Any]
    byte_factors: FloatArray | None


def vary(
    schedule: Lowered,
    costs: CostTable,
    jitter: Jitter,
    *,
    num_replicas: int,
    seed: int,
    repeat: int = 0,
    packing: Packing | None = None,
) -> Variation:
    """Draw one step.

    Parameters
    ----------
    schedule : Lowered
        Lowered.
    costs : CostTable
        What it takes on average.
    jitter : Jitter
        Spreads, and ranks that are slow.
    num_replicas : int
        Replicas, each of which has its own luck.
    seed, repeat : int
        The same pair gives the same draws. How fast each device is does not depend on the schedule, so that
        schedules are compared on the same devices, and on the same documents.
    packing : Packing, optional
        Documents that make the attention of microbatches uneven.
    """
    check_replicas(num_replicas, len(schedule.op))
    of_devices, of_actions = (np.random.default_rng([seed, repeat, stream]) for stream in range(2))
    factors = _spread(of_devices, jitter.devices, (num_replicas, schedule.num_ranks))
    for rank, factor in jitter.slow_ranks.items():
        factors[:, rank] *= factor
    factors = factors[:, schedule.rank]
    factors *= _spread(of_actions, jitter.compute, factors.shape)
    # Both rows of a pair hold the pair's duration.
    second = np.flatnonzero(schedule.joined) + 1
    factors[:, second] = factors[:, second - 1]
    byte_factors = None
    if jitter.network:
        byte_factors = np.where(
            np.isin(schedule.op, SENDS), _spread(of_actions, jitter.network, factors.shape), 1.0
        )
    durations = step_durations(schedule, costs)
    added: FloatArray | float = 0.0
    if jitter.experts and costs.token_exchange is not None:
        of_experts = np.random.default_rng([seed, repeat, 3])
        loads = _spread(of_experts, jitter.experts, (schedule.num_stages, schedule.num_microbatches))
        # The busiest device has the mean at least.
        loads = np.maximum(loads, 1 / costs.token_exchange.imbalance)
        drawn_load = loads[schedule.stage, np.maximum(schedule.microbatch, 0)]
        added = (busiest_s(schedule, costs) * (drawn_load - 1))[np.newaxis]
    if packing is not None:
        of_documents = np.random.default_rng([seed, repeat, 2])
        drawn = packing.attention_factors(of_documents, (num_replicas, schedule.num_microbatches))
        attention = attention_s(schedule, costs, is_recomputed=packing.is_recomputed)
        added = added + attention * (drawn[:, np.maximum(schedule.microbatch, 0)] - 1)
    if not isinstance(added, float):
        added[:, second - 1] = added[:, second] = added[:, second - 1] + added[:, second]
        durations = np.maximum(0.0, durations + added)
    return Variation(durations * factors, byte_factors)


def _spread(generator: np.random.Generator, sigma: float, shape: tuple[int, ...]) -> FloatArray:
    if not sigma:
        return np.ones(shape)
    return generator.lognormal(-(sigma**2) / 2, sigma, shape)
