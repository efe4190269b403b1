"""Flows and the wires that they share, reduced to what decides their rates."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from pipesim.costs.network.alpha_beta import Number

Wire = tuple[str, int, int]
"""One direction of a piece of hardware: what it is, and where."""


@dataclass(frozen=True, slots=True)
class Flow:
    """What one transfer asks of the wires: alone it takes ``latency_s + bytes / bytes_per_s``.

    Parameters
    ----------
    latency_s : Number
        Paid before the first byte; occupies nothing.
    bytes_per_s : Number
        Its rate when alone.
    loads : tuple of (int, Number)
        Wires that it shares with others, and how many bytes each sees for one byte of the flow.
    weight : Number
        How many single connections it stands for where a wire is shared; each gets a like share.
    """

    latency_s: Number
    bytes_per_s: Number
    loads: tuple[tuple[int, Number], ...] = ()
    weight: Number = 1


@dataclass(frozen=True, slots=True)
class Demand:
    """A flow before the wires are reduced: all wires that it crosses, each with its load."""

    latency_s: Number
    loads: Mapping[Wire, Number]
    weight: Number = 1


class UnlikeReplicasError(Exception):
    """Replicas meet different wires, so that one cannot stand for all."""


def reduce_wires(
    demands: Mapping[Hashable, Demand],
    bytes_per_s: Mapping[Wire, Number],
    *,
    alike: Mapping[Hashable, Hashable] | None = None,
) -> tuple[dict[Hashable, Flow], list[Number]]:
    """Leave out of a network all that cannot change a rate.

    Wires that the same flows load in the same proportion are one wire, as tight as the tightest of them.
    Flows said to be alike become one, whose load on a wire is that of all of them; that is exact where each
    of them crosses the same kinds of wire, for a max-min fair solution is unique and so treats them the same.
    Wires that one kind of flow has for itself only set its rate; of those, a flow that also shares a wire
    keeps the tightest, for its transfers share it among themselves.

    Parameters
    ----------
    demands : mapping of key to Demand
        All that may be under way.
    bytes_per_s : mapping of Wire to Number
        Capacities.
    alike : mapping of key to name, optional
        Flows that become one flow of that name; by default each stands for itself.

    Returns
    -------
    flows : dict of name to Flow
        Loads are empty where the flow meets no other kind.
    bytes_per_s : list
        Capacity of each wire that loads refer to.

    Raises
    ------
    UnlikeReplicasError
        If flows that should be one cross different kinds of wire, or start with different latency.
    """
    names = {key: key if alike is None else alike[key] for key in demands}
    kind_of = _kinds(demands, names, bytes_per_s)
    crossed: dict[Hashable, dict[_Kind, None]] = {}
    for key, demand in demands.items():
        kinds = dict.fromkeys(kind_of[wire] for wire in demand.loads)
        if kinds.keys() != crossed.setdefault(names[key], kinds).keys():
            raise UnlikeReplicasError
    tightest: dict[_Pattern, Number] = {}
    for kind in kind_of.values():
        tightest[kind.pattern] = min(kind.bytes_per_s, tightest.get(kind.pattern, kind.bytes_per_s))
    numbers: dict[_Pattern, int] = {}
    flows: dict[Hashable, Flow] = {}
    for key, demand in demands.items():
        name = names[key]
        if name in flows:
            if flows[name].latency_s != demand.latency_s:
                raise UnlikeReplicasError
            continue
        load_on = {kind.pattern: dict(kind.pattern)[name] for kind in crossed[name]}
        alone = {pattern: tightest[pattern] / load for pattern, load in load_on.items()}
        kept = [pattern for pattern in load_on if len(pattern) > 1]
        own = [pattern for pattern in load_on if len(pattern) == 1]
        if kept and own:
            kept.append(min(own, key=lambda pattern: alone[pattern]))
        loads = tuple((numbers.setdefault(pattern, len(numbers)), load_on[pattern]) for pattern in kept)
        flows[name] = Flow(demand.latency_s, min(alone.values()), loads, demand.weight)
    return flows, [tightest[pattern] for pattern in numbers]


_Pattern = tuple[tuple[Hashable, Number], ...]


class _Kind(NamedTuple):
    """Wires that the same flows load in the same proportion and that are equally fast."""

    pattern: _Pattern
    """Loads relative to the first of them."""
    bytes_per_s: Number
    """Capacity for the first of them."""


def _kinds(
    demands: Mapping[Hashable, Demand], names: Mapping[Hashable, Hashable], bytes_per_s: Mapping[Wire, Number]
) -> dict[Wire, _Kind]:
    loads_of: dict[Wire, dict[Hashable, Number]] = defaultdict(dict)
    for key, demand in demands.items():
        for wire, load in demand.loads.items():
            on_wire = loads_of[wire]
            on_wire[names[key]] = on_wire.get(names[key], 0) + load
    # Most wires are like others, down to who loads them; fractions are slow.
    kinds_found: dict[Hashable, _Kind] = {}
    kind_of: dict[Wire, _Kind] = {}
    for wire, by_name in loads_of.items():
        like = (bytes_per_s[wire], *by_name.items())
        if like not in kinds_found:
            kinds_found[like] = _kind(by_name, bytes_per_s[wire])
        kind_of[wire] = kinds_found[like]
    return kind_of


def _kind(loads: Mapping[Hashable, Number], bytes_per_s: Number) -> _Kind:
    unit = Fraction(next(iter(loads.values())))
    pattern = tuple((name, _plain(Fraction(load) / unit, bytes_per_s)) for name, load in loads.items())
    return _Kind(pattern, bytes_per_s / _plain(unit, bytes_per_s))


def _plain(load: Fraction, like: Number) -> Number:
    """Whole numbers stay whole, so that they round nothing; other shares go with the type of capacities."""
    if load.denominator == 1:
        return load.numerator
    return load if isinstance(like, Fraction) else float(load)
