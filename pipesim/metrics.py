"""From a timeline to numbers: bubbles by name, idle time by cause, step time, memory, throughput."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pipesim.costs import CostTable
from pipesim.costs.rows import exchange_s, traffic_usd
from pipesim.device_memory import MemoryParts, fits_headroom, fits_memory, memory_parts, peak_memory_by_rank
from pipesim.errors import ScheduleError
from pipesim.idle_time import IdleTimes, idle_times
from pipesim.ir import check_compute_only, peak_in_flight
from pipesim.ir.actions import REDUCTIONS, SENDS, Op, Schedule
from pipesim.ir.timeline import Timeline

if TYPE_CHECKING:
    import pandas as pd

Array = npt.NDArray[Any]
Seconds: TypeAlias = float
"""A float; a `fractions.Fraction` where the costs were exact, which behaves as one."""


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Where a rank's makespan went, in seconds; the parts add up to the makespan.

    Parameters
    ----------
    busy_s
        Computing.
    warmup_s
        Before its first action.
    dependency_s
        Waiting until the producer of its next input has ended; with blocking transfers, until partners come.
    p2p_s
        From then until the message is there; with blocking transfers, while a message of its own is moving.
    collective_s
        Waiting, inside its actions, for shared-out parameters to be gathered and gradients reduced, and for
        tokens of experts as far as other traffic holds them up.
    cooldown_s
        After its last action.
    """

    busy_s: Seconds
    warmup_s: Seconds
    dependency_s: Seconds
    p2p_s: Seconds
    collective_s: Seconds
    cooldown_s: Seconds


@dataclass(frozen=True, slots=True)
class RankMetrics:
    """One rank of one step; memory is None where the costs state no bytes of activations."""

    rank: int
    busy_s: Seconds
    idle_s: Seconds
    bubble_ratio: float
    peak_in_flight: int
    peak_memory_bytes: float | None
    breakdown: Breakdown
    memory_bytes: MemoryParts | None = None


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """One step of one schedule.

    Parameters
    ----------
    makespan_s
        First start to last end over all ranks, before gradient synchronisation.
    step_time_s
        Makespan + exposed synchronisation + optimizer.
    bubble_ratio
        Idle / (p * makespan).
    bubble_overhead
        (makespan - ideal) / ideal with ideal = mean busy time; the Megatron paper's "bubble fraction".
    span_bubble_ratio
        1 - mean busy / the longest first-start to last-end of a rank; the zero-bubble papers' rate.
    exposed_sync_s, hidden_sync_s
        Gradient synchronisation after the makespan's end, and the most that a rank did before it.
    exposed_collective_s, hidden_collective_s
        Gathers of weights and reductions of gradients that come with every microbatch: the most that a rank
        waits for them and for tokens that other traffic holds up on their way to experts, and the most that
        one has of them beside its computations.
    comm_bytes
        Sent between ranks, by one device of each rank.
    model_tflops_per_gpu, mfu
        Of model FLOPs, attention counted in full as the papers do.
    causal_tflops_per_gpu, causal_mfu
        The same with half of the attention, which a causal kernel runs.
    hardware_tflops_per_gpu, hfu
        Of model FLOPs and what is recomputed.
    least_possible_s
        The step's FLOPs, of the attention the causal half, at the peak rate.
    tokens_per_s, samples_per_s, usd_per_step, peak_memory_bytes, fits_memory, fits_headroom
        None, as those above, where the costs give no basis. What fits is within the device's memory; with
        headroom, within what is not to be kept free of it.
    """

    schedule: str
    num_ranks: int
    num_stages: int
    num_chunks: int
    num_microbatches: int
    makespan_s: Seconds
    step_time_s: Seconds
    bubble_ratio: float
    bubble_overhead: float
    span_bubble_ratio: float
    exposed_sync_s: Seconds
    hidden_sync_s: Seconds
    exposed_collective_s: Seconds
    hidden_collective_s: Seconds
    optimizer_s: Seconds
    comm_bytes: float
    tokens_per_s: float | None
    samples_per_s: float | None
    model_tflops_per_gpu: float | None
    mfu: float | None
    usd_per_step: float | None
    peak_memory_bytes: float | None
    fits_memory: bool | None
    fits_headroom: bool | None
    ranks: tuple[RankMetrics, ...]
    causal_tflops_per_gpu: float | None = None
    causal_mfu: float | None = None
    hardware_tflops_per_gpu: float | None = None
    hfu: float | None = None
    least_possible_s: float | None = None

    def is_impossible(self, measured_s: float) -> bool:
        """Whether a measured step time is less than the peak rate allows."""
        return self.least_possible_s is not None and measured_s < self.least_possible_s


