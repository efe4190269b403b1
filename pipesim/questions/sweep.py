"""Many runs of one scenario, some keys varied: one row a run, in the grid's order, none lost or repeated."""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipesim.errors import ScenarioError
from pipesim.files import complete_file
from pipesim.prediction import Timing
from pipesim.processes import num_workers_for
from pipesim.questions.call_pool import CallPool
from pipesim.questions.journal import Journal
from pipesim.questions.sweep_row import RowTask, failed_row, run_row
from pipesim.questions.variations import Axis, axis_of, grid
from pipesim.reading import read_frame
from pipesim.scenario import ResolvedScenario, apply_overrides, need_scenario, scenario_from_mapping
from pipesim.schedules import family

if TYPE_CHECKING:
    import pandas as pd

_ROWS_A_WORKER = 20
"""Fewer are done sooner than a process starts."""
_SWEEP = "sweep"
_FORMULAS = ("=", "+", "-", "@", "\t", "\r")
_MAIN = (
    *("schedule", "step_time_s", "bubble_ratio", "peak_memory_bytes", "fits_memory", "tokens_per_s", "mfu"),
    "reason",
)
_SHORT = 12
"""Lines that a notebook shows of a table."""
TABLE_FORMATS = (".csv", ".parquet")


@dataclass(frozen=True, slots=True)
class Sweep:
    """What is to be run.

    Parameters
    ----------
    mapping : Mapping
        The scenario before validation.
    axes : tuple of Axis
        What varies; the first changes slowest.
    file : str, optional
        Where the scenario was read from.
    timing : {"fast", "engine", "compiled"}
        What times every row; see `pipesim.prediction.predict`.
    """

    mapping: Mapping[str, Any]
    axes: tuple[Axis, ...]
    file: str | None = None
    timing: Timing = "fast"

    @property
    def keys(self) -> tuple[str, ...]:
        """What varies."""
        return tuple(key for axis in self.axes for key in axis.keys)

    def tasks(self) -> list[RowTask]:
        """Give every row its task, in the order of the grid.

        Raises
        ------
        ScenarioError
            See `grid`; also if a key does not exist.
        ScheduleError
            If there is no schedule of a name.
        """
        points = grid(self.axes)
        self._check_keys(points[0])
        file = None if self.file is None else str(Path(self.file).absolute())
        return [
            RowTask(index, self.mapping, overrides, file, self.timing)
            for index, overrides in enumerate(points)
        ]

    def _check_keys(self, overrides: tuple[str, ...]) -> None:
        """Refuse what no value could mend: that other rows would say the same."""
        apply_overrides(self.mapping, overrides)
        for axis in self.axes:
            for key, *names in zip(axis.keys, *axis.values, strict=True):
                if key in ("schedule", "schedule.name"):
                    for name in names:
                        if "{" not in name:
                            family(name)
        try:
            scenario_from_mapping(self.mapping, file=self.file, overrides=overrides)
        except ScenarioError as error:
            if error.message.startswith("unknown key"):
                file = self.file if error.file == self.file else "--vary"
                raise ScenarioError(error.message, file=file, key=error.key) from None

    def digest(self) -> str:
        """Fingerprint of all that decides the rows, files that the scenario names included."""
        from pipesim import __version__

        axes = [[list(axis.keys), [list(group) for group in axis.values]] for axis in self.axes]
        content = json.dumps([__version__, self.mapping, axes, self.timing], sort_keys=True, default=str)
        digest = hashlib.sha256(content.encode())
        folder = Path(self.file).parent if self.file else Path()
        texts = [text for axis in self.axes for group in axis.values for text in group]
        for text in [*_texts(self.mapping), *texts]:
            path = folder / text
            if len(text) < 1000 and "\0" not in text and path.is_file():
                with path.open("rb") as stream:
                    digest.update(hashlib.file_digest(stream, "sha256").digest())
        return digest.hexdigest()[:16]


