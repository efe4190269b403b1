"""Max-min fair rates by progressive filling."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pipesim.costs.network.fabric import Flow


def fair_rates(flows: Sequence[tuple[Flow, int]], bytes_per_s: Sequence[Any]) -> list[Any]:
    """Rate of each flow: all rates rise together; a flow stops at its own limit or where a wire is full.

    Parameters
    ----------
    flows : sequence of (Flow, int)
        What is under way, and how many times over: each of the copies gets the rate that is returned.
    bytes_per_s : sequence
        Capacity of each wire.

    Returns
    -------
    list
        One rate a flow, in bytes per second. A single flow gets exactly its own limit.
    """
    if len(flows) == 1 and flows[0][1] == 1:
        return [flows[0][0].bytes_per_s]
    rates: list[Any] = [None] * len(flows)
    filling = _Filling(flows, bytes_per_s)
    levels = filling.levels
    own_level = [flow.bytes_per_s / flow.weight for flow, _ in flows]
    by_own_level = sorted(range(len(flows)), key=own_level.__getitem__, reverse=True)
    level: Any = 0
    while by_own_level:
        first = by_own_level[-1]
        if rates[first] is not None:
            by_own_level.pop()
            continue
        fullest = min(levels, key=levels.__getitem__, default=None)
        if fullest is None or levels[fullest] >= own_level[first]:
            by_own_level.pop()
            level, rates[first] = own_level[first], flows[first][0].bytes_per_s
            filling.fix((first,), level)
            continue
        # Levels never fall; rounding must not make them.
        level = max(level, levels[fullest])
        full = list(filling.rising[fullest])
        for number in full:
            rates[number] = level * flows[number][0].weight
        filling.fix(full, level)
    return rates


class _Filling:
    """Wires on which rates rise together."""

    def __init__(self, flows: Sequence[tuple[Flow, int]], bytes_per_s: Sequence[Any]) -> None:
        self._flows = flows
        self._left: dict[int, Any] = {}
        self.rising: dict[int, dict[int, Any]] = {}
        """For each wire that is not full, the flows whose rate still rises, and what they load it with."""
        for number, (flow, times) in enumerate(flows):
            for wire, load in flow.loads:
                if wire not in self.rising:
                    self._left[wire], self.rising[wire] = bytes_per_s[wire], {}
                self.rising[wire][number] = load * times * flow.weight
        self.levels = {wire: self._left[wire] / sum(loads.values()) for wire, loads in self.rising.items()}
        """Where each of them is full if no flow stops before."""

    def fix(self, numbers: Iterable[int], level: Any) -> None:
        """Let flows stop at a level."""
        changed = {}
        for number in numbers:
            for wire, _ in self._flows[number][0].loads:
                self._left[wire] -= self.rising[wire].pop(number) * level
                changed[wire] = self.rising[wire]
        for wire, loads in changed.items():
            if loads:
                self.levels[wire] = self._left[wire] / sum(loads.values())
            else:
                del self.rising[wire], self.levels[wire]


def is_full_rate(flow: Flow, bytes_per_s: Sequence[Any]) -> bool:
    """Whether a flow that shares its wires with none gets exactly its own limit beside any others.

    Where a limit is the rate of a wire, one of the two may be rounded.
    """
    own_level = flow.bytes_per_s / flow.weight
    return all(bytes_per_s[wire] / (load * flow.weight) >= own_level for wire, load in flow.loads)
