"""Sample files of other tools, changed as a test needs, and what a reader makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipesim.errors import ScenarioError
from pipesim.importers.scenario_file import scenario_text
from pipesim.scenario import ResolvedScenario, load_scenario

DATA = Path(__file__).parent / "data" / "imports"


def written(imported: Any, folder: Path) -> ResolvedScenario:
    path = folder / "scenario.yaml"
    path.write_text(scenario_text(imported))
    return load_scenario(path)


def changed(folder: Path, name: str, *replacements: tuple[str, str]) -> Path:
    """Copy a sample with parts of its text replaced; each part must be there."""
    text = (DATA / name).read_text()
    for old, new in replacements:
        assert old in text
        text = text.replace(old, new)
    path = folder / name
    path.write_text(text)
    return path


def refusal(read: Any, *arguments: Any, **options: Any) -> str:
    with pytest.raises(ScenarioError) as caught:
        read(*arguments, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message
