"""`pipesim calibrate RUN...`: a cost table from what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pipesim.cli import terminal
from pipesim.show.amounts import seconds, signed_percent
from pipesim.show.blocks import Table


def calibrate_runs(paths: Sequence[Path], output: Path | None, *, as_json: bool) -> None:
    """Calibrate, write the file for ``costs: {file: ...}``, and print the numbers with their spread."""
    from pipesim.evidence.calibration.sources import calibrate_measured

    found = calibrate_measured(*paths)
    if output is not None:
        found.save(output)
    if as_json:
        terminal.print_json(found.evidence)
        return
    terminal.show(*_blocks(found.evidence), *(f"note: {note}" for note in dict.fromkeys(found.notes)))
    if output is not None:
        terminal.show(
            f"{output}: for a scenario of {found.costs.num_stages} stages, costs: {{file: {output}}}"
        )


def _blocks(evidence: dict[str, Any]) -> Iterator[str | Table]:
    operations = [
        [op, stage, *_spread(of_stage)]
        for op, stages in evidence["operations_s"].items()
        for stage, of_stage in stages.items()
    ]
    columns = ["operation", "stage", "median", "10th percentile", "90th percentile", "samples"]
    title = f"{evidence['steps_used']} steps used, {evidence['steps_disturbed']} disturbed"
    yield Table(title, columns, operations, num_left=2)
    rows = [
        [words, f"{group['bytes']:.0f}", *_spread(group), seconds(group["residual_s"])]
        for words, key in (
            ("message", "message_s"),
            ("send call", "send_call_s"),
            ("reduction", "gradient_reduction_s"),
        )
        for group in evidence.get(key, {}).get("sizes", [])
    ]
    if rows:
        columns = ["transfers", "bytes", *columns[2:], "residual"]
        yield Table("", columns, rows)
    if "checked" in evidence:
        yield from _checks(evidence["checked"])
    for words, key in (("message", "message_s"), ("send call", "send_call_s")):
        line = evidence[key]
        if line["sizes"]:
            yield f"{words}: {seconds(line['fixed_s'])}{_rate(line['per_byte_s'])}"
    for words, key in (
        ("host gap between actions", "gap_s"),
        ("meeting before the optimizer", "meeting_before_optimizer_s"),
    ):
        if evidence[key] is not None:
            yield f"{words}: {seconds(evidence[key]['median_s'])}"


def _checks(checks: Sequence[dict[str, Any]]) -> Iterator[Table]:
    """Put makespans, and time by cause, as traced beside those predicted from what the traces told."""
    columns = ["traced", "makespan", "predicted", "error"]
    rows = [
        [c["source"], seconds(c["measured_s"]), seconds(c["predicted_s"]), signed_percent(c["error"])]
        for c in checks
    ]
    yield Table("", columns, rows)
    causes = [
        [c["source"], cause.removesuffix("_s"), seconds(measured), seconds(c["predicted"][cause])]
        for c in checks
        for cause, measured in c["measured"].items()
    ]
    yield Table("", ["traced", "mean over ranks", "measured", "predicted"], causes, num_left=2)


def _spread(found: dict[str, Any]) -> list[str]:
    times = [seconds(found[key]) for key in ("median_s", "p10_s", "p90_s")]
    return [*times, str(found["num_samples"])]


def _rate(per_byte_s: float | None) -> str:
    return f" and {1e-9 / per_byte_s:.3g} GB/s" if per_byte_s else ""
