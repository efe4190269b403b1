"""Files of measurements, told apart by what is in them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipesim.errors import ScenarioError
from pipesim.evidence.calibration.fit import MeasuredCosts, calibrate
from pipesim.evidence.calibration.from_runs import samples_of_run
from pipesim.evidence.calibration.from_traces import samples_of_traces
from pipesim.evidence.calibration.kineto import Trace, is_trace, read_trace
from pipesim.evidence.calibration.megatron_log import is_timer_log, samples_of_log
from pipesim.evidence.calibration.megatron_timers import is_timer_dump, samples_of_dumps
from pipesim.evidence.calibration.samples import Samples
from pipesim.evidence.calibration.staged_traces import by_run
from pipesim.evidence.calibration.traced_check import check_traced
from pipesim.evidence.calibration.traced_run import TracedRun
from pipesim.executor import Run, read_run
from pipesim.questions.execution import Execution
from pipesim.reading import read_json, read_text
from pipesim.show.glossary import MEASURED_FILES

_TEXTS = (".log", ".txt", ".out")


def read_samples(paths: Sequence[str | Path]) -> list[Samples]:
    """Read runs, profiler traces and timer dumps; see `read_measured`."""
    return read_measured(paths)[0]


def read_measured(paths: Sequence[str | Path]) -> tuple[list[Samples], list[TracedRun]]:
    """Read runs, profiler traces and timer dumps.

    Parameters
    ----------
    paths : sequence of str or Path
        Files, or folders of which every ``.json`` and ``.json.gz`` is read. Traces of a folder are of one
        run, one a process, or of several, one after the other by name; dumps together are of one run.

    Returns
    -------
    samples : list of Samples
        One for each run, traced or not, one for all dumps; in the order of their first files.
    traced : list of TracedRun
        Runs whose traces could be put on one clock.

    Raises
    ------
    PipesimError
        If a file is none of these, or cannot be used at all.
    """
    traces: list[Trace] = []
    dumps: dict[Path, object] = {}
    found: dict[str, list[Samples]] = {}
    traced: list[TracedRun] = []
    for path in _files(paths):
        if path.suffix in _TEXTS and is_timer_log(text := read_text(path, large=True)):
            found[str(path)] = [samples_of_log(path, text)]
            continue
        try:
            content = read_json(path)
        except ScenarioError as error:
            words = f"{error.message}; needed: {MEASURED_FILES}"
            raise ScenarioError(words, file=error.file, key=error.key) from None
        if is_timer_dump(path):
            dumps[path] = content
            found.setdefault("dumps", [])
        elif is_trace(content):
            traces.append(read_trace(path, content))
            found.setdefault("traces", [])
        elif isinstance(content, dict) and str(content.get("format", "")).startswith("pipesim"):
            found[str(path)] = [samples_of_run(read_run(path), str(path))]
        else:
            raise ScenarioError(f"is none of what is read: {MEASURED_FILES}", file=str(path))
    if dumps:
        found["dumps"] = [samples_of_dumps(dumps)]
    if traces:
        of_runs = [samples_of_traces(run) for run in by_run(traces)]
        found["traces"] = [samples for samples, _ in of_runs]
        traced = [run for _, run in of_runs if run is not None]
    return [samples for some in found.values() for samples in some], traced


def calibrate_measured(*measured: str | Path | Run | Execution) -> MeasuredCosts:
    """Turn runs, profiler traces or timer dumps into a cost table.

    Parameters
    ----------
    *measured : str, Path, Run or Execution
        What `pipesim.execute` returned, or files and folders as for `read_samples`. The first run, or where
        there is none the first file, decides whose durations are taken; see `calibrate`.

    Raises
    ------
    PipesimError
        If there is nothing, something cannot be used, or was never measured.
    """
    if not measured:
        raise ScenarioError("found nothing to calibrate from; needed: runs, or files of measurements")
    samples: list[Samples] = []
    for one in measured:
        run = one.run if isinstance(one, Execution) else one
        if isinstance(run, Run):
            samples.append(samples_of_run(run, f"run of {run.schedule.name} on {run.device}"))
    files = [one for one in measured if not isinstance(one, Run | Execution)]
    read, traced = read_measured(files)
    found = calibrate([*samples, *read])
    alike = [run for run in traced if run.schedule.num_stages == found.costs.num_stages]
    if alike:
        found.evidence["checked"] = [check_traced(run, found.costs).to_dict() for run in alike]
    return found


def _files(paths: Sequence[str | Path]) -> Iterator[Path]:
    for given in paths:
        if not isinstance(given, str | os.PathLike):
            raise ScenarioError(f"found {type(given).__name__}; needed: a run, or the name of a file")
        path = Path(given)
        if not path.is_dir():
            yield path
            continue
        inside = sorted([*path.glob("*.json"), *path.glob("*.json.gz")])
        if not inside:
            raise ScenarioError("holds no .json or .json.gz", file=str(path))
        yield from inside
