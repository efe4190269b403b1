"""What a reader must know beside the numbers: warnings, frameworks that would refuse, inferred values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from pipesim.costs.direct import REGROUPED
from pipesim.scenario.layers import uneven_words
from pipesim.schedules import family
from pipesim.schedules.frameworks import FRAMEWORKS, runs_only_as_csv
from pipesim.show.amounts import amount, seconds
from pipesim.show.protocols import MemoryChange, R, TimedRun

GROUP_SIZE = "microbatch_group_size"

Advice = Callable[[R], Sequence[MemoryChange]]
"""Finds what would make a run fit in memory."""


def notes(results: Sequence[R], changes_for_memory: Advice[R]) -> Iterator[str]:
    """Give warnings first, then refusals by schedule, then how numbers are to be taken.

    Parameters
    ----------
    results : sequence of TimedRun
        Of one scenario.
    changes_for_memory : Callable
        Finds what would make a result fit, where none does.
    """
    yield from urgent_notes(results, changes_for_memory)
    for result in results:
        for refusal in result.notes:
            yield f"note: {result.label} runs here, but not in {refusal}"
    if len(results) == 1:
        yield from _without_effect(results[0])
    for result in results:
        if (late := result.asynchrony) is not None:
            yield (
                f"note: {result.label} is asynchronous: gradients up to {max(late.staleness)} updates late, "
                f"{max(late.weight_versions)} weight versions; its numbers are those of a first step alone, "
                f"in a long run a step takes {seconds(late.steady_period_s)}"
            )
    yield from _overhead_notes(results)
    yield from _memory_notes(results)
    bands = [result.band for result in results if result.band is not None]
    for sentence in dict.fromkeys(band.sentence for band in bands):
        yield f"note: {sentence}"


def urgent_notes(results: Sequence[R], changes_for_memory: Advice[R]) -> Iterator[str]:
    """Give what must not be missed: warnings, impossible measurements, and what helps where nothing fits."""
    for warning in results[0].scenario.warnings:
        yield f"warning: {warning}"
    uneven = (uneven_words(result.scenario, result.costs.num_stages) for result in results)
    for words in dict.fromkeys(uneven):
        if words is not None:
            yield f"warning: {words}"
    yield from _extrapolated(results)
    yield from _impossible(results)
    yield from _regrouped_notes(results)
    yield from _changes_that_help(results, changes_for_memory)


def _regrouped_notes(results: Sequence[TimedRun]) -> Iterator[str]:
    """Say where stated times of other stages than a schedule's were added up or split."""
    by_words: dict[str, list[str]] = {}
    for result in results:
        if words := result.costs.provenance.get(REGROUPED):
            by_words.setdefault(words, []).append(result.label)
    for words, labels in by_words.items():
        yield f"note: {words}: {', '.join(labels)}"


def _extrapolated(results: Sequence[R]) -> Iterator[str]:
    """Say what the rows of the efficiency set do not cover."""
    bands = [(result, result.band) for result in results if result.band is not None]
    for words in dict.fromkeys(words for _, band in bands for words in band.extrapolated):
        yield f"warning: extrapolated: {words}"
    unmeasured = dict.fromkeys(result.schedule.name for result, band in bands if band.is_new_schedule)
    if unmeasured:
        yield f"warning: extrapolated: no measured row under {', '.join(unmeasured)}"


def _changes_that_help(results: Sequence[R], changes_for_memory: Advice[R]) -> Iterator[str]:
    """Say what would make the smallest fit with the headroom, where none does; the cheapest first."""
    if any(result.metrics.fits_headroom is not False for result in results):
        return
    smallest = min(results, key=lambda result: result.metrics.peak_memory_bytes or 0)
    changes = list(changes_for_memory(smallest))
    words = "; or ".join(f"{change} ({amount(change.peak_memory_bytes)})" for change in changes)
    headroom = smallest.scenario.kept_free.headroom
    if changes:
        would = "would fit" if changes[0].fits else "would not fit even"
        yield f"note: {smallest.label} {would} with {words}, {headroom:.0%} of the usable memory left free"


