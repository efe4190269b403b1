"""The pictures of a report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from pipesim.cli.report_answer import Answer
from pipesim.cli.tables import amount, seconds
from pipesim.prediction import Prediction
from pipesim.show.report import Picture, memory_or_in_flight


def pictures(answer: Answer) -> list[Picture]:
    """Draw the chosen and the scenario's own schedule, and all of them by time and memory."""
    from pipesim.show.figures import plot_gantt

    labels = " and ".join(result.label for result in answer.shown)
    timelines = [
        (f"{result.label}: step {seconds(result.metrics.step_time_s)}", result.events)
        for result in answer.shown
    ]
    drawn = [
        _draw(
            f"Who computes what, when: {labels}. A row is a rank, a number a microbatch, near white is idle.",
            f"Timelines of {labels}: one row a rank, one box a forward or backward, time to the right.",
            lambda path: plot_gantt(timelines, path),
        )
    ]
    for result in answer.shown:
        drawn += _of_ranks(result)
    return drawn + _of_all(answer)


def _of_ranks(result: Prediction) -> list[Picture]:
    from pipesim.show.figures import plot_breakdown, plot_memory

    label, peak_bytes = result.label, result.metrics.peak_memory_bytes
    drawn = [
        _draw(
            f"Where each rank's step goes: {label}.",
            f"Stacked bars, one a rank, of the step of {label}; the table of its ranks has the numbers.",
            lambda path: plot_breakdown(label, result.metrics, path),
        )
    ]
    if peak_bytes is not None:
        drawn.append(
            _draw(
                f"Memory of a device of every rank over the step: {label}.",
                f"Memory of every rank of {label} over time; the highest is {amount(peak_bytes)}.",
                lambda path: plot_memory(label, result.events, result.schedule, result.costs, path),
            )
        )
    return drawn


def _of_all(answer: Answer) -> list[Picture]:
    from pipesim.show.figures import plot_pareto

    best = answer.choice.best
    points = [
        (result.label, float(result.metrics.step_time_s), memory_or_in_flight(result))
        for result in answer.comparison.results
        if result.synchronous
    ]
    if not points:
        return []
    in_bytes = best.metrics.peak_memory_bytes is not None
    return [
        _draw(
            "Step time against memory: no other schedule beats in both what lies on the line.",
            "One point a synchronous schedule; the table of all schedules has the numbers.",
            lambda path: plot_pareto(
                "", points, path, limit_bytes=best.costs.memory_limit_bytes, in_bytes=in_bytes
            ),
        )
    ]


def _draw(caption: str, alternative: str, plot: Callable[[Path], None]) -> Picture:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "picture.png"
        plot(file)
        return Picture(file.read_bytes(), caption, alternative)
