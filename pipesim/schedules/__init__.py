"""Schedules: one file a family, one registry. See `gpipe.py` for the smallest example."""

from pipesim.schedules._slice_lengths import SLICE_LENGTHS
from pipesim.schedules.registry import (
    Family,
    Refusal,
    Rule,
    Shape,
    families,
    families_named,
    family,
    generate,
    schedule,
)

__all__ = [
    "SLICE_LENGTHS",
    "Family",
    "Refusal",
    "Rule",
    "Shape",
    "families",
    "families_named",
    "family",
    "generate",
    "schedule",
]
