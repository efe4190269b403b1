"""Numbers as people read them, and tables of them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from pipesim.cli.glossary import part_name
from pipesim.prediction import Prediction
from pipesim.questions import Comparison, Goodput

_WIDTH = 400
"""More than any table takes: a narrow terminal breaks lines, but no name or number is cut short."""


def console() -> Console:
    """Write to standard output; tables take the width they need."""
    return Console(width=_WIDTH, soft_wrap=True, highlight=False, markup=False)


def print_json(document: Any) -> None:
    """Print a document and nothing else."""
    sys.stdout.write(json.dumps(document, indent=1, allow_nan=False) + "\n")


def seconds(value: Any) -> str:
    """Write a time with four digits and a fitting unit."""
    value = float(value)
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(value) >= size or unit == "us":
            return f"{value / size:.4g} {unit}" if value else "0 s"
    return ""


def hours(value: float) -> str:
    """Write a long time with three digits, in seconds, minutes or hours."""
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return seconds(value)


def amount(value: Any) -> str:
    """Write bytes in GB, MB or kB (powers of 1000)."""
    value = float(value)
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f} B"


def percent(value: Any) -> str:
    """Write a ratio in percent."""
    return f"{100 * float(value):.2f} %"


def _optional(value: Any, form: Any) -> str:
    return "-" if value is None else str(form(value))


def plain_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> Table:
    """Make a Markdown table with the first `left` columns flush left and the others flush right."""
    table = Table(title=title or None, title_justify="left", box=box.MARKDOWN, title_style="")
    for position, column in enumerate(columns):
        table.add_column(column, justify="left" if position < left else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def comparison_table(comparison: Comparison) -> Table:
    """One line a schedule, in the order of the results."""
    columns = ["schedule", "v", "step time", "makespan", "bubble ratio", "bubble overhead", "span bubble"]
    columns += ["peak in flight", "peak memory", "fits", "p2p sent", "tokens/s", "MFU", "synchronous"]
    rows = [_comparison_row(result) for result in comparison.results]
    empty = {i for i in range(1, len(columns)) if rows and all(row[i] == "-" for row in rows)}
    kept = [i for i in range(len(columns)) if i not in empty]
    return plain_table(
        comparison.results[0].scenario.name,
        [columns[i] for i in kept],
        [[row[i] for i in kept] for row in rows],
    )


def _comparison_row(result: Prediction) -> list[str]:
    m = result.metrics
    return [
        result.schedule.name,
        str(m.num_chunks),
        seconds(m.step_time_s),
        seconds(m.makespan_s),
        percent(m.bubble_ratio),
        percent(m.bubble_overhead),
        percent(m.span_bubble_ratio),
        str(max(rank.peak_in_flight for rank in m.ranks)),
        _optional(m.peak_memory_bytes, amount),
        _optional(m.fits_memory, lambda fits: "yes" if fits else "NO"),
        amount(m.comm_bytes) if m.comm_bytes else "-",
        _optional(m.tokens_per_s, lambda value: f"{value:,.0f}"),
        _optional(m.mfu, percent),
        "yes" if result.synchronous else "NO",
    ]


def repeats_table(comparison: Comparison) -> Table:
    """One line a schedule: step time and bubble ratio over all repeats, and what jitter costs it."""
    columns = ["schedule", "steps", "step time mean", "p50", "p95", "bubble ratio mean", "p50", "p95"]
    rows = []
    for result, repeats in zip(comparison.results, comparison.repeats, strict=True):
        time, bubble = repeats.step_time_s, repeats.bubble_ratio
        rows.append(
            [
                result.label,
                str(repeats.num_repeats),
                *map(seconds, (time.mean, time.p50, time.p95)),
                *map(percent, (bubble.mean, bubble.p50, bubble.p95)),
                f"{repeats.slowdown:.4f}",
            ]
        )
    return plain_table("over all repeats", [*columns, "times without jitter"], rows)


def summary_table(result: Prediction) -> Table:
    """One line a number of one run."""
    m = result.metrics
    lines = [
        ("schedule", result.label),
        ("ranks, stages, microbatches", f"{m.num_ranks}, {m.num_stages}, {m.num_microbatches}"),
        ("step time", seconds(m.step_time_s)),
        ("nine times of ten", _optional(result.band_s, lambda b: " to ".join(map(seconds, b)))),
        ("measured step time", _optional(result.scenario.measured_step_time_s, seconds)),
        ("makespan", seconds(m.makespan_s)),
        ("bubble ratio (idle / total, all ranks)", percent(m.bubble_ratio)),
        ("bubble overhead (idle / ideal, all ranks)", percent(m.bubble_overhead)),
        ("span bubble", percent(m.span_bubble_ratio)),
        ("gradient synchronisation, exposed", seconds(m.exposed_sync_s)),
        ("gradient synchronisation, hidden (rank that hides most)", seconds(m.hidden_sync_s)),
        (
            "gathers and reductions of shards, exposed (rank that waits longest)",
            _optional(m.exposed_collective_s or None, seconds),
        ),
        (
            "gathers and reductions of shards, hidden (rank that hides most)",
            _optional(m.hidden_collective_s or None, seconds),
        ),
        ("optimizer", seconds(m.optimizer_s)),
        ("tokens/s", _optional(m.tokens_per_s, lambda value: f"{value:,.0f}")),
        ("samples/s", _optional(m.samples_per_s, lambda value: f"{value:,.4g}")),
        ("model TFLOP/s per GPU", _optional(m.model_tflops_per_gpu, lambda value: f"{value:.1f}")),
        ("MFU", _optional(m.mfu, percent)),
        ("peak memory", _optional(m.peak_memory_bytes, amount)),
        ("fits memory", _optional(m.fits_memory, lambda fits: "yes" if fits else "NO")),
        ("p2p sent by a device of each rank", amount(m.comm_bytes) if m.comm_bytes else "-"),
        ("cost of a step", _optional(m.usd_per_step, lambda value: f"{value:.3g} USD")),
    ]
    kept = [line for line in lines if line[1] != "-"]
    return plain_table(result.scenario.name, ["", "value"], kept)


def step_table(result: Prediction) -> Table:
    """One line a part of the step time."""
    parts = result.breakdown
    total_s = float(result.metrics.step_time_s)
    rows = [
        [part_name(part), seconds(value), percent(float(value) / total_s)]
        for part, value in parts.items()
        if value
    ]
    return plain_table("", ["part of the step", "time", "of the predicted"], rows)


def goodput_table(found: Goodput, name: str) -> Table:
    """One line a number of a long run."""
    simulated = found.simulated_goodput
    lines = [
        ("step time", seconds(found.step_time_s)),
        ("devices", f"{found.num_gpus:,}"),
        ("mean time between failures", hours(found.mtbf_s)),
        ("failures a day", f"{found.failures_per_day:.3g}"),
        ("checkpoint, restart", f"{seconds(found.checkpoint_s)}, {seconds(found.restart_s)}"),
        ("checkpoint every", f"{found.interval_steps} steps, {hours(found.interval_s)}"),
        (
            "best interval (Young's estimate)",
            f"{hours(found.best_interval_s)} ({hours(found.young_interval_s)})",
        ),
        ("goodput expected", percent(found.goodput)),
        (
            f"goodput over {found.days:g} days: mean, p5, p50, p95",
            ", ".join(percent(simulated[key]) for key in ("mean", "p5", "p50", "p95")),
        ),
        ("steps a day", f"{found.steps_per_day:,.1f}"),
        ("tokens a day", _optional(found.tokens_per_day, lambda value: f"{value:.4g}")),
        ("rent a day", _optional(found.usd_per_day, lambda value: f"{value:,.0f} USD")),
    ]
    return plain_table(name, ["", "value"], [line for line in lines if line[1] != "-"])


def rank_table(result: Prediction) -> Table:
    """One line a rank: where its makespan went."""
    columns = ["rank", "busy", "warm-up", "dependency", "exposed p2p", "exposed collective", "cool-down"]
    columns += ["bubble ratio", "peak in flight", "peak memory"]
    rows = []
    for rank in result.metrics.ranks:
        b = rank.breakdown
        parts = (b.busy_s, b.warmup_s, b.dependency_s, b.p2p_s, b.collective_s, b.cooldown_s)
        rows.append(
            [
                str(rank.rank),
                *map(seconds, parts),
                percent(rank.bubble_ratio),
                str(rank.peak_in_flight),
                _optional(rank.peak_memory_bytes, amount),
            ]
        )
    return plain_table("", columns, rows)


@contextmanager
def progress_bar(words: str, *, quiet: bool) -> Iterator[Any]:
    """Show on standard error what runs; the block gets a function that is told the next name."""
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(words, total=None)
        yield lambda name: bar.update(task, description=f"{words}: {name}")
