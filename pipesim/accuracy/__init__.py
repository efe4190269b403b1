"""Published measurements as scenarios, their predictions, and the errors."""

from pipesim.accuracy.judge import (
    Errors,
    Judged,
    Report,
    judge,
    predict_row,
    resolved,
    usable,
    with_parameters,
)
from pipesim.accuracy.predict import Predictor
from pipesim.accuracy.rows import Row, halves
from pipesim.accuracy.sets import SETS, PublishedSet, published_set

__all__ = [
    "SETS",
    "Errors",
    "Judged",
    "Predictor",
    "PublishedSet",
    "Report",
    "Row",
    "halves",
    "judge",
    "predict_row",
    "published_set",
    "resolved",
    "usable",
    "with_parameters",
]
