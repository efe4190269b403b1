"""`pipesim execute`: the schedule, run for real."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from pipesim.api import Scenario
from pipesim.cli import options, terminal
from pipesim.executor.rank_processes import STALL_S, STARTUP_S
from pipesim.executor.run import MAX_CONNECTIONS
from pipesim.files import check_outputs
from pipesim.show.amounts import amount, optional, percent, seconds, signed_percent
from pipesim.show.blocks import Table


@dataclass(frozen=True, slots=True)
class Measuring:
    """What runs, and how its steps are measured."""

    model: Annotated[
        str | None, typer.Option(metavar="cnn|MODULE:FACTORY", help="Instead of the scenario's transformer.")
    ] = None
    steps: Annotated[int, typer.Option(min=1, help="Steps to measure, of each schedule.")] = 10
    warmup: Annotated[int, typer.Option(min=0, help="Steps before them.")] = 3
    threads: Annotated[int, typer.Option(min=1, help="Threads of a rank on a CPU.")] = 1
    timeout: options.Timeout = STALL_S
    startup_timeout: options.StartupTimeout = STARTUP_S

    def stated(self) -> dict[str, Any]:
        """Arguments of the functions that run, and a word on standard error for each run."""
        return {
            "model": self.model,
            "num_steps": self.steps,
            "warmup": self.warmup,
            "threads_per_rank": self.threads,
            "stall_timeout_s": self.timeout,
            "startup_timeout_s": self.startup_timeout,
            "progress": lambda words: typer.echo(f"running: {words}", err=True),
        }


@options.grouped
def execute(
    scenario: options.NeededScenario,
    device: Annotated[
        str, typer.Option(help="cpu, cuda (a GPU a rank, or one for all) or emulated (ranks sleep).")
    ],
    measuring: Measuring,
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="RUN.json")] = None,
    overrides: options.Overrides = None,
    as_json: options.AsJson = False,
    replicas: Annotated[int | None, typer.Option(min=1, help="Data-parallel replicas.")] = None,
    trace: Annotated[Path | None, typer.Option(help="Write a trace for Chrome or Perfetto.")] = None,
) -> None:
    """Replay the scenario's schedule with PyTorch, one process a rank; under torchrun, its processes."""
    from pipesim.questions.execution import execute_scenario

    check_outputs(output, trace, inputs=(scenario,))
    done = execute_scenario(
        Scenario.load(scenario, *(overrides or ())),
        device=device,
        num_replicas=replicas,
        **measuring.stated(),
    )
    if done is None:
        return
    if output is not None:
        done.save(output)
    if trace is not None:
        from pipesim.show.traces import write_trace

        write_trace(done.run.timeline, trace)
    document = done.to_dict()
    if as_json:
        terminal.print_json(document)
        return
    terminal.show(*_blocks(document, done.scenario.name, output))


def _memory(ranks: list[dict[str, Any]]) -> Table:
    """Put what the allocator counted beside what was predicted."""
    rows = []
    for rank in ranks:
        measured, predicted = rank["peak_memory_bytes"], rank["predicted_peak_memory_bytes"]
        error = signed_percent(predicted / measured - 1) if predicted and measured else ""
        rows.append([str(rank["rank"]), amount(measured), optional(predicted, amount), error])
    return Table("", ["rank", "peak memory", "predicted", "error"], rows)


def _blocks(document: dict[str, Any], name: str, output: Path | None) -> Iterator[str | Table]:
    times = np.array(document["step_times_s"])
    low, high = np.percentile(times, (10, 90))
    disturbed = document["num_disturbed_steps"]
    set_aside = disturbed if disturbed < document["num_steps"] else 0
    sizes = ", ".join(str(document[f"num_{what}"]) for what in ("ranks", "stages", "microbatches"))
    lines = [
        ("schedule", document["schedule"]),
        ("ranks, stages, microbatches", sizes),
        ("data-parallel replicas", str(document["num_replicas"])),
        ("device", document["device"]),
        ("steps, disturbed, set aside", f"{document['num_steps']}, {disturbed}, {set_aside}"),
        ("step time, median", seconds(document["step_time_s"])),
        ("step time, 10th to 90th percentile", f"{seconds(low)} to {seconds(high)}"),
        ("makespan", seconds(document["makespan_s"])),
        ("bubble ratio (idle / total)", percent(document["bubble_ratio"])),
    ]
    yield Table(name, ["", "measured"], lines)
    keys = ("busy_s", "idle_s", "wait_s")
    rows = [
        [str(rank["rank"]), *(seconds(rank[key]) for key in keys), amount(rank["peak_activation_bytes"])]
        for rank in document["ranks"]
    ]
    yield Table("", ["rank", "busy", "idle", "waited for input", "peak activations"], rows)
    if any(rank["peak_memory_bytes"] for rank in document["ranks"]):
        yield _memory(document["ranks"])
    if document["environment"].get(MAX_CONNECTIONS) == "1":
        yield "warning: CUDA_DEVICE_MAX_CONNECTIONS=1: receives that wait may hold up computations"
    if disturbed and not set_aside:
        yield "warning: every step was disturbed, so all are counted; they say little of a quiet machine"
    if output is not None:
        yield f"{output}: {document['num_steps']} steps on {document['environment']['processor']}"
