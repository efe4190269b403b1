"""A scenario run for real, and what its measured steps say."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from pipesim.costs import CostTable
from pipesim.costs.direct import direct_costs
from pipesim.costs.transformer.parameters import model_parameters
from pipesim.errors import ExecutionError, ScenarioError
from pipesim.executor import (
    CnnWorkload,
    FactoryWorkload,
    RankPool,
    Run,
    Workload,
    execute,
    workload_from_scenario,
)
from pipesim.executor.expected import expected_run_s, in_words
from pipesim.executor.rank_processes import STALL_S, STARTUP_S, require_torch
from pipesim.executor.running import check_device, require_gpus
from pipesim.ir import lower
from pipesim.ir.actions import Lowered, Schedule
from pipesim.ir.shape import MAX_ACTIONS
from pipesim.ir.timeline import Timeline
from pipesim.metrics import StepMetrics, measure
from pipesim.prediction import predict, schedule_of
from pipesim.scenario import ResolvedScenario, need_scenario
from pipesim.scenario.resolved import DirectCosts

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

MAX_PROCESSES = 512
"""Ranks on one machine: each is a process that imports torch."""


@dataclass(frozen=True, slots=True, repr=False)
class Execution:
    """A run with the metrics of its steps.

    Parameters
    ----------
    scenario : ResolvedScenario
        What was asked.
    run : Run
        What was measured.
    steps : tuple of StepMetrics
        Of the first replica: the undisturbed steps, or all where every step was disturbed.
    predicted_peak_memory_bytes : tuple of float or None
        By rank, what the scenario's own prediction says its device needs; None where it does not.
    """

    scenario: ResolvedScenario
    run: Run
    steps: tuple[StepMetrics, ...]
    predicted_peak_memory_bytes: tuple[float | None, ...]

    @property
    def step_time_s(self) -> float:
        """Median over the steps that count."""
        return self.median(lambda step: step.step_time_s)

    @property
    def bubble_ratio(self) -> float:
        """Median over the steps that count."""
        return self.median(lambda step: step.bubble_ratio)

    @property
    def ranks(self) -> pd.DataFrame:
        """One line a rank: medians of busy, idle and waiting seconds, peak of activations in bytes."""
        import pandas as pd

        return pd.DataFrame(self.to_dict()["ranks"])

    @property
    def events(self) -> Timeline:
        """The step of median length, of the first replica, from its first start on."""
        counted = self.run.undisturbed_steps or range(self.run.num_steps)
        by_length = sorted(zip((step.step_time_s for step in self.steps), counted, strict=True))
        timeline = self.run.step(by_length[(len(by_length) - 1) // 2][1])
        first_s = timeline.start_s[timeline.compute].min()
        return replace(timeline, start_s=timeline.start_s - first_s, end_s=timeline.end_s - first_s)

    @property
    def timeline(self) -> pd.DataFrame:
        """`events` as a table, one line an action; ``run.timeline`` has all steps."""
        return self.events.to_frame()

    def gantt(self) -> Figure:
        """Draw who computed what, when, in the step of median length."""
        from pipesim.show.amounts import percent, seconds
        from pipesim.show.figures.gantt import GanttLane, plot_lanes

        numbers = f"step {seconds(self.step_time_s)}, bubble ratio {percent(self.bubble_ratio)}"
        title = f"{self.scenario.name}: {self.run.schedule.name}, measured: {numbers}"
        return plot_lanes([GanttLane(title, self.events)])

    def save(self, path: str | Path) -> None:
        """Write the run for `pipesim calibrate`; see `pipesim.executor.Run.write`."""
        self.run.write(path)

    def __repr__(self) -> str:
        return (
            f"<Execution {self.scenario.name}: {self.run.schedule.name} on {self.run.device}, "
            f"step {self.step_time_s:.6g} s, bubble ratio {self.bubble_ratio:.4f}; {len(self.steps)} of "
            f"{self.run.num_steps} steps counted>"
        )

    def median(self, number: Callable[[StepMetrics], Any]) -> float:
        """Median of a number over the steps that count."""
        return float(median(number(step) for step in self.steps))

    def wait_s(self, rank: int) -> float:
        """Median over steps of the time in which a rank waited for input."""
        waits = np.nan_to_num(self.run.wait_end_s - self.run.wait_start_s)
        timeline = self.run.timeline
        mine = (timeline.rank == rank) & (timeline.replica == 0) & timeline.compute
        by_step = [waits[mine & (timeline.step == step)].sum() for step in range(self.run.num_steps)]
        counted = self.run.undisturbed_steps or range(self.run.num_steps)
        return float(np.median([by_step[step] for step in counted]))

    def peak_memory_bytes(self, rank: int) -> int | None:
        """Most bytes that a rank's tensors took on its own GPU; None elsewhere."""
        return int(self.run.peak_memory_bytes[:, rank].max()) or None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: medians over the steps that count."""
        run, first = self.run, self.steps[0]
        return {
            "schedule": run.schedule.name,
            "device": run.device,
            "num_ranks": first.num_ranks,
            "num_stages": first.num_stages,
            "num_microbatches": first.num_microbatches,
            "num_replicas": run.num_replicas,
            "num_steps": run.num_steps,
            "num_disturbed_steps": int(run.disturbed.sum()),
            "makespan_s": self.median(lambda step: step.makespan_s),
            "step_time_s": self.step_time_s,
            "bubble_ratio": self.bubble_ratio,
            "step_times_s": [float(step.step_time_s) for step in self.steps],
            "losses": [None if np.isnan(loss) else loss for loss in run.losses.tolist()],
            "ranks": [
                {
                    "rank": rank,
                    "busy_s": float(median(step.ranks[rank].busy_s for step in self.steps)),
                    "idle_s": float(median(step.ranks[rank].idle_s for step in self.steps)),
                    "wait_s": self.wait_s(rank),
                    "peak_activation_bytes": int(run.peak_activation_bytes[:, rank].max()),
                    "peak_memory_bytes": self.peak_memory_bytes(rank),
                    "predicted_peak_memory_bytes": self.predicted_peak_memory_bytes[rank],
                }
                for rank in range(first.num_ranks)
            ],
            "environment": run.environment,
        }


def execute_scenario(
    scenario: ResolvedScenario,
    *,
    device: str,
    model: str | None = None,
    num_replicas: int | None = None,
    num_steps: int = 10,
    warmup: int = 3,
    threads_per_rank: int = 1,
    stall_timeout_s: float = STALL_S,
    startup_timeout_s: float = STARTUP_S,
    pool: RankPool | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Execution | None:
    """Replay the schedule that a scenario names on processes of this machine, or of ``torchrun``.

    Parameters
    ----------
    scenario : ResolvedScenario
        Its model or, on the emulated device, its costs.
    device : {"cpu", "cuda", "emulated"}
        Where.
    model : str, optional
        In place of the scenario's model: ``cnn``, or ``module:factory``.
    num_replicas : int, optional
        Data-parallel replicas; by default the scenario's.
    num_steps, warmup, threads_per_rank : int
        See `pipesim.executor.running`.
    stall_timeout_s, startup_timeout_s : float
        See `pipesim.executor.running`.
    pool : RankPool, optional
        Processes to use for several runs; by default they are started and ended here.
    progress : Callable
        Told what runs, and on the emulated device for how long.

    Returns
    -------
    Execution or None
        None in processes of ``torchrun`` other than 0.

    Raises
    ------
    PipesimError
        If scenario, model and device do not go together, or the run fails.
    """
    need_scenario(scenario)
    num_replicas = num_replicas or scenario.parallel.data
    check_runnable(scenario, device)
    check_room(scenario, device, model, num_replicas=num_replicas, num_steps=num_steps)
    schedule = lower(schedule_of(scenario))
    workload = workload_of(scenario, schedule, device, model)
    if os.environ.get("RANK", "0") == "0":
        steps = warmup + num_steps
        expected_s = expected_run_s(schedule, workload, num_replicas=num_replicas, num_steps=steps)
        progress(f"{steps} steps of {schedule.name}, {warmup} of them to warm up{in_words(expected_s)}")
    run = execute(
        schedule,
        workload,
        device=device,
        num_replicas=num_replicas,
        num_steps=num_steps,
        warmup=warmup,
        threads_per_rank=threads_per_rank,
        stall_timeout_s=stall_timeout_s,
        startup_timeout_s=startup_timeout_s,
        pool=pool,
    )
    if run is None:
        return None
    compute, costs = schedule.schedule, _no_costs(schedule.schedule)
    counted = run.undisturbed_steps or range(num_steps)
    measured = tuple(measure(run.step(step), compute, costs) for step in counted)
    return Execution(scenario, run, measured, _predicted_memory(scenario, run, model))


def _predicted_memory(scenario: ResolvedScenario, run: Run, model: str | None) -> tuple[float | None, ...]:
    """Peak of each rank where GPUs ran the scenario's own model, in its precision."""
    num_ranks = run.schedule.num_ranks
    if run.device != "cuda" or model is not None or scenario.costs is not None:
        return (None,) * num_ranks
    return tuple(rank.peak_memory_bytes for rank in predict(scenario).metrics.ranks)


