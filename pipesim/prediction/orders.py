"""The order that a scenario names, or a file holds."""

from __future__ import annotations

from pathlib import Path

from pipesim.errors import ScenarioError
from pipesim.ir.actions import Schedule
from pipesim.prediction.preparation import prepare
from pipesim.prediction.schedule_source import is_scenario_file, load_csv
from pipesim.scenario import ResolvedScenario, load_scenario


def schedule_of(scenario: ResolvedScenario) -> Schedule:
    """Generate or read the schedule that a scenario names; compute only.

    Raises
    ------
    PipesimError
        If the schedule does not go with the scenario's sizes.
    """
    return prepare(scenario).schedule


def load_order(path: str | Path, *overrides: str) -> Schedule:
    """Read an order from a CSV, or make the one that a scenario file names; compute only.

    Parameters
    ----------
    path : str or Path
        ``.yaml`` or ``.yml`` is a scenario, anything else a CSV of actions.
    *overrides : str
        ``KEY=VALUE`` each, of the scenario.

    Raises
    ------
    PipesimError
        If the file cannot be read, or holds no legal schedule.
    """
    if is_scenario_file(path):
        return schedule_of(load_scenario(path, overrides))
    if overrides:
        raise ScenarioError(f"{overrides[0]} is for scenarios; this is a CSV of actions", file=str(path))
    return load_csv(path)
