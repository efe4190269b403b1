"""Compile the search, or load it from disk, before there is anything to search."""

from __future__ import annotations

import numpy as np

from pipesim.search.priorities import no_caps
from pipesim.search.problem import MemoryLimit, Problem


def load_kernels() -> None:
    """Call each compiled function of the search once, that which takes longest to compile first."""
    from pipesim.search.listing import list_word
    from pipesim.search.moves import improve_word
    from pipesim.search.word_timing import new_scratch

    ranks = np.arange(2, dtype=np.int32)
    memory = MemoryLimit(np.ones(2), np.full(2, np.inf))
    problem = Problem(ranks, 1, np.ones((3, 2)), np.zeros((3, 2)), memory, np.full(2, 2.0))
    pipeline, _ = problem.pipeline()
    word, scratch = np.array([0, 2, 4, 1, 3, 5], np.int32), new_scratch(pipeline)
    improve_word(pipeline, word, scratch, np.ones(1, np.uint64), 1, 0.0, 0.0)
    list_word(pipeline, np.zeros(problem.num_actions), 0.0, no_caps(pipeline), word)
