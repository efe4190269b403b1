"""Questions asked of a scenario: one run, all schedules side by side, curves over microbatches."""

from pipesim.questions.compare import Comparison, Skipped, compare
from pipesim.questions.curves import bubble_curves
from pipesim.questions.goodput import Goodput, goodput, goodput_of
from pipesim.questions.run import Result, load_csv, read_csv_text, shape_of, simulate_scenario

__all__ = [
    "Comparison",
    "Goodput",
    "Result",
    "Skipped",
    "bubble_curves",
    "compare",
    "goodput",
    "goodput_of",
    "load_csv",
    "read_csv_text",
    "shape_of",
    "simulate_scenario",
]
