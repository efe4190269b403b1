"""The number of GPUs, where only a comment tells it."""

from __future__ import annotations

import re

from pipesim.importers.facts import Facts
from pipesim.scenario.counts import LARGEST_COUNT, clean

_GPUS = re.compile(r"\b(\d{1,7})\s*x?\s+(?:\d+\s*GB\s+)?(?:[A-Z]{1,4}\d{2,4}\s+)?(?:GPUs\b|[A-Z]\d{2,3}s\b)")


def take_gpus_from_comments(facts: Facts, text: str) -> None:
    """Set the number of GPUs to what the comments of a file agree on, and note the words."""
    found = gpus_in_comments(text)
    if found is not None:
        facts.num_gpus, words = found
        facts.inferred["number of GPUs"] = (
            f"{facts.num_gpus}, from the comment {words!r}; --gpus N states another"
        )


def gpus_in_comments(text: str) -> tuple[int, str] | None:
    """Find what the comments agree on.

    Parameters
    ----------
    text : str
        A file with ``#`` comments.

    Returns
    -------
    tuple of (int, str) or None
        The number and the words that tell it; None where no comment does or where they differ.
    """
    comments = " ".join(line.partition("#")[2].strip() for line in text.splitlines() if "#" in line)
    found = {int(match[1]): match[0] for match in _GPUS.finditer(comments)}
    if len(found) != 1:
        return None
    number, words = next(iter(found.items()))
    return (number, clean(words, most=60)) if 1 <= number <= LARGEST_COUNT else None
