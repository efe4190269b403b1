"""DualPipeV (DeepSeek, github.com/deepseek-ai/DualPipe): DualPipe cut in half, two chunks there and back.

In the steady phase a forward and a full backward run together, so that the messages of one hide behind the
computation of the other. The order of the eight phases is DualPipe's, of which `dualpipe` uses it too.
"""

from collections import deque
from collections.abc import Iterator
from typing import Any

from pipesim.ir.actions import Action, backward, forward, input_gradient, overlap, weight_gradient
from pipesim.schedules.registry import Orders, Rule, Shape, schedule


def split_bubble(shape: Shape, forward_s: Any, input_gradient_s: Any, weight_gradient_s: Any) -> Any:
    """`most_idle_s` where a pair takes F + B, of chunks that take half a rank's time; only for F = I = W."""
    if not forward_s == input_gradient_s == weight_gradient_s:
        return None
    whole = input_gradient_s + weight_gradient_s
    return most_idle_s(2 * shape.num_ranks, forward_s + whole, whole, weight_gradient_s) / 2


def most_idle_s(num_stages: int, pair_s: Any, backward_s: Any, weight_gradient_s: Any) -> Any:
    """(S / 2 - 1)(F&B + B - 3W): idle time of the rank that idles most.

    Times are those of one stage, and S counts stages: p of DualPipe, 2p of DualPipeV. Exact for F = I = W,
    at which a pair may take less than its parts (README of the reference).
    """
    return (num_stages // 2 - 1) * (pair_s + backward_s - 3 * weight_gradient_s)


def peak_in_flight(shape: Shape, rank: int) -> int:
    """2p + 1 chunks."""
    return 2 * shape.num_ranks + 1


@schedule(
    "dualpipe-v",
    source="github.com/deepseek-ai/DualPipe dualpipev.py; order as torch's ScheduleDualPipeV",
    chunks=2,
    rules=(Rule("m >= 2p", lambda s: s.num_microbatches >= 2 * s.num_ranks),),
    known_as={"torch": "DualPipeV"},
    split_bubble=split_bubble,
    peak_in_flight=peak_in_flight,
    placement="v",
    splits_backward=True,
)
def dualpipe_v(shape: Shape) -> Orders:
    """Two chunks there and back; a forward and a backward run together through the steady phase."""
    p, m = shape.num_ranks, shape.num_microbatches
    for rank in range(p):
        lanes = Lane(rank, range(m)), Lane(2 * p - 1 - rank, range(m))
        yield eight_phases(lanes, p, rank, m)


class Lane:
    """One of the two stages of a rank: which microbatch each operation takes next.

    Parameters
    ----------
    stage : int
        The stage.
    microbatches : range
        Those that pass through it on this rank.
    """

    def __init__(self, stage: int, microbatches: range) -> None:
        self.stage = stage
        self._forwards, self._backwards = iter(microbatches), iter(microbatches)

    def forward(self) -> Action:
        """Next F."""
        return forward(self.stage, next(self._forwards))

    def backward(self) -> Action:
        """Next backward as B."""
        return backward(self.stage, next(self._backwards))

    def input_gradient(self) -> Action:
        """Next backward as I."""
        return input_gradient(self.stage, next(self._backwards))


def eight_phases(lanes: tuple[Lane, Lane], depth: int, rank: int, num_microbatches: int) -> Iterator[Action]:
    """Order of one rank, as the reference's eight steps.

    Parameters
    ----------
    lanes : pair of Lane
        The one whose microbatches reach this rank first, and the other.
    depth : int
        Ranks from the entrance of the first lane to its turning point.
    rank : int
        Distance of this rank from that entrance.
    num_microbatches : int
        Microbatches of each lane.
    """
    near, far = lanes
    pending: deque[Action] = deque()
    to_turn = depth - rank - 1

    def split(lane: Lane) -> Action:
        action = lane.input_gradient()
        pending.append(weight_gradient(action.stage, action.microbatch))
        return action

    for _ in range(2 * to_turn):
        yield near.forward()
    for _ in range(rank + 1):
        yield near.forward()
        yield far.forward()
    for _ in range(to_turn):
        yield split(far)
        yield pending.popleft()
        yield far.forward()
    for turn in range(num_microbatches - 2 * depth + rank + 1):
        first = near.forward(), far.backward()
        # Apart on the last rank, whose backward would otherwise wait for nothing but its own forward.
        yield from first if turn == 0 and to_turn == 0 else (overlap(*first),)
        yield overlap(far.forward(), near.backward())
    for _ in range(to_turn):
        yield far.backward()
        yield overlap(far.forward(), near.backward())
    for position in range(2 * (rank + 1)):
        lane = far if position % 2 == 0 else near
        yield split(lane) if position > rank else lane.backward()
    for _ in range(to_turn):
        yield pending.popleft()
        yield split(near)
    yield from pending