@dataclass(frozen=True, slots=True, repr=False)
class SweepReport:
    """What a sweep left.

    Parameters
    ----------
    rows : tuple of dict
        In the order of the grid; see `pipesim.questions.sweep_row`.
    num_resumed : int
        Rows that an earlier, interrupted run had left.
    varied : tuple of str
        The keys that vary.
    """

    rows: tuple[dict[str, Any], ...]
    num_resumed: int
    varied: tuple[str, ...]

    @property
    def frame(self) -> pd.DataFrame:
        """The rows as a table: what varies, the main numbers, the configuration, all other numbers."""
        import pandas as pd

        frame = pd.DataFrame(list(self.rows))
        first = [name for name in dict.fromkeys((*self.varied, *_MAIN)) if name in frame]
        return frame[[*first, *frame.columns.drop(first)]]

    def __repr__(self) -> str:
        return f"{self._short().to_string(max_rows=_SHORT)}\n{self._counts()}"

    def _repr_html_(self) -> str:
        return f"{self._short().to_html(max_rows=_SHORT)}<p>{self._counts()}</p>"

    def _short(self) -> pd.DataFrame:
        frame = self.frame
        short = [name for name in dict.fromkeys((*self.varied, *_MAIN)) if name in frame]
        return frame[short].dropna(axis="columns", how="all")

    def _counts(self) -> str:
        return f"{len(self.rows)} rows, {len(self.failed)} failed; .frame has all columns"

    @property
    def failed(self) -> list[dict[str, Any]]:
        """Rows without a result."""
        return [row for row in self.rows if row["status"] == "failed"]

    @property
    def fitting(self) -> list[dict[str, Any]]:
        """Rows of synchronous schedules that fit in memory, as far as it is known."""
        done = [row for row in self.rows if row["status"] == "ok" and row["synchronous"] is not False]
        return [row for row in done if row["fits_memory"] is not False]

    @property
    def best(self) -> dict[str, Any] | None:
        """Most tokens a second and GPU among those that fit; without tokens, least time a microbatch."""
        if any(row["tokens_per_s_per_gpu"] is None for row in self.fitting):
            return min(self.fitting, key=lambda row: row["step_time_s"] / row["num_microbatches"])
        return max(self.fitting, key=lambda row: row["tokens_per_s_per_gpu"], default=None)


