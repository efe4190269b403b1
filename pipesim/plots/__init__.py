"""Pictures, PNG or SVG by the file's name; no window is ever opened."""

from pipesim.plots.bars import plot_breakdown, plot_memory
from pipesim.plots.curves import plot_bubble
from pipesim.plots.gantt import plot_gantt
from pipesim.plots.pareto import pareto_front, plot_pareto

__all__ = ["pareto_front", "plot_breakdown", "plot_bubble", "plot_gantt", "plot_memory", "plot_pareto"]
