"""The two ways in: a file, or a mapping that is already in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pipesim.errors import ScenarioError
from pipesim.scenario.loading import read_yaml_mapping
from pipesim.scenario.overrides import apply_overrides, blame_override
from pipesim.scenario.resolved import ResolvedScenario


def load_scenario(
    path: str | Path,
    overrides: Iterable[str] = (),
    *,
    uncut: bool = False,
    kind: type[ResolvedScenario] = ResolvedScenario,
) -> ResolvedScenario:
    """Read, check and resolve a scenario file.

    Parameters
    ----------
    path : str or Path
        A YAML file; names inside it are relative to its folder.
    overrides : iterable of str
        ``KEY=VALUE`` each, as for `apply_overrides`.
    uncut : bool
        Where a model and a global batch are stated, leave out how they are cut (parallel sizes, micro-batch),
        for somebody who is about to choose: one device takes all, whatever the cluster, and `parallel` may be
        missing.
    kind : type
        `ResolvedScenario`, or a class of it.

    Returns
    -------
    ResolvedScenario
        Complete, in SI units; `echo` says what was inferred.

    Raises
    ------
    ScenarioError
        One message: the file (or the override), the dotted key, what was found, what is allowed.
    """
    mapping = read_yaml_mapping(path)
    if str(mapping.get("format")).startswith("pipesim cost table"):
        name = Path(path).name
        raise ScenarioError(
            f"is a cost table, not a scenario; name it in a scenario as costs: {{file: {name}}}",
            file=str(path),
        )
    return scenario_from_mapping(mapping, file=str(path), overrides=overrides, uncut=uncut, kind=kind)


def scenario_from_mapping(
    mapping: Mapping[str, Any],
    *,
    file: str | None = None,
    overrides: Iterable[str] = (),
    uncut: bool = False,
    kind: type[ResolvedScenario] = ResolvedScenario,
) -> ResolvedScenario:
    """Check and resolve a scenario given as a mapping with the keys of a scenario file.

    Parameters
    ----------
    mapping : Mapping
        Text with units, numbers, or `fractions.Fraction` where exact arithmetic is wanted.
    file : str, optional
        Where it came from, for messages and relative file names (otherwise the working folder).
    overrides : iterable of str
        ``KEY=VALUE`` each, as for `apply_overrides`.
    uncut : bool
        As for `load_scenario`.
    kind : type
        `ResolvedScenario`, or a class of it.

    Returns
    -------
    ResolvedScenario
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
    from pipesim.scenario.resolve import Source, resolve
    from pipesim.scenario.schema import keys_for

    stated = tuple(overrides)
    directory = Path(file).parent if file else Path()
    notes = Notes()
    try:
        stated_keys = apply_overrides(mapping, stated)
        whole = expand(stated_keys, directory=directory, echo=notes.echo)
        if uncut and "model" in whole and _has_global_batch(whole):
            whole.setdefault("parallel", {"pipeline": 1})
        schema = keys_for(whole)
        try:
            keys = schema.model_validate(whole)
        except ValidationError as error:
            raise as_scenario_error(error, schema, file=None) from None
        source = Source(stated_keys, file, directory)
        return resolve(keys, source, notes=notes, uncut=uncut, kind=kind)
    except ScenarioError as error:
        if error.file is not None:
            raise
        blamed = blame_override(error, mapping, stated)
        raise ScenarioError(blamed.message, file=blamed.file or file, key=blamed.key) from None


def need_scenario(found: object) -> None:
    """Refuse what is no scenario, such as the name of its file.

    Raises
    ------
    ScenarioError
        Saying how one is made.
    """
    if not isinstance(found, ResolvedScenario):
        raise ScenarioError(
            f"found {type(found).__name__}; needed: a scenario, as Scenario.load(FILE), Scenario.of(MAPPING) "
            "or Scenario.times(...) make one"
        )


def _has_global_batch(mapping: Mapping[str, Any]) -> bool:
    batch = mapping.get("batch")
    return isinstance(batch, dict) and batch.get("global") is not None
