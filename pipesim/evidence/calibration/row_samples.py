"""Rows of published sets, ready to be predicted again and again."""

from __future__ import annotations

from dataclasses import dataclass

from pipesim.evidence.published import PublishedRow
from pipesim.scenario import ResolvedScenario


@dataclass(frozen=True, slots=True)
class Sample:
    """A row ready to be predicted again and again."""

    set_name: str
    row: PublishedRow
    scenario: ResolvedScenario


def has_experts(scenario: ResolvedScenario) -> bool:
    """Whether the scenario's model has layers with experts."""
    return scenario.model is not None and scenario.model.experts is not None
