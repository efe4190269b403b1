"""One published measurement: a scenario, what was measured, and what keeps it out of a mean."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from pipesim.scenario import ResolvedScenario, scenario_from_mapping

Quantity = Literal[
    "step_time_s", "peak_memory_bytes", "activation_bytes", "layer_time_s", "collective_time_s"
]

_PRINTED = ("model", "parallel", "batch", "schedule", "recompute")


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """A line of a published table.

    Parameters
    ----------
    label : str
        What tells it from the other rows of its set.
    scenario : Mapping, optional
        The keys of a scenario file; None where the table does not give what one needs.
    measured : float
        In the SI unit of the set's quantity.
    source : str
        Paper or repository.
    left_out : str, optional
        Why it has no prediction, or none that belongs in a mean.
    unexplained : str, optional
        Why no smooth model can describe it; it is predicted and counted all the same, and a second mean
        leaves it out.
    group : str, optional
        Rows of one group differ in the schedule alone, so their ranking can be compared.
    extra : Mapping
        What a set's own prediction needs beside a scenario.
    stratum : str
        Rows of one stratum are shared out evenly where a set is cut in two: a model on a card.
    """

    label: str
    scenario: Mapping[str, Any] | None
    measured: float
    source: str
    left_out: str | None = None
    unexplained: str | None = None
    group: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    stratum: str = ""

    @property
    def configuration(self) -> str:
        """What was run, as printed: repeats share it, and no assumption of ours about the rest changes it."""
        scenario = self.scenario or {}
        asked = {key: scenario.get(key) for key in _PRINTED}
        precision = scenario.get("precision", {}).get("compute")
        return _text([asked, precision, dict(self.extra)])

    @property
    def decides(self) -> str:
        """All that decides a prediction: rows that differ in name and release alone share one."""
        scenario = {key: value for key, value in (self.scenario or {}).items() if key != "name"}
        if isinstance(stated := scenario.get("efficiency"), Mapping):
            scenario["efficiency"] = {key: value for key, value in stated.items() if key != "release"}
        return _text([scenario, dict(self.extra)])


_RESOLVED: dict[str, ResolvedScenario] = {}


def scenario_of(row: PublishedRow) -> ResolvedScenario:
    """Resolve the scenario of a row, once in a process.

    Raises
    ------
    ScenarioError
        If the row's sizes contradict each other.
    """
    assert row.scenario is not None
    text = _text(row.scenario)
    if text not in _RESOLVED:
        _RESOLVED[text] = scenario_from_mapping(row.scenario)
    return _RESOLVED[text]


def _text(plain: object) -> str:
    return json.dumps(plain, sort_keys=True, default=str)


T = TypeVar("T", bound=PublishedRow)


def halves(rows: Sequence[T]) -> tuple[list[T], list[T]]:
    """Cut a set in two by a rule that looks at no result.

    Within each stratum configurations are put in the order of their SHA-256 and go to the two halves in turn;
    repeats of one configuration stay together, so that neither half knows a row of the other.

    Returns
    -------
    tuple of list
        The half to fit on and the half to judge by, each in the order of `rows`.
    """
    fitted: set[tuple[str, str]] = set()
    for stratum in {row.stratum for row in rows}:
        members = in_hash_order([row for row in rows if row.stratum == stratum])
        # A stratum of one configuration is as likely in the one half as in the other.
        begin = int(_hash(stratum), 16) % 2 if stratum else 0
        fitted |= {(stratum, configuration) for configuration in members[begin::2]}
    return (
        [row for row in rows if (row.stratum, row.configuration) in fitted],
        [row for row in rows if (row.stratum, row.configuration) not in fitted],
    )


def in_hash_order(rows: Sequence[PublishedRow]) -> list[str]:
    """Distinct configurations of rows, in the order of their SHA-256."""
    configurations = {row.configuration for row in rows}
    return sorted(configurations, key=_hash)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
