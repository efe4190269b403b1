"""A comparison in the columns of a terminal: what to run, then a line a schedule, best first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pipesim.schedules.frameworks import FRAMEWORKS
from pipesim.show.advice_lines import advice_lines, gigabytes, signed
from pipesim.show.amounts import percent, seconds
from pipesim.show.blocks import Block, Table
from pipesim.show.held import held_at_most
from pipesim.show.protocols import ComparedRuns, JudgedRow, JudgedRuns, R

_LONGEST_NAME = 8
_ADVISED, _TIE, _TIGHT = "<-", "=", "!"


def comparison_lines(
    comparison: ComparedRuns[R], judged: JudgedRuns[R], refusal: str = ""
) -> Iterator[Block]:
    """Give the answer, a table of what fits, and a line each of what does not and of what is asynchronous.

    Parameters
    ----------
    comparison : ComparedRuns
        All results, and what cannot run.
    judged : JudgedRuns
        Which to run.
    refusal : str
        Why the scenario's own schedule cannot run, where it cannot.
    """
    yield judged.recommended.scenario.name
    yield from advice_lines(judged, refusal)
    yield ""
    rows = [row for row in judged.rows if row.standing in ("fits", "no headroom")]
    if rows:
        yield _table(judged, rows)
        yield from _legend(judged, rows)
    for standing in ("does not fit", "asynchronous"):
        left = [row for row in judged.rows if row.standing == standing]
        if left:
            yield f"-- {standing}: {', '.join(_beside(row) for row in left)}"
    if comparison.skipped:
        names = ", ".join(dict.fromkeys(skipped.schedule for skipped in comparison.skipped))
        yield f"-- cannot run here (--wide says why): {names}"


def _table(judged: JudgedRuns[R], rows: list[JudgedRow[R]]) -> Table:
    own = judged.own
    name = "own" if own is None or len(own.label) > _LONGEST_NAME else own.label
    memory = "memory" if rows[0].run.metrics.peak_memory_bytes is not None else "held"
    columns = ["schedule", "step", f"vs {name}", "bubble ratio", memory, "runs in", ""]
    cells = [_cells(judged, row) for row in rows]
    return Table("", columns, cells, ruled=False).without_empty_columns()


def _cells(judged: JudgedRuns[R], row: JudgedRow[R]) -> list[str]:
    run, own = row.run, judged.own
    against = "-"
    if own is not None and own is not run:
        against = signed(float(run.metrics.step_time_s) / float(own.metrics.step_time_s) - 1)
    return [
        run.label,
        seconds(run.metrics.step_time_s),
        against,
        percent(run.metrics.bubble_ratio),
        f"{_memory(run)}{_TIGHT if row.standing == 'no headroom' else ''}",
        _runs_in(row),
        _ADVISED if run is judged.recommended else _TIE if row in judged.ties else "",
    ]


def _memory(run: Any) -> str:
    peak_bytes = run.metrics.peak_memory_bytes
    return f"{held_at_most(run):.4g}" if peak_bytes is None else f"{gigabytes(peak_bytes)} GB"


def _runs_in(row: JudgedRow[R]) -> str:
    found = frameworks_words(row.run)
    return "torch csv" if found == "-" and row.runs_by == "csv" else found


def frameworks_words(run: Any) -> str:
    """Name the frameworks that run a schedule by name, in a column's width."""
    names = [name for name in FRAMEWORKS if name in run.frameworks]
    return "all" if len(names) == len(FRAMEWORKS) else " ".join(names) or "-"


def _legend(judged: JudgedRuns[R], rows: list[JudgedRow[R]]) -> Iterator[str]:
    words = [f"{_ADVISED} advised"] if judged.best in rows else []
    words += [f"{_TIE} a tie with it"] if judged.ties else []
    if any(row.standing == "no headroom" for row in rows):
        headroom = judged.recommended.scenario.kept_free.headroom
        words.append(f"{_TIGHT} less than {headroom:.0%} of the usable memory left")
    if any(_runs_in(row) == "torch csv" for row in rows):
        words.append("torch csv: as pipesim schedule export writes it")
    if rows[0].run.metrics.peak_memory_bytes is None:
        words.append("held: most microbatches whose activations a rank holds")
    yield f"({'; '.join(words)})"


def _beside(row: JudgedRow[R]) -> str:
    return f"{row.run.label} {seconds(row.run.metrics.step_time_s)} {_memory(row.run)}"
