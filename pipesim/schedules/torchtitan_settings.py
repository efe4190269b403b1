"""Settings by which torchtitan runs an order from a CSV.

With a CSV torchtitan takes torch's runtime for the order, but which stages a rank builds it still decides by
the named schedule: github.com/pytorch/torchtitan, torchtitan/distributed/pipeline_parallel.py,
``pipeline_module_split`` and ``build_pipeline_schedule``, commit 02ef790c7961.
"""

from __future__ import annotations

from collections.abc import Mapping

from pipesim.errors import ScheduleError
from pipesim.ir.actions import ActionTable


def torchtitan_settings(order: ActionTable, csv: str) -> Mapping[str, str]:
    """Keys of torchtitan's section ``parallelism`` for an order.

    Parameters
    ----------
    order : ActionTable
        What the CSV holds.
    csv : str
        Where it lies.

    Raises
    ------
    ScheduleError
        If torchtitan has no way to put the stages where the order has them.
    """
    p, num_chunks = order.num_ranks, order.num_stages // order.num_ranks
    loop = [tuple(range(rank, order.num_stages, p)) for rank in range(p)]
    wave = [(rank, 2 * p - 1 - rank) for rank in range(p)]
    placed = [tuple(order.stages_of(rank)) for rank in range(p)]
    if placed == loop:
        name = "1F1B" if num_chunks == 1 else "Interleaved1F1B"
    elif placed == wave:
        name = "ZBVZeroBubble"
    else:
        raise ScheduleError(
            f"torchtitan cannot place the stages of {order.name}: it has loops, and a V of two a rank"
        )
    return {
        "pipeline_parallel_degree": str(p),
        "pipeline_parallel_schedule": name,
        "pipeline_parallel_schedule_csv": csv,
    }
