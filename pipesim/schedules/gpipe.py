"""GPipe (arXiv 1811.06965): all forwards, then all backwards."""

from typing import Any

from pipesim.ir.actions import backward, forward
from pipesim.schedules.registry import Orders, Shape, schedule


def bubble(shape: Shape, forward_s: Any, backward_s: Any) -> Any:
    """(p - 1)(F + B)."""
    return (shape.num_ranks - 1) * (forward_s + backward_s)


def peak_in_flight(shape: Shape, rank: int) -> int:
    """Every microbatch, on every rank."""
    return shape.num_microbatches


@schedule(
    "gpipe",
    source="arXiv 1811.06965; order as torch.distributed.pipelining.ScheduleGPipe",
    chunks=1,
    known_as={"torch": "GPipe"},
    bubble=bubble,
    peak_in_flight=peak_in_flight,
)
def gpipe(shape: Shape) -> Orders:
    """All forwards, then all backwards; the most memory, the simplest order."""
    microbatches = range(shape.num_microbatches)
    for rank in range(shape.num_ranks):
        yield [forward(rank, k) for k in microbatches] + [backward(rank, k) for k in microbatches]
