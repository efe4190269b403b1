"""From profiler traces of the ranks of one run to samples; clocks are tied together by messages only."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from pipesim.errors import ScenarioError
from pipesim.evidence.calibration.kineto import HERE, Trace, TracedAction
from pipesim.evidence.calibration.samples import FloatArray, Samples
from pipesim.ir.actions import Op

Message = tuple[TracedAction, TracedAction]
"""The action that sent and the one that received."""
_RECEIVE_OF = {Op.SEND_F: (Op.RECV_F, 1), Op.SEND_B: (Op.RECV_B, -1)}


def samples_of_traces(traces: Sequence[Trace]) -> Samples:
    """Take durations of actions from the traces of one run, and of messages where clocks can be compared.

    Two ranks' clocks are compared by messages that go both ways between them: none is received before it was
    sent. Without such messages the ranks are not put on one clock, and nothing is learned about links.

    Parameters
    ----------
    traces : sequence of Trace
        One a process.

    Raises
    ------
    ScenarioError
        If stages are not named and cannot be told from ranks, or traces of CPUs and GPUs are mixed.
    """
    if len({trace.on_gpu for trace in traces}) > 1:
        raise ScenarioError("some traces have kernels and some have none", file=str(traces[0].path))
    by_stage = _by_stage(traces)
    unused = [f"{trace.path.name}: {words}" for trace in traces for words in trace.unused]
    worlds = {trace.world_size for trace in traces if trace.world_size}
    if worlds and len(traces) < max(worlds):
        unused.append(f"traces of {len(traces)} of {max(worlds)} processes were given")
    op_s: dict[tuple[Op, int], list[float]] = defaultdict(list)
    for stage, of_stage in by_stage.items():
        for action in of_stage.actions:
            if action.action.op <= Op.W and action.has_work:
                op_s[action.action.op, stage].append(action.end_s - action.start_s)
    boundary = np.full(1 + max(by_stage), np.nan)
    delays = []
    for stage in sorted(by_stage):
        if stage + 1 in by_stage and by_stage[stage].trace is not by_stage[stage + 1].trace:
            found, words = _messages(by_stage[stage], by_stage[stage + 1])
            delays.append(found)
            unused += words
            if len(found) and found[0, 0]:
                boundary[stage] = found[0, 0]
    ranks: dict[int, list[int]] = defaultdict(list)
    for stage in sorted(by_stage):
        ranks[id(by_stage[stage].trace)].append(stage)
    return Samples(
        source=str(traces[0].path) if len(traces) == 1 else f"{len(traces)} traces",
        workload="profiler traces",
        stages_of_rank=tuple(map(tuple, ranks.values())),
        op_s={key: np.array(seconds) for key, seconds in op_s.items()},
        boundary_bytes=boundary,
        message_s=np.concatenate(delays) if delays else np.zeros((0, 2)),
        unused=tuple(unused),
    )


class _Stage:
    """Actions of one stage, by name in order of their occurrence."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.actions: list[TracedAction] = []

    def named(self, op: Op) -> dict[tuple[int, int], list[TracedAction]]:
        """Occurrences of each microbatch's and slice's action; one a step."""
        found: dict[tuple[int, int], list[TracedAction]] = defaultdict(list)
        for action in self.actions:
            if action.action.op is op:
                found[action.action.microbatch, action.action.slice].append(action)
        return found


