"""Published measurements as scenarios, their predictions, and the errors."""

from pipesim.evidence.published.judge import (
    Errors,
    Judged,
    Report,
    judge,
    resolved,
    usable,
    with_parameters,
)
from pipesim.evidence.published.published_row import PublishedRow, halves
from pipesim.evidence.published.row_prediction import predict_row
from pipesim.evidence.published.sets import SETS, PublishedSet, preset_of, published_set

__all__ = [
    "SETS",
    "Errors",
    "Judged",
    "PublishedRow",
    "PublishedSet",
    "Report",
    "halves",
    "judge",
    "predict_row",
    "preset_of",
    "published_set",
    "resolved",
    "usable",
    "with_parameters",
]
