"""Predict many scenarios fast: each schedule is generated and prepared once, then timed under many costs.

The same road as `simulate` without contention: the real order of the schedule through the compiled longest
path, then the end of the step as the engine plays it (a rank's reductions follow its own last backward, the
optimizer waits for all ranks).
"""

from __future__ import annotations

import numpy as np

from pipesim.costs import CostTable, build_costs
from pipesim.costs.transformer.memory import stage_activations
from pipesim.costs.transformer.model import layers_per_stage
from pipesim.costs.transformer.setting import layer_setting
from pipesim.evaluate import PreparedSchedule
from pipesim.graph import held
from pipesim.metrics import memory_by_row
from pipesim.scenario import Scenario
from pipesim.schedules import Shape, family, generate


class Predictor:
    """Predicts scenarios; keeps the schedules it has prepared."""

    def __init__(self) -> None:
        self._prepared: dict[tuple[str, str], PreparedSchedule] = {}

    def step_time_s(self, scenario: Scenario, *, steps_overlap: bool = False) -> float:
        """Predict the time of one step of the schedule that the scenario names.

        Parameters
        ----------
        scenario : Scenario
            Sizes and costs.
        steps_overlap : bool
            A rank begins its next step when its own part of this one is done, as with the zero-bubble paper's
            optimizer, which validates gradients afterwards: the longest span of a rank counts, no makespan.

        Raises
        ------
        PipesimError
            As for `pipesim.study.simulate_scenario`.
        """
        prepared, costs = self._prepare(scenario)
        schedule = prepared.schedule
        spans = prepared.evaluate_costs(costs, sends_block=scenario.p2p_mode == "send-blocking")
        start_s, end_s = np.asarray(spans.start), np.asarray(spans.end)
        begin_s, ready_s, optimizer_s = [], [], []
        for rank in range(schedule.num_ranks):
            rows, stages = schedule.rows_of(rank), schedule.stages_of(rank)
            sync_s = sum(float(costs.gradient_sync_s(stage)) for stage in stages)
            begin_s.append(float(start_s[rows].min()))
            ready_s.append(float(end_s[rows].max()) + sync_s)
            optimizer_s.append(float(costs.optimizer_s[stages].sum()))
        if steps_overlap:
            return max(
                ready + optimizer - begin
                for ready, optimizer, begin in zip(ready_s, optimizer_s, begin_s, strict=True)
            )
        return max(ready_s) + max(optimizer_s) - min(begin_s)

    def peak_memory_bytes(self, scenario: Scenario) -> float:
        """Predict the memory of the device that needs most.

        Raises
        ------
        PipesimError
            As for `step_time_s`.
        """
        prepared, costs = self._prepare(scenario)
        return float(memory_by_row(prepared.schedule, costs).max())

    def layer_activation_bytes(self, scenario: Scenario) -> float:
        """Predict what the layers of a device of the first rank keep in flight, without embedding and head.

        Raises
        ------
        PipesimError
            As for `step_time_s`.
        """
        assert scenario.model is not None
        assert scenario.cluster is not None
        assert scenario.efficiency is not None
        prepared, costs = self._prepare(scenario)
        schedule = prepared.schedule
        setting = layer_setting(scenario, scenario.model, scenario.cluster, scenario.efficiency)
        counts = layers_per_stage(scenario, setting, schedule.num_stages)
        kept = [stage_activations(setting, count, first=False, last=False).held for count in counts]
        in_flight = held(schedule, np.array(kept), costs.released_at_input_gradient)
        return float(in_flight[schedule.rows_of(0)].max())

    def _prepare(self, scenario: Scenario) -> tuple[PreparedSchedule, CostTable]:
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
        if chosen.needs_costs:
            return PreparedSchedule.of(generate(chosen.name, shape, costs)), costs
        key = (chosen.name, str(shape))
        if key not in self._prepared:
            self._prepared[key] = PreparedSchedule.of(generate(chosen.name, shape))
        return self._prepared[key], costs
