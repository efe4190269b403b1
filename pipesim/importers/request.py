"""What the user asks of a reader: the files, and what is stated beside them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pipesim.errors import ScenarioError
from pipesim.importers.facts import Facts
from pipesim.scenario.counts import LARGEST_COUNT, MAX_LAYERS
from pipesim.scenario.overrides import parse_override
from pipesim.scenario.presets import get_preset
from pipesim.scenario.settings import Known, Settings, known_settings

_FOLDER = Path(__file__).parent / "known"


def known_of(name: str) -> Known:
    """Load what is known of one tool's settings beside those that its reader uses."""
    return known_settings(_FOLDER / "common.yaml", _FOLDER / f"{name}.yaml")


@dataclass(slots=True)
class Request:
    """Files of one tool, and what the user states beside them.

    Parameters
    ----------
    paths : tuple of Path
        In the order in which they count.
    known : Known
        What the reader need not use.
    define : Mapping
        Values of variables that the files take from outside.
    num_gpus : int, optional
        GPUs of the run.
    row : str, optional
        The row of a table, or the function of a Python file.
    overrides : tuple of str
        ``KEY=VALUE`` by the scenario's keys.
    ignore : tuple of str
        Settings of the files to be left out.
    stated : dict
        The overrides by dotted path, down to single values.
    made : list of Settings
        The settings that the reader took from the files.
    """

    paths: tuple[Path, ...]
    known: Known = field(default_factory=Known)
    define: Mapping[str, str] = field(default_factory=dict)
    num_gpus: int | None = None
    row: str | None = None
    overrides: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    stated: dict[str, Any] = field(default_factory=dict)
    made: list[Settings] = field(default_factory=list)

    def __post_init__(self) -> None:
        for override in self.overrides:
            key, value = parse_override(override)
            self.stated[key] = value
            if key == "model" and not isinstance(value, Mapping):
                value = {"preset": value}
            if key == "model.preset":
                key, value = "model", {"preset": value}
            if isinstance(value, Mapping):
                preset = value.get("preset") if key == "model" else None
                fields = get_preset("models", preset, key="model").fields if isinstance(preset, str) else {}
                self.stated |= {f"{key}.{name}": item for name, item in {**fields, **value}.items()}

    @property
    def files(self) -> str:
        """The files' names."""
        return ", ".join(path.name for path in self.paths)

    def without(self, index: int) -> Request:
        """Leave one file out."""
        return replace(self, paths=self.paths[:index] + self.paths[index + 1 :], stated={}, made=[])

    def settings(
        self, values: Mapping[str, Any], file: str | None = None, *, numbers_are_text: bool = False
    ) -> Settings:
        """Take settings from a file; in the end, all that was not read is echoed.

        Raises
        ------
        ScenarioError
            As for `Settings`.
        """
        made = Settings(
            values,
            file or self.files,
            known=self.known,
            stated=self.stated,
            ignore=self.ignore,
            numbers_are_text=numbers_are_text,
        )
        self.made.append(made)
        return made

    def facts(self, tool: str, name: str | None = None) -> Facts:
        """Begin with what the user states."""
        facts = Facts(tool, self.files, name or self.paths[0].stem, {}, stated=self.stated)
        facts.num_gpus = self.num_gpus
        return facts

    def unused(self) -> dict[str, str]:
        """Name what was not used in any of the files, and refuse to ignore what is not there.

        Raises
        ------
        ScenarioError
            A setting to be ignored that no file has.
        """
        notes: dict[str, str] = {}
        for settings in self.made:
            notes |= settings.unused()
        missing = set(self.ignore).difference(*(settings.ignored for settings in self.made))
        if missing:
            raise ScenarioError(f"{min(missing)} is not there", file=self.files, key="--ignore")
        return notes


def read_sizes(settings: Settings, facts: Facts, sizes: Mapping[str, Iterable[str]]) -> None:
    """Read how a run is cut: each size under the names that the tool has for it, 1 where it has none.

    Parameters
    ----------
    settings : Settings
        The file's.
    facts : Facts
        Receives the sizes.
    sizes : Mapping
        Names by ``tensor``, ``pipeline``, ``context`` and ``expert``.

    Raises
    ------
    ScenarioError
        Not counts.
    """
    for size, names in sizes.items():
        number = settings.count(*names, sets=f"parallel.{size}", maximum=MAX_LAYERS)
        setattr(facts, size, number or 1)


def read_shape(settings: Settings, names: Mapping[str, Iterable[str]], **needed: str) -> dict[str, Any]:
    """Read the counts of ``model:``, each under the names that the tool has for it.

    Parameters
    ----------
    settings : Settings
        The file's.
    names : Mapping
        Names by field of the scenario's ``model:``.
    **needed : str
        What a field is, in words, for those that must be there.

    Returns
    -------
    dict
        The fields that are there.

    Raises
    ------
    ScenarioError
        Missing though needed, or not counts.
    """
    shape: dict[str, Any] = {}
    for key, paths in names.items():
        most = MAX_LAYERS if key == "num_hidden_layers" else LARGEST_COUNT
        least = 0 if key.startswith(("shared_", "num_shared", "first_k", "num_nextn")) else 1
        value = settings.count(*paths, sets=f"model.{key}", minimum=least, maximum=most)
        if value is None and key in needed:
            value = settings.required(*paths, what=needed[key], sets=f"model.{key}")
        if value is not None:
            shape[key] = value
    return shape


NEEDED = {
    "num_hidden_layers": "transformer layers",
    "hidden_size": "width of the residual stream",
    "num_attention_heads": "query heads",
    "seq_length": "tokens of one sequence",
}
"""Fields that every tool's files must state, in words."""
