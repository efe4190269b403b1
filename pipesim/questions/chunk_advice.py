"""What is missed where schedules that leave the number of chunks open run with one, and which to try."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pipesim.costs import build_costs
from pipesim.errors import PipesimError
from pipesim.prediction import Prediction
from pipesim.scenario import ResolvedScenario

_MOST = 3


def one_chunk_note(
    scenario: ResolvedScenario, labels: Sequence[str], results: Sequence[Prediction] = ()
) -> str:
    """Say that schedules ran without interleaving.

    Parameters
    ----------
    scenario : ResolvedScenario
        In which they ran.
    labels : sequence of str
        Schedules that could take more chunks and ran with one.
    results : sequence of Prediction
        Theirs and others', from which it is read whether interleaving was worth nothing.

    Returns
    -------
    str
        Empty where there are none, or where no larger number fits the layers.
    """
    counts = advised_counts(scenario)
    if not labels or not counts:
        return ""
    times = {result.label: float(result.step_time_s) for result in results}
    alike = math.isclose(times.get("interleaved-1f1b", 0), times.get("1f1b", math.inf), rel_tol=1e-9)
    equal = "; interleaved-1f1b then takes as long as 1f1b" if alike else ""
    return (
        f"v = 1: {', '.join(labels)} ran with one chunk a rank, so without interleaving{equal}; "
        f"try --chunks {','.join(map(str, counts))}"
    )


def advised_counts(scenario: ResolvedScenario) -> list[int]:
    """List numbers of chunks above one that a rank's layers divide into: a few, some, many."""
    layers = scenario.model.num_hidden_layers if scenario.model is not None else None
    if layers is None:
        candidates = [2, 4]
    else:
        of_rank = layers // scenario.parallel.pipeline
        divisors = [v for v in range(2, of_rank + 1) if of_rank % v == 0]
        candidates = divisors[:-1] or divisors
    fitting = [v for v in candidates if _fits(scenario, v)]
    if len(fitting) <= _MOST:
        return fitting
    return [fitting[0], fitting[len(fitting) // 2], fitting[-1]]


def _fits(scenario: ResolvedScenario, num_chunks: int) -> bool:
    try:
        build_costs(scenario, num_chunks=num_chunks)
    except PipesimError:
        return False
    return True
