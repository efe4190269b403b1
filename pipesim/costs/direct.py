"""Cost tables from times that the scenario states outright."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any

import numpy as np

from pipesim.costs.network.alpha_beta import LinkCost, Number, PointToPoint
from pipesim.costs.table import Array, CostTable, Skip
from pipesim.errors import ScenarioError
from pipesim.scenario.resolved import DirectCosts

REGROUPED = "stages of another number"
"""Where the provenance says that stated lists had to be added up or split."""


def direct_costs(
    costs: DirectCosts, *, num_ranks: int, num_chunks: int, file: str | None = None
) -> CostTable:
    """Spread stated costs over the S = `num_ranks` * `num_chunks` stages of a pipeline.

    A scalar belongs to a whole rank, so each of its stages gets 1/`num_chunks` of it. Entries of a tuple
    follow each other through the model: where there are more of them than stages, neighbours are added up,
    where there are fewer, each is split evenly, and `provenance` says so. Without stated I and W each takes
    half of B. Where any number is a `Fraction`, all become one.

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
        If the entries of a tuple do not go evenly into S stages, nor the stages into them.
    """
    exact = any(isinstance(value, Fraction) for value in _numbers(costs))
    spread = _Spread(num_ranks, num_chunks, exact, file)
    number, per_stage, num_stages = spread.number, spread.per_stage, spread.num_stages
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
    boundary = spread.everywhere(costs.boundary_bytes)
    boundary[-1] = number(0)
    bandwidth = None if costs.p2p_bytes_per_s is None else number(costs.p2p_bytes_per_s)
    nothing = spread.everywhere(0)
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
        provenance={
            "costs": "stated in the scenario",
            "input and weight gradient": split,
            **_regrouped(costs, num_stages),
        },
    )


@dataclass(frozen=True, slots=True)
class _Spread:
    """How stated numbers fall to the stages of a pipeline, in floats or exactly."""

    num_ranks: int
    num_chunks: int
    exact: bool
    file: str | None

    @property
    def num_stages(self) -> int:
        return self.num_ranks * self.num_chunks

    def number(self, value: Any) -> Number:
        return Fraction(value) if self.exact else float(value)

    def everywhere(self, value: Any) -> Array:
        return np.full(self.num_stages, self.number(value), dtype=object if self.exact else float)

    def per_stage(self, value: Any, key: str) -> Array:
        if not isinstance(value, tuple):
            return self.everywhere(value) / self.num_chunks
        entries, num_stages = [self.number(entry) for entry in value], self.num_stages
        if len(entries) % num_stages == 0:
            together = len(entries) // num_stages
            spread = [sum(entries[at : at + together]) for at in range(0, len(entries), together)]
        elif num_stages % len(entries) == 0:
            parts = num_stages // len(entries)
            spread = [entry / parts for entry in entries for _ in range(parts)]
        else:
            raise ScenarioError(
                f"has {len(entries)} entries, which go into {num_stages} stages ({self.num_ranks} ranks x "
                f"{self.num_chunks} chunks) neither added up nor split evenly",
                file=self.file,
                key=f"costs.{key}",
            )
        return np.array(spread, dtype=object if self.exact else float)


def _regrouped(costs: DirectCosts, num_stages: int) -> dict[str, str]:
    """Say how lists of another length became costs of the stages."""
    lengths = {
        len(value) for item in fields(costs) if _is_list(value := getattr(costs, item.name), item.name)
    }
    more, fewer = (n for n in (max(lengths, default=0), min(lengths, default=num_stages)))
    words = [f"{more} stated times, neighbours added up"] if more > num_stages else []
    words += [f"{fewer} stated times, split evenly"] if fewer < num_stages else []
    return {REGROUPED: "; ".join(words)} if words else {}


def _is_list(value: Any, name: str) -> bool:
    return isinstance(value, tuple) and name != "skips"


def _numbers(costs: DirectCosts) -> Iterator[Any]:
    for item in fields(costs):
        value = getattr(costs, item.name)
        if item.name == "skips":
            value = tuple(nbytes for _, _, nbytes in value)
        yield from value if isinstance(value, tuple) else (value,)
