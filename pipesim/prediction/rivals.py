"""A searched order against named ones where the search's own times do not tell: where traffic meets."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

from pipesim.errors import DeadlockError
from pipesim.prediction.prepared import Prepared
from pipesim.prediction.stepping import least_step_s, step_within

ROUNDING = 1e-9


def soonest(found: Prepared, rivals: Callable[[], Iterable[Prepared]]) -> Prepared:
    """Return the schedule that was found, or the rival that the engine finishes first.

    All are judged in the times that the scenario states, without what jitter draws: an order is chosen
    before the step, not after it.

    Parameters
    ----------
    found : Prepared
        That no rival beats where nothing contends.
    rivals : Callable
        Makes the others; not called where nothing keeps the step of `found` from its least time.
    """
    best, best_s = found, _seconds(_without_chance(found), math.inf)
    if best_s <= least_step_s(_without_chance(found)) * (1 + ROUNDING):
        return found
    bounds = [(least_step_s(_without_chance(rival)), rival) for rival in rivals()]
    for least_s, rival in sorted(bounds, key=lambda pair: pair[0]):
        if least_s >= best_s:
            break
        seconds = _seconds(_without_chance(rival), best_s)
        if seconds < best_s:
            best, best_s = rival, seconds
    return best


def _seconds(prepared: Prepared, limit_s: float) -> float:
    try:
        found = step_within(prepared, limit_s)
    except DeadlockError:
        return math.inf
    return found if isinstance(found, float) else float(found.end_s.max() - found.start_s.min())


def _without_chance(prepared: Prepared) -> Prepared:
    scenario = prepared.scenario
    if scenario.jitter is None:
        return prepared
    return replace(prepared, scenario=replace(scenario, jitter=scenario.jitter.without_chance()))
