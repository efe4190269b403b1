"""One page on which schedule to run: the choice among results, and HTML that needs nothing beside itself."""

from pipesim.show.report.choice import Choice, choose, memory_or_in_flight
from pipesim.show.report.page import Block, Lines, Picture, Section, Table, Verbatim, page

__all__ = [
    "Block",
    "Choice",
    "Lines",
    "Picture",
    "Section",
    "Table",
    "Verbatim",
    "choose",
    "memory_or_in_flight",
    "page",
]
