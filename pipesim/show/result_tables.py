"""Tables of what was predicted, as plain data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pipesim.device_memory import MemoryParts
from pipesim.metrics import RankMetrics
from pipesim.show.amounts import amount, optional, percent, seconds, time_range
from pipesim.show.blocks import Table
from pipesim.show.glossary import part_name
from pipesim.show.held import held_microbatches
from pipesim.show.protocols import TimedRun


def comparison_table(results: Sequence[TimedRun]) -> Table:
    """One line a schedule, in their order."""
    columns = ["schedule", "v", "step time", "makespan", "bubble ratio", "bubble overhead", "span bubble"]
    columns += ["peak held", "peak memory", "fits", "p2p sent", "tokens/s", "MFU", "synchronous"]
    rows = [_comparison_row(result) for result in results]
    return Table(results[0].scenario.name, columns, rows).without_empty_columns()


def _comparison_row(result: TimedRun) -> list[str]:
    m = result.metrics
    return [
        result.schedule.name,
        str(m.num_chunks),
        seconds(m.step_time_s),
        seconds(m.makespan_s),
        percent(m.bubble_ratio),
        percent(m.bubble_overhead),
        percent(m.span_bubble_ratio),
        _held(result, *m.ranks),
        optional(m.peak_memory_bytes, amount),
        optional(m.fits_memory, _yes),
        _sent(m.comm_bytes),
        optional(m.tokens_per_s, "{:,.0f}".format),
        optional(m.mfu, percent),
        _yes(result.synchronous),
    ]


def _held(result: TimedRun, *ranks: RankMetrics) -> str:
    return f"{held_microbatches(result, *ranks):.4g}"


def _yes(value: bool) -> str:
    return "yes" if value else "NO"


def _sent(num_bytes: Any) -> str:
    return amount(num_bytes) if num_bytes else "-"


def short_table(result: TimedRun) -> Table:
    """Give the few numbers of one run that decide: for a notebook's cell."""
    m = result.metrics
    lines = [
        ("step time", seconds(m.step_time_s)),
        ("nine times of ten", optional(result.band_s, time_range)),
        ("bubble ratio", percent(m.bubble_ratio)),
        ("peak memory", optional(m.peak_memory_bytes, amount)),
        ("fits memory", optional(m.fits_memory, _yes)),
        ("tokens/s", optional(m.tokens_per_s, "{:,.0f}".format)),
        ("MFU", optional(m.mfu, percent)),
        ("frameworks that run it", ", ".join(result.frameworks) or "none by name"),
    ]
    return Table.of_lines(result.scenario.name, [result.scenario.name, result.label], lines)


def summary_table(result: TimedRun) -> Table:
    """One line a number of one run."""
    m = result.metrics
    lines = [
        ("schedule", result.label),
        ("ranks, stages, microbatches", f"{m.num_ranks}, {m.num_stages}, {m.num_microbatches}"),
        ("step time", seconds(m.step_time_s)),
        ("nine times of ten", optional(result.band_s, time_range)),
        ("measured step time", optional(result.scenario.measured_step_time_s, seconds)),
        ("makespan", seconds(m.makespan_s)),
        ("bubble ratio (idle / total, all ranks)", percent(m.bubble_ratio)),
        ("bubble overhead (idle / ideal, all ranks)", percent(m.bubble_overhead)),
        ("span bubble", percent(m.span_bubble_ratio)),
        ("gradient synchronisation, exposed", seconds(m.exposed_sync_s)),
        ("gradient synchronisation, hidden (rank that hides most)", seconds(m.hidden_sync_s)),
        (
            "traffic of shards, and tokens held up, exposed (rank that waits longest)",
            optional(m.exposed_collective_s or None, seconds),
        ),
        (
            "traffic of shards, hidden (rank that hides most)",
            optional(m.hidden_collective_s or None, seconds),
        ),
        ("optimizer", seconds(m.optimizer_s)),
        ("tokens/s", optional(m.tokens_per_s, "{:,.0f}".format)),
        ("samples/s", optional(m.samples_per_s, "{:,.4g}".format)),
        ("model TFLOP/s per GPU", optional(m.model_tflops_per_gpu, "{:.1f}".format)),
        ("MFU", optional(m.mfu, percent)),
        ("model FLOP/s, MFU with causal attention", _rate(m.causal_tflops_per_gpu, m.causal_mfu)),
        (
            "hardware FLOP/s, HFU with what is recomputed",
            "-" if m.hfu == m.mfu else _rate(m.hardware_tflops_per_gpu, m.hfu),
        ),
        ("peak memory", optional(m.peak_memory_bytes, amount)),
        ("fits memory", optional(m.fits_memory, _yes)),
        ("p2p sent by a device of each rank", _sent(m.comm_bytes)),
        ("cost of a step", optional(m.usd_per_step, "{:.3g} USD".format)),
    ]
    return Table.of_lines(result.scenario.name, ["", "value"], lines)


