"""Times that the scenario states outright, in place of a model and a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from numbers import Real
from string import ascii_letters
from typing import Any, cast

from pipesim.errors import ScenarioError
from pipesim.scenario.notes import Notes
from pipesim.scenario.resolved import DirectCosts, Parallel
from pipesim.scenario.schema import CostKeys

Number = float | Fraction
PerStage = Number | tuple[Number, ...]


def resolve_costs(keys: CostKeys, parallel: Parallel, notes: Notes) -> DirectCosts:
    """Check the stated costs against each other and fill in what follows.

    Parameters
    ----------
    keys : CostKeys
        The validated fields, without ``file``.
    parallel : Parallel
        For the lengths of lists: one entry a stage, as many on every rank.
    notes : Notes
        Receives what was inferred.

    Raises
    ------
    ScenarioError
        A time is missing, both forms of the backward disagree in kind, a list has the wrong length, or a
        bandwidth has no bytes to carry.
    """
    for name in CostKeys.model_fields:
        value = getattr(keys, name)
        if isinstance(value, tuple):
            _check_length(value, f"costs.{name}", parallel)
    if keys.forward is None:
        raise ScenarioError("missing; needed: the time of one forward, such as 1 s", key="costs.forward")
    for number, skip in enumerate(keys.skips):
        if skip.target <= skip.source:
            raise ScenarioError(
                f"found {skip.target}; a stage after {skip.source}, the source, is needed",
                key=f"costs.skips[{number}].target",
            )
    backward, input_gradient, weight_gradient = _backward(keys, notes)
    link = keys.p2p
    if link is None:
        notes.default("costs.p2p", "0 s")
    elif link.bandwidth is not None and not keys.boundary:
        raise ScenarioError(
            "missing; costs.p2p.bandwidth needs the bytes that cross a boundary, such as 64 MB",
            key="costs.boundary",
        )
    return DirectCosts(
        forward_s=_real(keys.forward),
        backward_s=_real(backward),
        input_gradient_s=None if input_gradient is None else _real(input_gradient),
        weight_gradient_s=None if weight_gradient is None else _real(weight_gradient),
        p2p_latency_s=cast(Real, 0.0 if link is None else link.latency),
        p2p_bytes_per_s=None if link is None or link.bandwidth is None else cast(Real, link.bandwidth),
        boundary_bytes=cast(Real, keys.boundary or 0.0),
        overlapped_pair_s=None if keys.overlapped_pair is None else cast(Real, keys.overlapped_pair),
        gradient_sync_s=cast(Real, keys.gradient_sync or 0.0),
        optimizer_s=cast(Real, keys.optimizer or 0.0),
        activation_bytes=_real(0.0 if keys.activations is None else keys.activations),
        skips=tuple((skip.source, skip.target, cast(Real, skip.bytes)) for skip in keys.skips),
    )


_LETTERS = ascii_letters + "\u00b5\u03bc"
"""Of units of time, micro in both of its codes."""
_TIMES = (
    *("forward", "backward", "input_gradient", "weight_gradient", "overlapped_pair"),
    *("gradient_sync", "optimizer", "p2p"),
)


def check_units(stated: Mapping[str, Any]) -> None:
    """Refuse times without a unit beside times with one: one of them is a slip.

    Parameters
    ----------
    stated : Mapping
        The section ``costs`` as it was written; a time without a unit is in seconds, zero needs none, nor
        does an exact fraction.

    Raises
    ------
    ScenarioError
        With the key that has none.
    """
    with_unit, bare = "", ""
    for name in _TIMES:
        value = stated.get(name)
        value = value.get("latency") if isinstance(value, Mapping) else value
        for entry in value if isinstance(value, list | tuple) else [value]:
            text = "" if entry is None else str(entry).strip()
            if isinstance(entry, Fraction) or "/" in text or not text.rstrip(_LETTERS).strip(" 0."):
                continue
            if text[-1].isalpha():
                with_unit = with_unit or f"costs.{name} {text}"
            else:
                bare = bare or f"{name} {text}"
    if with_unit and bare:
        name, value = bare.split(" ", 1)
        raise ScenarioError(
            f"found {value} without a unit beside {with_unit}; needed: a unit for each, as {value} ms",
            key=f"costs.{name}",
        )


def _backward(keys: CostKeys, notes: Notes) -> tuple[PerStage, PerStage | None, PerStage | None]:
    input_gradient, weight_gradient = keys.input_gradient, keys.weight_gradient
    if (input_gradient is None) != (weight_gradient is None):
        absent = "input_gradient" if input_gradient is None else "weight_gradient"
        raise ScenarioError("missing; input_gradient and weight_gradient go together", key=f"costs.{absent}")
    share = keys.weight_gradient_share
    if input_gradient is not None and weight_gradient is not None:
        if share is not None:
            raise ScenarioError(
                "both gradients are stated, so a share is one too many", key="costs.weight_gradient_share"
            )
        if keys.backward is not None:
            return keys.backward, input_gradient, weight_gradient
        notes.echo["costs.backward"] = "input_gradient + weight_gradient"
        return _added(input_gradient, weight_gradient), input_gradient, weight_gradient
    if keys.backward is None:
        raise ScenarioError(
            "missing; needed: the time of one backward, or input_gradient and weight_gradient",
            key="costs.backward",
        )
    if share is None:
        notes.echo["costs.weight_gradient_share"] = "0.5 of the backward (default)"
        return keys.backward, None, None
    if share == 1:
        raise ScenarioError("found 1; a share below 1 is needed", key="costs.weight_gradient_share")
    weight_gradient = _scaled(keys.backward, share)
    return keys.backward, _added(keys.backward, _scaled(weight_gradient, -1)), weight_gradient


def _check_length(value: tuple[Number, ...], key: str, parallel: Parallel) -> None:
    # How many stages a rank holds, the schedule says: some have a number of their own.
    if len(value) % parallel.pipeline:
        ranks = parallel.pipeline
        raise ScenarioError(
            f"has {len(value)} entries, one a stage is needed: {ranks}, or a multiple of these {ranks} ranks",
            key=key,
        )


def _added(first: PerStage, second: PerStage) -> PerStage:
    if isinstance(first, tuple) and isinstance(second, tuple):
        if len(first) != len(second):
            raise ScenarioError("input_gradient and weight_gradient have different lengths", key="costs")
        return tuple(a + b for a, b in zip(first, second, strict=True))
    if isinstance(first, tuple) or isinstance(second, tuple):
        raise ScenarioError(
            "input_gradient and weight_gradient are a list and a single value; state both in one form",
            key="costs",
        )
    return first + second


def _scaled(value: PerStage, factor: float) -> PerStage:
    return tuple(item * factor for item in value) if isinstance(value, tuple) else value * factor


def _real(value: PerStage) -> Real | tuple[Real, ...]:
    return cast("Real | tuple[Real, ...]", value)