def measure(timeline: Timeline, schedule: Schedule, costs: CostTable) -> StepMetrics:
    """Turn the timeline of one step of one replica into numbers.

    Parameters
    ----------
    timeline : Timeline
        One replica and one step; its computations are the schedule's, in the same order.
    schedule : Schedule
        Compute only.
    costs : CostTable
        For bytes, tokens and prices; of its times only those of what microbatches move among replicas.

    Raises
    ------
    ScheduleError
        If the timeline is another schedule's, or the costs are of another number of stages.
    """
    _check(timeline, schedule, costs)
    compute = timeline.select(timeline.compute)
    start, end = compute.start_s, compute.end_s
    first_start, last_end = start.min(), end.max()
    makespan = as_number(last_end - first_start)
    breakdowns = _breakdowns(idle_times(timeline, schedule))
    # Idle times below are at least zero, which the rounding of sums of busy times would not see to.
    busy = np.array([b.busy_s for b in breakdowns])
    spans = [as_number(end[rows].max() - start[rows].min()) for rows in _rows_by_rank(schedule)]
    ideal = as_number(busy.sum() / len(busy))
    sync_end, step_end = _step_end(timeline, last_end)
    step_time = as_number(step_end - first_start)
    memory = peak_memory_by_rank(schedule, costs)
    parts = None if memory is None else memory_parts(schedule, costs)
    sends = np.isin(timeline.op, SENDS)
    return StepMetrics(
        schedule=schedule.name,
        num_ranks=schedule.num_ranks,
        num_stages=schedule.num_stages,
        num_chunks=schedule.num_chunks,
        num_microbatches=schedule.num_microbatches,
        makespan_s=makespan,
        step_time_s=step_time,
        bubble_ratio=max(0, 1 - ideal / makespan) if makespan else 0,
        bubble_overhead=max(0, (makespan - ideal) / ideal) if ideal else 0,
        span_bubble_ratio=max(0, 1 - ideal / max(spans)) if max(spans) else 0,
        exposed_sync_s=as_number(sync_end - last_end),
        hidden_sync_s=as_number(_hidden_sync(timeline, last_end)),
        exposed_collective_s=max(b.collective_s for b in breakdowns),
        hidden_collective_s=as_number(_hidden_exchange(schedule, costs, breakdowns)),
        optimizer_s=as_number(step_end - sync_end),
        comm_bytes=as_number(timeline.nbytes[sends].sum()),
        **_throughput(costs, step_time, traffic_usd(schedule, costs)),
        least_possible_s=_least_possible_s(costs),
        peak_memory_bytes=None if memory is None else max(memory),
        fits_memory=fits_memory(memory, costs),
        fits_headroom=fits_headroom(memory, costs),
        ranks=tuple(
            RankMetrics(
                rank=rank,
                busy_s=breakdown.busy_s,
                idle_s=max(0, makespan - breakdown.busy_s),
                bubble_ratio=max(0, 1 - breakdown.busy_s / makespan) if makespan else 0,
                peak_in_flight=int(peak),
                peak_memory_bytes=None if memory is None else memory[rank],
                breakdown=breakdown,
                memory_bytes=None if parts is None else parts[rank],
            )
            for rank, (breakdown, peak) in enumerate(zip(breakdowns, peak_in_flight(schedule), strict=True))
        ),
    )


def _check(timeline: Timeline, schedule: Schedule, costs: CostTable) -> None:
    check_compute_only(schedule)
    costs.check_stages(schedule)
    computing = timeline.compute
    expected = (schedule.rank, schedule.op, schedule.stage, schedule.microbatch, schedule.slice)
    found = (timeline.rank, timeline.op, timeline.stage, timeline.microbatch, timeline.slice)
    if not all(np.array_equal(of[computing], wanted) for of, wanted in zip(found, expected, strict=True)):
        raise ScheduleError(
            f"the timeline of {int(computing.sum())} computations is not one step of one replica of "
            f"{schedule.name}, which has {len(schedule.op)}"
        )


def as_number(value: Any) -> float:
    """Make a plain float of what numpy adds up; exact numbers stay as they are."""
    number: float = value.item() if isinstance(value, np.generic) else value
    return number


def _rows_by_rank(schedule: Schedule) -> list[slice]:
    return [schedule.rows_of(rank) for rank in range(schedule.num_ranks)]


def _breakdowns(times: IdleTimes) -> list[Breakdown]:
    """Attribute every rank's time between the first start and the last end of all ranks."""
    first_start, last_end = times.start_s.min(), times.end_s.max()
    breakdowns = []
    for rank in range(len(times.offsets) - 1):
        actions = times.actions_of(rank)
        begin, finish = times.start_s[actions], times.end_s[actions]
        gathered = times.collective_s[actions].sum()
        breakdowns.append(
            Breakdown(
                busy_s=as_number((finish - begin).sum() - gathered),
                warmup_s=as_number(begin[0] - first_start),
                dependency_s=as_number(times.dependency_s[actions].sum()),
                p2p_s=as_number(times.p2p_s[actions].sum()),
                collective_s=as_number(gathered),
                cooldown_s=as_number(last_end - finish[-1]),
            )
        )
    return breakdowns


