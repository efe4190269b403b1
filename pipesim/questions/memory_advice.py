"""What would make a schedule fit in memory: each change tried, none guessed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pipesim.errors import PipesimError
from pipesim.questions.fast import CompiledEvaluator, ProgramCache
from pipesim.questions.planning.space import recomputes
from pipesim.questions.run import Result, simulate_named
from pipesim.scenario import ResolvedScenario

THIN_SHARE = 0.95
"""Above this share of a device's memory, an estimate a few per cent low decides whether a run fits."""


@dataclass(frozen=True, slots=True)
class Change:
    """Keys of the scenario with other values, and the peak memory they lead to."""

    keys: dict[str, str]
    peak_memory_bytes: float
    fits: bool

    def __str__(self) -> str:
        return ", ".join(f"{key}={value}" for key, value in self.keys.items())


def changes_for_memory(result: Result) -> list[Change]:
    """Try what takes less memory: one change at a time; recompute and optimizer together if none is enough.

    Parameters
    ----------
    result : Result
        Of a model on a cluster; stated costs have no such changes.

    Returns
    -------
    list of Change
        Those that fit; if none does, the one of least memory.
    """
    tried = list(_tried(result, _single_changes(result.scenario)))
    fitting = [change for change in tried if change.fits]
    if not fitting:
        tried += _tried(result, _joint_change(result.scenario))
        fitting = [change for change in tried if change.fits]
    return fitting or sorted(tried, key=lambda change: change.peak_memory_bytes)[:1]


def _tried(result: Result, variants: Iterator[tuple[dict[str, str], ResolvedScenario]]) -> Iterator[Change]:
    scenario, name = result.scenario, result.schedule.name
    options = scenario.schedule.options if scenario.schedule.name == name else None
    for keys, variant in variants:
        plain = replace(variant, jitter=None, p2p_mode="overlapped")
        try:
            metrics = simulate_named(
                plain,
                name,
                num_chunks=result.metrics.num_chunks,
                options=options,
                engine=CompiledEvaluator(ProgramCache(), "compiled"),
            ).metrics
        except PipesimError:
            continue
        if metrics.peak_memory_bytes is not None:
            yield Change(keys, metrics.peak_memory_bytes, metrics.fits_memory is True)


def _single_changes(scenario: ResolvedScenario) -> Iterator[tuple[dict[str, str], ResolvedScenario]]:
    if scenario.cluster is None or scenario.schedule.csv is not None:
        return
    levels = list(recomputes(scenario))
    for level in levels[levels.index(scenario.recompute) + 1 :] if scenario.recompute in levels else ():
        yield {"recompute": level}, replace(scenario, recompute=level)
    if scenario.optimizer == "plain" and scenario.parallel.num_replicas > 1:
        yield {"optimizer": "sharded"}, replace(scenario, optimizer="sharded")
    batch, parallel = scenario.batch, scenario.parallel
    if batch.micro % 2 == 0:
        halved = replace(batch, micro=batch.micro // 2, num_microbatches=2 * batch.num_microbatches)
        yield {"batch.micro": str(halved.micro)}, replace(scenario, batch=halved)
    if parallel.data % 2 == 0 and scenario.layers.kind != "list":
        deeper = replace(parallel, pipeline=2 * parallel.pipeline, data=parallel.data // 2)
        batch = replace(batch, num_microbatches=2 * batch.num_microbatches)
        keys = {"parallel.pipeline": str(deeper.pipeline), "parallel.data": str(deeper.data)}
        yield keys, replace(scenario, parallel=deeper, batch=batch)


def _joint_change(scenario: ResolvedScenario) -> Iterator[tuple[dict[str, str], ResolvedScenario]]:
    if scenario.cluster is None or scenario.schedule.csv is not None:
        return
    if scenario.recompute != "full" and scenario.optimizer == "plain" and scenario.parallel.num_replicas > 1:
        keys = {"recompute": "full", "optimizer": "sharded"}
        yield keys, replace(scenario, recompute="full", optimizer="sharded")