def inferred(run: TimedRun) -> Iterator[str]:
    """Say what the scenario does not state."""
    if run.scenario.echo:
        yield "inferred:"
    for key, words in run.scenario.echo.items():
        yield f"  {key} = {words}"


def _without_effect(run: TimedRun) -> Iterator[str]:
    stated, named = run.scenario.parallel.microbatch_group_size, run.shape is not None
    if stated is not None and named and GROUP_SIZE not in family(run.schedule.name).options:
        yield f"note: parallel.{GROUP_SIZE} has no effect on {run.schedule.name}"
    chunks, own = run.scenario.parallel.virtual_stages, family(run.schedule.name).chunks if named else None
    if own is not None and chunks not in (1, own):
        yield (
            f"note: parallel.virtual_stages {chunks} has no effect on {run.schedule.name}, which has "
            f"{own} a rank of its own"
        )


def _impossible(results: Sequence[TimedRun]) -> Iterator[str]:
    metrics, measured_s = results[0].metrics, results[0].scenario.measured_step_time_s
    if measured_s is not None and metrics.is_impossible(measured_s):
        yield (
            f"warning: the measured {seconds(measured_s)} are impossible: at peak the devices take "
            f"{seconds(metrics.least_possible_s)}, causal attention counted"
        )


def _overhead_notes(results: Sequence[TimedRun]) -> Iterator[str]:
    """Say of sliced schedules that are slower than others mainly because each slice pays the overhead."""
    whole = [result for result in results if result.schedule.num_slices == 1 and result.synchronous]
    fastest_s = min((float(result.metrics.step_time_s) for result in whole), default=float("inf"))
    for result in results:
        num_slices, step_s = result.schedule.num_slices, float(result.metrics.step_time_s)
        overhead_s = float(result.breakdown["overhead_s"]) if num_slices > 1 else 0.0
        more_s = overhead_s * (1 - 1 / num_slices)
        if more_s > (step_s - fastest_s) / 2 > 0:
            yield (
                f"note: {result.label} pays the layers' fixed overhead once for each of {num_slices} slices: "
                f"{seconds(overhead_s)} of its step, {seconds(more_s)} more than whole microbatches pay, "
                "which is most of what it is slower by than the fastest schedule"
            )


def _memory_notes(results: Sequence[R]) -> Iterator[str]:
    """Say what does not fit, and what barely does."""
    too_large = [result.label for result in results if result.metrics.fits_memory is False]
    if too_large:
        yield f"note: does not fit in the device's memory: {', '.join(too_large)}"
    yield from _headroom_notes([(result.label, result) for result in results])


def _headroom_notes(named: Sequence[tuple[str, TimedRun]]) -> Iterator[str]:
    """Name those that only just fit in the device's memory, and by how much."""
    thin = [
        f"{name} {peak / limit:.1%}"
        for name, result in named
        if result.metrics.fits_memory
        and result.metrics.fits_headroom is False
        and (peak := result.metrics.peak_memory_bytes) is not None
        and (limit := result.costs.memory_limit_bytes) is not None
    ]
    if thin:
        headroom = named[0][1].scenario.kept_free.headroom
        yield (
            f"note: fits, with less than the headroom of {headroom:.0%}: an estimate a few per cent low "
            f"would not; shares of the device's memory: {', '.join(thin)}"
        )


def framework_lines(results: Sequence[TimedRun]) -> Iterator[str]:
    """Say of each framework which of the results' schedules it runs."""
    for framework in FRAMEWORKS:
        own = [result.label for result in results if framework in result.frameworks]
        yield f"{framework} runs: {', '.join(own) or 'none of these'}"
    if loaded := [result.label for result in results if _is_loaded(result)]:
        yield f"torch loads as a CSV (pipesim schedule export): {', '.join(loaded)}"


def _is_loaded(result: TimedRun) -> bool:
    return result.shape is not None and runs_only_as_csv(result.schedule)
