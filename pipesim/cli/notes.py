"""What a reader must know beside the numbers: inferred values, warnings, frameworks that would refuse."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console

from pipesim.cli import tables
from pipesim.questions import Result
from pipesim.questions.memory_advice import THIN_SHARE, changes_for_memory
from pipesim.questions.run import GROUP_SIZE
from pipesim.schedules import family
from pipesim.schedules.frameworks import FRAMEWORKS, runs_only_as_csv


def print_notes(console: Console, results: Sequence[Result]) -> None:
    """Print warnings first, then refusals by schedule, then what was inferred."""
    scenario = results[0].scenario
    for warning in scenario.warnings:
        console.print(f"warning: {warning}")
    for result in results:
        for note in result.notes:
            console.print(f"note: {result.label} runs here, but not in {note}")
    if len(results) == 1:
        _print_without_effect(console, results[0])
    for result in results:
        if result.asynchrony is not None:
            late = result.asynchrony
            console.print(
                f"note: {result.label} is asynchronous: gradients up to {max(late.staleness)} updates late, "
                f"{max(late.weight_versions)} weight versions; its numbers are those of a first step alone, "
                f"in a long run a step takes {tables.seconds(late.steady_period_s)}"
            )
    for note in _overhead_notes(results):
        console.print(note)
    _print_memory_notes(console, results)
    if scenario.efficiency is not None and scenario.efficiency.error_band is not None:
        console.print(
            f"note: of ten step times predicted with {scenario.efficiency.name}, nine lie within "
            f"{scenario.efficiency.error_band:.0%} of the measured ones"
        )
    if scenario.echo:
        console.print("inferred:")
    for key, words in scenario.echo.items():
        console.print(f"  {key} = {words}")


def _print_without_effect(console: Console, result: Result) -> None:
    stated, named = result.scenario.parallel.microbatch_group_size, result.shape is not None
    if stated is not None and named and GROUP_SIZE not in family(result.schedule.name).options:
        console.print(f"note: parallel.{GROUP_SIZE} has no effect on {result.schedule.name}")


def _overhead_notes(results: Sequence[Result]) -> Iterator[str]:
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
                f"{tables.seconds(overhead_s)} of its step, {tables.seconds(more_s)} more than whole "
                "microbatches pay, which is most of what it is slower by than the fastest schedule"
            )


def framework_lines(results: Sequence[Result]) -> list[str]:
    """Say of each framework which of the results' schedules it runs."""
    lines = []
    for framework in FRAMEWORKS:
        own = [result.label for result in results if framework in result.frameworks]
        lines.append(f"{framework} runs: {', '.join(own) or 'none of these'}")
    if loaded := [result.label for result in results if _is_loaded(result)]:
        lines.append(f"torch loads as a CSV (pipesim schedule export): {', '.join(loaded)}")
    return lines


def framework_sentence(result: Result) -> str:
    """Say which frameworks run one schedule."""
    if result.frameworks:
        return f"Frameworks that run {result.label}: {', '.join(result.frameworks)}."
    text = f"None of {', '.join(FRAMEWORKS)} runs {result.label}"
    return f"{text} by name; torch loads its CSV." if _is_loaded(result) else f"{text}."


def _is_loaded(result: Result) -> bool:
    return result.shape is not None and runs_only_as_csv(result.schedule)


def _print_memory_notes(console: Console, results: Sequence[Result]) -> None:
    """Say what does not fit, what barely does, and, where nothing fits, what would help."""
    too_large = [result for result in results if result.metrics.fits_memory is False]
    if too_large:
        labels = ", ".join(result.label for result in too_large)
        console.print(f"note: does not fit in the device's memory: {labels}")
    print_headroom(console, [(result.label, result) for result in results])
    if too_large and len(too_large) == len(results):
        smallest = min(too_large, key=lambda result: result.metrics.peak_memory_bytes or 0)
        changes = changes_for_memory(smallest)
        words = "; or ".join(f"{change} ({tables.amount(change.peak_memory_bytes)})" for change in changes)
        if changes and changes[0].fits:
            console.print(f"note: {smallest.label} would fit with {words}")
        elif changes:
            console.print(f"note: {smallest.label} would not fit even with {words}")


def print_headroom(console: Console, named: Sequence[tuple[str, Result]]) -> None:
    """Name those that only just fit in the device's memory, and by how much."""
    thin = [
        f"{name} {peak / limit:.1%}"
        for name, result in named
        if result.metrics.fits_memory
        and (peak := result.metrics.peak_memory_bytes) is not None
        and (limit := result.costs.memory_limit_bytes) is not None
        and peak > THIN_SHARE * limit
    ]
    if thin:
        console.print(
            "note: little headroom, an estimate that is a few per cent low would not fit; shares of the "
            f"device's memory: {', '.join(thin)}"
        )
