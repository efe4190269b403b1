"""The two ways in: a file, or a mapping that is already in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pipesim.errors import ScenarioError
from pipesim.scenario.loading import read_yaml_mapping
from pipesim.scenario.overrides import apply_overrides, blame_override
from pipesim.scenario.resolved import Scenario


def load_scenario(path: str | Path, overrides: Iterable[str] = ()) -> Scenario:
    """Read, check and resolve a scenario file.

    Parameters
    ----------
    path : str or Path
        A YAML file; names inside it are relative to its folder.
    overrides : iterable of str
        ``KEY=VALUE`` each, as for `apply_overrides`.

    Returns
    -------
    Scenario
        Complete, in SI units; `echo` says what was inferred.

    Raises
    ------
    ScenarioError
        One message: the file (or the override), the dotted key, what was found, what is allowed.
    """
    return scenario_from_mapping(read_yaml_mapping(path), file=str(path), overrides=overrides)


def scenario_from_mapping(
    mapping: Mapping[str, Any], *, file: str | None = None, overrides: Iterable[str] = ()
) -> Scenario:
    """Check and resolve a scenario given as a mapping with the keys of a scenario file.

    Parameters
    ----------
    mapping : Mapping
        Text with units, numbers, or `fractions.Fraction` where exact arithmetic is wanted.
    file : str, optional
        Where it came from, for messages and relative file names (otherwise the working folder).
    overrides : iterable of str
        ``KEY=VALUE`` each, as for `apply_overrides`.

    Returns
    -------
    Scenario
        As for `load_scenario`.

    Raises
    ------
    ScenarioError
        As for `load_scenario`.
    """
    from pydantic import ValidationError

    from pipesim.scenario.expand import expand
    from pipesim.scenario.notes import Notes
    from pipesim.scenario.problems import as_scenario_error
    from pipesim.scenario.resolve import resolve
    from pipesim.scenario.schema import ScenarioKeys

    stated = tuple(overrides)
    directory = Path(file).parent if file else Path()
    notes = Notes()
    try:
        whole = expand(apply_overrides(mapping, stated), directory=directory, echo=notes.echo)
        try:
            keys = ScenarioKeys.model_validate(whole)
        except ValidationError as error:
            raise as_scenario_error(error, ScenarioKeys, file=None) from None
        return resolve(keys, file=file, directory=directory, notes=notes)
    except ScenarioError as error:
        if error.file is not None:
            raise
        blamed = blame_override(error, mapping, stated)
        raise ScenarioError(blamed.message, file=blamed.file or file, key=blamed.key) from None
