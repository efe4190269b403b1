"""Questions asked of a scenario: all schedules side by side, curves over microbatches, long runs."""

from pipesim.questions.compare import Comparison, Skipped, compare
from pipesim.questions.curves import bubble_curves
from pipesim.questions.goodput import Goodput, goodput, goodput_of

__all__ = [
    "Comparison",
    "Goodput",
    "Skipped",
    "bubble_curves",
    "compare",
    "goodput",
    "goodput_of",
]
