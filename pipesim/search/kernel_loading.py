"""Compile the search, or load it from disk, before there is anything to search."""

from __future__ import annotations

import numpy as np

from pipesim.search.priorities import no_caps
from pipesim.search.problem import MemoryLimit, Problem, Word


def load_kernels() -> None:
    """Call each compiled function of the search once, that which takes longest to compile first."""
    load_moves()
    load_listing()


def load_moves() -> None:
    """Call `improve_word` once: two thirds of the compilation."""
    from pipesim.search.moves import improve_word
    from pipesim.search.word_timing import new_scratch

    pipeline, _ = _smallest().pipeline()
    improve_word(pipeline, _word(), new_scratch(pipeline), np.ones(1, np.uint64), 1, 0.0, 0.0)


def load_listing() -> None:
    """Call `list_word` once: the other third."""
    from pipesim.search.listing import list_word

    pipeline, _ = _smallest().pipeline()
    list_word(pipeline, np.zeros(len(_word())), 0.0, no_caps(pipeline), _word())


def _smallest() -> Problem:
    memory = MemoryLimit(np.ones(2), np.full(2, np.inf))
    ranks = np.arange(2, dtype=np.int32)
    return Problem(ranks, 1, np.ones((3, 2)), np.zeros((3, 2)), memory, np.full(2, 2.0))


def _word() -> Word:
    return np.array([0, 2, 4, 1, 3, 5], np.int32)
