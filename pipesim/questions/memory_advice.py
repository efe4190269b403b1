"""What would make a schedule fit in memory: each change tried, none guessed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipesim.errors import PipesimError
from pipesim.prediction import Prediction, least_step_s, prepare
from pipesim.questions.planning.space import recomputes
from pipesim.scenario import ResolvedScenario

Keys = Mapping[str, Any]


_MOST_CHANGES = 3


@dataclass(frozen=True, slots=True)
class Change:
    """Keys of the scenario with other values, the scenario that they make, and its peak memory.

    Fits means with the headroom; `least_step_s` is a step where nothing contends.
    """

    keys: Keys
    scenario: ResolvedScenario
    peak_memory_bytes: float
    fits: bool
    least_step_s: float

    def __str__(self) -> str:
        return ", ".join(f"{key}={_shown(value)}" for key, value in self.keys.items())


def changes_for_memory(result: Prediction) -> list[Change]:
    """Try what takes less memory: one change at a time; jointly if none that recomputes nothing is enough.

    Parameters
    ----------
    result : Prediction
        Of a model on a cluster; stated costs have no such changes.

    Returns
    -------
    list of Change
        A few that fit, those of the fastest steps first; if none does, the one of least memory.
    """
    scenario = result.scenario
    if scenario.cluster is None or scenario.schedule.csv is not None:
        return []
    tried = list(_tried(result, _single_changes(scenario)))
    if not any(change.fits and "recompute" not in change.keys for change in tried):
        tried += _tried(result, _joint_changes(scenario))
    fitting = sorted((change for change in tried if change.fits), key=lambda change: change.least_step_s)
    return fitting[:_MOST_CHANGES] or sorted(tried, key=lambda change: change.peak_memory_bytes)[:1]


def schedule_keys(result: Prediction) -> Keys:
    """Keys that make a scenario run what a prediction is of."""
    own, name = result.scenario.schedule, result.schedule.name
    options = own.options if own.name == name else {}
    return {"schedule": {"name": name, **options}, "parallel.virtual_stages": result.metrics.num_chunks}


def _tried(result: Prediction, variants: Iterator[Keys]) -> Iterator[Change]:
    scenario, own = result.scenario, schedule_keys(result)
    for keys in variants:
        try:
            changed = scenario.with_({**own, **keys})
            prepared = prepare(changed)
            peak = prepared.peak_memory
        except PipesimError:
            continue
        if peak.most_bytes is not None:
            fits = peak.fits_headroom is True
            yield Change(keys, changed, peak.most_bytes, fits, least_step_s(prepared))


def _single_changes(scenario: ResolvedScenario) -> Iterator[Keys]:
    batch, parallel = scenario.batch, scenario.parallel
    yield from _shared_out(scenario)
    for level in _further_recomputes(scenario):
        yield {"recompute": level}
    if batch.micro % 2 == 0:
        yield {"batch.micro": batch.micro // 2, **_as_many_samples(scenario)}
    if parallel.data % 2 == 0 and scenario.layers.kind != "list":
        sizes = {"parallel.pipeline": 2 * parallel.pipeline, "parallel.data": parallel.data // 2}
        yield {**sizes, **_as_many_samples(scenario)}


def _shared_out(scenario: ResolvedScenario) -> Iterator[Keys]:
    """Give what costs little or no time."""
    parallel = scenario.parallel
    if parallel.tensor > 1 and not parallel.sequence_parallel and scenario.model is not None:
        yield {"parallel.sequence_parallel": True}
    if scenario.optimizer == "plain" and parallel.num_replicas > 1:
        yield {"optimizer": "sharded"}


def _further_recomputes(scenario: ResolvedScenario) -> Sequence[str]:
    levels = list(recomputes(scenario))
    return levels[levels.index(scenario.recompute) + 1 :] if scenario.recompute in levels else []


def _as_many_samples(scenario: ResolvedScenario) -> Keys:
    """Where microbatches are stated and no global batch: twice as many, of half the samples at once."""
    if scenario.keys["batch"].get("microbatches") is None:
        return {}
    return {"batch.microbatches": 2 * scenario.batch.num_microbatches}


def _joint_changes(scenario: ResolvedScenario) -> Iterator[Keys]:
    changes = list(_shared_out(scenario))
    shared = {key: value for one in changes for key, value in one.items()}
    if len(changes) > 1:
        yield shared
    for level in _further_recomputes(scenario) if shared else ():
        yield {**shared, "recompute": level}


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
