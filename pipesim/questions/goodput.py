"""Failures and checkpoints: how much of a long run is training, and how often to write a checkpoint.

Failures come at random, all devices alike, so that times between them are exponential. After one, the run
goes back to its last checkpoint and needs a restart, during which it can fail again. The expected time for an
interval of training is then ``M exp(R/M) (exp((tau + C)/M) - 1)``, with tau the interval, C the writing of a
checkpoint, R the restart and M the mean time between failures of the whole run (the complete model of Daly
2006, Future Generation Computer Systems 22(3)).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from pipesim.errors import ScenarioError
from pipesim.prediction import Prediction, predict
from pipesim.scenario import ResolvedScenario
from pipesim.scenario.resolved import Reliability

_DAY_S = 86_400.0
_MOST_FAILURES = 1e7


@dataclass(frozen=True, slots=True, repr=False)
class Goodput:
    """A long run.

    Parameters
    ----------
    step_time_s : float
        Of a step without failures.
    num_gpus : int
        Devices that can fail.
    mtbf_s : float
        Mean time between failures of the whole run.
    checkpoint_s, restart_s : float
        Writing a checkpoint; from a failure to training again.
    interval_steps : int
        Steps between checkpoints.
    best_interval_s : float
        Interval with the highest expected goodput, of which whole steps are taken.
    young_interval_s : float
        Young's estimate of it, sqrt(2 C M).
    goodput : float
        Expected share of the time that ends up in the trained model.
    simulated_goodput : Mapping of str to float
        Mean and 5th, 50th and 95th percentile over runs of `days`.
    steps_per_day, failures_per_day : float
        Expected.
    tokens_per_day, usd_per_day : float, optional
        None without a basis.
    step_time_band_s, warnings, inferred
        Of the step; see `pipesim.prediction.Prediction`.
    """

    step_time_s: float
    num_gpus: int
    mtbf_s: float
    checkpoint_s: float
    restart_s: float
    interval_steps: int
    best_interval_s: float
    young_interval_s: float
    goodput: float
    simulated_goodput: Mapping[str, float]
    days: float
    steps_per_day: float
    failures_per_day: float
    tokens_per_day: float | None
    usd_per_day: float | None
    step_time_band_s: tuple[float, float] | None
    warnings: tuple[str, ...]
    inferred: Mapping[str, str]

    @property
    def interval_s(self) -> float:
        """Training between checkpoints."""
        return self.interval_steps * self.step_time_s

    def __repr__(self) -> str:
        return (
            f"<Goodput {self.goodput:.2%}: {self.failures_per_day:.3g} failures a day, "
            f"a checkpoint every {self.interval_s:.4g} s>"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        document = {**asdict(self), "interval_s": self.interval_s}
        return document | {"step_time_band_s": self.step_time_band_s and list(self.step_time_band_s)}


def expected_goodput(interval_s: float, checkpoint_s: float, restart_s: float, mtbf_s: float) -> float:
    """Share of the time that is training, by Daly's complete model; 0 where it is too small to write down."""
    exponent = (interval_s + checkpoint_s) / mtbf_s
    if exponent + restart_s / mtbf_s > 700:
        return 0.0
    return interval_s / (mtbf_s * math.exp(restart_s / mtbf_s) * math.expm1(exponent))


def best_interval_s(checkpoint_s: float, mtbf_s: float) -> float:
    """Interval with the highest expected goodput; the restart does not matter.

    It solves ``exp(-(tau + C)/M) = 1 - tau/M``; where failures are rare, that is Young's estimate, else less.
    """
    from scipy.optimize import brentq

    young_s = young_interval_s(checkpoint_s, mtbf_s)
    if checkpoint_s < 1e-16 * mtbf_s:
        return young_s
    longest_s = min(2 * young_s, mtbf_s)

    def difference(share: float) -> float:
        # Less one on both sides, which would drown the rest.
        return math.expm1(-(share * longest_s + checkpoint_s) / mtbf_s) + share * longest_s / mtbf_s

    return longest_s * float(brentq(difference, 0.0, 1.0))


def young_interval_s(checkpoint_s: float, mtbf_s: float) -> float:
    """Young's estimate of the best interval, ``sqrt(2 C M)``."""
    return math.sqrt(2 * checkpoint_s) * math.sqrt(mtbf_s)


