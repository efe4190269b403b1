"""Automatic zero-bubble (arXiv 2401.10241, section 3.1): an order from the stages' times and a memory limit.

A heuristic fills the time before the first I with F, goes on in rounds of one I and one F, and puts W into
gaps, or where memory has to be freed. Three yes-or-no choices make eight orders; of these and of
those for a few other times, the fastest stays. The paper limits memory in units of M_B, what a microbatch
holds from F to I; from I to W it holds M_W < M_B.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from pipesim.costs.table import CostTable
from pipesim.errors import InfeasibleError
from pipesim.ir.actions import Schedule
from pipesim.schedules.registry import Orders, Rule, Shape, schedule
from pipesim.schedules.zero_bubble_h1 import zb_h1
from pipesim.schedules.zero_bubble_h2 import zb_h2
from pipesim.search.memory_limit import is_limit, memory_limit
from pipesim.search.problem import MemoryLimit, Problem, Word

SOURCE = "arXiv 2401.10241 section 3.1"
EVEN_TIMES = tuple(times for times in itertools.product((1, 2), repeat=3) if times != (2, 2, 2))
"""F, I and W of even stages, of which orders are tried beside those for the stages' own times."""
MESSAGES = (0.0, 0.3)
MAX_ACTIONS_OF_PROFILES = 50_000
AS_FAST = 1e-4
"""Relative makespan within which the shorter span counts: ranks are free for the next step earlier."""
PAPER_WEIGHT_SHARE = 0.5
"""M_W / M_B where the costs do not say: the paper's models have 32 h / (34 h + 5 a s) = 0.37 and 0.43."""

_LIMIT_RULE = Rule(
    "max_in_flight to be a whole number of at least 1, or one for each rank",
    lambda s: is_limit(s.options.get("max_in_flight"), s.num_ranks),
)


def _is_share(shape: Shape) -> bool:
    share = shape.options.get("weight_share", 1)
    return isinstance(share, int | float) and not isinstance(share, bool) and 0 <= share <= 1


@schedule(
    "zb-auto",
    source=SOURCE,
    chunks=1,
    rules=(_LIMIT_RULE, Rule("weight_share (M_W / M_B) to be a number from 0 to 1", _is_share)),
    options=("max_in_flight", "weight_share"),
    splits_backward=True,
    needs_costs=True,
)
def zb_auto(shape: Shape, costs: CostTable) -> Orders:
    """Zero bubble within a memory limit: `max_in_flight`, else the device's memory, else 2p microbatches."""
    stated = shape.options.get("max_in_flight")
    if stated is None:
        memory = memory_limit(shape, costs, range(shape.num_ranks))
        if np.isfinite(memory.limits).all():
            return _best_order(shape, costs, memory)
    return _best_order(shape, costs, _counted(shape, costs, stated or 2 * shape.num_ranks))


@schedule("zb-1p", source=SOURCE, chunks=1, splits_backward=True, needs_costs=True)
def zb_1p(shape: Shape, costs: CostTable) -> Orders:
    """Zero bubble with 1F1B's memory: at most p microbatches between F and W."""
    memory = MemoryLimit(np.ones(shape.num_ranks), np.full(shape.num_ranks, float(shape.num_ranks)))
    return _best_order(shape, costs, memory)


@schedule("zb-2p", source=SOURCE, chunks=1, splits_backward=True, needs_costs=True)
def zb_2p(shape: Shape, costs: CostTable) -> Orders:
    """Zero bubble with twice 1F1B's memory: 2p microbatches, of which W needs half, or what costs say."""
    return _best_order(shape, costs, _counted(shape, costs, 2 * shape.num_ranks))


def _counted(shape: Shape, costs: CostTable, limit: int | list[int]) -> MemoryLimit:
    limits = np.broadcast_to(np.array(limit, np.float64), shape.num_ranks).copy()
    ones = np.ones(shape.num_ranks)
    if "weight_share" in shape.options or costs.deferred_bytes is None or not costs.activation_bytes.all():
        return MemoryLimit(ones, limits, ones * float(shape.options.get("weight_share", PAPER_WEIGHT_SHARE)))
    # What W holds of a recomputed microbatch is more than M_B, and then is the unit.
    share = np.array(costs.deferred_bytes / costs.activation_bytes, np.float64)
    return MemoryLimit(ones, limits, np.minimum(share, 1.0))


def _best_order(shape: Shape, costs: CostTable, memory: MemoryLimit) -> Orders:
    """Order of least span among those that are as fast as any."""
    from pipesim.search.word_timing import fits, new_scratch, time_word

    problem = Problem.of(range(shape.num_ranks), shape.num_microbatches, costs, memory)
    pipeline, _ = problem.pipeline()
    scratch = new_scratch(pipeline)
    timed: list[tuple[float, float, Word]] = []
    for word in _candidates(shape, problem):
        if fits(pipeline, word):
            time, _ = time_word(pipeline, word, scratch, np.inf)
            start, end = (rows.reshape(problem.num_ranks, -1) for rows in (scratch.start, scratch.end))
            timed.append((time, float((end[:, -1] - start[:, 0]).max()), word))
    if not timed:
        raise InfeasibleError(
            f"zb-auto finds no order for {shape} within its memory limit; raise it, or take auto"
        )
    as_fast = min(time for time, _, _ in timed) * (1 + AS_FAST)
    return problem.orders(min((t for t in timed if t[0] <= as_fast), key=lambda t: t[1])[2])


def _candidates(shape: Shape, problem: Problem) -> Iterator[Word]:
    """Orders for the stages' times, and others, so that cheaper parts do not lead to a worse order.

    The heuristic decides by comparing times, so a part that gets cheaper can make it take a worse turn. What
    it finds for even stages, and the two handcrafted orders, do not depend on the times.
    """
    yield from _eight_orders(problem)
    if problem.num_actions > MAX_ACTIONS_OF_PROFILES:
        return
    arrives = np.zeros_like(problem.delays_s)
    arrives[0, 1:] = arrives[1, :-1] = 1
    for times, message in itertools.product(EVEN_TIMES, MESSAGES):
        even = np.outer(times, np.ones(problem.num_stages))
        yield from _eight_orders(replace(problem, durations_s=even, delays_s=arrives * message))
    for order in (zb_h1, zb_h2):
        yield problem.word(Schedule.from_orders(order.__name__, order(shape)))


def _eight_orders(problem: Problem) -> Iterator[Word]:
    from pipesim.search.zero_bubble_rounds import zero_bubble_word

    pipeline, _ = problem.pipeline()
    for extra, first, eager in itertools.product((False, True), repeat=3):
        word = np.empty(problem.num_actions, np.int32)
        if np.isfinite(zero_bubble_word(pipeline, extra, first, eager, word)):
            yield word
