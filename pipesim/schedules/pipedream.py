"""PipeDream (arXiv 1806.03377) and PipeDream-2BW (arXiv 2006.09503): 1F1B that never flushes. Asynchronous.

Neither drains the pipeline between steps: when the forwards of one step end, those of the next begin. So
there is no order of one step alone that also ends with the step. What is generated here is the run of m
microbatches from an empty pipeline to an empty one, which is 1F1B's order; its makespan is that of a first
and only step. What m microbatches take in the middle of a long run is `steady_period_s`. A gradient is
computed with weights that are `staleness` updates old by the time it is applied, which is other arithmetic
than a synchronous step's: such schedules carry ``synchronous=False`` and must not be ranked with the others
unmarked.
"""

from typing import Any

from pipesim.costs.table import CostTable
from pipesim.schedules.one_f_one_b import one_f_one_b, peak_in_flight
from pipesim.schedules.registry import Orders, Rule, Shape, schedule


def steady_period_s(shape: Shape, costs: CostTable) -> Any:
    """Seconds of m microbatches once the pipeline is full: m times the slowest cycle of the repeating order.

    Rank r is one forward further ahead than rank r + 1, so the cycles are: forwards from rank r to rank s,
    back through the backwards, in the time of s - r + 1 microbatches. With free communication the slowest
    one is the busiest rank's own.
    """
    busy = costs.forward_s + costs.backward_s
    both_ways = [
        costs.p2p(rank, rank + 1).transfer_s(costs.boundary_bytes[rank])
        + costs.p2p(rank + 1, rank).transfer_s(costs.boundary_bytes[rank])
        for rank in range(shape.num_ranks - 1)
    ]
    slowest = busy[0]
    for first in range(shape.num_ranks):
        around = busy[first]
        for last in range(first, shape.num_ranks):
            if last > first:
                around = around + both_ways[last - 1] + busy[last]
            slowest = max(slowest, around / (last - first + 1))
    return shape.num_microbatches * slowest


def _num_behind(shape: Shape, rank: int) -> int:
    return shape.num_ranks - 1 - rank


@schedule(
    "pipedream",
    source="arXiv 1806.03377 section 3.3; github.com/msr-fiddle/pipedream runtime",
    chunks=1,
    peak_in_flight=peak_in_flight,
    synchronous=False,
    weight_versions=lambda shape, rank: _num_behind(shape, rank) + 1,
    staleness=_num_behind,
    steady_period_s=steady_period_s,
)
def pipedream(shape: Shape) -> Orders:
    """1F1B without flush, an update every microbatch, p - r weight versions on rank r; asynchronous."""
    return one_f_one_b(shape)


@schedule(
    "pipedream-2bw",
    source="arXiv 2006.09503 section 3.1; github.com/msr-fiddle/pipedream branch pipedream_2bw",
    chunks=1,
    rules=(Rule("m >= p (two versions suffice for no fewer)", lambda s: s.num_microbatches >= s.num_ranks),),
    peak_in_flight=peak_in_flight,
    synchronous=False,
    weight_versions=lambda shape, rank: 2,
    staleness=lambda shape, rank: 1,
    steady_period_s=steady_period_s,
)
def pipedream_2bw(shape: Shape) -> Orders:
    """1F1B without flush, an update every m microbatches, two weight versions; asynchronous."""
    return one_f_one_b(shape)
