"""Predict many scenarios fast: each schedule is generated and prepared once, then timed under many costs.

The same road as `simulate` without contention: the real order of the schedule through the compiled longest
path, then the end of the step as the engine plays it (a rank's reductions follow its own last backward, the
optimizer waits for all ranks).
"""

from __future__ import annotations

import numpy as np

from pipesim.costs import CostTable, build_costs
from pipesim.costs.transformer.cut import layers_of_stages, layers_per_stage
from pipesim.costs.transformer.memory import stage_activations
from pipesim.costs.transformer.setting import layer_setting
from pipesim.ir import held
from pipesim.metrics import memory_by_row
from pipesim.scenario import ResolvedScenario
from pipesim.schedules import Shape, family, generate
from pipesim.timing.longest_path import StepProgram


class Predictor:
    """Predicts scenarios; keeps the schedules it has prepared."""

    def __init__(self) -> None:
        self._programs: dict[tuple[str, str, bool], StepProgram] = {}

    def step_time_s(self, scenario: ResolvedScenario, *, steps_overlap: bool = False) -> float:
        """Predict the time of one step of the schedule that the scenario names.

        Parameters
        ----------
        scenario : ResolvedScenario
            Sizes and costs.
        steps_overlap : bool
            A rank begins its next step when its own part of this one is done, as with the zero-bubble paper's
            optimizer, which validates gradients afterwards: the longest span of a rank counts, no makespan.

        Raises
        ------
        PipesimError
            As for `pipesim.questions.simulate_scenario`.
        """
        program, costs = self._prepare(scenario)
        sends_block = scenario.p2p_mode == "send-blocking"
        return program.step_time_s(costs, sends_block=sends_block, steps_overlap=steps_overlap)

    def peak_memory_bytes(self, scenario: ResolvedScenario) -> float:
        """Predict the memory of the device that needs most.

        Raises
        ------
        PipesimError
            As for `step_time_s`.
        """
        program, costs = self._prepare(scenario)
        return float(memory_by_row(program.schedule, costs).max())

    def layer_activation_bytes(self, scenario: ResolvedScenario) -> float:
        """Predict what the layers of a device of the first rank keep in flight, without embedding and head.

        Raises
        ------
        PipesimError
            As for `step_time_s`.
        """
        assert scenario.model is not None
        assert scenario.cluster is not None
        assert scenario.efficiency is not None
        program, _ = self._prepare(scenario)
        schedule = program.schedule
        setting = layer_setting(scenario, scenario.model, scenario.cluster, scenario.efficiency)
        counts = layers_per_stage(scenario, setting, schedule.num_stages)
        layers = layers_of_stages(scenario, scenario.model, counts)
        kept = [stage_activations(setting, of_stage, first=False, last=False).held for of_stage in layers]
        in_flight = held(schedule, np.array(kept))
        return float(in_flight[schedule.rows_of(0)].max())

    def _prepare(self, scenario: ResolvedScenario) -> tuple[StepProgram, CostTable]:
        chosen = family(scenario.schedule.name or "")
        options = dict(scenario.schedule.options)
        if scenario.parallel.microbatch_group_size is not None and "microbatch_group_size" in chosen.options:
            options.setdefault("microbatch_group_size", scenario.parallel.microbatch_group_size)
        shape = Shape(
            num_ranks=scenario.parallel.pipeline,
            num_chunks=chosen.chunks or scenario.parallel.virtual_stages,
            num_microbatches=scenario.batch.num_microbatches,
            options=options,
        )
        costs = build_costs(scenario, num_chunks=shape.num_chunks)
        tied = costs.tied_embedding is not None
        if chosen.needs_costs:
            return StepProgram.of(generate(chosen.name, shape, costs), tied_embedding=tied), costs
        key = (chosen.name, str(shape), tied)
        if key not in self._programs:
            self._programs[key] = StepProgram.of(generate(chosen.name, shape), tied_embedding=tied)
        return self._programs[key], costs
