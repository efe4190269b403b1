"""`pipesim validate`: schedules run for real, and how far predictions are off."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipesim.api import Scenario
from pipesim.cli import options, terminal
from pipesim.cli.execute import Measuring
from pipesim.files import check_outputs
from pipesim.show.amounts import percent, seconds, signed_percent
from pipesim.show.blocks import Table

if TYPE_CHECKING:
    from pipesim.evidence.validation import Validation, ValidationRow


@options.grouped
def validate(
    scenario: options.NeededScenario,
    device: Annotated[
        str, typer.Option(help="cpu, cuda (a GPU a rank, or one for all) or emulated (ranks sleep).")
    ],
    measuring: Measuring,
    calibrate_on: Annotated[
        str, typer.Option(metavar="NAME", help="The one schedule that costs are measured on.")
    ] = "gpipe",
    schedules: options.Schedules = None,
    chunks: options.Chunks = None,
    microbatches: Annotated[
        str | None,
        typer.Option(metavar="M[,M...]", help="Microbatches; the scenario's and half of them by default."),
    ] = None,
    overrides: options.Overrides = None,
    as_json: options.AsJson = False,
    plot: Annotated[
        Path | None, typer.Option(help="Draw measured timelines over predicted ones, PNG or SVG.")
    ] = None,
    runtime: Annotated[
        str,
        typer.Option(help="pipesim, torch (its runtime of orders) or torch-named (its own classes, if any)."),
    ] = "pipesim",
) -> None:
    """Run schedules with PyTorch, calibrate on one of them, predict the others, and print the errors."""
    from pipesim.evidence.validation import validate as run_and_predict

    check_outputs(pictures=(plot,), inputs=(scenario,))
    asked = Scenario.load(scenario, *(overrides or ()))
    found = run_and_predict(
        asked,
        device=device,
        calibrate_on=calibrate_on,
        schedules=options.parse_names(schedules, "--schedules"),
        chunks=options.parse_counts(chunks, "--chunks"),
        microbatches=options.parse_counts(microbatches, "--microbatches"),
        runtime=runtime,
        **measuring.stated(),
    )
    if plot is not None:
        _draw(found, plot)
    if as_json:
        terminal.print_json(found.to_dict())
        return
    terminal.show(*_blocks(found, asked.name))


def _draw(found: Validation, path: Path) -> None:
    """Put measured timelines over predicted ones."""
    from pipesim.show.figures import save_figure
    from pipesim.show.figures.gantt import GanttLane, plot_lanes

    lanes = [
        GanttLane(f"{row.label}, {words}", timeline)
        for row in found.rows
        for words, timeline in (("measured", row.measured), ("predicted", row.predicted))
    ]
    save_figure(plot_lanes(lanes), path)


def _blocks(found: Validation, name: str) -> Iterator[str | Table]:
    columns = ["schedule", "measured", "spread", "predicted", "error", "bubble ratio", "predicted", "error"]
    columns += ["replay error", "disturbed steps"]
    title = f"{name}: {found.device}, calibrated on {found.calibrated_on}"
    yield Table(title, columns, [_line(row) for row in found.rows])
    ranks = [
        [row.label, str(rank), *map(seconds, (measured, predicted, predicted - measured))]
        for row in found.rows
        for rank, (measured, predicted) in enumerate(
            zip(row.measured_idle_s, row.predicted_idle_s, strict=True)
        )
    ]
    yield Table("", ["schedule", "rank", "idle, measured", "predicted", "difference"], ranks)
    summary = found.summary()
    for words, key in (
        ("one stage a rank", "replay_error_one_stage"),
        ("more stages a rank", "replay_error_more_stages"),
    ):
        if summary[f"median_{key}"] is not None:
            yield f"replay error with {words}, median (largest): {_both(summary, key)} %"
    if summary["num_disturbed_rows"]:
        yield (
            f"warning: {summary['num_disturbed_rows']} schedules, marked !, had too few steps that other "
            f"work on this machine left alone, after {max(row.num_runs for row in found.rows)} runs; "
            f"they are not counted"
        )
    for stages, calibration in found.calibrations.items():
        for note in dict.fromkeys(calibration.notes):
            yield f"note: costs of {stages} stages: {note}"
    for skipped in found.skipped:
        yield f"skipped: {skipped.schedule}: {skipped.reason}"
    yield _verdict(found)


def _verdict(found: Validation) -> str:
    """Say in one line how far predictions are off, or why nobody can tell."""
    summary = found.summary()
    predicted = [row for row in found.rows if not row.calibrated_on]
    if found.disturbed_calibration:
        return (
            f"no conclusion: other work disturbed what costs were measured from: "
            f"{', '.join(found.disturbed_calibration)}; run again on an idle machine"
        )
    if summary["num_rows"]:
        return (
            f"verdict: over {summary['num_rows']} of {len(predicted)} predicted schedules, median (largest) "
            f"error: step time {_both(summary, 'step_time_error')} %, "
            f"bubble ratio {_both(summary, 'bubble_error')} points"
        )
    if not predicted:
        return "no conclusion: only the schedule that was calibrated on was run"
    disturbed = sum(row.num_disturbed_steps for row in predicted)
    num_steps = sum(row.num_steps for row in predicted)
    return (
        f"no conclusion: other work disturbed {disturbed} of {num_steps} steps; "
        f"run again on an idle machine, or on one with more cores"
    )


def _line(row: ValidationRow) -> list[str]:
    spread = (row.p90_step_time_s - row.p10_step_time_s) / row.measured_step_time_s
    return [
        row.label + (" (calibrated on)" if row.calibrated_on else "") + (" !" if row.disturbed else ""),
        seconds(row.measured_step_time_s),
        percent(spread),
        seconds(row.predicted_step_time_s),
        signed_percent(row.step_time_error),
        percent(row.measured_bubble_ratio),
        percent(row.predicted_bubble_ratio),
        f"{100 * row.bubble_error:+.2f} pp",
        signed_percent(row.replay_error),
        f"{row.num_disturbed_steps} of {row.num_steps}"
        + (f" in {row.num_runs} runs" if row.num_runs > 1 else ""),
    ]


def _both(summary: dict[str, float], key: str) -> str:
    return f"{100 * summary[f'median_{key}']:.2f} ({100 * summary[f'max_{key}']:.2f})"