def _step_end(timeline: Timeline, last_end: Any) -> tuple[Any, Any]:
    """When the last gradient was synchronised, and when the last optimizer ended."""
    reduced, stepped = np.isin(timeline.op, REDUCTIONS), timeline.op == Op.OPTIMIZER
    sync_end = max(last_end, timeline.end_s[reduced].max()) if reduced.any() else last_end
    return sync_end, max(sync_end, timeline.end_s[stepped].max()) if stepped.any() else sync_end


def whole_step_s(timeline: Timeline) -> float:
    """Seconds of a step, as `measure` finds them, and nothing else."""
    computing = timeline.compute
    start, last_end = timeline.start_s[computing].min(), timeline.end_s[computing].max()
    return as_number(_step_end(timeline, last_end)[1] - start)


def longest_own_step_s(timeline: Timeline) -> float:
    """Longest time of a rank from its first start to the end of its own synchronisation and optimizer.

    The step time where a rank begins its next step when its own part of this one is done, as with the
    zero-bubble paper's optimizer, which validates gradients afterwards.
    """
    own = timeline.compute | np.isin(timeline.op, REDUCTIONS)
    stepped = timeline.op == Op.OPTIMIZER
    seconds = []
    for rank in np.unique(timeline.rank):
        mine = own & (timeline.rank == rank)
        optimizer = stepped & (timeline.rank == rank)
        lasts_s = (timeline.end_s[optimizer] - timeline.start_s[optimizer]).sum()
        seconds.append(as_number(timeline.end_s[mine].max() - timeline.start_s[mine].min() + lasts_s))
    return max(seconds)


def _hidden_sync(timeline: Timeline, last_end: Any) -> Any:
    reductions = timeline.select(np.isin(timeline.op, REDUCTIONS))
    before = np.maximum(np.minimum(reductions.end_s, last_end) - reductions.start_s, 0)
    if reductions.waited_s is not None:
        before = np.maximum(before - reductions.waited_s, 0)
    by_rank = [before[reductions.rank == rank].sum() for rank in np.unique(reductions.rank)]
    return max(by_rank, default=0 * last_end)


def _hidden_exchange(schedule: Schedule, costs: CostTable, breakdowns: list[Breakdown]) -> Any:
    moving = exchange_s(schedule, costs)
    if moving is None:
        return 0
    second_of_pair = np.roll(schedule.joined, 1)
    moving[second_of_pair] = 0
    in_all = [moving[rows].sum() for rows in _rows_by_rank(schedule)]
    return max(max(0, of_rank - b.collective_s) for of_rank, b in zip(in_all, breakdowns, strict=True))


def _least_possible_s(costs: CostTable) -> float | None:
    flops, peak, num_gpus = costs.causal_flops_per_step, costs.peak_flops_per_gpu, costs.num_gpus
    return None if flops is None or peak is None or num_gpus is None else flops / peak / num_gpus


def _throughput(costs: CostTable, step_time_s: Seconds, traffic_usd: float) -> dict[str, float | None]:
    tokens, num_gpus = costs.tokens_per_step, costs.num_gpus
    price, peak, samples = costs.price_usd_per_gpu_hour, costs.peak_flops_per_gpu, costs.samples_per_step

    def rates(flops: float | None, rate: str, share: str) -> dict[str, float | None]:
        per_gpu = None if flops is None or num_gpus is None else flops / num_gpus / float(step_time_s)
        return {
            rate: None if per_gpu is None else per_gpu / 1e12,
            share: None if per_gpu is None or peak is None else per_gpu / peak,
        }

    return {
        **rates(costs.model_flops_per_step, "model_tflops_per_gpu", "mfu"),
        **rates(costs.causal_flops_per_step, "causal_tflops_per_gpu", "causal_mfu"),
        **rates(costs.hardware_flops_per_step, "hardware_tflops_per_gpu", "hfu"),
        "tokens_per_s": None if tokens is None else tokens / float(step_time_s),
        "samples_per_s": None if samples is None else samples / float(step_time_s),
        "usd_per_step": None
        if price is None or num_gpus is None
        else price * num_gpus * float(step_time_s) / 3600 + traffic_usd,
    }


def rank_frame(metrics: StepMetrics) -> pd.DataFrame:
    """One line a rank: busy, idle and its causes in seconds, bubble ratio, peaks."""
    import pandas as pd

    lines = []
    for rank in metrics.ranks:
        b = rank.breakdown
        parts = {name: getattr(b, name) for name in Breakdown.__slots__}
        lines.append(
            {
                "rank": rank.rank,
                **parts,
                "idle_s": rank.idle_s,
                "bubble_ratio": rank.bubble_ratio,
                "peak_in_flight": rank.peak_in_flight,
                "peak_memory_bytes": rank.peak_memory_bytes,
                **_parts_of_memory(rank),
            }
        )
    return pd.DataFrame(lines)


def _parts_of_memory(rank: RankMetrics) -> dict[str, float | None]:
    return {
        f"{name}_bytes": None if rank.memory_bytes is None else getattr(rank.memory_bytes, name)
        for name in MemoryParts.__slots__
    }
