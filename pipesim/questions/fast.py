"""One scenario without the engine: the compiled evaluator, where nothing contends.

The timeline it fills in is measured as the engine's is, so that numbers have one source; a schedule is
generated once a shape and reused.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal

from pipesim.costs import CostTable
from pipesim.errors import ScenarioError
from pipesim.ir.actions import Schedule
from pipesim.ir.timeline import Timeline
from pipesim.questions.run import Engine, Result, simulate_scenario
from pipesim.scenario import ResolvedScenario
from pipesim.schedules import Shape, family, generate
from pipesim.timing.longest_path.step_program import StepProgram

Evaluator = Literal["compiled", "engine"]
MAX_CACHED_ROWS = 8_000_000
"""Rows of all schedules kept: some hundred megabytes."""


class ProgramCache:
    """Schedules by name and shape, the latest used ones within a number of rows.

    A schedule that is built from the stages' times is generated anew each time.
    """

    def __init__(self, max_rows: int = MAX_CACHED_ROWS) -> None:
        self.max_rows = max_rows
        self._programs: OrderedDict[tuple[object, ...], StepProgram] = OrderedDict()
        self._num_rows = 0

    def get(self, name: str, shape: Shape, costs: CostTable) -> StepProgram:
        """Generate a schedule of the registry, or find it.

        Raises
        ------
        ScheduleError
            See `pipesim.schedules.generate`.
        """
        if family(name).needs_costs:
            return _program(generate(name, shape, costs), costs)
        options = repr(sorted(shape.options.items()))
        tied = costs.tied_embedding is not None
        key = (name, shape.num_ranks, shape.num_chunks, shape.num_microbatches, options, tied)
        if key in self._programs:
            self._programs.move_to_end(key)
            return self._programs[key]
        program = _program(generate(name, shape, costs), costs)
        self._programs[key] = program
        self._num_rows += len(program.schedule.op)
        while self._num_rows > self.max_rows and len(self._programs) > 1:
            _, dropped = self._programs.popitem(last=False)
            self._num_rows -= len(dropped.schedule.op)
        return program


def _program(schedule: Schedule, costs: CostTable) -> StepProgram:
    return StepProgram.of(schedule, tied_embedding=costs.tied_embedding is not None)


class CompiledEvaluator(Engine):
    """Stands in for the engine: cached schedules, the compiled evaluator, and the engine where it must.

    Parameters
    ----------
    cache : ProgramCache
        Where schedules of earlier runs are found.
    evaluator : {"compiled", "engine"}, optional
        What to time with; by default the engine where messages meet on a link, compiled otherwise.
    """

    def __init__(self, cache: ProgramCache, evaluator: Evaluator | None = None) -> None:
        super().__init__()
        self.cache = cache
        self.evaluator = evaluator
        self.used: Evaluator = "compiled"
        """What timed the last timeline."""
        self._program: StepProgram | None = None

    def schedule(self, name: str, shape: Shape, costs: CostTable) -> Schedule:
        """Find a schedule of the registry, or generate it."""
        self._program = self.cache.get(name, shape, costs)
        return self._program.schedule

    def timeline(self, scenario: ResolvedScenario, schedule: Schedule, costs: CostTable) -> Timeline:
        """Time one step of a compute-only schedule."""
        sends_block = scenario.p2p_mode == "send-blocking"
        plain = costs.host is None and scenario.jitter is None and not (sends_block and schedule.joined.any())
        if self.evaluator != "engine" and plain:
            program = self._program
            if program is None or program.schedule is not schedule:
                program = _program(schedule, costs)
            timeline = program.timeline(costs, sends_block=sends_block)
            ideal = scenario.network_mode == "ideal" and costs.gradient_buckets is None
            alone = self.evaluator == "compiled" or ideal
            if alone or not program.contends(timeline, costs):
                self.used = "compiled"
                return timeline
        self.used = "engine"
        return super().timeline(scenario, schedule, costs)


@dataclass(frozen=True, slots=True)
class Prediction:
    """A result, and what timed it."""

    result: Result
    evaluator: Evaluator


def predict(
    scenario: ResolvedScenario, cache: ProgramCache, evaluator: Evaluator | None = None
) -> Prediction:
    """Simulate the schedule that a scenario names, compiled where that gives the engine's numbers.

    Parameters
    ----------
    scenario : ResolvedScenario
        What to run.
    cache : ProgramCache
        Where schedules of earlier runs are found.
    evaluator : {"compiled", "engine"}, optional
        By default the engine where transfers block or messages meet on a link, compiled otherwise.

    Raises
    ------
    PipesimError
        As `simulate_scenario`; also where the compiled evaluator is asked for transfers that block.
    """
    compilable = scenario.p2p_mode != "blocking"
    if evaluator == "compiled" and not compilable:
        raise ScenarioError("blocking transfers need the engine", file=scenario.file, key="network.p2p")
    if evaluator == "compiled" and scenario.jitter is not None:
        raise ScenarioError("jitter needs the engine", file=scenario.file, key="jitter")
    if evaluator == "compiled" and scenario.parallel.overlap_gradients:
        raise ScenarioError(
            "gradients that are reduced beside computations need the engine",
            file=scenario.file,
            key="parallel.overlap_gradients",
        )
    road = CompiledEvaluator(cache, evaluator if compilable else "engine")
    result = simulate_scenario(scenario, engine=road)
    return Prediction(result, road.used)
