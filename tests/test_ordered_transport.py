"""Messages that are matched by order, as NCCL's must be: their queues, their values, and what is kept."""

# ruff: noqa: E402 - what follows needs torch

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from executor_pool import shared_pool
from executor_reference import reference, worst
from helpers import costs_of
from nccl_queues import makespan

from pipesim.executor import FactoryWorkload, transport
from pipesim.executor.job import Job
from pipesim.executor.stage import Boundary
from pipesim.executor.transport import OrderedTransport
from pipesim.ir import lower
from pipesim.schedules import Shape, families, generate

MESSAGE_S = 0.002


class Work:
    def __init__(self) -> None:
        self.done = False

    def wait(self) -> None:
        self.done = True

    def is_completed(self) -> bool:
        return self.done


class Recorded(SimpleNamespace):
    """Stands for `torch.distributed`: who posted what where."""

    def __init__(self) -> None:
        super().__init__(posted=[])

    def isend(self, tensor: object, peer: int, group: str) -> Work:
        return self._post("send", peer, group)

    def irecv(self, tensor: object, peer: int, group: str) -> Work:
        return self._post("receive", peer, group)

    def _post(self, *call: object) -> Work:
        self.posted.append(call)
        return Work()


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    stand_in = Recorded()
    monkeypatch.setattr(transport, "dist", stand_in)
    return stand_in


def ordered(rank: int) -> OrderedTransport:
    return OrderedTransport(0, rank, torch.device("cpu"), ("up", "down"))


def test_a_queue_holds_the_messages_of_one_rank_to_one_other(recorded: Recorded) -> None:
    boundary = Boundary((1,), torch.float32)
    for rank in range(3):
        for peer in {0, 1, 2} - {rank}:
            ordered(rank).send(0, peer, torch.zeros(1))
            ordered(rank).receive(1, peer, boundary)
            up, down = ("send", "receive") if rank < peer else ("receive", "send")
            assert set(recorded.posted[-2:]) == {(up, peer, "up"), (down, peer, "down")}


def test_a_sent_tensor_is_let_go_once_it_is_gone(recorded: Recorded) -> None:
    sender = ordered(0)
    for message in range(3):
        sender.send(message, 1, torch.zeros(1))
    assert len(sender._sent) == 3
    sender._sent[0][0].done = sender._sent[1][0].done = True
    sender.send(3, 1, torch.zeros(1))
    assert [work.done for work, _ in sender._sent] == [False, False]
    sender.flush()
    assert not sender._sent


def directed(sender: int, receiver: int) -> object:
    """What `OrderedTransport` does: a communicator of the pair in each of two groups."""
    return sender, receiver


@pytest.mark.parametrize("name", families())
def test_no_message_waits_in_its_queue_for_one_made_later(name: str) -> None:
    chosen = families()[name]
    shape = Shape(8, chosen.chunks or (1 if chosen.needs_costs else 2), 32)
    costs = costs_of(8, shape.num_chunks, number=float) if chosen.needs_costs else None
    schedule = lower(generate(name, shape, costs))
    free = makespan(schedule, None, MESSAGE_S)
    assert makespan(schedule, directed, MESSAGE_S) <= 1.005 * free


def test_in_one_queue_for_each_rank_messages_do_wait() -> None:
    """What a batch of each message did, all on one communicator: the model sees it."""
    schedule = lower(generate("interleaved-1f1b", Shape(8, 4, 32)))
    free = makespan(schedule, None, MESSAGE_S)
    assert makespan(schedule, lambda sender, receiver: None, MESSAGE_S) > 1.3 * free


@pytest.mark.parametrize(
    ("name", "shape"), [("zb-v", (4, 2, 6)), ("interleaved-1f1b", (4, 2, 8)), ("dualpipe", (4, 1, 8))]
)
def test_ranks_that_match_by_order_get_the_right_tensors(name: str, shape: tuple[int, int, int]) -> None:
    torch.set_num_threads(1)  # as the ranks do: with more, sums differ in their last bits
    workload = FactoryWorkload("executor_models:mlp", dtype="float64")
    job = Job(lower(generate(name, Shape(*shape))), workload, "cpu", keep_state=True, by_order=True)
    error, same_bits = worst(shared_pool().run(job), reference(job))
    assert error < 1e-12
    assert same_bits
