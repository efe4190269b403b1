"""What a published row measured, predicted on the one road."""

from __future__ import annotations

import numpy as np

from pipesim.costs import build_costs
from pipesim.costs.transformer.activation_memory import stage_activations
from pipesim.costs.transformer.cut import layers_of_stages, layers_per_stage
from pipesim.costs.transformer.setting import layer_setting
from pipesim.evidence.published.collective_rows import collective_s
from pipesim.evidence.published.published_row import PublishedRow, Quantity
from pipesim.ir import held
from pipesim.metrics import longest_own_step_s, whole_step_s
from pipesim.prediction import Prepared, Programs, least_step_s, needs_engine, prepare, timed_step
from pipesim.scenario import ResolvedScenario


def predict_row(
    quantity: Quantity,
    row: PublishedRow,
    scenario: ResolvedScenario,
    programs: Programs,
    *,
    contended: bool = True,
) -> float:
    """Predict a row's quantity, in its SI unit.

    Parameters
    ----------
    quantity : str
        What was measured.
    row : PublishedRow
        For what a quantity needs beside the scenario.
    scenario : ResolvedScenario
        The row's, with the parameters to try.
    programs : Programs
        Where schedules of earlier rows are found.
    contended : bool
        False leaves out that traffic meets on wires, where nothing else needs the engine: for the many rounds
        of a fit, which is judged with it.

    Raises
    ------
    PipesimError
        As `pipesim.prediction.predict`.
    """
    if quantity == "collective_time_s":
        return collective_s(scenario, row)
    if quantity == "layer_time_s":
        costs = build_costs(scenario, num_chunks=scenario.parallel.virtual_stages)
        return float(costs.forward_s[1] + costs.backward_s[1])
    prepared = prepare(scenario, programs=programs)
    if quantity == "peak_memory_bytes":
        return prepared.peak_memory[0] or 0.0
    if quantity == "activation_bytes":
        return _layer_activation_bytes(prepared)
    steps_overlap = row.extra.get("steps_overlap")
    alone = not contended and needs_engine(prepared) is None
    if alone and not steps_overlap:
        return least_step_s(prepared)
    timeline, _ = timed_step(prepared, "compiled" if alone else "fast")
    return longest_own_step_s(timeline) if steps_overlap else float(whole_step_s(timeline))


def _layer_activation_bytes(prepared: Prepared) -> float:
    """Weigh what the layers of a device of the first rank keep in flight, without embedding and head."""
    scenario, schedule = prepared.scenario, prepared.schedule
    assert scenario.model is not None
    assert scenario.cluster is not None
    assert scenario.efficiency is not None
    setting = layer_setting(scenario, scenario.model, scenario.cluster, scenario.efficiency)
    counts = layers_per_stage(scenario, setting, schedule.num_stages)
    layers = layers_of_stages(scenario, scenario.model, counts)
    kept = [stage_activations(setting, of_stage, first=False, last=False).held for of_stage in layers]
    in_flight = held(schedule, np.array(kept))
    return float(in_flight[schedule.rows_of(0)].max())
