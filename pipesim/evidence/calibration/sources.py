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
from pipesim.evidence.calibration.megatron_timers import is_timer_dump, samples_of_dumps
from pipesim.evidence.calibration.samples import Samples
from pipesim.executor import Run, read_run
from pipesim.questions.execution import Execution
from pipesim.reading import read_json


def read_samples(paths: Sequence[str | Path]) -> list[Samples]:
    """Read runs, profiler traces and timer dumps.

    Parameters
    ----------
    paths : sequence of str or Path
        Files, or folders of which every ``.json`` and ``.json.gz`` is read. Traces together are of one run,
        one a process, and so are dumps.

    Returns
    -------
    list of Samples
        One for each run, one for all traces, one for all dumps; in the order of their first files.

    Raises
    ------
    PipesimError
        If a file is none of these, or cannot be used at all.
    """
    traces: list[Trace] = []
    dumps: dict[Path, object] = {}
    found: dict[str, Samples | None] = {}
    for path in _files(paths):
        content = read_json(path)
        if is_timer_dump(path):
            dumps[path] = content
            found.setdefault("dumps")
        elif is_trace(content):
            traces.append(read_trace(path, content))
            found.setdefault("traces")
        elif isinstance(content, dict) and str(content.get("format", "")).startswith("pipesim"):
            found[str(path)] = samples_of_run(read_run(path), str(path))
        else:
            raise ScenarioError(
                "is neither a run of `pipesim execute`, nor a profiler trace, nor a timer dump "
                "(event_times_PP..._pp_rank_..._rank_....json)",
                file=str(path),
            )
    if dumps:
        found["dumps"] = samples_of_dumps(dumps)
    if traces:
        found["traces"] = samples_of_traces(traces)
    return [samples for samples in found.values() if samples is not None]


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
    return calibrate([*samples, *read_samples(files)])


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