def run_sweep(
    sweep: Sweep,
    output: str | Path,
    *,
    num_workers: int | None = None,
    executor: Executor | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> SweepReport:
    """Run every row and write the table.

    Each row is kept in ``OUTPUT.journal`` as soon as it is known, and a sweep that finds its own journal goes
    on from there. The table appears whole, in the order of the grid, and the journal goes. Its column
    ``sweep`` is the fingerprint of all that decides the rows: only the same sweep replaces a table.

    Parameters
    ----------
    sweep : Sweep
        What to run.
    output : str or Path
        A ``.csv`` or ``.parquet``.
    num_workers : int, optional
        Processes, 1 for none; by default as many as there are cores and work for.
    executor : concurrent.futures.Executor, optional
        Runs the rows in place of processes.
    progress : Callable
        Told how many rows are done, and of how many.

    Raises
    ------
    ScenarioError
        Wrong keys or values, another ending, a place that cannot be written, or another sweep's journal
        or table.
    """
    output = Path(output)
    check_table_format(output)
    tasks = sweep.tasks()
    digest = sweep.digest()
    _check_no_other_table(output, digest)
    rows: dict[int, dict[str, Any]]
    with Journal(Path(f"{output}.journal"), digest, len(tasks)) as journal:
        rows = journal.rows
        num_resumed = len(rows)
        left = [task for task in tasks if task.index not in rows]
        progress(num_resumed, len(tasks))
        workers = num_workers or num_workers_for(len(left), tasks_each=_ROWS_A_WORKER)
        with CallPool(workers, executor) as pool:
            for outcome in pool.run(run_row, left):
                row = outcome.value
                if row is None:
                    row = failed_row(outcome.task, outcome.lost or "")
                journal.append(outcome.task.index, row)
                progress(len(rows), len(tasks))
        ordered = tuple(rows[index] | {_SWEEP: digest} for index in range(len(tasks)))
        write_table(ordered, output)
        journal.remove()
    return SweepReport(ordered, num_resumed, sweep.keys)


def sweep(
    scenario: ResolvedScenario,
    axes: Mapping[str | tuple[str, ...], Any],
    *,
    timing: Timing = "fast",
    num_workers: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> SweepReport:
    """Run a grid of variations of a scenario and keep the rows in memory.

    Parameters
    ----------
    scenario : ResolvedScenario
        What is varied.
    axes : Mapping
        Values by dotted key, or tuples of values by a tuple of keys that change together; the first changes
        slowest.
    timing : {"fast", "engine", "compiled"}
        What times every row; see `pipesim.prediction.predict`.
    num_workers : int
        Processes, 1 for none.
    progress : Callable
        Told how many rows are done, and of how many.

    Raises
    ------
    PipesimError
        Wrong keys, no values, or more rows than a sweep takes; a row that cannot run is a row with a reason.
    """
    need_scenario(scenario)
    if not isinstance(axes, Mapping):
        raise ScenarioError(f'found {axes!r}; needed: a mapping, such as {{"batch.micro": [1, 2, 4]}}')
    stated = tuple(axis_of(keys, values) for keys, values in axes.items())
    asked = Sweep(scenario.keys, stated, scenario.file, timing)
    tasks = asked.tasks()
    rows: dict[int, dict[str, Any]] = {}
    with CallPool(num_workers) as pool:
        for outcome in pool.run(run_row, tasks):
            rows[outcome.task.index] = outcome.value or failed_row(outcome.task, outcome.lost or "")
            progress(len(rows), len(tasks))
    return SweepReport(tuple(rows[index] for index in range(len(tasks))), 0, asked.keys)


def _check_no_other_table(path: Path, digest: str) -> None:
    """Refuse to replace what is not the table of the same sweep."""
    if not path.is_file() or not path.stat().st_size:
        return
    try:
        frame = read_frame(path, as_text=True)
    except ScenarioError:
        held = "something that is not the table of a sweep"
    else:
        if {*frame.get(_SWEEP, ())} == {digest}:
            return
        held = f"{len(frame)} rows that are not of this sweep (other scenario, values, evaluator or version)"
    raise ScenarioError(f"holds {held}; choose another output, or remove the file", file=str(path))


def check_table_format(path: Path) -> None:
    """Refuse an ending that no table has, and Parquet where it cannot be written.

    Raises
    ------
    ScenarioError
        In both cases.
    """
    ending = path.suffix.lower()
    if ending not in TABLE_FORMATS:
        raise ScenarioError(f"tables are {' or '.join(TABLE_FORMATS)}", file=str(path))
    if ending == ".parquet":
        try:
            importlib.import_module("pyarrow")
        except ImportError:
            raise ScenarioError(
                "Parquet needs pyarrow: pip install '.[parquet]' in pipesim's folder", file=str(path)
            ) from None


def write_table(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Write rows as CSV or Parquet, whole or not at all; columns in the order in which they first occur.

    A column that holds both text and numbers holds text.
    """
    import pandas as pd

    columns = dict.fromkeys(column for row in rows for column in row)
    last = [column for column in columns if column not in rows[0] or column == "reason"]
    ordered = [column for column in columns if column not in last] + last
    frame = pd.DataFrame({column: _column([row.get(column) for row in rows]) for column in ordered})

    def check(table: Path) -> None:
        if len(read_frame(table)) != len(rows):
            raise ScenarioError(f"has not the {len(rows)} rows it should have", file=str(table))

    with complete_file(path, reader=check) as temporary:
        if path.suffix.lower() == ".csv":
            frame.to_csv(temporary, index=False)
        else:
            frame.to_parquet(temporary, index=False)


def _column(values: list[Any]) -> Any:
    import pandas as pd

    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int}:
        return pd.array(values, dtype="Int64")
    if kinds <= {int, float}:
        return pd.array([None if value is None else float(value) for value in values], dtype="Float64")
    if kinds == {bool}:
        return pd.array(values, dtype="boolean")
    return pd.array([None if value is None else _harmless(str(value)) for value in values], dtype="string")


def _harmless(text: str) -> str:
    """Keep spreadsheets from taking text for a formula: they would run what a scenario's name says."""
    harmless = not text.startswith(_FORMULAS) or text.startswith("--set ") or _is_number(text)
    return text if harmless else f"'{text}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for entry in value.values():
            yield from _texts(entry)
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _texts(entry)
