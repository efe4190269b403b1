"""GPipe and 1F1B are what the installed torch executes, op for op, for every shape both accept."""

from types import SimpleNamespace
from unittest import mock

import pytest
from helpers import texts

from pipesim.schedules import Shape, family, generate

torch_schedules = pytest.importorskip("torch.distributed.pipelining.schedules")

RANKS, MICROBATCHES = range(1, 9), range(1, 35)


def stage_that_records(rank: int, num_ranks: int, log: list[str]) -> SimpleNamespace:
    """What torch's single-stage schedules ask of a stage, with nothing to send."""

    def forward(k, *_, **__):
        log.append(f"{rank}F{k}")

    def backward(k, *_, **__):
        log.append(f"{rank}B{k}")

    def no_transfers(k):
        return []

    def nothing(*_):
        pass

    return SimpleNamespace(
        stage_index=rank,
        num_stages=num_ranks,
        is_first=rank == 0,
        is_last=rank == num_ranks - 1,
        submod=None,
        has_backward=True,
        forward_one_chunk=forward,
        backward_one_chunk=backward,
        get_fwd_recv_ops=no_transfers,
        get_fwd_send_ops=no_transfers,
        get_bwd_recv_ops=no_transfers,
        get_bwd_send_ops=no_transfers,
        clear_runtime_states=nothing,
        perform_reduce_grad=nothing,
    )


def executed(schedule_class, num_ranks: int, num_microbatches: int) -> list[str]:
    """What torch runs on each rank; its listing of 1F1B is wrong on the last one."""
    orders = []
    for rank in range(num_ranks):
        log: list[str] = []
        schedule = schedule_class(stage_that_records(rank, num_ranks, log), num_microbatches)
        with mock.patch.object(schedule, "_initialize_stage"):
            schedule.step(return_outputs=False)
        orders.append(" ".join(log))
    return orders


def ours(name: str, shape: Shape) -> list[str]:
    return texts(generate(name, shape))


@pytest.mark.parametrize("num_ranks", RANKS)
def test_gpipe(num_ranks):
    for m in MICROBATCHES:
        assert ours("gpipe", Shape(num_ranks, 1, m)) == executed(torch_schedules.ScheduleGPipe, num_ranks, m)


@pytest.mark.parametrize("num_ranks", RANKS)
def test_1f1b(num_ranks):
    (torch_refusal,) = (r for r in family("1f1b").refusals if r.framework == "torch")
    for m in MICROBATCHES:
        shape = Shape(num_ranks, 1, m)
        if torch_refusal.refuses(shape):
            with pytest.raises(ValueError, match="Number of microbatches"):
                executed(torch_schedules.Schedule1F1B, num_ranks, m)
        else:
            assert ours("1f1b", shape) == executed(torch_schedules.Schedule1F1B, num_ranks, m)
