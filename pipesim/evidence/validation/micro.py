"""Short runs beside the schedule that is calibrated on, for what it never does."""

from __future__ import annotations

from collections.abc import Iterator

from pipesim.executor import EmulatedWorkload, FactoryWorkload
from pipesim.ir import lower
from pipesim.ir.actions import Action, Lowered, Op, Schedule
from pipesim.schedules import Shape, generate

_MICROBATCHES = 4
_FLOAT32_BYTES = 4
_PROBED_S = 2e-3
"""Longer than a message takes, so that each receiver waits for the next message."""
PROBED_SIZES = (0.25, 4.0)
"""Sizes of probed messages, in those of the scenario's."""


def micro_schedule(num_ranks: int, num_chunks: int, *, split: bool) -> Schedule:
    """All forwards, then all backwards, of a few microbatches through `num_chunks` stages a rank.

    Parameters
    ----------
    num_ranks, num_chunks : int
        Shape.
    split : bool
        Backwards run as I and W.
    """
    name = "gpipe" if num_chunks == 1 else "looped-bfs"
    whole = generate(name, Shape(num_ranks, num_chunks, max(_MICROBATCHES, num_ranks)))
    if not split:
        return whole
    orders = [_split(whole.actions_of(rank)) for rank in range(num_ranks)]
    return Schedule.from_orders(f"{name} split", orders)


def _split(actions: list[Action]) -> Iterator[Action]:
    for action in actions:
        if action.op is Op.B:
            yield action._replace(op=Op.I)
            yield action._replace(op=Op.W)
        else:
            yield action


def link_probe(nbytes: int) -> tuple[Lowered, EmulatedWorkload]:
    """Messages of one size between two ranks, each sent to a rank that waits for it.

    Rank 0 has time for forwards only and rank 1 for backwards only, and nobody computes meanwhile.
    """
    schedule = lower(generate("gpipe", Shape(2, 1, _MICROBATCHES)))
    takes = {(Op.F, 0): _PROBED_S, (Op.B, 1): _PROBED_S}
    row_s = tuple(
        takes.get((Op(op), stage), 0.0)
        for op, stage in zip(schedule.op.tolist(), schedule.stage.tolist(), strict=True)
    )
    return schedule, EmulatedWorkload(row_s, (nbytes, 0), (0, 0))


def device_link_probe(nbytes: int) -> tuple[Lowered, FactoryWorkload]:
    """One message of about `nbytes` between two devices that compute, there and back; none waits for one."""
    elements = max(1, nbytes // _FLOAT32_BYTES)
    workload = FactoryWorkload("pipesim.executor.relay_model:relay", microbatch_size=elements)
    return lower(generate("gpipe", Shape(2, 1, 1))), workload
