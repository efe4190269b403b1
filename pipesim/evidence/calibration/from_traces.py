"""From profiler traces of the ranks of one run to samples of what everything takes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pipesim.errors import ScenarioError
from pipesim.evidence.calibration.kineto import Trace
from pipesim.evidence.calibration.samples import NO_TABLE, FloatArray, Samples
from pipesim.evidence.calibration.staged_traces import StagedTrace, with_stages
from pipesim.evidence.calibration.traced_run import TracedRun, put_together
from pipesim.ir import NONE, dependencies
from pipesim.ir.actions import BoolArray, Op, Schedule

Rows = npt.NDArray[np.intp]
_WAITING_S = 200e-6
"""Between CPUs: a receiver that has had nothing to do for so long when its message is made surely waits."""
_LONG_BEFORE_S = 3e-3
"""A message that was made so long before surely was there; between CPUs one takes torch up to 2 ms."""
_SHARE_ON_GPU = 0.02
"""Both on a GPU, as a share of the shortest computations: nothing there is held up by a host."""


def samples_of_traces(traces: Sequence[Trace]) -> tuple[Samples, TracedRun | None]:
    """Take durations of actions from the traces of one run, and of messages where clocks can be compared.

    Where the traces are those of all ranks and of whole steps, ranks are put on one clock by the messages
    between them; see `put_together`. Else nothing is learned about links.

    Parameters
    ----------
    traces : sequence of Trace
        One a process.

    Returns
    -------
    samples : Samples
        What the traces tell.
    run : TracedRun or None
        The steps on one clock, if they could be put there.

    Raises
    ------
    ScenarioError
        If stages are not named and cannot be told from ranks, or traces of CPUs and GPUs are mixed.
    """
    if len({trace.on_gpu for trace in traces}) > 1:
        raise ScenarioError("some traces have kernels and some have none", file=str(traces[0].path))
    ranks = with_stages(traces)
    unused = [f"{trace.path.name}: {words}" for trace in traces for words in trace.unused]
    worlds = {trace.world_size for trace in traces if trace.world_size}
    if worlds and len(traces) < max(worlds):
        unused.append(f"traces of {len(traces)} of {max(worlds)} processes were given")
    source = (
        str(traces[0].path) if len(traces) == 1 else f"{len(traces)} traces in {traces[0].path.parent.name}"
    )
    found = put_together(ranks, source)
    run = None if isinstance(found, str) else found
    unused += run.words if run else [str(found)]
    op_s, pair_s = _durations(ranks)
    boundary = _boundaries(ranks)
    if run is not None and np.isnan(boundary).all():
        unused.append("sizes of messages are not in the traces, but for record_shapes=True or NCCL's kernels")
    samples = Samples(
        source=source,
        workload="profiler traces",
        stages_of_rank=tuple(rank.stages for rank in ranks),
        op_s=op_s,
        pair_s=pair_s,
        boundary_bytes=boundary,
        message_s=NO_TABLE if run is None else _messages(run, boundary),
        gap_s=np.zeros(0) if run is None else _gaps(run),
        num_steps=1 if run is None else run.num_steps,
        unused=tuple(unused),
    )
    return samples, run


def _durations(
    ranks: Sequence[StagedTrace],
) -> tuple[dict[tuple[Op, int], FloatArray], dict[int, FloatArray]]:
    """Seconds of F, B, I and W by stage, and of pairs by the stage of their F."""
    single: dict[tuple[Op, int], list[float]] = defaultdict(list)
    pairs: dict[int, list[float]] = defaultdict(list)
    for rank in ranks:
        for traced in rank.actions:
            action = traced.action
            if not traced.is_computation:
                continue
            if action.parts:
                if traced.has_work:
                    pairs[action.stage].append(traced.end_s - traced.start_s)
            elif traced.has_work:
                single[action.op, action.stage].append(traced.end_s - traced.start_s)
            elif action.op is Op.I:
                single[action.op, action.stage].append(0.0)
    return (
        {key: np.array(seconds) for key, seconds in single.items()},
        {stage: np.array(seconds) for stage, seconds in pairs.items()},
    )


def _boundaries(ranks: Sequence[StagedTrace]) -> FloatArray:
    """Bytes that leave each stage forward, as far as the traces tell; NaN elsewhere."""
    found = np.full(1 + max(stage for rank in ranks for stage in rank.stages), np.nan)
    for rank in ranks:
        for traced in rank.actions:
            # Torch's GPipe sends within the annotation of what it sends.
            forth, back = traced.action.op in (Op.SEND_F, Op.F), traced.action.op in (Op.SEND_B, Op.B)
            if (forth or back) and not np.isnan(traced.transfer_bytes):
                found[traced.action.stage - back] = traced.transfer_bytes
    return found


def _limits_s(run: TracedRun) -> tuple[float, float]:
    """Least wait that surely is one, and how long before its use a message was surely there."""
    if not run.on_gpu:
        return _WAITING_S, _LONG_BEFORE_S
    lasted = run.end_s - run.start_s
    short = _SHARE_ON_GPU * float(np.percentile(lasted[lasted > 0], 10)) if (lasted > 0).any() else 0.0
    return min(_WAITING_S, short), min(_LONG_BEFORE_S, short)


def _messages(run: TracedRun, boundary: FloatArray) -> FloatArray:
    """Bytes and delays of messages whose receiver had been waiting, shape (messages, 2)."""
    schedule = run.schedule.schedule
    needs = dependencies(schedule)
    alone = ~_paired(schedule)
    takers = np.flatnonzero(needs.crosses & (needs.producer != NONE) & alone)
    takers = takers[alone[needs.producer[takers]]]
    givers = needs.producer[takers]
    before = _row_before(schedule)[takers]
    idle_since = np.where(before == NONE, -np.inf, run.end_s[:, before])
    given = run.end_s[:, givers]
    seen = idle_since <= given - _limits_s(run)[0]
    sizes = np.nan_to_num(boundary[np.minimum(schedule.stage[takers], schedule.stage[givers])])
    delays = run.start_s[:, takers] - given
    return np.stack([np.broadcast_to(sizes, delays.shape)[seen], delays[seen]], axis=1)


def _gaps(run: TracedRun) -> FloatArray:
    """Seconds between neighbouring computations of a rank, the later of which waited for nothing."""
    schedule = run.schedule.schedule
    needs = dependencies(schedule)
    before = _row_before(schedule)
    rows = np.flatnonzero(before != NONE)
    idle_since = run.end_s[:, before[rows]]
    given = np.where(needs.crosses[rows], run.end_s[:, needs.producer[rows]], -np.inf)
    free = given <= idle_since - _limits_s(run)[1]
    gaps: FloatArray = (run.start_s[:, rows] - idle_since)[free]
    return gaps


def _row_before(schedule: Schedule) -> Rows:
    """Find the computation before each on its rank; `NONE` for a rank's first and the second of a pair."""
    before = np.arange(len(schedule.op), dtype=np.intp) - 1
    before[schedule.offsets[:-1]] = NONE
    before[1:][schedule.joined[:-1]] = NONE
    return before


def _paired(schedule: Schedule) -> BoolArray:
    paired = schedule.joined.copy()
    paired[1:] |= schedule.joined[:-1]
    return paired
