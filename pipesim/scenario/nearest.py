"""Offer the names that a misspelt one may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Sequence


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """Name the nearest of `known`, or nothing where none is near."""
    by_case = {item.lower(): item for item in known}
    near = difflib.get_close_matches(name.lower(), list(by_case), n=3, cutoff=0.55)
    return f"; did you mean {' or '.join(repr(by_case[item]) for item in near)}?" if near else ""
