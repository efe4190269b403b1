"""What somebody must know to run an order in a framework: stages of each rank, settings of the others."""

from __future__ import annotations

from pathlib import Path

from pipesim.errors import ScheduleError
from pipesim.ir.actions import Schedule
from pipesim.ir.torch_limits import torch_refusals
from pipesim.schedules.frameworks import settings_by_name
from pipesim.schedules.torchtitan_settings import torchtitan_settings

_MOST_RANKS = 8


def order_words(order: Schedule, csv: Path) -> list[str]:
    """Say which stages each rank builds, and by which settings frameworks run the order."""
    refusals = list(torch_refusals(order))
    if refusals:
        return [f"{csv}: {'; '.join(refusals)}"]
    ranks = range(min(order.num_ranks, _MOST_RANKS))
    placed = ", ".join(f"rank {rank}: {' '.join(map(str, order.stages_of(rank)))}" for rank in ranks)
    more = " ..." if order.num_ranks > _MOST_RANKS else ""
    words = [f"{csv}: stages to build: {placed}{more}"]
    words += [f"{name}: {how}" for name, how in settings_by_name(order).items()]
    try:
        settings = torchtitan_settings(order, str(csv))
    except ScheduleError as error:
        return [*words, str(error)]
    return [
        *words,
        f"torchtitan: {', '.join(f'parallelism.{key} = {value}' for key, value in settings.items())}",
    ]
