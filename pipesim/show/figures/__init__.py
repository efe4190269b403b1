"""Pictures, PNG or SVG by the file's name; no window is ever opened."""

from pipesim.show.figures.bars import plot_breakdown, plot_memory
from pipesim.show.figures.curves import plot_bubble
from pipesim.show.figures.gantt import plot_gantt
from pipesim.show.figures.pareto import pareto_front, plot_pareto

__all__ = ["pareto_front", "plot_breakdown", "plot_bubble", "plot_gantt", "plot_memory", "plot_pareto"]
