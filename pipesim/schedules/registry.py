"""The one list of schedules: a family is a pure function of a shape, registered where it is written."""

from __future__ import annotations

import difflib
import importlib
import math
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from numbers import Integral
from typing import Any, TypeAlias

from pipesim.costs.table import CostTable
from pipesim.errors import DeadlockError, ScheduleError
from pipesim.ir import validate
from pipesim.ir.actions import Action, Schedule
from pipesim.ir.shape import MAX_FORWARDS, MAX_STAGES, Placement
from pipesim.ir.shape import Shape as Shape
from pipesim.schedules._slice_lengths import SLICE_LENGTHS, slice_shares

Orders = Iterable[Iterable[Action]]
"""The actions of rank 0, of rank 1, ..."""

Order: TypeAlias = Callable[..., Orders]
"""``order(shape)``, or ``order(shape, costs)`` for a schedule that is built from the stages' times."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition on the shape, in words and as a test."""

    words: str
    holds: Callable[[Shape], bool]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Shapes that run here and that a framework refuses."""

    framework: str
    words: str
    refuses: Callable[[Shape], bool]


@dataclass(frozen=True, slots=True)
class Family:
    """A schedule with its rules as data and its closed forms beside it.

    Parameters
    ----------
    name : str
        As on the command line.
    order : Callable
        Pure function from a shape (and, with `needs_costs`, a `CostTable`) to the actions of each rank.
    summary : str
        One line for lists.
    source : str
        Paper or code that defines it.
    chunks : int, optional
        Chunks a rank it is defined for; None if the user chooses.
    rules : tuple of Rule
        When it can run.
    refusals : tuple of Refusal
        When a framework would not take it although it can run.
    options : tuple of str
        Settings it understands.
    known_as : Mapping
        The frameworks that have it, and what they call it; see `pipesim.schedules.frameworks`.
    bubble : Callable, optional
        ``bubble(shape, forward_s, backward_s)``: idle seconds of each rank, for free communication and equal
        stages, of which a rank's chunks together take forward_s + backward_s; None where it does not hold.
    split_bubble : Callable, optional
        The same of a schedule that splits the backward, as
        ``split_bubble(shape, forward_s, input_gradient_s, weight_gradient_s)``.
    peak_in_flight : Callable, optional
        ``peak_in_flight(shape, rank)``: most chunks (slices of them) in flight; None where it does not hold.
    synchronous : bool
        All microbatches see the same weights. Where False, `weight_versions`, `staleness` and
        `steady_period_s` say what a step is instead; see `pipesim.schedules.pipedream`.
    weight_versions, staleness : Callable, optional
        Of ``(shape, rank)``: copies of its weights that a rank keeps; updates between a microbatch's forward
        and the update that its gradient makes.
    steady_period_s : Callable, optional
        ``steady_period_s(shape, costs)``: seconds of m microbatches once the pipeline is full.
    cure_of_deadlock : Callable, optional
        ``cure_of_deadlock(shape)``: words on the nearest shapes that run, for one that keeps all rules and
        still deadlocks.
    choices : Callable, optional
        ``choices(shape)``: what the schedule chose where the shape leaves it open, by key of the scenario.
    placement : Placement, optional
        Which rank holds which stage; None where an option or the search decides.
    num_slices : Callable, optional
        ``num_slices(shape)``: pieces that each microbatch's sequence is cut into; whole sequences if None.
    num_model_replicas : int
        Copies of each stage's weights over the ranks of one pipeline.
    splits_backward : bool
        Runs some backwards as I and W, so both times are needed.
    rivals : Callable, optional
        ``rivals(shape, costs)``: schedules that the order does not lose to where nothing contends, and must
        not lose to where something does.
    needs_costs : bool
        The order follows from the stages' times: `generate` must be given a cost table.
    """

    name: str
    order: Order
    summary: str
    source: str
    chunks: int | None = None
    rules: tuple[Rule, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    options: tuple[str, ...] = ()
    known_as: Mapping[str, str] = field(default_factory=dict)
    bubble: Callable[[Shape, Any, Any], Any] | None = None
    split_bubble: Callable[[Shape, Any, Any, Any], Any] | None = None
    peak_in_flight: Callable[[Shape, int], int | None] | None = None
    synchronous: bool = True
    weight_versions: Callable[[Shape, int], int] | None = None
    staleness: Callable[[Shape, int], int] | None = None
    steady_period_s: Callable[[Shape, CostTable], Any] | None = None
    cure_of_deadlock: Callable[[Shape], str] | None = None
    choices: Callable[[Shape], Mapping[str, str]] | None = None
    placement: Placement | None = "linear"
    num_slices: Callable[[Shape], int] | None = None
    num_model_replicas: int = 1
    splits_backward: bool = False
    rivals: Callable[[Shape, CostTable], Iterable[Schedule]] | None = None
    needs_costs: bool = False

    @property
    def searches(self) -> bool:
        """Whether the order is searched for, which takes longer than all other schedules together."""
        return self.rivals is not None

    def check(self, shape: Shape) -> None:
        """Raise `ScheduleError` where the shape breaks a rule; names the nearest legal m."""
        unknown = sorted(set(shape.options) - set(self.options))
        if unknown:
            known = ", ".join(self.options) or "none"
            raise ScheduleError(
                f"{self.name}: unknown option {unknown[0]!r}; options of this schedule: {known}"
            )
        if not all(isinstance(size, Integral) for size in _sizes(shape)):
            raise ScheduleError(f"found {shape}; needed: whole numbers")
        if shape.num_stages > MAX_STAGES:
            raise ScheduleError(f"{shape}: {shape.num_stages:,} stages; at most {MAX_STAGES:,} can be held")
        _check_forwards(shape, 1)
        for rule in self._all_rules():
            if not rule.holds(shape):
                raise ScheduleError(f"{self.name} needs {rule.words}; found {shape}{self._nearest(shape)}")
        _check_forwards(shape, self.num_slices(shape) if self.num_slices else 1)

    def _all_rules(self) -> tuple[Rule, ...]:
        basic = (Rule("at least one rank, one chunk and one microbatch", lambda s: min(_sizes(s)) >= 1),)
        if self.chunks is None:
            return basic + self.rules
        fixed = Rule(f"v = {self.chunks} (chunks a rank)", lambda s: s.num_chunks == self.chunks)
        return (*basic, fixed, *self.rules)

    def _nearest(self, shape: Shape) -> str:
        def legal(num_microbatches: int) -> bool:
            other = Shape(shape.num_ranks, shape.num_chunks, num_microbatches, shape.options)
            return num_microbatches >= 1 and all(rule.holds(other) for rule in self._all_rules())

        m = shape.num_microbatches
        below = next((k for k in range(m - 1, 0, -1) if legal(k)), None)
        above = next((k for k in range(m + 1, m + 4 * shape.num_stages + 1) if legal(k)), None)
        found = [str(k) for k in (below, above) if k is not None]
        return f"; nearest legal m: {' or '.join(found)}" if found else ""


def _check_forwards(shape: Shape, num_slices: int) -> None:
    num_forwards = math.prod(_sizes(shape)) * num_slices
    if num_forwards > MAX_FORWARDS:
        product = "p x v x m" + (" x slices" if num_slices > 1 else "")
        raise ScheduleError(
            f"{shape}: {num_forwards:,} forwards ({product}), too many to hold; at most {MAX_FORWARDS:,}"
        )


def _sizes(shape: Shape) -> tuple[int, int, int]:
    return shape.num_ranks, shape.num_chunks, shape.num_microbatches


_FAMILIES: dict[str, Family] = {}


def schedule(name: str, **facts: Any) -> Callable[[Order], Order]:
    """Register the decorated function as the order of a schedule; `facts` are the fields of `Family`."""

    def register(order: Order) -> Order:
        if name in _FAMILIES:
            raise ValueError(f"two schedules are called {name!r}")
        summary = (order.__doc__ or "").strip().splitlines()[0]
        _FAMILIES[name] = Family(name=name, order=order, summary=summary, **facts)
        return order

    return register


@cache
def families() -> dict[str, Family]:
    """Every registered schedule by name: each module of this package is one family of them."""
    package = importlib.import_module("pipesim.schedules")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return dict(sorted(_FAMILIES.items()))


def family(name: str) -> Family:
    """Look a schedule up; case and underscores are forgiven.

    Raises
    ------
    ScheduleError
        If there is none of that name; the nearest names are offered.
    """
    key = name.strip().lower().replace("_", "-")
    known = families()
    if key in known:
        return known[key]
    near = difflib.get_close_matches(key, known, n=3, cutoff=0.4)
    raise ScheduleError(f"no schedule is called {name!r}; {_offer(near, known)}")


def families_named(names: str | Sequence[str] = ()) -> list[Family]:
    """Look up one name or several, each once; all families where none is given.

    Raises
    ------
    ScheduleError
        As for `family`.
    """
    listed = (names,) if isinstance(names, str) else names
    chosen = {one.name: one for one in map(family, listed)}
    return list((chosen or families()).values())


def _offer(near: list[str], known: Mapping[str, Family]) -> str:
    return f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(known)}"


def generate(name: str, shape: Shape, costs: CostTable | None = None) -> Schedule:
    """Generate and validate a schedule.

    Parameters
    ----------
    name : str
        Name of a family, as on the command line.
    shape : Shape
        What to generate it for.
    costs : CostTable, optional
        Times of the stages, read only by families that are built from them (`Family.needs_costs`) as if skip
        connections were free; and the skip connections, which the schedule gets.

    Raises
    ------
    ScheduleError
        If the name is unknown, the shape breaks a rule of the schedule, or the costs it needs are missing.
    DeadlockError
        If the ranks would wait for each other.
    """
    chosen = family(name)
    chosen.check(shape)
    if not chosen.needs_costs:
        orders = chosen.order(shape)
    elif costs is None:
        raise ScheduleError(f"{chosen.name} is built from the stages' times; state costs, or name a scenario")
    elif costs.num_stages != shape.num_stages:
        raise ScheduleError(
            f"{chosen.name} needs costs of {shape.num_stages} stages for {shape}; found {costs.num_stages}"
        )
    else:
        orders = chosen.order(shape, replace(costs, skips=()))
    built = Schedule.from_orders(chosen.name, orders)
    if costs is not None:
        built = replace(built, skips=costs.skip_ends)
    if SLICE_LENGTHS in shape.options:
        shares = slice_shares(shape.options[SLICE_LENGTHS], built.num_slices, costs)
        built = replace(built, slice_shares=shares)
    try:
        validate(built)
    except DeadlockError:
        if chosen.cure_of_deadlock is None:
            raise
        raise DeadlockError(
            f"{chosen.name} would deadlock with {shape}: {chosen.cure_of_deadlock(shape)}"
        ) from None
    return built
