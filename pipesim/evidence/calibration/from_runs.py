"""From runs of the executor to samples of what everything takes."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Hashable, Iterator
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from pipesim.errors import ScenarioError
from pipesim.evidence.calibration.samples import FloatArray, Samples
from pipesim.executor import Run
from pipesim.ir import NONE, dependencies
from pipesim.ir.actions import SENDS, Lowered, Op

_WAITING_S = 200e-6
"""Between CPUs: a receiver that has waited for so long when its message's producer ends is there to see it
arrive, and has waited for longer than gloo takes to hand over a message that was there already."""
_WAITING_SHARE = 0.02
"""On a GPU, where a stream finds out at once whether a message is there: the same as a share of the shortest
computation, of which the time of the two marks around a wait is a small part."""

Rows = npt.NDArray[np.intp]
Key = TypeVar("Key", bound=Hashable)


def samples_of_run(run: Run, source: str) -> Samples:
    """Sort what a run measured by what it tells.

    Only undisturbed steps count. Where there are none, all do, and `Samples.unused` says so.

    Parameters
    ----------
    run : Run
        Recorded.
    source : str
        File or name, for reports.
    """
    schedule = run.schedule
    if schedule.skips or schedule.slice_shares is not None:
        what = "skip connections" if schedule.skips else "slices of unlike length"
        raise ScenarioError(
            f"its schedule has {what}, whose messages a calibration does not tell apart", file=source
        )
    steps = run.undisturbed_steps
    unused = []
    if run.disturbed.any() and not steps:
        unused.append("every step was disturbed by other work on the machine; all of them were used")
        steps = list(range(run.num_steps))
    elif run.disturbed.any():
        unused.append(f"{int(run.disturbed.sum())} of {run.num_steps} steps were disturbed and set aside")
    if schedule.num_slices > 1:
        unused.append("times of slices do not tell those of whole microbatches")
    collector = _Collector(run)
    for step in steps:
        for replica in range(run.num_replicas):
            collector.add(run.rows(step, replica))
        collector.add_step_end(step)
    ends = _Bytes(run)
    return Samples(
        source=source,
        workload=json.dumps([run.device, run.workload], sort_keys=True),
        stages_of_rank=tuple(tuple(schedule.stages_of(rank)) for rank in range(schedule.num_ranks)),
        op_s={} if schedule.num_slices > 1 else _joined(collector.op_s),
        pair_s={} if schedule.num_slices > 1 else _joined(collector.pair_s),
        boundary_bytes=ends.boundary * schedule.num_slices,
        gradient_bytes=ends.gradient,
        message_s=_table(collector.messages),
        send_call_s=_table(collector.send_calls),
        gap_s=np.concatenate(collector.gaps) if collector.gaps else np.zeros(0),
        sync_s=_joined(collector.sync_s),
        meeting_s=np.array(collector.meetings),
        optimizer_s=_joined(collector.optimizer_s),
        hides_host=run.device != "cpu",
        num_steps=len(steps),
        num_disturbed=int(run.disturbed.sum()),
        unused=tuple(unused),
    )


class _Bytes:
    """What crosses each boundary and what each stage reduces, shape (num_stages,)."""

    def __init__(self, run: Run) -> None:
        schedule, nbytes = run.schedule, run.timeline.nbytes[run.rows(0)]
        self.boundary = np.zeros(schedule.num_stages)
        self.gradient = np.zeros(schedule.num_stages)
        sends = np.isin(schedule.op, SENDS)
        self.boundary[_boundary_of_sends(schedule)] = nbytes[sends]
        reductions = schedule.op == Op.REDUCE_GRAD
        self.gradient[schedule.stage[reductions]] = nbytes[reductions]


class _Collector:
    """Goes through steps and keeps lists."""

    def __init__(self, run: Run) -> None:
        self.run = run
        schedule = run.schedule
        self.op_s: dict[tuple[Op, int], list[FloatArray]] = defaultdict(list)
        self.pair_s: dict[int, list[FloatArray]] = defaultdict(list)
        self.messages: list[FloatArray] = []
        self.send_calls: list[FloatArray] = []
        self.gaps: list[FloatArray] = []
        self.sync_s: dict[int, list[FloatArray]] = defaultdict(list)
        self.optimizer_s: dict[int, list[FloatArray]] = defaultdict(list)
        self.meetings: list[float] = []
        paired = schedule.joined | np.concatenate([[False], schedule.joined[:-1]])
        single = ~paired & (schedule.op <= Op.W)
        self._singles = {
            (op, stage): np.flatnonzero(single & (schedule.op == op) & (schedule.stage == stage))
            for op in (Op.F, Op.B, Op.I, Op.W)
            for stage in range(schedule.num_stages)
        }
        self._pairs = np.flatnonzero(schedule.joined)
        self._sends = np.flatnonzero(np.isin(schedule.op, SENDS))
        self._producer, self._consumer = _single_messages(schedule, paired)
        self._before, self._after = _neighbours(schedule)
        self._waiting_s = _least_wait_s(run)

    def add(self, rows: slice) -> None:
        """Take one step of one replica."""
        run, schedule = self.run, self.run.schedule
        start, end, own = run.timeline.start_s[rows], run.timeline.end_s[rows], run.own_s[rows]
        wait_start, wait_end = run.wait_start_s[rows], run.wait_end_s[rows]
        nbytes = run.timeline.nbytes[rows].astype(float)
        for key, chosen in self._singles.items():
            if len(chosen):
                self.op_s[key].append(own[chosen])
        for row in self._pairs.tolist():
            forward = row if schedule.op[row] == Op.F else row + 1
            self.pair_s[int(schedule.stage[forward])].append(end[row : row + 1] - start[row : row + 1])
        self.send_calls.append(np.stack([nbytes[self._sends], own[self._sends]], axis=1))
        producer, consumer = self._producer, self._consumer
        seen = wait_start[consumer] <= end[producer] - self._waiting_s
        boundary = np.minimum(schedule.stage[producer], schedule.stage[consumer])
        size = _Bytes(run).boundary[boundary]
        self.messages.append(np.stack([size, start[consumer] - end[producer]], axis=1)[seen])
        waited = np.nan_to_num(wait_end - wait_start)
        holds = np.isin(schedule.op, SENDS) & (run.device == "cpu")
        calls = np.concatenate([[0.0], np.cumsum(np.where(holds, own, 0.0))])
        before, after = self._before, self._after
        between = start[after] - end[before] - (calls[after] - calls[before])
        self.gaps.append(between[waited[after] < self._waiting_s])

    def add_step_end(self, step: int) -> None:
        """Take what ends a step, over all replicas."""
        run, schedule = self.run, self.run.schedule
        replicas = range(run.num_replicas)

        def over_replicas(column: FloatArray) -> FloatArray:
            return np.stack([column[run.rows(step, replica)] for replica in replicas])

        start, end = over_replicas(run.timeline.start_s), over_replicas(run.timeline.end_s)
        for stage in range(schedule.num_stages):
            held = np.flatnonzero((schedule.op == Op.REDUCE_GRAD) & (schedule.stage == stage))
            if len(held) * run.num_replicas > 1:
                self.sync_s[stage].append(np.array([end[:, held].max() - start[:, held].max()]))
        optimizer = np.flatnonzero(schedule.op == Op.OPTIMIZER)
        came, met = over_replicas(run.wait_start_s), over_replicas(run.wait_end_s)
        if optimizer.size and np.isfinite(met[:, optimizer]).all():
            self.meetings.append(float(np.median(met[:, optimizer] - came[:, optimizer].max())))
        for row in optimizer.tolist():
            self.optimizer_s[int(schedule.rank[row])].append(end[:, row] - start[:, row])


def _least_wait_s(run: Run) -> float:
    """Shortest wait that is one."""
    own = run.own_s[run.timeline.compute]
    if run.device != "cuda" or not (own > 0).any():
        return _WAITING_S
    return min(_WAITING_S, _WAITING_SHARE * float(np.percentile(own[own > 0], 10)))


def _boundary_of_sends(schedule: Lowered) -> npt.NDArray[np.int32]:
    sends = np.isin(schedule.op, SENDS)
    boundary: npt.NDArray[np.int32] = schedule.stage[sends] - (schedule.op[sends] == Op.SEND_B)
    return boundary


def _single_messages(schedule: Lowered, paired: npt.NDArray[np.bool_]) -> tuple[Rows, Rows]:
    """Rows that give and take each message, but those of overlapped pairs, which do two things at once."""
    needs = dependencies(schedule.schedule)
    computations = np.flatnonzero(schedule.op <= Op.W)
    taking = np.flatnonzero(needs.crosses & (needs.producer != NONE))
    producer, consumer = computations[needs.producer[taking]], computations[taking]
    alone = ~paired[producer] & ~paired[consumer]
    return producer[alone], consumer[alone]


def _neighbours(schedule: Lowered) -> tuple[Rows, Rows]:
    """List computations that follow each other on a rank; pairs count as one."""
    before: list[int] = []
    after: list[int] = []
    for rank in range(schedule.num_ranks):
        rows = list(_units(schedule, rank))
        before += [last for _, last in rows[:-1]]
        after += [first for first, _ in rows[1:]]
    return np.array(before, np.intp), np.array(after, np.intp)


def _units(schedule: Lowered, rank: int) -> Iterator[tuple[int, int]]:
    rows = schedule.rows_of(rank)
    for row in range(rows.start, rows.stop):
        if schedule.op[row] <= Op.W and not (row > rows.start and schedule.joined[row - 1]):
            yield row, row + int(schedule.joined[row])


def _joined(lists: dict[Key, list[FloatArray]]) -> dict[Key, FloatArray]:
    return {key: np.concatenate(arrays) for key, arrays in lists.items() if arrays}


def _table(parts: list[FloatArray]) -> FloatArray:
    return np.concatenate(parts) if parts else np.zeros((0, 2))
