"""Reader of per-microbatch timers that a patched Megatron-LM dumps, one file a process.

The patch and the names of files and keys are those of the PP timer of
https://github.com/Victarry/PP-Schedule-Visualization (examples/megatron-lm): milliseconds, by keys as
``forward-0-start``, with virtual stages ``forward-1-0-start`` of chunk 1 and microbatch 0.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipesim.errors import ScenarioError
from pipesim.evidence.calibration.samples import Samples
from pipesim.ir.actions import Op

_NAME = re.compile(
    r"event_times_PP(?P<ranks>\d+)_VPP(?P<chunks>\d+)_.*_pp_rank_(?P<rank>\d+)_rank_(?P<process>\d+)\.json"
)
_KEY = re.compile(r"(forward|backward)-(?:(\d+)-)?(\d+)-(start|end)")
_OPS = {"forward": Op.F, "backward": Op.B}
_MS = 1e-3


def is_timer_dump(path: Path) -> bool:
    """Whether a file's name is that of a dump."""
    return _NAME.fullmatch(path.name) is not None


def samples_of_dumps(contents: Mapping[Path, Any]) -> Samples:
    """Take durations of F and B from the dumps of one run.

    Clocks of different processes have no known relation and messages are not in the dumps, so nothing is
    learned about links: each duration is between two times of one file.

    Parameters
    ----------
    contents : mapping of path to parsed JSON
        Dumps whose names say the same sizes.

    Raises
    ------
    ScenarioError
        If a file is no dump, sizes differ, or a pipeline rank has no file.
    """
    shapes = {path: _shape_of(path) for path in contents}
    num_ranks, num_chunks = next(iter(shapes.values()))
    for path, shape in shapes.items():
        if shape != (num_ranks, num_chunks):
            raise ScenarioError(
                f"is of PP {shape[0]} and VPP {shape[1]}, other files of PP {num_ranks} and VPP {num_chunks}",
                file=str(path),
            )
    ranks = {path: int(_matched(path)["rank"]) for path in contents}
    missing = sorted(set(range(num_ranks)) - set(ranks.values()))
    if missing:
        raise ScenarioError(
            f"pipeline ranks {', '.join(map(str, missing))} of {num_ranks} have no file, so no times",
            file=str(next(iter(contents))),
        )
    durations: dict[tuple[Op, int], list[float]] = defaultdict(list)
    num_broken = 0
    for path, content in contents.items():
        found, broken = _durations(path, content, ranks[path], num_ranks, num_chunks)
        num_broken += broken
        for key, seconds in found.items():
            durations[key] += seconds
    unused = ["clocks of processes are not related and messages not recorded: links cost nothing"]
    if num_broken:
        unused.append(f"{num_broken} timers without both start and end, or that end before they start")
    if len(contents) > num_ranks:
        unused.append(f"{len(contents)} files for {num_ranks} ranks: devices of a rank count alike")
    return Samples(
        source=_common_name(list(contents)),
        workload="Megatron timers",
        stages_of_rank=tuple(
            tuple(chunk * num_ranks + rank for chunk in range(num_chunks)) for rank in range(num_ranks)
        ),
        op_s={key: np.array(seconds) for key, seconds in durations.items()},
        unused=tuple(unused),
    )


def _matched(path: Path) -> re.Match[str]:
    matched = _NAME.fullmatch(path.name)
    if matched is None:
        raise ScenarioError("has no name as event_times_PP4_VPP1_..._pp_rank_0_rank_0.json", file=str(path))
    return matched


def _shape_of(path: Path) -> tuple[int, int]:
    matched = _matched(path)
    return int(matched["ranks"]), int(matched["chunks"])


def _durations(
    path: Path, content: Any, rank: int, num_ranks: int, num_chunks: int
) -> tuple[dict[tuple[Op, int], list[float]], int]:
    """Seconds by operation and stage, and how many timers were incomplete."""
    if not isinstance(content, dict):
        raise ScenarioError("is not a mapping of timers to milliseconds", file=str(path))
    times: dict[tuple[Op, int, int], dict[str, float]] = defaultdict(dict)
    for name, value in content.items():
        matched = _KEY.fullmatch(name)
        if matched is None:
            continue
        kind, chunk, microbatch, edge = matched.groups()
        if (chunk is None) != (num_chunks == 1) or (chunk is not None and int(chunk) >= num_chunks):
            raise ScenarioError(
                f"does not go with the file name's VPP {num_chunks}", file=str(path), key=name
            )
        if not isinstance(value, int | float) or isinstance(value, bool) or not np.isfinite(value):
            raise ScenarioError(f"found {value!r}; expected milliseconds", file=str(path), key=name)
        times[_OPS[kind], int(chunk or 0), int(microbatch)][edge] = float(value)
    if not times:
        raise ScenarioError("has no timers as forward-0-start", file=str(path))
    found: dict[tuple[Op, int], list[float]] = defaultdict(list)
    broken = 0
    for (op, chunk, _), edges in times.items():
        if len(edges) < 2 or edges["end"] < edges["start"]:
            broken += 1
        else:
            found[op, chunk * num_ranks + rank].append((edges["end"] - edges["start"]) * _MS)
    return found, broken


def _common_name(paths: Sequence[Path]) -> str:
    return paths[0].name if len(paths) == 1 else f"{paths[0].parent}: {len(paths)} timer dumps"
