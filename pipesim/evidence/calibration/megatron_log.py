"""Reader of the timers that Megatron-LM prints with ``--timing-log-level 2 --timing-log-option all``.

The form is that of ``megatron/core/timers.py`` of https://github.com/NVIDIA/Megatron-LM: milliseconds by
timer and rank, of all microbatches of a step together; the sizes are taken from the arguments that a job
prints when it starts.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipesim.errors import ScenarioError
from pipesim.evidence.calibration.samples import Samples
from pipesim.ir.actions import Op

_HEAD = re.compile(r"\btimes across ranks \(ms\):")
_MIN_MAX = re.compile(r"\((?:min, )?max\) time across ranks \(ms\):|\bmax time across ranks \(ms\):")
_TIMER = re.compile(r"(?:^|\s)([a-z][a-z0-9/-]+):\s*$")
_RANK = re.compile(r"\brank\s+(\d+): (\d+(?:\.\d+)?)\s*$")
_ARGUMENT = re.compile(r"(?:^|\s)([a-z_]+) \.{2,} (\S+)\s*$")
_OPS = {"forward-compute": Op.F, "backward-compute": Op.B}
_SIZES = (
    "pipeline_model_parallel_size",
    "data_parallel_size",
    "global_batch_size",
    "micro_batch_size",
    "virtual_pipeline_model_parallel_size",
)
_MS = 1e-3


@dataclass(frozen=True, slots=True)
class _Shape:
    num_ranks: int
    num_chunks: int
    num_microbatches: int


def is_timer_log(text: str) -> bool:
    """Whether a text holds timers as Megatron prints them."""
    return _HEAD.search(text) is not None or _MIN_MAX.search(text) is not None


def samples_of_log(path: Path, text: str) -> Samples:
    """Take F and B of one microbatch from the steps of a log, but the first, in which much is set up.

    A rank's time is shared out over its microbatches and, equally, its chunks. Ranks of tensor and data
    parallelism count alike. Nothing is learned about links: what the log says of sends and receives is waits.

    Raises
    ------
    ScenarioError
        If the log shows no times of single ranks, or not the sizes of the job.
    """
    by_rank = _times(text)
    if not by_rank:
        raise ScenarioError(
            "has no forward-compute of single ranks, only the least and the greatest, which do not tell "
            "stages apart; run with --timing-log-level 2 --timing-log-option all",
            file=str(path),
        )
    shape = _shape(path, text)
    world_size = 1 + max(rank for _, rank in by_rank)
    if world_size % shape.num_ranks:
        raise ScenarioError(f"shows {world_size} ranks in {shape.num_ranks} stages", file=str(path))
    op_s: dict[tuple[Op, int], list[float]] = defaultdict(list)
    for (op, process), steps in by_rank.items():
        rank = process // (world_size // shape.num_ranks)
        for chunk in range(shape.num_chunks):
            key = op, chunk * shape.num_ranks + rank
            parts = shape.num_microbatches * shape.num_chunks
            op_s[key] += [step * _MS / parts for step in steps[1:] or steps]
    unused = ["what the log says of sends and receives is waits: links cost nothing"]
    if shape.num_chunks > 1:
        unused.append(f"a rank's time is shared out equally over its {shape.num_chunks} chunks")
    return Samples(
        source=str(path),
        workload="Megatron timers",
        stages_of_rank=tuple(
            tuple(chunk * shape.num_ranks + rank for chunk in range(shape.num_chunks))
            for rank in range(shape.num_ranks)
        ),
        op_s={key: np.array(seconds) for key, seconds in op_s.items()},
        num_steps=max(1, max(map(len, by_rank.values())) - 1),
        unused=tuple(unused),
    )


def _times(text: str) -> dict[tuple[Op, int], list[float]]:
    """Milliseconds of each logged step, by operation and process."""
    found: dict[tuple[Op, int], list[float]] = defaultdict(list)
    inside, timer = False, ""
    for line in text.splitlines():
        if _HEAD.search(line):
            inside, timer = True, ""
        elif inside and (matched := _RANK.search(line)):
            if timer in _OPS:
                found[_OPS[timer], int(matched[1])].append(float(matched[2]))
        elif inside and (matched := _TIMER.search(line)):
            timer = matched[1]
        else:
            inside = False
    return found


def _shape(path: Path, text: str) -> _Shape:
    """Read the sizes of the job from the arguments that it printed."""
    printed = {m[1]: m[2] for line in text.splitlines() if (m := _ARGUMENT.search(line))}
    missing = [name for name in _SIZES[:4] if not printed.get(name, "").isdigit()]
    if missing:
        raise ScenarioError(
            f"does not show {', '.join(missing)}, which a job prints among its arguments when it starts; "
            f"the whole log is needed",
            file=str(path),
        )
    ranks, replicas, batch, micro = (int(printed[name]) for name in _SIZES[:4])
    chunks = printed.get(_SIZES[4], "None")
    if not (ranks and replicas and micro) or batch % (replicas * micro) or not batch:
        raise ScenarioError(
            f"found global_batch_size {batch}, data_parallel_size {replicas} and micro_batch_size {micro}: "
            f"no whole number of microbatches follows",
            file=str(path),
        )
    return _Shape(ranks, int(chunks) if chunks.isdigit() else 1, batch // (replicas * micro))
