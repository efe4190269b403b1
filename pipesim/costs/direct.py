"""Cost tables from times that the scenario states outright."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from fractions import Fraction
from typing import Any

import numpy as np

from pipesim.costs.network.alpha_beta import LinkCost, Number, PointToPoint
from pipesim.costs.table import Array, CostTable, Skip
from pipesim.errors import ScenarioError
from pipesim.scenario.resolved import DirectCosts


def direct_costs(
    costs: DirectCosts, *, num_ranks: int, num_chunks: int, file: str | None = None
) -> CostTable:
    """Spread stated costs over the S = `num_ranks` * `num_chunks` stages of a pipeline.

    A scalar belongs to a whole rank, so each of its stages gets 1/`num_chunks` of it; a tuple has one entry a
    stage. Without stated I and W each takes half of B. Where any number is a `Fraction`, all become one.

    Parameters
    ----------
    costs : DirectCosts
        What the scenario states.
    num_ranks, num_chunks : int
        Shape of the pipeline (p, v).
    file : str, optional
        Scenario file, for messages.

    Raises
    ------
    ScenarioError
        If a tuple does not have S entries.
    """
    num_stages = num_ranks * num_chunks
    exact = any(isinstance(value, Fraction) for value in _numbers(costs))
    number: Callable[[Any], Number] = Fraction if exact else float
    dtype = object if exact else float

    def per_stage(value: Any, key: str) -> Array:
        if not isinstance(value, tuple):
            return np.full(num_stages, number(value) / num_chunks, dtype=dtype)
        if len(value) != num_stages:
            raise ScenarioError(
                f"has {len(value)} entries, one a stage is needed: {num_stages} "
                f"({num_ranks} ranks x {num_chunks} chunks)",
                file=file,
                key=f"costs.{key}",
            )
        return np.array([number(entry) for entry in value], dtype=dtype)

    backward = per_stage(costs.backward_s, "backward")
    if costs.input_gradient_s is None or costs.weight_gradient_s is None:
        input_gradient = weight_gradient = backward / 2
        split = "half of the backward each"
    else:
        input_gradient = per_stage(costs.input_gradient_s, "input_gradient")
        weight_gradient = per_stage(costs.weight_gradient_s, "weight_gradient")
        split = "stated"

    beyond = next((skip for skip in costs.skips if skip[1] >= num_stages), None)
    if beyond is not None:
        raise ScenarioError(
            f"names stage {beyond[1]}; stages are 0 to {num_stages - 1}", file=file, key="costs.skips"
        )
    boundary = np.full(num_stages, number(costs.boundary_bytes), dtype=dtype)
    boundary[-1] = number(0)
    bandwidth = None if costs.p2p_bytes_per_s is None else number(costs.p2p_bytes_per_s)
    nothing = np.full(num_stages, number(0), dtype=dtype)
    return CostTable(
        forward_s=per_stage(costs.forward_s, "forward"),
        backward_s=backward,
        input_gradient_s=input_gradient,
        weight_gradient_s=weight_gradient,
        overlapped_pair_s=(
            None if costs.overlapped_pair_s is None else per_stage(costs.overlapped_pair_s, "overlapped_pair")
        ),
        boundary_bytes=boundary,
        point_to_point=PointToPoint.uniform(LinkCost(number(costs.p2p_latency_s), bandwidth)),
        gradient_bytes=nothing,
        fixed_sync_s=per_stage(costs.gradient_sync_s, "gradient_sync"),
        optimizer_s=per_stage(costs.optimizer_s, "optimizer"),
        weight_bytes=nothing,
        optimizer_bytes=nothing,
        activation_bytes=per_stage(costs.activation_bytes, "activations"),
        working_bytes=nothing,
        skips=tuple(Skip(source, target, number(nbytes)) for source, target, nbytes in costs.skips),
        provenance={"costs": "stated in the scenario", "input and weight gradient": split},
    )


def _numbers(costs: DirectCosts) -> Iterator[Any]:
    for item in fields(costs):
        value = getattr(costs, item.name)
        if item.name == "skips":
            value = tuple(nbytes for _, _, nbytes in value)
        yield from value if isinstance(value, tuple) else (value,)