def _rate(tflops: float | None, share: float | None) -> str:
    return "-" if tflops is None or share is None else f"{tflops:.1f} TFLOP/s, {percent(share)}"


def step_table(result: TimedRun) -> Table:
    """One line a part of the step time."""
    total_s = float(result.metrics.step_time_s)
    rows = [
        [part_name(part), seconds(value), percent(float(value) / total_s)]
        for part, value in result.breakdown.items()
        if value
    ]
    return Table("", ["part of the step", "time", "of the predicted"], rows)


def rank_table(result: TimedRun) -> Table:
    """One line a rank: where its makespan went."""
    columns = ["rank", "busy", "warm-up", "dependency", "exposed p2p", "exposed collective", "cool-down"]
    columns += ["bubble ratio", "peak held", "peak memory"]
    rows = []
    for rank in result.metrics.ranks:
        b = rank.breakdown
        parts = (b.busy_s, b.warmup_s, b.dependency_s, b.p2p_s, b.collective_s, b.cooldown_s)
        row = [str(rank.rank), *map(seconds, parts), percent(rank.bubble_ratio), _held(result, rank)]
        rows.append([*row, optional(rank.peak_memory_bytes, amount)])
    return Table("", columns, rows)


def memory_table(result: TimedRun) -> Table:
    """One line a rank: what its memory is full of where it is fullest; no lines where no bytes are known."""
    columns = ["rank", *MemoryParts.__slots__, "peak memory", "of the device"]
    rows = []
    for rank in result.metrics.ranks:
        if rank.memory_bytes is None or rank.peak_memory_bytes is None:
            continue
        limit = result.costs.of_ranks.get(rank.rank, result.costs).memory_limit_bytes
        parts = [getattr(rank.memory_bytes, name) for name in MemoryParts.__slots__]
        share = "-" if limit is None else percent(rank.peak_memory_bytes / limit)
        sizes = [amount(part) if part else "-" for part in parts]
        rows.append([str(rank.rank), *sizes, amount(rank.peak_memory_bytes), share])
    return Table("", columns, rows).without_empty_columns()


def side_by_side(
    table_of: Callable[[TimedRun], Table], results: Sequence[TimedRun], caption: str, lines_are: str
) -> Table:
    """Join tables of one result each by the names of their lines.

    Parameters
    ----------
    table_of : Callable
        Makes a table of one result.
    results : sequence of TimedRun
        Whose columns stand beside each other.
    caption, lines_are : str
        Over the table, and over its first column.
    """
    parts = [table_of(result) for result in results]
    columns = [
        result.label if head == "value" else f"{result.label}: {head}"
        for result, part in zip(results, parts, strict=True)
        for head in part.columns[1:]
    ]
    by_name = [{name: values for name, *values in part.rows} for part in parts]
    missing = [["-"] * (len(part.columns) - 1) for part in parts]
    rows = [
        [name, *(cell for one, none in zip(by_name, missing, strict=True) for cell in one.get(name, none))]
        for name in dict.fromkeys(name for one in by_name for name in one)
    ]
    return Table(caption, [lines_are, *columns], rows)
