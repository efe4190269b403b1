"""How a schedule's bubble falls with the number of microbatches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pipesim.errors import InfeasibleError
from pipesim.prediction import Prediction
from pipesim.questions.compare import compare
from pipesim.scenario import ResolvedScenario
from pipesim.schedules import families, family

Curve = list[tuple[int, float]]
"""(m, bubble ratio) pairs."""

SEARCHED = ("auto",)
"""Schedules that are searched for seconds a point, so drawn only when asked for."""


@dataclass(frozen=True, slots=True)
class BubbleCurves:
    """Bubble ratio over the number of microbatches, by schedule.

    Parameters
    ----------
    simulated : dict
        Without the m at which a schedule cannot run.
    closed_form : dict
        What the literature's formula gives for the ranks' mean times, where there is one: equal stages,
        messages that take no time.
    too_large : dict
        Points of `simulated` that do not fit in memory.
    """

    simulated: dict[str, Curve] = field(default_factory=dict)
    closed_form: dict[str, Curve] = field(default_factory=dict)
    too_large: dict[str, Curve] = field(default_factory=dict)


def bubble_curves(
    scenario: ResolvedScenario,
    *,
    schedules: Sequence[str] = (),
    counts: Sequence[int] = (),
    progress: Callable[[str], None] = lambda _: None,
) -> BubbleCurves:
    """Bubble ratio of each schedule over the number of microbatches.

    Parameters
    ----------
    scenario : ResolvedScenario
        Everything but the number of microbatches.
    schedules : sequence of str
        Schedules; all but `SEARCHED` by default.
    counts : sequence of int
        Numbers of microbatches; by default p/2, p, 2p, 4p, 8p, 16p and the scenario's own.
    progress : Callable
        Told what runs next.

    Raises
    ------
    InfeasibleError
        If no schedule can run at any of them.
    """
    p, m = scenario.parallel.pipeline, scenario.batch.num_microbatches
    chosen = sorted(set(counts) or {max(1, p // 2), p, 2 * p, 4 * p, 8 * p, 16 * p, m})
    names = schedules or [name for name in families() if name not in SEARCHED]
    curves = BubbleCurves()
    reason = ""
    for count in chosen:
        progress(f"m = {count}")
        try:
            results = compare(with_microbatches(scenario, count), schedules=names, timing="fast").results
        except InfeasibleError as error:
            reason = str(error)
            continue
        for result in results:
            point = (count, float(result.bubble_ratio))
            curves.simulated.setdefault(result.label, []).append(point)
            if result.fits is False:
                curves.too_large.setdefault(result.label, []).append(point)
            if (ratio := closed_form_ratio(result)) is not None:
                curves.closed_form.setdefault(result.label, []).append((count, ratio))
    if not curves.simulated:
        raise InfeasibleError(reason)
    return curves


def closed_form_ratio(run: Prediction) -> float | None:
    """Bubble ratio by the schedule's closed form, for the mean times of the run's ranks; None without one."""
    if run.shape is None:
        return None
    known, costs, shape = family(run.schedule.name), run.costs, run.shape
    forward_s, backward_s, input_s, weight_s = (
        float(of_stage.sum()) / shape.num_ranks
        for of_stage in (costs.forward_s, costs.backward_s, costs.input_gradient_s, costs.weight_gradient_s)
    )
    if known.split_bubble is not None:
        idle_s, work_s = known.split_bubble(shape, forward_s, input_s, weight_s), input_s + weight_s
    elif known.bubble is not None:
        idle_s, work_s = known.bubble(shape, forward_s, backward_s), backward_s
    else:
        return None
    if idle_s is None:
        return None
    busy_s = shape.num_microbatches * (forward_s + work_s)
    return float(idle_s) / (float(idle_s) + busy_s)


def with_microbatches(scenario: ResolvedScenario, count: int) -> ResolvedScenario:
    """Change the number of microbatches of a step; a stated global batch grows with it.

    Raises
    ------
    ScenarioError
        As for a file with that number.
    """
    if scenario.batch.global_size is None or scenario.keys["batch"].get("global") is None:
        return scenario.with_({"batch.microbatches": count})
    samples = count * scenario.batch.micro * scenario.parallel.data
    return scenario.with_({"batch.microbatches": None, "batch.global": samples})
