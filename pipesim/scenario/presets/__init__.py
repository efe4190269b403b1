"""Hardware, models and software efficiency as data: one YAML file a kind, each entry with source and date."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal, get_args

from pipesim.errors import ScenarioError
from pipesim.scenario.loading import parse_yaml
from pipesim.scenario.nearest import did_you_mean

Kind = Literal["accelerators", "links", "models", "efficiency", "machines"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class Preset:
    """One entry: its fields as a scenario would state them, units and all."""

    kind: Kind
    name: str
    fields: dict[str, Any]

    @property
    def source(self) -> str:
        """Where the figures are from."""
        return str(self.fields["source"])

    @property
    def date(self) -> str:
        """When the source was published or read."""
        return str(self.fields["date"])


def list_presets(kind: Kind | None = None) -> tuple[Preset, ...]:
    """List the entries of one kind, or of all, in the order of the files."""
    return tuple(
        Preset(each, name, copy.deepcopy(fields))
        for each in (KINDS if kind is None else (kind,))
        for name, fields in _table(each).items()
    )


def get_preset(kind: Kind, name: str, *, key: str | None = None) -> Preset:
    """Look up one entry; case and underscores are forgiven.

    Parameters
    ----------
    kind : str
        One of `KINDS`.
    name : str
        Such as ``a100-sxm-80``.
    key : str, optional
        Dotted path of the key that names it, for the message.

    Returns
    -------
    Preset
        A copy; changing it changes nothing else.

    Raises
    ------
    ScenarioError
        No such entry; the message offers the nearest names.
    """
    table = _table(kind)
    plain = _plain(name)
    if plain not in table:
        raise ScenarioError(_unknown(name, kind, list(table)), key=key)
    return Preset(kind, plain, copy.deepcopy(table[plain]))


def find_preset(name: str) -> Preset:
    """Look up a name among all kinds; raise ScenarioError with the nearest names where there is none."""
    plain = _plain(name)
    for kind in KINDS:
        if plain in _table(kind):
            return get_preset(kind, plain)
    known = [preset.name for preset in list_presets()]
    raise ScenarioError(_unknown(name, "any kind", known))


@cache
def _table(kind: Kind) -> dict[str, dict[str, Any]]:
    text = resources.files(__name__).joinpath(f"{kind}.yaml").read_text(encoding="utf-8")
    table: dict[str, dict[str, Any]] = parse_yaml(text, file=f"presets/{kind}.yaml")
    if kind == "efficiency":
        for name, domains in _domains().items():
            table[name]["domains"] = domains
    return table


def _domains() -> dict[str, Any]:
    """Read what efficiency presets were measured on, and how far off they were; no entry, no row."""
    file = "domains.yaml"
    text = resources.files(__name__).joinpath(file).read_text(encoding="utf-8")
    found: dict[str, Any] = parse_yaml(text, file=f"presets/{file}")
    return found


def _plain(name: str) -> str:
    return name.strip().lower().replace("_", "-")


def _unknown(name: str, kind: str, known: list[str]) -> str:
    hint = did_you_mean(_plain(name), known)
    listed = "" if hint else f" (there are: {', '.join(known)})"
    return f"no preset of {kind} is named {name!r}{hint}{listed}"
