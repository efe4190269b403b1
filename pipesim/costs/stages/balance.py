"""Layers to stages so that the slowest rank is as fast as possible, within the memory of its devices.

Ranks may differ in speed and memory. A rank pays for all of its stages together, so with several chunks a
rank the sum counts; of a stage that two ranks hold, each runs half of the microbatches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
Counts = tuple[int, ...]

_TIE = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """Pieces in a row (embedding, layers, head) that fall to stages, at least one to each.

    Parameters
    ----------
    seconds : array, shape (num_ranks, pieces)
        Of one microbatch through a piece on a rank, forward and backward.
    state_bytes, activation_bytes : array, shape (pieces,)
        Held for the step, and for one microbatch in flight.
    in_flight : array, shape (num_stages,)
        Microbatches that each stage holds at most.
    limit_bytes : array, shape (num_ranks,)
        Room for state and activations.
    holders : tuple of tuple of int
        Ranks of each stage.
    """

    seconds: FloatArray
    state_bytes: FloatArray
    activation_bytes: FloatArray
    in_flight: FloatArray
    limit_bytes: FloatArray
    holders: tuple[tuple[int, ...], ...]

    @property
    def num_stages(self) -> int:
        """Stages S."""
        return len(self.holders)

    @property
    def num_pieces(self) -> int:
        """Layers and ends."""
        return len(self.state_bytes)


def balanced(chain: Chain, even: Counts) -> Counts:
    """Give each stage its pieces.

    With one stage a rank this is the best there is: the slowest rank first, then the sum of squares. With
    several it is found by moving pieces one by one from the slowest rank, which is the best where layers are
    alike, and never slower than `even`. Memory is left out where nothing fits.

    Parameters
    ----------
    chain : Chain
        What each piece takes.
    even : tuple of int
        Pieces of each stage to start from.
    """
    once = all(len(ranks) == 1 for ranks in chain.holders)
    if once and len({ranks[0] for ranks in chain.holders}) == chain.num_stages:
        return _best_of_chain(chain, with_memory=True) or _best_of_chain(chain, with_memory=False) or even
    best, loads = _searched(chain, even)
    if loads.key(best)[0]:
        best, loads = _searched(replace(chain, limit_bytes=np.full_like(chain.limit_bytes, np.inf)), even)
    start = loads.key(even)
    is_faster = loads.key(best)[:2] < (start[0], tuple(load * (1 - _TIE) for load in start[1]))
    return best if is_faster else even


def _searched(chain: Chain, even: Counts) -> tuple[Counts, _Loads]:
    loads = _Loads(chain)
    return min((_moved(loads, counts) for counts in _starts(chain, even)), key=loads.key), loads


def _starts(chain: Chain, even: Counts) -> Iterator[Counts]:
    yield even
    # Stages on their own, as if each were a rank.
    mean = np.array([chain.seconds[list(ranks)].mean(axis=0) for ranks in chain.holders])
    alone = Chain(
        mean,
        chain.state_bytes,
        chain.activation_bytes,
        chain.in_flight,
        np.full(chain.num_stages, np.inf),
        tuple((stage,) for stage in range(chain.num_stages)),
    )
    found = _best_of_chain(alone, with_memory=False)
    if found is not None:
        yield found


def _best_of_chain(chain: Chain, *, with_memory: bool) -> Counts | None:
    """Dynamic programme over prefixes, O(stages * pieces ** 2); None where memory allows no cut.

    Equal but for rounding is equal: of such cuts the one whose later stages are the smaller.
    """
    size = chain.num_pieces + 1
    some = np.arange(size) > np.arange(size)[:, None]
    sums = [np.concatenate([[0.0], np.cumsum(chain.seconds[ranks[0]])]) for ranks in chain.holders]

    def load(stage: int) -> FloatArray:
        """Pieces i to j - 1 on a stage, at [i, j]."""
        seconds: FloatArray = np.where(some, sums[stage] - sums[stage][:, None], np.inf)
        if with_memory:
            nbytes = np.cumsum(chain.state_bytes + chain.in_flight[stage] * chain.activation_bytes)
            held = np.concatenate([[0.0], nbytes])
            limit = chain.limit_bytes[chain.holders[stage][0]]
            seconds = np.where(held - held[:, None] <= limit, seconds, np.inf)
        return seconds

    heaviest = load(0)[0]
    for stage in range(1, chain.num_stages):
        heaviest = np.maximum(heaviest[:, None], load(stage)).min(axis=0)
    most = heaviest[-1] * (1 + _TIE)
    if not np.isfinite(most):
        return None
    cuts = []
    total = np.where(load(0)[0] <= most, load(0)[0], np.inf) ** 2
    for stage in range(1, chain.num_stages):
        of_stage = load(stage)
        candidates = total[:, None] + np.where(of_stage <= most, of_stage, np.inf) ** 2
        total = candidates.min(axis=0)
        # The last of equal minima: the stage that ends here is then the smaller one.
        least = candidates <= total * (1 + _TIE)
        cuts.append(size - 1 - least[::-1].argmax(axis=0))
    ends = [size - 1]
    for cut in reversed(cuts):
        ends.append(int(cut[ends[-1]]))
    ends.append(0)
    return tuple(int(end - begin) for end, begin in pairwise(ends))[::-1]


class _Loads:
    """How a cut loads ranks, for comparing cuts."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.stages = [stage for stage, ranks in enumerate(chain.holders) for _ in ranks]
        self.ranks = [rank for ranks in chain.holders for rank in ranks]
        self.share = np.array([1 / len(chain.holders[stage]) for stage in self.stages])
        zero = np.zeros((len(chain.seconds), 1))
        self.seconds = np.concatenate([zero, np.cumsum(chain.seconds, axis=1)], axis=1)
        self.state = np.concatenate([[0.0], np.cumsum(chain.state_bytes)])
        self.activations = np.concatenate([[0.0], np.cumsum(chain.activation_bytes)])

    def of(self, counts: Counts) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Seconds of each rank, of each stage on each of its ranks, and bytes of each rank."""
        ends = np.concatenate([[0], np.cumsum(counts)])
        begin, end = ends[self.stages], ends[np.array(self.stages) + 1]
        seconds = (self.seconds[self.ranks, end] - self.seconds[self.ranks, begin]) * self.share
        nbytes = self.state[end] - self.state[begin]
        in_flight = self.chain.in_flight[self.stages] * self.share
        nbytes = nbytes + in_flight * (self.activations[end] - self.activations[begin])
        num_ranks = len(self.chain.seconds)
        of_ranks: list[FloatArray] = []
        for amounts in (seconds, nbytes):
            total = np.zeros(num_ranks)
            np.add.at(total, self.ranks, amounts)
            of_ranks.append(total)
        return of_ranks[0], seconds, of_ranks[1]

    def key(self, counts: Counts) -> tuple[float, tuple[float, ...], float]:
        """Bytes too many, seconds of the ranks from the slowest on, unevenness of the stages."""
        ranks, stages, nbytes = self.of(counts)
        excess = float(np.maximum(nbytes - self.chain.limit_bytes, 0).sum())
        slowest = np.sort(ranks)[::-1]
        digits = 12 - int(np.ceil(np.log10(max(float(slowest[0]), 1e-300))))
        return excess, tuple(np.round(slowest, digits).tolist()), round(float((stages**2).sum()), 2 * digits)


def _moved(loads: _Loads, counts: Counts) -> Counts:
    """Move pieces one at a time from the slowest rank, or the fullest, while that makes the cut better."""
    here = loads.key(counts)
    while True:
        ranks, _, nbytes = loads.of(counts)
        crowded = int(np.argmax(nbytes - loads.chain.limit_bytes)) if here[0] else int(np.argmax(ranks))
        donors = [s for s, holders in enumerate(loads.chain.holders) if crowded in holders and counts[s] > 1]
        options = (
            _shifted(counts, source, target)
            for source in donors
            for target in range(len(counts))
            if target != source
        )
        best = min(options, key=loads.key, default=counts)
        if loads.key(best) >= here:
            return _evened(loads, counts)
        counts, here = best, loads.key(best)


def _evened(loads: _Loads, counts: Counts) -> Counts:
    """Even out the stages of each rank among themselves."""
    here = loads.key(counts)
    pairs = [
        (one, other)
        for one, holders in enumerate(loads.chain.holders)
        for other, others in enumerate(loads.chain.holders)
        if one != other and holders == others
    ]
    while True:
        options = (_shifted(counts, *pair) for pair in pairs if counts[pair[0]] > 1)
        best = min(options, key=loads.key, default=counts)
        if loads.key(best) >= here:
            return counts
        counts, here = best, loads.key(best)


def _shifted(counts: Sequence[int], source: int, target: int) -> Counts:
    changed = list(counts)
    changed[source] -= 1
    changed[target] += 1
    return tuple(changed)


def expected_in_flight(
    holders: tuple[tuple[int, ...], ...], num_ranks: int, num_microbatches: int
) -> FloatArray:
    """Microbatches that each stage holds at most, as 1F1B and its interleaved form have it.

    With one stage a rank min(m, p - r); with v in a loop min(m v, (v - 1) p + 2 (p - 1 - r) + 1) chunks over
    v; in other placements no more than p.
    """
    num_chunks = max(1, len(holders) // num_ranks)
    counts = []
    for stage, ranks in enumerate(holders):
        rank = stage % num_ranks
        if ranks != (rank,):
            return np.full(len(holders), float(min(num_microbatches, num_ranks)))
        chunks = (num_chunks - 1) * num_ranks + 2 * (num_ranks - 1 - rank) + 1
        most = num_ranks - rank if num_chunks == 1 else chunks / num_chunks
        counts.append(float(min(num_microbatches, most)))
    return np.array(counts)
