"""How a schedule's bubble falls with the number of microbatches."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pipesim.errors import InfeasibleError
from pipesim.questions.compare import compare
from pipesim.scenario import ResolvedScenario
from pipesim.schedules import families

SEARCHED = ("auto",)
"""Schedules that are searched for seconds a point, so drawn only when asked for."""


def bubble_curves(
    scenario: ResolvedScenario,
    *,
    schedules: Sequence[str] = (),
    counts: Sequence[int] = (),
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, list[tuple[int, float]]]:
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

    Returns
    -------
    dict
        Schedule to (m, bubble ratio), without the m at which it cannot run.

    Raises
    ------
    InfeasibleError
        If no schedule can run at any of them.
    """
    p, m = scenario.parallel.pipeline, scenario.batch.num_microbatches
    chosen = sorted(set(counts) or {max(1, p // 2), p, 2 * p, 4 * p, 8 * p, 16 * p, m})
    names = schedules or [name for name in families() if name not in SEARCHED]
    curves: dict[str, list[tuple[int, float]]] = {}
    reason = ""
    for count in chosen:
        progress(f"m = {count}")
        try:
            results = compare(with_microbatches(scenario, count), schedules=names, timing="fast").results
        except InfeasibleError as error:
            reason = str(error)
            continue
        for result in results:
            curves.setdefault(result.label, []).append((count, float(result.bubble_ratio)))
    if not curves:
        raise InfeasibleError(reason)
    return curves


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
