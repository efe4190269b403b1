"""An imported scenario as a YAML file: what was guessed stands in it as a comment."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from typing import Any

from pipesim.importers.completing import Imported
from pipesim.scenario.counts import clean

WIDTH = 150
OFF = (
    "false",
    "nothing",
    "0",
    "0.0",
    "'0'",
    "'0.0'",
    "'none'",
    "'None'",
    "''",
    "[]",
    "{}",
    "'false'",
    "'null'",
)


def note_lines(notes: Mapping[str, str]) -> list[str]:
    """Write notes a line each, and in one line the names of all that is switched off."""
    off = [clean(key, most=200) for key, words in notes.items() if words in OFF]
    lines = [
        f"{clean(key, most=200)} = {clean(words, most=2000)}"
        for key, words in notes.items()
        if words not in OFF
    ]
    return [*lines, f"switched off: {', '.join(off)}"] if off else lines


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
            lines.append(f"# {title}:")
            for line in note_lines(notes):
                wrapped = textwrap.wrap(line, WIDTH, break_long_words=False, break_on_hyphens=False)
                lines += [f"#   {'  ' if number else ''}{part}" for number, part in enumerate(wrapped)]
    if imported.placeholders:
        lines.append('# Check and edit what is marked "placeholder".')
    lines = [clean(line, most=2400) for line in lines]
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
