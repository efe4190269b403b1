"""Torch's own pipeline runtime with an order of ours: the one file that knows torch's private names.

Private, as of torch 2.13: ``torch.distributed.pipelining.schedules._PipelineScheduleRuntime`` and its
``_load_csv``. Torch offers no public way to an order of one's own.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipesim.errors import ExecutionError, ScheduleError
from pipesim.executor.rank_processes import require_torch
from pipesim.ir.actions import ActionTable, Lowered, Op, Schedule
from pipesim.ir.torch_limits import torch_refusals

_RUNTIME = "_PipelineScheduleRuntime"


def runtime_class() -> Any:
    """Torch's runtime of orders.

    Raises
    ------
    ExecutionError
        If there is no torch, or it has none.
    """
    require_torch()
    import torch
    from torch.distributed.pipelining import schedules

    found = getattr(schedules, _RUNTIME, None)
    if found is None or not hasattr(found, "_load_csv"):
        raise ExecutionError(
            f"torch {torch.__version__} has no pipeline runtime that takes an order; needed: one with "
            f"{schedules.__name__}.{_RUNTIME}"
        )
    return found


def torch_schedule(order: Schedule | Lowered, stages: Sequence[Any], **settings: Any) -> Any:
    """Build torch's pipelining schedule from an order, for a user's own training script.

    In every process of the pipeline's group::

        order = pipesim.load_order("best.csv")  # or a scenario
        stages = [PipelineStage(part(s), s, order.num_stages, device) for s in order.stages_of(rank)]
        schedule = pipesim.torch_schedule(order, stages, loss_fn=loss)

    after which ``schedule.step(...)`` is that of every schedule of ``torch.distributed.pipelining``.

    Parameters
    ----------
    order : Schedule or Lowered
        Computations, from which torch derives sends and receives as `pipesim.ir.lower` does; or lowered, to
        be run as it stands, but for the optimizer, which torch steps outside the schedule.
    stages : sequence of torch.distributed.pipelining.PipelineStage
        This process's; torch does not check that they are those of its row in the order.
    **settings
        Of torch's schedules, such as ``loss_fn`` and ``scale_grads``; microbatches are the order's.

    Returns
    -------
    torch.distributed.pipelining.schedules._PipelineScheduleRuntime

    Raises
    ------
    ScheduleError
        If torch's runtime cannot run the order, or the stages are others than the order's.
    ExecutionError
        If this torch has no such runtime.
    """
    stated: ActionTable = order
    if isinstance(order, Lowered):
        stated = order.select(order.op != Op.OPTIMIZER)
        if np.any(stated.op == Op.REDUCE_EMBEDDING):
            raise ScheduleError(f"{order.name}: torch's runtime does not add up copies of a tied embedding")
    reasons = list(torch_refusals(stated))
    if reasons:
        raise ScheduleError(f"{order.name}: {'; '.join(reasons)}")
    check_stages(stated, stages)
    runtime = runtime_class()(list(stages), order.num_microbatches, **settings)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "order.csv"
        path.write_text(stated.to_csv())
        runtime._load_csv(str(path), format="compute_comms" if isinstance(order, Lowered) else "compute_only")
    return runtime


def check_stages(order: ActionTable, stages: Sequence[Any]) -> None:
    """Refuse stages that are not those of this process in an order; with others torch hangs or crashes.

    Raises
    ------
    ScheduleError
        With the stages that are needed, and those of all ranks.
    """
    by_rank = ", ".join(f"rank {rank}: {order.stages_of(rank)}" for rank in range(order.num_ranks))
    if not stages:
        raise ScheduleError(f"{order.name}: no stages were given; needed are those of the order: {by_rank}")
    first = stages[0]
    for what, found, needed in (
        ("processes in the pipeline's group", first.group_size, order.num_ranks),
        ("stages", first.num_stages, order.num_stages),
    ):
        if found != needed:
            raise ScheduleError(f"{order.name} has {needed} {what}, found {found}")
    rank = first.group_rank
    built = [stage.stage_index for stage in stages]
    if sorted(built) != order.stages_of(rank):
        raise ScheduleError(
            f"{order.name} has stages {order.stages_of(rank)} on rank {rank}, found {built}; the stages of "
            f"all ranks: {by_rank}"
        )
