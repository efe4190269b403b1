"""The only dependency rule, and what follows from it: validation, lowering, in-flight counts."""

from pipesim.ir.dependencies import NONE, Dependencies, dependencies, linear_extension
from pipesim.ir.in_flight import held, peak_in_flight
from pipesim.ir.legality import validate
from pipesim.ir.lowering import check_compute_only, embedding_copies, lower, with_step_end
from pipesim.ir.messages import check_messages, has_messages
from pipesim.ir.rendezvous import TRANSPORTS, Transport, find_hang, needed_transport
from pipesim.ir.shape import Shape
from pipesim.ir.text_grid import format_grid

__all__ = [
    "NONE",
    "TRANSPORTS",
    "Dependencies",
    "Shape",
    "Transport",
    "check_compute_only",
    "check_messages",
    "dependencies",
    "embedding_copies",
    "find_hang",
    "format_grid",
    "has_messages",
    "held",
    "linear_extension",
    "lower",
    "needed_transport",
    "peak_in_flight",
    "validate",
    "with_step_end",
]
