"""Interleaved 1F1B (Megatron-LM): a rank holds v chunks of the model, and the bubble shrinks v-fold."""

from collections.abc import Iterator
from typing import Any

from pipesim.ir.actions import Action, backward, forward, overlap
from pipesim.schedules.registry import Orders, Refusal, Rule, Shape, schedule


def group_size(shape: Shape) -> int | None:
    """Microbatches N that pass one chunk before the next chunk's turn; None where no default is whole.

    Megatron's default is p. Where p does not divide m, torch takes m / max(1, m // p) if that is whole.
    """
    stated = shape.options.get("microbatch_group_size")
    p, m = shape.num_ranks, shape.num_microbatches
    if stated is not None:
        return min(int(stated), m)
    num_rounds = m // p if m % p == 0 else max(1, m // p)
    return m // num_rounds if m % num_rounds == 0 else None


def bubble(shape: Shape, forward_s: Any, backward_s: Any) -> Any:
    """(p - 1)(F + B) / v, where m >= N >= p and the last group is whole or has at least p microbatches."""
    if _runs_pairs(shape) or not _runs_in_megatron(shape, group_size(shape)):
        return None
    return (shape.num_ranks - 1) * (forward_s + backward_s) / shape.num_chunks


def peak_in_flight(shape: Shape, rank: int) -> int:
    """min(m v, (v - 1) N + 2 (p - 1 - r) + 1)."""
    return min(shape.num_microbatches * shape.num_chunks, _num_warmup(shape, rank) + 1)


def _pairs_is_a_choice(shape: Shape) -> bool:
    return isinstance(shape.options.get("pairs", False), bool)


def _runs_pairs(shape: Shape) -> bool:
    """Whether a forward and the backward behind it run together."""
    return bool(shape.options.get("pairs", False))


def _stated_size_is_whole(shape: Shape) -> bool:
    stated = shape.options.get("microbatch_group_size")
    return stated is None or (isinstance(stated, int) and not isinstance(stated, bool) and stated >= 1)


def _megatron_refuses(shape: Shape) -> bool:
    """Whether Megatron-LM does, which takes N = p where none is stated."""
    return not _runs_in_megatron(shape, shape.options.get("microbatch_group_size", shape.num_ranks))


def _runs_in_megatron(shape: Shape, group: int | None) -> bool:
    p, m = shape.num_ranks, shape.num_microbatches
    return group is not None and p <= group <= m and not 0 < m % group < p


def group_in_words(shape: Shape) -> dict[str, str]:
    """Say which N the order has, and where it is from."""
    group, p, m = group_size(shape), shape.num_ranks, shape.num_microbatches
    if shape.num_chunks == 1:
        return {}
    if shape.options.get("microbatch_group_size") is not None:
        words = f"{group} (stated)"
    elif m % p == 0:
        words = f"{group} (default: p)"
    else:
        words = (
            f"{group} (default: m / max(1, m // p), as torch; Megatron-LM's default of p = {p} "
            f"refuses m = {m})"
        )
    return {"parallel.microbatch_group_size": words}


def group_that_runs(shape: Shape) -> str:
    """Say which groups run for certain, and the nearest ones: what else may deadlock has no closed form."""
    m, stated = shape.num_microbatches, shape.options["microbatch_group_size"]

    def runs(num_microbatches: int, group: int) -> bool:
        other = Shape(shape.num_ranks, shape.num_chunks, num_microbatches, {"microbatch_group_size": group})
        return group == num_microbatches or _runs_in_megatron(other, group)

    near = min((group for group in range(1, m + 1) if runs(m, group)), key=lambda group: abs(group - stated))
    words = (
        "a group of N microbatches runs if p <= N <= m and m mod N is 0 or at least p (Megatron-LM's rule) "
        f"or if N = m; nearest microbatch_group_size: {near}"
    )
    if stated < shape.num_ranks:
        return words
    counts = [k for k in range(stated, m + stated + 1) if runs(k, stated)]
    below, above = max(k for k in counts if k < m), min(k for k in counts if k > m)
    return f"{words}; nearest m with {stated}: {below} or {above}"


def _torch_refuses(shape: Shape) -> bool:
    num_rounds = max(1, shape.num_microbatches // shape.num_ranks)
    ragged = shape.num_microbatches % num_rounds != 0
    return ragged or group_size(shape) != shape.num_microbatches // num_rounds


@schedule(
    "interleaved-1f1b",
    source="arXiv 2104.04473 section 2.2.2; Megatron-LM get_schedule_table",
    rules=(
        Rule("microbatch_group_size to be a whole number of at least 1", _stated_size_is_whole),
        Rule("pairs to be true or false", _pairs_is_a_choice),
        Rule("m divisible by p, or by max(1, m // p)", lambda s: group_size(s) is not None),
    ),
    known_as={"torch": "Interleaved1F1B", "Megatron": "the schedule with virtual stages"},
    refusals=(
        Refusal(
            "Megatron", "needs p >= 2 (3 without --overlap-p2p-communication)", lambda s: s.num_ranks < 2
        ),
        Refusal(
            "Megatron", "needs p <= N <= m and m mod N = 0 or >= p (N = p unless stated)", _megatron_refuses
        ),
        Refusal("torch", "needs m divisible by max(1, m // p), and takes no other N", _torch_refuses),
    ),
    options=("microbatch_group_size", "pairs"),
    placement="loop",
    bubble=bubble,
    peak_in_flight=peak_in_flight,
    cure_of_deadlock=group_that_runs,
    choices=group_in_words,
)
def interleaved(shape: Shape) -> Orders:
    """1F1B over v chunks a rank: a v-th of the bubble for v times the messages.

    With the option `pairs` each forward of the steady phase runs together with a backward, as Megatron-core's
    ``overlap_moe_expert_parallel_comm`` has it, after one more forward in the warm-up
    (megatron/core/pipeline_parallel/schedules.py, combined_1f1b).
    """
    for rank in range(shape.num_ranks):
        yield _rank_order(shape, rank)


def _rank_order(shape: Shape, rank: int) -> Iterator[Action]:
    p, v = shape.num_ranks, shape.num_chunks
    turns, pairs = list(_turns(shape)), _runs_pairs(shape)
    num_warmup = min(len(turns), _num_warmup(shape, rank))
    forwards = [forward(chunk * p + rank, k) for chunk, k in turns]
    backwards = [backward((v - 1 - chunk) * p + rank, k) for chunk, k in turns]
    yield from forwards[:num_warmup]
    for ahead, behind in zip(forwards[num_warmup:], backwards, strict=False):
        if pairs:
            yield overlap(ahead, behind)
        else:
            yield ahead
            yield behind
    yield from backwards[len(turns) - num_warmup :]


def _turns(shape: Shape) -> Iterator[tuple[int, int]]:
    """Chunk and microbatch of each forward in turn: a group of N microbatches passes chunk after chunk."""
    m, group = shape.num_microbatches, group_size(shape) or 1
    for first in range(0, m, group):
        for chunk in range(shape.num_chunks):
            for k in range(first, min(first + group, m)):
                yield chunk, k


def _num_warmup(shape: Shape, rank: int) -> int:
    warmup = (shape.num_chunks - 1) * (group_size(shape) or 1) + 2 * (shape.num_ranks - 1 - rank)
    # One more, so that the last rank's backward does not wait for the forward beside it.
    return warmup + _runs_pairs(shape)