def check_runnable(scenario: ResolvedScenario, device: str) -> None:
    """Refuse a device that there is not, and ranks of more than one device.

    Raises
    ------
    ExecutionError, ScenarioError
        Saying what is allowed.
    """
    check_device(device)
    if device == "cuda":
        require_torch()
        require_gpus()
    if device != "emulated" and scenario.parallel.tensor > 1:
        raise ScenarioError(
            f"found {scenario.parallel.tensor}; a real run has one device a rank, so 1 is needed",
            file=scenario.file,
            key="parallel.tensor",
        )


def check_room(
    scenario: ResolvedScenario, device: str, model: str | None, *, num_replicas: int, num_steps: int
) -> None:
    """Refuse a run that this machine cannot hold, before any process starts.

    Raises
    ------
    ExecutionError
        With the count and the limit: too many processes, too many actions to record, or, on CPUs, weights and
        their gradients in float32 that do not fit in memory.
    """
    num_ranks = scenario.parallel.pipeline * num_replicas
    num_forwards = num_ranks * scenario.parallel.virtual_stages * scenario.batch.num_microbatches
    if 2 * num_forwards * num_steps > MAX_ACTIONS:
        raise ExecutionError(
            f"{num_steps:,} steps of at least {2 * num_forwards:,} actions make "
            f"{2 * num_forwards * num_steps:,}; at most {MAX_ACTIONS:,} can be recorded"
        )
    if "WORLD_SIZE" in os.environ:  # of torchrun: ranks are spread over machines
        return
    if num_ranks > MAX_PROCESSES:
        raise ExecutionError(
            f"{scenario.parallel.pipeline:,} ranks x {num_replicas:,} replicas are {num_ranks:,} processes; "
            f"at most {MAX_PROCESSES} are started on one machine"
        )
    if device == "cpu" and model is None and scenario.model is not None:
        needed, there = 8 * model_parameters(scenario.model) * num_replicas, _memory_bytes()
        if needed > there:
            raise ExecutionError(
                f"weights and gradients of {num_replicas} x {scenario.model.name} take "
                f"{needed / 1e9:,.0f} GB in float32; this machine has {there / 1e9:,.0f} GB. "
                "Shrink the model (--set model.num_hidden_layers=...)"
            )


