"""Pictures: each function returns a figure, which a notebook shows and `save_figure` writes."""

from pipesim.show.figures.bars import plot_breakdown, plot_memory, plot_memory_parts
from pipesim.show.figures.bubble_lines import plot_bubble
from pipesim.show.figures.canvas import save_figure
from pipesim.show.figures.gantt import TimeWindow, plot_gantt
from pipesim.show.figures.pareto import pareto_front, plot_pareto

__all__ = [
    "TimeWindow",
    "pareto_front",
    "plot_breakdown",
    "plot_bubble",
    "plot_gantt",
    "plot_memory",
    "plot_memory_parts",
    "plot_pareto",
    "save_figure",
]
