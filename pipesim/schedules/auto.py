"""Our own schedule: an order found for the stages' real times, a placement and a memory limit.

List scheduling and local search over orders, started also from every named schedule that fits the limit,
hence never later than any of them. Where a stage's I and W together take longer than its B, each backward is
split only if that gains something. A proven lower bound tells how far from the optimum it can be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pipesim.costs.copies import for_schedule
from pipesim.costs.table import CostTable
from pipesim.device_memory import fits_headroom, fits_memory, peak_memory_by_rank
from pipesim.errors import InfeasibleError
from pipesim.ir.actions import Action, Schedule
from pipesim.schedules._named import NamedSchedule, fits, named_schedules, placement_of
from pipesim.schedules.registry import Orders, Rule, Shape, schedule
from pipesim.search.lower_bound import lower_bound_s
from pipesim.search.memory_limit import is_limit, memory_limit
from pipesim.search.problem import Problem
from pipesim.search.whole_backwards import Mixture, search_mixtures
from pipesim.timing.longest_path import PreparedSchedule

DEFAULT_BUDGET = 100_000_000
"""Actions timed: about a second for small shapes."""


@dataclass(frozen=True, slots=True)
class AutoResult:
    """What a search found.

    Parameters
    ----------
    orders : tuple of list of Action
        Of rank 0, 1, ...
    makespan_s : float
        Where no messages contend.
    lower_bound_s : float
        No order within the memory limits is faster, on any placement that was searched.
    placement : str
        ``loop`` or ``wave``.
    best_named : str, optional
        The best named schedule of these placements within the limits; None where none fits.
    best_named_makespan_s : float, optional
        Its makespan.
    """

    orders: tuple[list[Action], ...]
    makespan_s: float
    lower_bound_s: float
    placement: str
    best_named: str | None
    best_named_makespan_s: float | None


def search(shape: Shape, costs: CostTable) -> AutoResult:
    """Find an order; see the options of the schedule `auto`.

    The same arguments give the same order on every machine.

    Parameters
    ----------
    shape : Shape
        With options ``placement`` ("loop", "wave" or "any", the default), ``max_in_flight`` (microbatches on
        a rank's stages, one number or one a rank; by default what fits in `costs.memory_limit_bytes`),
        ``seed`` and ``budget`` (actions timed).
    costs : CostTable
        Of the shape's stages.

    Raises
    ------
    InfeasibleError
        If a rank has no room for one microbatch on all its stages.
    """
    rng = np.random.default_rng(int(shape.options.get("seed", 0)))
    budget = int(shape.options.get("budget", DEFAULT_BUDGET))
    problems = _problems(shape, costs)
    results = []
    for (placement, problem), mine in zip(problems.items(), _named(shape, costs, problems), strict=True):
        words = [problem.word(n.schedule) for n in mine]
        found = search_mixtures(problem, budget // len(problems), rng, words)
        bound = _bound_s(shape, costs, problem.rank_of.tolist())
        results.append(_result(placement, problem, found, bound, mine, costs))
    return _best(results)


def rivals(shape: Shape, costs: CostTable) -> list[Schedule]:
    """Return what named schedules do on the placements that are searched, within the memory limits."""
    named = _named(shape, costs, _problems(shape, costs))
    return [replace(one.schedule, name="auto") for ones in named for one in ones]


def _problems(shape: Shape, costs: CostTable) -> dict[str, Problem]:
    """Set up the search of each placement that has room for a microbatch."""
    problems: dict[str, Problem] = {}
    infeasible: InfeasibleError | None = None
    for placement, rank_of in _placements(shape).items():
        memory = memory_limit(shape, costs, rank_of)
        try:
            problems[placement] = Problem.of(rank_of, shape.num_microbatches, costs, memory)
        except InfeasibleError as error:
            infeasible = error
    if infeasible is not None and not problems:
        raise infeasible
    return problems


def _named(shape: Shape, costs: CostTable, problems: dict[str, Problem]) -> list[list[NamedSchedule]]:
    """Generate the named schedules of each problem that fit its limits."""
    named = list(named_schedules(shape, costs))
    return [
        [n for n in named if n.rank_of == tuple(problem.rank_of) and _fits(n.schedule, shape, costs, problem)]
        for problem in problems.values()
    ]


def _fits(schedule: Schedule, shape: Shape, costs: CostTable, problem: Problem) -> bool:
    """Whether an order keeps a stated limit, else whether it fits the devices with their headroom.

    The search keeps room for the largest working set beside all that is held; an order may need it only
    while less is held.
    """
    if "max_in_flight" in shape.options:
        return fits(schedule, problem.memory)
    costs = for_schedule(costs, schedule)
    peaks = peak_memory_by_rank(schedule, costs)
    return fits_memory(peaks, costs) is not False and fits_headroom(peaks, costs) is not False


def _result(
    placement: str,
    problem: Problem,
    found: Mixture,
    bound: float,
    named: list[NamedSchedule],
    costs: CostTable,
) -> AutoResult:
    orders = tuple(problem.orders(found.word, found.whole))
    prepared = PreparedSchedule.of(Schedule.from_orders("auto", orders))
    makespan = float(prepared.evaluate_costs(costs).makespan)
    best = min(named, key=lambda n: n.makespan_s, default=None)
    # A pair may be shorter than its parts: then the named order stands.
    if best is not None and best.makespan_s < makespan:
        orders = tuple(best.schedule.actions_of(rank) for rank in range(problem.num_ranks))
        makespan = best.makespan_s
    return AutoResult(
        orders=orders,
        makespan_s=makespan,
        lower_bound_s=min(bound, makespan),
        placement=placement,
        best_named=None if best is None else best.schedule.name,
        best_named_makespan_s=None if best is None else best.makespan_s,
    )


def _best(results: Sequence[AutoResult]) -> AutoResult:
    best = min(results, key=lambda r: r.makespan_s)
    named = [r for r in results if r.best_named_makespan_s is not None]
    best_named = min(named, key=lambda r: r.best_named_makespan_s or 0.0, default=best)
    return AutoResult(
        orders=best.orders,
        makespan_s=best.makespan_s,
        lower_bound_s=min(r.lower_bound_s for r in results),
        placement=best.placement,
        best_named=best_named.best_named,
        best_named_makespan_s=best_named.best_named_makespan_s,
    )


def lower_bound_of(schedule: Schedule, costs: CostTable) -> float | None:
    """Makespan that no order on a schedule's placement can beat in the memory of the device.

    None where the bound does not hold: two model replicas, cut sequences, pairs with a duration of their own,
    ranks with more stages than others.

    Parameters
    ----------
    schedule : Schedule
        Valid and compute only.
    costs : CostTable
        For its stages.
    """
    num_places = len(np.unique(np.stack([schedule.stage, schedule.rank]), axis=1).T)
    paired = costs.overlapped_pair_s is not None and schedule.joined.any()
    if schedule.num_slices > 1 or num_places > schedule.num_stages or paired:
        return None
    rank_of = placement_of(schedule)
    if len(np.unique(np.bincount(rank_of))) > 1:
        return None
    shape = Shape(schedule.num_ranks, len(rank_of) // schedule.num_ranks, schedule.num_microbatches)
    try:
        return _bound_s(shape, costs, rank_of)
    except InfeasibleError:
        return None


def _bound_s(shape: Shape, costs: CostTable, rank_of: Sequence[int]) -> float:
    """Makespan that no order that fits can beat."""
    memory = memory_limit(shape, costs, rank_of, at_most=True)
    return lower_bound_s(Problem.of(rank_of, shape.num_microbatches, costs, memory))


def _placements(shape: Shape) -> dict[str, list[int]]:
    p, num_stages = shape.num_ranks, shape.num_stages
    loop = [stage % p for stage in range(num_stages)]
    wave = [p - 1 - stage % p if stage // p % 2 else stage % p for stage in range(num_stages)]
    wanted = shape.options.get("placement", "any")
    if wanted == "loop" or loop == wave:
        return {"loop": loop}
    return {"wave": wave} if wanted in ("wave", "v") else {"loop": loop, "wave": wave}


def _is_count(name: str, least: int) -> Any:
    def holds(shape: Shape) -> bool:
        value = shape.options.get(name, least)
        return isinstance(value, int) and not isinstance(value, bool) and value >= least

    return holds


@schedule(
    "auto",
    source="this project; limits and blocks after arXiv 2401.10241 and 2405.15362",
    rules=(
        Rule(
            "max_in_flight to be a whole number of at least 1, or one for each rank",
            lambda s: is_limit(s.options.get("max_in_flight"), s.num_ranks),
        ),
        Rule(
            "placement to be any, loop or wave",
            lambda s: s.options.get("placement", "any") in ("any", "loop", "wave", "v"),
        ),
        Rule("seed to be a whole number of at least 0", _is_count("seed", 0)),
        Rule("budget to be a whole number of at least 1", _is_count("budget", 1)),
    ),
    options=("placement", "max_in_flight", "seed", "budget"),
    placement=None,
    splits_backward=True,
    rivals=rivals,
    needs_costs=True,
)
def auto(shape: Shape, costs: CostTable) -> Orders:
    """Search for the stages' own times: no named schedule within the same memory is faster."""
    return search(shape, costs).orders
