"""The collectives of a step, as traffic: gradients, shards, and a tied embedding."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from fractions import Fraction

from pipesim.costs.network.alpha_beta import Number
from pipesim.costs.network.traffic import Reduction, Tokens
from pipesim.costs.shards import SyncStep
from pipesim.costs.table import CostTable
from pipesim.ir.actions import Op

ReductionKey = tuple[int, bool, bool, Number]
"""Stage, whether of experts, whether between groups of replicas, and rate alone."""


def step_reductions(
    costs: CostTable, holders: Mapping[int, Sequence[int]], with_copies: Sequence[int]
) -> dict[Hashable, Reduction | Tokens]:
    """Say what the collectives of a step ask of the wires.

    In an order that follows from the arguments, so that all who ask the same of a fabric share the answer.

    Parameters
    ----------
    costs : CostTable
        For the stages that are held.
    holders : mapping of int to sequence of int
        Ranks that reduce the gradients of each stage.
    with_copies : sequence of int
        Ranks with a copy of a tied embedding.
    """
    reductions: dict[Hashable, Reduction | Tokens] = {
        reduction_key(stage, step): Reduction(
            holders[stage], step.collective.bytes_per_s, step.of_experts, across=step.across
        )
        for stage in sorted(holders)
        for share in dict.fromkeys((1, bucket_share(costs, stage)))
        for step in costs.sync_steps(stage, share)
    }
    if with_copies and costs.tied_embedding is not None:
        rate = costs.tied_embedding.bytes_per_s
        reductions[Op.REDUCE_EMBEDDING] = Reduction(with_copies, rate, between_ranks=True)
    if costs.shard_exchange is not None:
        held = sorted((rank, stage) for stage, ranks in holders.items() for rank in ranks)
        reductions |= costs.shard_exchange.traffic(held)
    if costs.token_exchange is not None:
        held = sorted((rank, stage) for stage, ranks in holders.items() for rank in ranks)
        reductions |= costs.token_exchange.traffic(held)
    return reductions


def bucket_share(costs: CostTable, stage: int) -> Number:
    """Part of a stage's gradients that one bucket holds."""
    return 1 if costs.gradient_buckets is None else Fraction(1, int(costs.gradient_buckets[stage]))


def reduction_key(stage: int, step: SyncStep) -> ReductionKey:
    """Name a collective of a stage; those of one name load the wires alike."""
    return stage, step.of_experts, step.across, step.collective.bytes_per_s