def _by_stage(traces: Sequence[Trace]) -> dict[int, _Stage]:
    """Actions by stage; where annotations name none, ranks in order are the stages."""
    unnamed = [trace for trace in traces if any(a.action.stage == HERE for a in trace.actions)]
    if unnamed and (len(unnamed) < len(traces) or any(trace.rank is None for trace in traces)):
        raise ScenarioError(
            "annotations name no stage, and which rank is which is not in all traces",
            file=str(unnamed[0].path),
        )
    order = {trace.rank: place for place, trace in enumerate(sorted(unnamed, key=lambda t: t.rank or 0))}
    stages: dict[int, _Stage] = {}
    for trace in traces:
        for action in trace.actions:
            stage = action.action.stage if action.action.stage != HERE else order[trace.rank]
            at = stages.setdefault(stage, _Stage(trace))
            if at.trace is not trace:
                raise ScenarioError(
                    f"stage {stage} is in {at.trace.path.name} too; give the traces of one pipeline only",
                    file=str(trace.path),
                )
            at.actions.append(action)
    return stages


def _messages(lower: _Stage, upper: _Stage) -> tuple[FloatArray, list[str]]:
    """Bytes and delays of messages between neighbours, whose receiver had been waiting."""
    pair = f"stages {lower.actions[0].action.stage} and {upper.actions[0].action.stage}"
    forth, back = _matched(lower, upper, Op.SEND_F), _matched(upper, lower, Op.SEND_B)
    if not forth or not back:
        return np.zeros((0, 2)), [
            f"{pair}: no matched sends and receives both ways, so their clocks cannot be compared: not merged"
        ]
    # Seconds that the upper stage's clock is ahead: no message is received before it was sent.
    most = min(receive.transfer_end_s - send.transfer_start_s for send, receive in forth)
    least = max(send.transfer_start_s - receive.transfer_end_s for send, receive in back)
    if least > most:
        return np.zeros((0, 2)), [f"{pair}: clocks drift apart within the trace: not merged"]
    ahead, bound = (most + least) / 2, (most - least) / 2
    words = [f"{pair}: clocks {1e6 * ahead:.0f} us apart, known to {1e6 * bound:.0f} us"]
    delays = [
        *_delays(lower, upper, forth, Op.F, (Op.F,), shift=-ahead),
        *_delays(upper, lower, back, Op.B, (Op.B, Op.I), shift=ahead),
    ]
    if any(np.isnan(send.transfer_bytes) for send, _ in (*forth, *back)):
        words.append(f"{pair}: sizes of messages are not in the trace")
    return np.array(delays).reshape(-1, 2), words


def _matched(source: _Stage, target: _Stage, send: Op) -> list[Message]:
    """Pair sends with receives of the same microbatch, where both sides have as many."""
    receive, _ = _RECEIVE_OF[send]
    sends, receives = source.named(send), target.named(receive)
    return [
        (first, second)
        for key in sends.keys() & receives.keys()
        if len(sends[key]) == len(receives[key])
        for first, second in zip(sends[key], receives[key], strict=True)
        if first.has_transfer and second.has_transfer
    ]


def _delays(
    source: _Stage, target: _Stage, messages: list[Message], gave: Op, took: tuple[Op, ...], *, shift: float
) -> list[tuple[float, float]]:
    """Seconds from the end of what gave a message to the start of what took it.

    `shift` turns times of the target into those of the source.
    """
    givers = source.named(gave)
    if gave is Op.B:
        givers = {**source.named(Op.I), **givers}
    takers = {key: found for op in took for key, found in target.named(op).items()}
    ends = sorted(a.end_s for a in target.trace.actions if a.action.op <= Op.W and a.has_work)
    delays = []
    place: dict[tuple[int, int], int] = defaultdict(int)
    for send, _ in messages:
        key = send.action.microbatch, send.action.slice
        turn = place[key]
        place[key] += 1
        if turn >= len(givers.get(key, ())) or turn >= len(takers.get(key, ())):
            continue
        giver, taker = givers[key][turn], takers[key][turn]
        if not giver.has_work or not taker.has_work:
            continue
        earlier = [end for end in ends if end <= taker.start_s]
        idle_since = earlier[-1] + shift if earlier else -np.inf
        if idle_since <= giver.end_s:
            delays.append((float(np.nan_to_num(send.transfer_bytes)), taker.start_s + shift - giver.end_s))
    return delays
