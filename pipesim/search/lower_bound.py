"""Makespans that no order can beat, whatever it does: each bound with the argument that proves it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipesim.search.problem import Problem

Floats = npt.NDArray[np.float64]


def lower_bound_s(problem: Problem) -> float:
    """Proven lower bound of the makespan in seconds, over all orders within the memory limits.

    Orders may split each backward or not: where a full B is the shorter way, it counts. The largest, over
    ranks, of

    - the time until the rank's first F can start, and all its work;
    - the same with F and I only, the W that memory forces before the last F, and then the way of the last I
      back to stage 0 with the W after it;
    - the time until its first I can start, and all its work but the F that fits in memory before;
    - the same with the last two joined;
    - the time until its first F, and the sum over microbatches of the time that each must stay in memory,
      divided by the memory (Little's law);

    and the way of one microbatch through all stages and back.
    """
    m, memory = problem.num_microbatches, problem.memory
    forward, backward, weight = durations = _shorter_way(problem)
    way = _Way.of(problem, durations)
    stay = _time_in_memory(problem, way, durations)
    least_held = np.minimum(memory.amounts, memory.until_weights)
    bounds = [float(np.max(way.backward_start + backward + way.tail))]
    for rank, stages in enumerate(problem.stages):
        limit, amounts = float(memory.limits[rank]), memory.amounts[stages]
        head, first_backward = way.forward_start[stages].min(), way.backward_start[stages].min()
        tail = way.tail[stages].min()
        forward_work, backward_work = m * forward[stages].sum(), m * backward[stages].sum()
        busy = forward_work + backward_work + m * weight[stages].sum()
        early_forwards = _most_work(forward[stages], amounts, limit, m)
        forced_weights = _least_weights(weight[stages], least_held[stages], limit, m)
        bounds += [
            head + busy,
            head + forward_work + backward_work + forced_weights + tail,
            first_backward + busy - early_forwards,
            first_backward + forward_work + backward_work - early_forwards + forced_weights + tail,
        ]
        if limit > 0:
            bounds.append(head + m * float(stay[stages].sum()) / limit)
    return float(max(bounds)) - problem.trailing_s


@dataclass(frozen=True, slots=True)
class _Way:
    """One microbatch alone: earliest starts of F and I of each stage, and what must follow an I's end."""

    forward_start: Floats
    backward_start: Floats
    tail: Floats

    @classmethod
    def of(cls, problem: Problem, durations_s: Floats) -> _Way:
        forward, backward, weight = durations_s
        forward_delay, backward_delay, _ = problem.delays_s
        num_stages = problem.num_stages
        forward_start, backward_start, tail = (np.zeros(num_stages) for _ in range(3))
        for s in range(1, num_stages):
            forward_start[s] = forward_start[s - 1] + forward[s - 1] + forward_delay[s]
        backward_start[-1] = forward_start[-1] + forward[-1]
        for s in range(num_stages - 2, -1, -1):
            backward_start[s] = backward_start[s + 1] + backward[s + 1] + backward_delay[s]
        tail[0] = weight[0]
        for s in range(1, num_stages):
            tail[s] = max(weight[s], backward_delay[s - 1] + backward[s - 1] + tail[s - 1])
        return cls(forward_start, backward_start, tail)


def _shorter_way(problem: Problem) -> Floats:
    """F, I and W of each stage, I and W no longer than a full B makes them, shape (3, S)."""
    forward, backward, weight = problem.durations_s
    both = np.minimum(backward + weight, problem.full_backward_s)
    backward = np.minimum(backward, both)
    return np.stack([forward, backward, both - backward])


def _time_in_memory(problem: Problem, way: _Way, durations_s: Floats) -> Floats:
    """Least memory times seconds of a microbatch on each stage, from the start of F to the end of W.

    A full B holds what F left to its end; then nothing is deferred.
    """
    memory = problem.memory
    until_backward = way.backward_start + durations_s[1] - way.forward_start
    left = np.minimum(memory.amounts, memory.until_weights)
    result: Floats = memory.amounts * until_backward + left * durations_s[2]
    return result


def _most_work(work_s: Floats, amounts: Floats, limit: float, m: int) -> float:
    """Most F that fits in memory while nothing is released, parts of an F allowed."""
    total, room = 0.0, limit
    for stage in np.argsort(amounts / np.maximum(work_s, 1e-300)):
        number = m if amounts[stage] == 0 else min(m, room / amounts[stage])
        total += number * float(work_s[stage])
        room -= number * float(amounts[stage]) if amounts[stage] else 0.0
    return total


def _least_weights(work_s: Floats, least_held: Floats, limit: float, m: int) -> float:
    """Least W that must have run before the rank's last F, for that F to fit; parts of a W allowed."""
    kept = m * float(least_held.sum()) - limit
    holding = least_held > 0
    if kept <= 0 or not holding.any():
        return 0.0
    return kept * float((work_s[holding] / least_held[holding]).min())
