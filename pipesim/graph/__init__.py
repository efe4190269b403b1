"""The only dependency rule, and what follows from it: validation, lowering, in-flight counts."""

from pipesim.graph.dependencies import NONE, Dependencies, dependencies, linear_extension
from pipesim.graph.grid import format_grid
from pipesim.graph.in_flight import held, peak_in_flight
from pipesim.graph.lowering import embedding_copies, lower
from pipesim.graph.rendezvous import TRANSPORTS, Transport, find_hang, needed_transport
from pipesim.graph.validation import validate

__all__ = [
    "NONE",
    "TRANSPORTS",
    "Dependencies",
    "Transport",
    "dependencies",
    "embedding_copies",
    "find_hang",
    "format_grid",
    "held",
    "linear_extension",
    "lower",
    "needed_transport",
    "peak_in_flight",
    "validate",
]