def goodput(scenario: ResolvedScenario) -> Goodput:
    """Simulate one step of a scenario, and what becomes of many of them.

    Raises
    ------
    PipesimError
        If the step cannot run, or takes no time.
    """
    return goodput_of(predict(scenario))


def goodput_of(result: Prediction) -> Goodput:
    """Follow a result's steps over days under its scenario's reliability.

    Raises
    ------
    ScenarioError
        If the step takes no time, or failures are too many to follow.
    """
    scenario, metrics = result.scenario, result.metrics
    reliability, num_gpus = scenario.reliability, result.costs.num_gpus or result.schedule.num_ranks
    step_s = float(metrics.step_time_s)
    if step_s <= 0:
        raise ScenarioError("a step takes no time, so no interval holds a number of them", file=scenario.file)
    mtbf_s = reliability.mtbf_per_gpu_s / num_gpus
    num_failures = reliability.num_runs * reliability.days * _DAY_S / mtbf_s
    if num_failures > _MOST_FAILURES:
        raise ScenarioError(
            f"{reliability.num_runs} runs of {reliability.days:g} days with a failure every {mtbf_s:.3g} s "
            f"are {num_failures:.2g} failures to simulate, more than {_MOST_FAILURES:.0e}; "
            "state fewer days or runs",
            file=scenario.file,
            key="reliability",
        )
    best = best_interval_s(reliability.checkpoint_s, mtbf_s)
    wanted = best if reliability.interval_s is None else reliability.interval_s
    interval_steps = max(1, round(wanted / step_s))
    interval_s = interval_steps * step_s
    share = expected_goodput(interval_s, reliability.checkpoint_s, reliability.restart_s, mtbf_s)
    runs = _simulated(interval_s, reliability, mtbf_s, seed=scenario.seed)
    tokens, usd = metrics.tokens_per_s, metrics.usd_per_step
    return Goodput(
        step_time_s=step_s,
        num_gpus=num_gpus,
        mtbf_s=mtbf_s,
        checkpoint_s=reliability.checkpoint_s,
        restart_s=reliability.restart_s,
        interval_steps=interval_steps,
        best_interval_s=best,
        young_interval_s=young_interval_s(reliability.checkpoint_s, mtbf_s),
        goodput=share,
        simulated_goodput=_summary(runs),
        days=reliability.days,
        steps_per_day=share * _DAY_S / step_s,
        failures_per_day=_DAY_S / mtbf_s,
        tokens_per_day=None if tokens is None else share * tokens * _DAY_S,
        usd_per_day=None if usd is None else usd / step_s * _DAY_S,
        step_time_band_s=result.band_s,
        warnings=result.warnings,
        inferred=result.inferred,
    )


def _summary(runs: list[float]) -> dict[str, float]:
    p5, p50, p95 = np.percentile(runs, [5, 50, 95])
    return {"mean": float(np.mean(runs)), "p5": float(p5), "p50": float(p50), "p95": float(p95)}


def _simulated(interval_s: float, reliability: Reliability, mtbf_s: float, *, seed: int) -> list[float]:
    """Goodput of runs of some days, failure by failure."""
    generator = np.random.default_rng(seed)
    days_s, cycle_s = reliability.days * _DAY_S, interval_s + reliability.checkpoint_s
    shares = []
    for _ in range(reliability.num_runs):
        now_s = trained_s = 0.0
        while now_s < days_s:
            fails_after_s, left_s = generator.exponential(mtbf_s), days_s - now_s
            until_s = min(fails_after_s, left_s)
            num_cycles, since_checkpoint_s = divmod(until_s, cycle_s)
            trained_s += num_cycles * interval_s
            if fails_after_s >= left_s:
                # The days are over, and nothing of the interval is lost.
                trained_s += min(since_checkpoint_s, interval_s)
            now_s += until_s
            while now_s < days_s:
                fails_after_s = generator.exponential(mtbf_s)
                now_s += min(fails_after_s, reliability.restart_s)
                if fails_after_s >= reliability.restart_s:
                    break
        shares.append(trained_s / days_s)
    return shares
