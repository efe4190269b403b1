"""ZB-H2 (arXiv 2401.10241 section 2.2): enough forwards in the warm-up that no rank waits where F = I = W.

The paper draws it and gives its memory, (2p - 2r - 1) M_B + 2r M_W on rank r, and its bubble, but no rule.
This one is derived from the memory: 2(p - r) - 1 forwards in the warm-up, then I and F in turn, with W
always 2r backwards late. The validator accepts it for every shape, and it reproduces the bubble rates of
the paper's table 5 from the times of its table 9.
"""

from collections.abc import Iterator
from typing import Any

from pipesim.ir.actions import Action, forward, input_gradient, weight_gradient
from pipesim.schedules.registry import Orders, Shape, schedule


def span_bubble(shape: Shape, forward_s: Any, input_gradient_s: Any, weight_gradient_s: Any) -> Any:
    """(p - 1)(F + I - 2W) within a rank's span, for W <= F, W <= I and m >= 2p - 1."""
    if shape.num_microbatches < 2 * shape.num_ranks - 1 or weight_gradient_s > min(
        forward_s, input_gradient_s
    ):
        return None
    return (shape.num_ranks - 1) * (forward_s + input_gradient_s - 2 * weight_gradient_s)


def peak_in_flight(shape: Shape, rank: int) -> int:
    """min(m, 2p - 1), until W."""
    return min(shape.num_microbatches, 2 * shape.num_ranks - 1)


@schedule(
    "zb-h2",
    source="arXiv 2401.10241 section 2.2 and table 2; the rule is derived here",
    chunks=1,
    peak_in_flight=peak_in_flight,
    splits_backward=True,
)
def zb_h2(shape: Shape) -> Orders:
    """No bubble inside a rank's span where F = I = W, for twice 1F1B's activations."""
    for rank in range(shape.num_ranks):
        yield _rank_order(shape, rank)


def _rank_order(shape: Shape, rank: int) -> Iterator[Action]:
    m = shape.num_microbatches
    num_warmup, lag = 2 * (shape.num_ranks - rank) - 1, 2 * rank
    for k in range(min(m, num_warmup)):
        yield forward(rank, k)
    for k in range(m):
        yield input_gradient(rank, k)
        if k >= lag:
            yield weight_gradient(rank, k - lag)
        if num_warmup + k < m:
            yield forward(rank, num_warmup + k)
    for k in range(max(0, m - lag), m):
        yield weight_gradient(rank, k)
