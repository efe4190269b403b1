"""Configurations refined in the order of their lower bounds, until the wanted number is certain."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from pipesim.errors import PipesimError
from pipesim.prediction import Prediction, Programs, predict_within, prepare
from pipesim.questions.call_pool import CallPool
from pipesim.questions.planning.bounds import DOES_NOT_FIT, Bound
from pipesim.questions.planning.candidate_timing import Timed, group_by_shape, time_shape
from pipesim.questions.planning.losses import Losses, losses_of
from pipesim.questions.planning.space import scenario_of
from pipesim.scenario import ResolvedScenario

TIMED_AT_ONCE = 32
"""Configurations timed in one round by each process: those of one shape share its schedule."""
FIRST_TIMED = 4
"""As many in the first round of a search whose time is limited: each round takes twice as many."""
SAME_ORDER = "the same order as another schedule's"
ROUNDING = 1e-9
"""Share by which a bound may exceed what it bounds, from sums in another order."""


@dataclass(frozen=True, slots=True)
class Finalist:
    """A timed configuration to be confirmed, unless it takes longer than `limit_s`."""

    scenario: ResolvedScenario
    timed: Timed
    limit_s: float


@dataclass(frozen=True, slots=True)
class Outrun:
    """A configuration that the engine was stopped for: its step takes at least so long."""

    timed: Timed
    least_step_s: float


@dataclass(frozen=True, slots=True)
class Confirmed:
    """A configuration with its prediction by the engine."""

    timed: Timed
    prediction: Prediction
    losses: Losses

    @property
    def order(self) -> tuple[float, tuple[object, ...]]:
        """Sort key: the fastest first."""
        return float(self.prediction.step_time_s), self.timed.candidate.sort_key()


class Refinement:
    """A search under way.

    Parameters
    ----------
    scenario : ResolvedScenario
        What is cut.
    bounds : list of Bound
        Every configuration that may fit.
    top : int
        Configurations wanted.
    pool : CallPool
        Where the work runs.
    num_workers : int
        Processes of the pool.
    until_s : float, optional
        On the clock of `time.monotonic`: what is under way then is given up, and is left.
    """

    def __init__(
        self,
        scenario: ResolvedScenario,
        bounds: list[Bound],
        top: int,
        pool: CallPool,
        num_workers: int,
        until_s: float | None = None,
    ) -> None:
        self.scenario = scenario
        self.top = top
        self.pool = pool
        self.num_workers = num_workers
        self.until_s = until_s
        self._timed_at_once = TIMED_AT_ONCE if until_s is None else FIRST_TIMED
        self.timed: list[Timed] = []
        self.confirmed: list[Confirmed] = []
        """The fastest first."""
        self.rejected: Counter[str] = Counter()
        self._orders: set[tuple[object, ...]] = set()
        self._num_bounds = len(bounds)
        # The second item breaks ties the same way every time.
        self._untimed = [(b.least_step_s, b.candidate.sort_key(), b) for b in bounds]
        self._unconfirmed: list[tuple[float, tuple[object, ...], Timed]] = []
        heapq.heapify(self._untimed)

    @property
    def num_untimed(self) -> int:
        """Configurations with a closed-form bound only."""
        return len(self._untimed)

    @property
    def num_left(self) -> int:
        """Configurations that are not confirmed."""
        return len(self._untimed) + len(self._unconfirmed)

    def num_certain(self, wanted: int) -> int:
        """So many of the first `wanted` confirmed ones that nothing left can be faster."""
        least = self._least()
        return sum(float(one.prediction.step_time_s) < least for one in self.confirmed[:wanted])

    def refine(self, progress: Callable[[str], None], *, confirm_now: bool = False) -> bool:
        """Refine the most promising configurations by one level; False once nothing left can matter.

        With `confirm_now` the best of the timed ones are confirmed, whatever the bounds of the others.
        """
        worst = (
            float(self.confirmed[self.top - 1].prediction.step_time_s)
            if len(self.confirmed) >= self.top
            else np.inf
        )
        if not self.num_left or self._least() > worst:
            return False
        confirm_next = self._unconfirmed and (
            confirm_now or not self._untimed or self._unconfirmed[0][0] <= self._untimed[0][0]
        )
        if confirm_next:
            progress(f"confirming, {len(self.confirmed)} so far")
            self._confirm(worst)
        else:
            progress(f"{self._num_bounds - len(self._untimed)} of {self._num_bounds} configurations")
            self._time(worst)
        return True

    def _least(self) -> float:
        """Seconds that nothing left goes below."""
        firsts = [heap[0][0] for heap in (self._untimed, self._unconfirmed) if heap]
        return min(firsts, default=np.inf) * (1 - ROUNDING)

    def _time(self, worst: float) -> None:
        some: list[Bound] = []
        while self._untimed and len(some) < self._timed_at_once * self.num_workers:
            if some and self._untimed[0][0] * (1 - ROUNDING) > worst:
                break
            some.append(heapq.heappop(self._untimed)[2])
        self._timed_at_once = min(2 * self._timed_at_once, TIMED_AT_ONCE)
        given_up = {id(task): task for task in group_by_shape(self.scenario, some)}
        for shape in self.pool.run(time_shape, list(given_up.values()), until_s=self.until_s):
            del given_up[id(shape.task)]
            if shape.value is None:
                raise PipesimError(f"a configuration {shape.lost}")
            self.rejected.update(shape.value.rejected)
            for one in sorted(shape.value.timed, key=lambda one: one.candidate.sort_key()):
                key = (one.candidate.cut, one.candidate.recompute, one.order)
                if key in self._orders:
                    self.rejected[SAME_ORDER] += 1
                    continue
                self._orders.add(key)
                self.timed.append(one)
                heapq.heappush(self._unconfirmed, (one.least_step_s, one.candidate.sort_key(), one))
        for bound in (bound for task in given_up.values() for bound in task.bounds):
            heapq.heappush(self._untimed, (bound.least_step_s, bound.candidate.sort_key(), bound))

    def _confirm(self, worst: float) -> None:
        bound = self._untimed[0][0] if self._untimed else np.inf
        finalists: list[Finalist] = []
        while self._unconfirmed and len(finalists) < self.num_workers:
            least_s, _, timed = self._unconfirmed[0]
            if finalists and (least_s > bound or least_s * (1 - ROUNDING) > worst):
                break
            heapq.heappop(self._unconfirmed)
            one = timed.candidate
            cut_so = scenario_of(self.scenario, one.cut, one.num_chunks, one.recompute, one.schedule)
            finalists.append(Finalist(cut_so, timed, worst * (1 + 2 * ROUNDING)))
        given_up = {id(finalist): finalist.timed for finalist in finalists}
        for done in self.pool.run(confirm, finalists, until_s=self.until_s):
            del given_up[id(done.task)]
            if isinstance(done.value, Confirmed):
                self.confirmed.append(done.value)
            elif isinstance(done.value, Outrun):
                one = done.value.timed.candidate
                heapq.heappush(self._unconfirmed, (done.value.least_step_s, one.sort_key(), done.value.timed))
            else:
                self.rejected[done.value or done.lost or ""] += 1
        for timed in given_up.values():
            heapq.heappush(self._unconfirmed, (timed.least_step_s, timed.candidate.sort_key(), timed))
        self.confirmed.sort(key=lambda one: one.order)


def confirm(finalist: Finalist) -> Confirmed | Outrun | str:
    """Run the engine; the reason in words where the schedule cannot run after all."""
    try:
        prediction = predict_within(prepare(finalist.scenario, programs=_programs()), finalist.limit_s)
    except PipesimError as error:
        return error.headline
    if isinstance(prediction, float):
        return Outrun(finalist.timed, prediction)
    if prediction.metrics.fits_headroom is False:
        return DOES_NOT_FIT
    return Confirmed(finalist.timed, prediction, losses_of(prediction))


@cache
def _programs() -> Programs:
    """Schedules that this process has generated."""
    return Programs()
