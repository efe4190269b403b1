"""What a reader must know beside the numbers: inferred values, warnings, frameworks that would refuse."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from pipesim.cli import tables
from pipesim.study import Result


def print_notes(console: Console, results: Sequence[Result]) -> None:
    """Print warnings first, then refusals by schedule, then what was inferred."""
    scenario = results[0].scenario
    for warning in scenario.warnings:
        console.print(f"warning: {warning}")
    for result in results:
        for note in result.notes:
            console.print(f"note: {result.label} runs here, but not in {note}")
    for result in results:
        if result.asynchrony is not None:
            late = result.asynchrony
            console.print(
                f"note: {result.label} is asynchronous: gradients up to {max(late.staleness)} updates late, "
                f"{max(late.weight_versions)} weight versions; its numbers are those of a first step alone, "
                f"in a long run a step takes {tables.seconds(late.steady_period_s)}"
            )
    too_large = [result.label for result in results if result.metrics.fits_memory is False]
    if too_large:
        console.print(f"note: does not fit in the device's memory: {', '.join(too_large)}")
    if scenario.efficiency is not None and scenario.efficiency.error_band is not None:
        console.print(
            f"note: of ten step times predicted with {scenario.efficiency.name}, nine lie within "
            f"{scenario.efficiency.error_band:.0%} of the measured ones"
        )
    if scenario.echo:
        console.print("inferred:")
    for key, words in scenario.echo.items():
        console.print(f"  {key} = {words}")
