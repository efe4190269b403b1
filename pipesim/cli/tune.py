"""`pipesim tune`: the best order for one's own stage times."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipesim.api import Scenario
from pipesim.cli import options, terminal
from pipesim.files import check_outputs
from pipesim.show.amounts import amount, optional, percent, seconds, signed_percent
from pipesim.show.blocks import Table
from pipesim.show.glossary import MEASURED_FILES
from pipesim.show.order_words import order_words

if TYPE_CHECKING:
    from pipesim.evidence.tuning import Tuning
    from pipesim.evidence.tuning.outcome import RatedOrder


def tune(
    scenario: Annotated[Path, typer.Argument(metavar="SCENARIO", help="With the schedule in use.")],
    measured: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[RUN...]", help=f"Costs are measured from {MEASURED_FILES}."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="ORDER.csv", help="Write the order to run.")
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(help="Measure, and verify, by short runs on: cpu, cuda or emulated (ranks sleep)."),
    ] = None,
    verify: Annotated[
        int,
        typer.Option(
            metavar="ROUNDS", min=0, help="Run the order in use and the new one by turns; 10 or more."
        ),
    ] = 0,
    runtime: Annotated[
        str, typer.Option(help="What runs them: torch (its own runtime) or pipesim (our executor).")
    ] = "torch",
    chunks: options.Chunks = None,
    max_in_flight: Annotated[
        int | None,
        typer.Option(min=1, help="Most microbatches a rank holds, where nothing says what fits in memory."),
    ] = None,
    overrides: options.Overrides = None,
    model: Annotated[
        str | None, typer.Option(metavar="cnn|MODULE:FACTORY", help="Instead of the scenario's model.")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads of a rank on a CPU.")] = 1,
    as_json: options.AsJson = False,
) -> None:
    """Find the best order for measured stage times, as a CSV for torch; run it beside the one in use."""
    from pipesim.evidence.tuning import tune as find

    files = measured or []
    check_outputs(output, inputs=(scenario, *files))
    found = find(
        Scenario.load(scenario, *(overrides or ())),
        *files,
        chunks=options.parse_counts(chunks, "--chunks"),
        max_in_flight=max_in_flight,
        device=device,
        model=model,
        runtime=runtime,
        verify=verify,
        threads_per_rank=threads,
        progress=lambda words: typer.echo(words, err=True),
    )
    if output is not None:
        found.write(output)
    if as_json:
        terminal.print_json(found.to_dict())
        return
    terminal.show(*_blocks(found))
    if output is not None:
        terminal.show(*order_words(found.kept.order, output))


def _blocks(found: Tuning) -> Iterator[str | Table]:
    columns = ["order", "step", "5th to 95th", "bubble ratio", "memory", "most in flight", "saved"]
    rows = [
        _line(found, one, " (in use)" if one is found.in_use else "")
        for one in (found.in_use, *found.choices)
    ]
    yield Table(
        "predicted under drawn hops: mean and percentiles of the step, median of what is saved", columns, rows
    )
    yield from (f"note: {words}" for words in found.notes)
    middle, low, high = found.gain
    if found.best is found.in_use:
        yield f"keep {found.in_use.label}: no order is predicted to be faster by more than 1 %"
        return
    yield (
        f"{found.best.label} instead of {found.in_use.label}: predicted to save {percent(middle)} of a step "
        f"({percent(low)} to {percent(high)})"
    )
    if found.paired is not None:
        yield from _measured(found)


def _measured(found: Tuning) -> Iterator[str | Table]:
    paired = found.paired
    assert paired is not None
    numbers = paired.to_dict()
    rows = [
        [found.in_use.label, seconds(found.in_use.step_time_s), seconds(numbers["before_s"]), ""],
        [
            found.best.label,
            seconds(found.best.step_time_s),
            seconds(numbers["after_s"]),
            signed_percent(found.gain[0]) + " / " + signed_percent(paired.gain),
        ],
    ]
    title = f"{numbers['rounds']} rounds by turns, {paired.wins} won"
    yield Table(title, ["order", "predicted", "measured", "saved, predicted / measured"], rows)
    if not paired.conclusive:
        yield f"no conclusion: other work disturbed {paired.num_disturbed} of {numbers['rounds']} rounds"
    if paired.lost:
        yield f"keep {found.in_use.label}: the new order was no faster"


def _line(found: Tuning, one: RatedOrder, mark: str) -> list[str]:
    import numpy as np

    numbers = one.to_dict()
    low, high = _range(one)
    return [
        one.label + mark + (" (searched)" if one.candidate.searched else ""),
        seconds(one.step_time_s),
        f"{seconds(low)} to {seconds(high)}",
        percent(numbers["bubble_ratio"]),
        optional(numbers["peak_memory_bytes"], amount),
        str(max(numbers["peak_in_flight"])),
        "" if one is found.in_use else signed_percent(float(np.median(one.gain_over(found.in_use)))),
    ]


def _range(one: RatedOrder) -> tuple[float, float]:
    import numpy as np

    low, high = np.percentile(one.drawn_s, [5, 95])
    return float(low), float(high)
