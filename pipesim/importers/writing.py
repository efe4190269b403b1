"""An imported scenario as a YAML file: what was guessed stands in it as a comment."""

from __future__ import annotations

import json
from typing import Any

from pipesim.importers.facts import Imported
from pipesim.scenario.counts import clean


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
    above = [clean(f"# placeholder: {placeholders[key]}")] if key in placeholders else []
    if not isinstance(value, dict) or not value:
        return [*above, f"{key}: {_value(value)}"]
    lines = []
    for name, item in value.items():
        why = placeholders.get(f"{key}.{name}")
        comment = "" if why is None else "  " + clean(f"# placeholder: {why}")
        lines.append(f"  {name}: {_value(item)}{comment}")
    return [*above, f"{key}:", *lines]


def _value(value: Any) -> str:
    """Write JSON: each is the same value in YAML, whatever its text looks like."""
    if isinstance(value, str):
        return json.dumps(clean(value), ensure_ascii=False)
    return json.dumps(value)
