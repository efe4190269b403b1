"""Runs on one set of processes: the calibration with its micro-benchmarks, and what is predicted from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain

from pipesim.costs import CostTable, build_costs
from pipesim.errors import ScheduleError
from pipesim.evidence.calibration.fit import MeasuredCosts, calibrate
from pipesim.evidence.calibration.from_runs import samples_of_run
from pipesim.evidence.calibration.samples import Samples
from pipesim.evidence.validation.drift import drift_of, drifted
from pipesim.evidence.validation.micro import PROBED_SIZES, device_link_probe, link_probe, micro_schedule
from pipesim.evidence.validation.validation_row import ENOUGH_STEPS, ValidationRow, label, make_row
from pipesim.executor import EmulatedWorkload, RankPool, Run, Workload, execute
from pipesim.executor.expected import expected_run_s, in_words
from pipesim.executor.workload import num_chunks_of
from pipesim.ir import lower
from pipesim.ir.actions import Lowered, Op, Schedule
from pipesim.prediction import shape_of
from pipesim.questions.execution import workload_of
from pipesim.scenario import ResolvedScenario
from pipesim.schedules import Family, family, generate

_SHORT_STEPS, _PROBE_STEPS, _DRIFT_STEPS = 4, 10, 3
LONG_S = 300.0
"""Runs that take longer than this are worth making shorter."""


class Runner:
    """Runs schedules of a scenario and predicts them.

    Parameters
    ----------
    scenario, device, model, num_steps, warmup, retries, pool, progress, runtime
        See `pipesim.evidence.validation.validate`.
    """

    def __init__(
        self,
        scenario: ResolvedScenario,
        device: str,
        model: str | None,
        num_steps: int,
        warmup: int,
        retries: int,
        pool: RankPool | None,
        progress: Callable[[str], None],
        runtime: str = "pipesim",
    ) -> None:
        self.scenario = scenario
        self.device = device
        self.model = model
        self.num_steps = num_steps
        self.warmup = warmup
        self.retries = retries
        self.pool = pool
        self.progress = progress
        self.runtime = runtime
        self.calibrations: dict[int, MeasuredCosts] = {}
        """By number of stages."""
        self.disturbed_calibration: list[str] = []
        """Runs that costs are taken from and that other work on the machine disturbed."""
        self.environment: dict[str, str] = {}
        self._samples: dict[int, list[Samples]] = {}
        self._probes: list[Samples] = []

    def calibrate_on(
        self, name: str, counts: Sequence[int] = (), needed: Iterable[tuple[int, bool]] = ()
    ) -> None:
        """Run all that costs are taken from, then fit them, once: nothing that follows changes them.

        Parameters
        ----------
        name : str
            The schedule that costs are taken from.
        counts : sequence of int
            Microbatches of each schedule that will be predicted.
        needed : iterable of (int, bool)
            Chunks a rank that will be predicted, and whether their backwards are split.
        """
        chosen = family(name)
        num_chunks = chosen.chunks or self.scenario.parallel.virtual_stages
        count = self.scenario.batch.num_microbatches
        schedule = self._generate(chosen, num_chunks, count, None)
        self._say_how_long(lower(schedule), counts)
        base = label(chosen.name, num_chunks, count)
        runs = self._run(base, schedule)
        self.environment = dict(runs[0].environment)
        sent = self._take(base, runs)[0].boundary_bytes.max()
        if sent and not (self.device == "cuda" and self.pool is None):  # lanes of one GPU copy
            for size in PROBED_SIZES:
                self._probe(max(1, round(sent * size)))
        for chunks, split in dict.fromkeys(needed):
            self._probe_stages(chunks, split=split)
        for num_stages in self._samples:
            self._fit(num_stages)
        costs = self.calibrations[schedule.num_stages].costs
        self.base = make_row(runs, costs, calibrated_on=True)
        self._base_schedule, self._drift = schedule, 1.0

    def row(self, chosen: Family, num_chunks: int, num_microbatches: int) -> ValidationRow:
        """Run a schedule and predict it.

        Raises
        ------
        ScheduleError
            If it does not go with the scenario's sizes, or is asynchronous.
        """
        name = label(chosen.name, num_chunks, num_microbatches)
        if name == self.base.label:
            return self.base
        if not chosen.synchronous:
            raise ScheduleError(f"{chosen.name} is asynchronous: microbatches would see other weights")
        costs = self.measured(num_chunks).costs if chosen.needs_costs else None
        schedule = self._generate(chosen, num_chunks, num_microbatches, costs)
        costs = self.measured(num_chunks_of(schedule)).costs
        runs, before = self._run(name, schedule), self._drift
        self._drift = self._probe_drift()
        factor = (before + self._drift) / 2
        return make_row(runs, drifted(costs, factor), drift=factor)

    def measured(self, num_chunks: int) -> MeasuredCosts:
        """Costs of so many chunks a rank, which `calibrate_on` was told of."""
        return self.calibrations[self.scenario.parallel.pipeline * num_chunks]

    def _probe_drift(self) -> float:
        """Run a few steps of what was calibrated on again; an emulated device is as fast as ever."""
        if self.device == "emulated" or self.disturbed_calibration:
            return 1.0
        steps = min(_DRIFT_STEPS, self.num_steps)
        runs = self._run("drift of the device", self._base_schedule, num_steps=steps)
        return drift_of(runs, self.calibrations[self._base_schedule.num_stages].costs)

    def _generate(
        self, chosen: Family, num_chunks: int, num_microbatches: int, costs: CostTable | None
    ) -> Schedule:
        stated = self.scenario.schedule
        options = stated.options if stated.name == chosen.name else None
        shape = shape_of(self.scenario, chosen, num_chunks=num_chunks, options=options)
        return generate(chosen.name, replace(shape, num_microbatches=num_microbatches), costs)

    def _probe_stages(self, num_chunks: int, *, split: bool) -> None:
        """Run a micro-benchmark for what of so many chunks is not known yet."""
        num_ranks = self.scenario.parallel.pipeline
        num_stages = num_ranks * num_chunks
        known = {op for samples in self._samples.get(num_stages, []) for op, _ in samples.op_s}
        for is_split, op in ((False, Op.B), (True, Op.I)):
            if op in known or (is_split and not split):
                continue
            words = f"micro-benchmark of {num_stages} stages{', backward split' if is_split else ''}"
            steps = min(_SHORT_STEPS, self.num_steps)
            self._take(
                words,
                self._run(words, micro_schedule(num_ranks, num_chunks, split=is_split), num_steps=steps),
            )

    def _take(self, words: str, runs: list[Run]) -> list[Samples]:
        """Keep what runs tell of costs, and note whether other work left too few of their steps alone."""
        if sum(len(run.undisturbed_steps) for run in runs) < min(ENOUGH_STEPS, runs[0].num_steps):
            self.disturbed_calibration.append(words)
        taken = self._samples.setdefault(runs[0].schedule.num_stages, [])
        useful = [run for run in runs if run.undisturbed_steps] or runs
        taken += [samples_of_run(run, run.schedule.name) for run in useful]
        return taken

    def _fit(self, num_stages: int) -> None:
        others = [taken for count, taken in self._samples.items() if count != num_stages]
        found = calibrate(self._samples[num_stages], [*chain(*others), *self._probes])
        if self.device == "emulated":
            # Times of pairs are the device's own: it sleeps them as the scenario states them.
            stated = build_costs(self.scenario, num_chunks=num_stages // self.scenario.parallel.pipeline)
            found = replace(found, costs=replace(found.costs, overlapped_pair_s=stated.overlapped_pair_s))
        self.calibrations[num_stages] = found

    def _probe(self, nbytes: int) -> None:
        self.progress(f"messages of {nbytes} bytes")
        on_gpus = self.device == "cuda"
        schedule, workload = device_link_probe(nbytes) if on_gpus else link_probe(nbytes)
        run = execute(
            schedule,
            workload,
            device=self.device if on_gpus else "emulated",
            num_steps=_PROBE_STEPS,
            warmup=1,
            runtime=self.runtime,
            pool=self.pool,
        )
        assert run is not None
        self._probes.append(samples_of_run(run, f"messages of {nbytes} bytes"))

    def _run(self, words: str, schedule: Schedule, *, num_steps: int | None = None) -> list[Run]:
        """Run until enough steps were undisturbed, or often enough."""
        lowered = lower(schedule)
        workload = self._workload(lowered)
        num_steps = num_steps or self.num_steps
        expected_s = self._expected_s(lowered, workload, num_steps)
        runs: list[Run] = []
        for attempt in range(1 + self.retries):
            again = ", again: too few steps were undisturbed" if attempt else ""
            self.progress(f"{words}{in_words(expected_s)}{again}")
            run = execute(
                lowered,
                workload,
                device=self.device,
                num_replicas=self.scenario.parallel.data,
                num_steps=num_steps,
                warmup=self.warmup,
                runtime=self.runtime,
                pool=self.pool,
            )
            assert run is not None
            runs.append(run)
            if sum(len(run.undisturbed_steps) for run in runs) >= min(ENOUGH_STEPS, num_steps):
                break
        return runs

    def _expected_s(self, lowered: Lowered, workload: Workload, num_steps: int) -> float | None:
        replicas, steps = self.scenario.parallel.data, self.warmup + num_steps
        return expected_run_s(lowered, workload, num_replicas=replicas, num_steps=steps)

    def _say_how_long(self, lowered: Lowered, counts: Sequence[int]) -> None:
        """Say how long all runs take, as if all schedules took a microbatch as long as the first."""
        one_s = self._expected_s(lowered, self._workload(lowered), self.num_steps)
        if one_s is None:
            return
        total_s = one_s * (1 + sum(counts) / lowered.num_microbatches)
        shorter = "; fewer schedules, steps or microbatches take less" if total_s > LONG_S else ""
        self.progress(
            f"{1 + len(counts)} runs{in_words(total_s)} in all, up to {1 + self.retries} times that where "
            f"steps are disturbed{shorter}"
        )

    def _workload(self, lowered: Lowered) -> Workload:
        workload = workload_of(self.scenario, lowered, self.device, self.model)
        assert (self.device == "emulated") == isinstance(workload, EmulatedWorkload)
        return workload
