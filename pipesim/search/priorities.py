"""Priorities for list scheduling, drawn at random: rules, periodic patterns, limits of each stage.

All have one entry a symbol and microbatch (``symbol * m + microbatch``); the least goes first. Times are
those of the scaled `Pipeline`.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from pipesim.search.word_timing import Pipeline

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]

RULES = tuple(itertools.product(("IFW", "FIW", "IWF"), (True, False), (True, False), (True, False)))
"""Order of operations; whether F, and whether I and W, go deep chunks first; microbatch before chunk."""

PATIENCE = (0.0, 0.3, 0.6, 1.0, 1.5)
PATIENCE_SHARE = (0.5, 0.2, 0.15, 0.1, 0.05)


def rule(pipeline: Pipeline, which: tuple[str, bool, bool, bool]) -> Floats:
    """Priority by kind of operation, then by chunk and microbatch."""
    order, deep_forward, deep_backward, microbatch_first = which
    num_stages, m = pipeline.num_stages, pipeline.num_microbatches
    stage, k = np.arange(num_stages)[:, None], np.arange(m)[None, :]
    parts = []
    for op, deep in (("F", deep_forward), ("I", deep_backward), ("W", deep_backward)):
        depth = num_stages - 1 - stage if deep else stage
        inner = k * num_stages + depth if microbatch_first else depth * m + k
        parts.append(order.index(op) * num_stages * m + inner)
    return np.ravel(np.stack(parts)).astype(np.float64)


def pattern(pipeline: Pipeline, stretch: Floats) -> Floats:
    """Priority by a building block that repeats every period of the busiest rank.

    Each microbatch goes its way alone, and each message and action takes `stretch[direction, chunk]` times as
    long as it must (arXiv 2405.15362 builds V-Min, V-Half and ZB-V from such blocks).
    """
    num_stages, m = pipeline.num_stages, pipeline.num_microbatches
    duration, delay = pipeline.duration.reshape(3, -1), pipeline.delay.reshape(3, -1)
    chunk = np.arange(num_stages) // pipeline.num_ranks
    forward, backward = (duration[d] * stretch[d][chunk] for d in (0, 1))
    offset = np.zeros((3, num_stages))
    offset[0, 1:] = np.cumsum(forward[:-1] + delay[0, 1:])
    turn = offset[0, -1] + forward[-1]
    offset[1, ::-1] = turn + np.concatenate([[0.0], np.cumsum((backward[1:] + delay[1, :-1])[::-1])])
    offset[2] = offset[1] + duration[1]
    return np.ravel(offset[:, :, None] + period(pipeline) * np.arange(m))


def period(pipeline: Pipeline) -> float:
    """Time of one microbatch on the busiest rank."""
    by_stage = pipeline.duration.reshape(3, -1).sum(axis=0)
    return float(by_stage[pipeline.stages].sum(axis=1).max())


def random_stretch(pipeline: Pipeline, rng: np.random.Generator) -> Floats:
    """Draw factors from 1 to 4, near 1 more often, for each direction and chunk."""
    draws: Floats = 1 + 3 * rng.random((2, pipeline.stages.shape[1])) ** 2
    return draws


def no_caps(pipeline: Pipeline) -> Ints:
    """Let memory alone limit a stage."""
    return np.full(pipeline.num_stages, pipeline.num_microbatches, np.int32)


def residence_caps(pipeline: Pipeline, slack: float, extra: float) -> Ints:
    """Limit a stage to the microbatches that pass while one goes to the end and back, times `slack`."""
    offset = pattern(pipeline, np.ones((2, pipeline.stages.shape[1])))
    starts = offset.reshape(3, -1, pipeline.num_microbatches)[:, :, 0]
    stay = starts[2] + pipeline.duration.reshape(3, -1)[2] - starts[0]
    caps = np.floor(slack * stay / period(pipeline) + extra)
    clipped: Ints = np.clip(caps, 1, pipeline.num_microbatches).astype(np.int32)
    return clipped