def _memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def workload_of(scenario: ResolvedScenario, schedule: Lowered, device: str, model: str | None) -> Workload:
    """Take what ranks compute on a device from a scenario; see `execute_scenario` for the parameters."""
    if model is None:
        return workload_from_scenario(scenario, schedule, device)
    if model == "cnn":
        return CnnWorkload(
            num_layers=max(8, schedule.num_stages),
            split=scenario.layers,
            microbatch_size=scenario.batch.micro,
            seed=scenario.seed,
        )
    micro = scenario.batch.micro
    return FactoryWorkload(model, split=scenario.layers, seed=scenario.seed, microbatch_size=micro)


def _no_costs(schedule: Schedule) -> CostTable:
    """Costs that say nothing, for metrics that read times from the run alone."""
    zero: Any = 0.0
    nothing: Any = (zero,) * schedule.num_stages
    stated = DirectCosts(
        forward_s=nothing,
        backward_s=nothing,
        input_gradient_s=None,
        weight_gradient_s=None,
        p2p_latency_s=zero,
        p2p_bytes_per_s=None,
        boundary_bytes=zero,
        overlapped_pair_s=None,
        gradient_sync_s=zero,
        optimizer_s=zero,
        activation_bytes=zero,
    )
    num_chunks = schedule.num_stages // schedule.num_ranks
    return direct_costs(stated, num_ranks=schedule.num_ranks, num_chunks=num_chunks)
