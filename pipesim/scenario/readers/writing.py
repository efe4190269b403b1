"""An imported scenario as a YAML file: what was guessed stands in it as a comment."""

from __future__ import annotations

import json
from typing import Any

from pipesim.scenario.readers.facts import Imported
from pipesim.scenario.readers.values import clean


def scenario_text(imported: Imported) -> str:
    """Write the file.

    Parameters
    ----------
    imported : Imported
        From a reader.

    Returns
    -------
    str
        YAML; inferred and unused settings as comments on top, placeholders beside what they fill.
    """
    lines = [f"# From {imported.files} ({imported.tool})."]
    for title, notes in (("Inferred", imported.inferred), ("Not used", imported.not_used)):
        if notes:
            lines += [f"# {title}:", *(f"#   {key} = {words}" for key, words in notes.items())]
    if imported.placeholders:
        lines.append('# Check and edit what is marked "placeholder".')
    lines = [clean(line) for line in lines]
    for key, value in imported.mapping.items():
        lines += _entry(key, value, imported.placeholders)
    return "\n".join(lines) + "\n"


def _entry(key: str, value: Any, placeholders: dict[str, str]) -> list[str]:
    own = [
        clean(f"# {path}: placeholder; {why}")
        for path, why in placeholders.items()
        if path == key or path.startswith(f"{key}.")
    ]
    if not isinstance(value, dict) or not value:
        return [*own, f"{key}: {_value(value)}"]
    return [*own, f"{key}:", *(f"  {name}: {_value(item)}" for name, item in value.items())]


def _value(value: Any) -> str:
    """Write JSON: each is the same value in YAML, whatever its text looks like."""
    if isinstance(value, str):
        return json.dumps(clean(value), ensure_ascii=False)
    return json.dumps(value)
