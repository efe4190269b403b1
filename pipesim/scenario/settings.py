"""Another tool's settings, typed: what is read is remembered, and what is not is echoed or refused."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from pipesim.errors import ScenarioError
from pipesim.scenario.counts import LARGEST_COUNT, as_count, clean, shown
from pipesim.scenario.loading import read_yaml_mapping

_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
_OFF = ("", "0", "0.0", "false", "none", "null")


class Unknown(str):
    """A value that the file does not tell; the text says what it hangs on."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a tool's settings that its reader does not use.

    A name stands for a setting of that name, in whatever section, and for a section with all that is in it;
    dashes are underscores, and ``*`` stands for anything.

    Parameters
    ----------
    harmless : frozenset of str
        Settings of paths, logging, data, seeds and the like: they change no time and no memory.
    refused : Mapping
        Settings that change the model or the work beyond what is modelled, unless they are off; why.
    noted : Mapping
        Settings that are echoed with words of their own.
    """

    harmless: frozenset[str] = frozenset()
    refused: Mapping[str, str] = field(default_factory=dict)
    noted: Mapping[str, str] = field(default_factory=dict)

    def is_harmless(self, name: str) -> bool:
        """Whether a setting of this name may go unread without a word."""
        return name in self.harmless or any(
            "*" in pattern and fnmatchcase(name, pattern) for pattern in self.harmless
        )


@cache
def known_settings(*paths: Path) -> Known:
    """Load what is known from YAML files with ``harmless``, ``refused`` and ``noted``, added up."""
    documents = [read_yaml_mapping(path) for path in paths]
    return Known(
        frozenset(word for each in documents for word in each.get("harmless", "").split()),
        {name: why for each in documents for name, why in each.get("refused", {}).items()},
        {name: why for each in documents for name, why in each.get("noted", {}).items()},
    )


class Settings:
    """Flat view of a file's settings, by dotted path.

    Parameters
    ----------
    values : Mapping
        May be nested; lists without mappings stay values.
    file : str
        For messages.
    known : Known
        What may go unread without a word, and what may not be there at all.
    stated : Mapping, optional
        What the user states by the scenario's keys: it stands in place of what the file says.
    ignore : iterable of str
        Settings that the user wants left out.
    numbers_are_text : bool
        Command-line arguments have no other form; elsewhere a number in quotes is refused.

    Raises
    ------
    ScenarioError
        A setting that is refused.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        file: str,
        *,
        known: Known | None = None,
        stated: Mapping[str, Any] | None = None,
        ignore: Iterable[str] = (),
        numbers_are_text: bool = False,
    ) -> None:
        self.file = file
        self._values = dict(_flat(values, ""))
        self._known = known or Known()
        self._stated = stated or {}
        self._numbers_are_text = numbers_are_text
        self._used: set[str] = set()
        self._ignored = {
            path: wanted for wanted in ignore for path in self._values if f"{path}.".startswith(f"{wanted}.")
        }
        for path, value in self._values.items():
            found = _matching(path, self._known.refused)
            if found and path not in self._ignored and not _is_off(value):
                raise ScenarioError(
                    f"found {shown(value)}: {found[1]}; --ignore {found[0]} reads on without it",
                    file=file,
                    key=path,
                )

    def __contains__(self, path: object) -> bool:
        return self._get(str(path)) is not None

    def _get(self, path: str) -> Any:
        value = None if path in self._ignored else self._values.get(path)
        return None if value is False and self._numbers_are_text else value

    def skip(self, *paths: str) -> None:
        """Take settings as read."""
        self._used.update(paths)

    @property
    def ignored(self) -> set[str]:
        """What the user wanted left out and was there."""
        return set(self._ignored.values())

    def values(self) -> dict[str, Any]:
        """Give all values by dotted path."""
        return dict(self._values)

    def is_known(self, path: str) -> bool:
        """Whether a path has a value that does not hang on something outside the file."""
        value = self._get(path)
        return value is not None and not isinstance(value, Unknown)

    def is_stated(self, key: str) -> bool:
        """Whether the user stated a key of the scenario."""
        return key in self._stated

    def raw(self, *paths: str, sets: str = "") -> tuple[str, Any]:
        """Give the first of `paths` that has a value, and the value; the first and None where there is none.

        Parameters
        ----------
        *paths : str
            Spellings of one setting.
        sets : str
            The scenario's key: a value that the user stated for it goes before the file's.

        Raises
        ------
        ScenarioError
            Two spellings of one setting with different values, or a value that the file does not tell.
        """
        self._used.update(paths)
        if sets in self._stated:
            return f"--set {sets}", self._stated[sets]
        found = [(path, self._get(path)) for path in paths if self._get(path) is not None]
        if not found:
            return paths[0], None
        way_out = f"; --set {sets}=VALUE states it" if sets else ""
        for path, value in found:
            if isinstance(value, Unknown):
                raise self.refuse(
                    path,
                    f"its value hangs on {clean(value, most=120)}; give it by --define NAME=VALUE, or write "
                    f"it out{way_out}",
                )
        for path, value in found[1:]:
            if value != found[0][1]:
                raise self.refuse(
                    path,
                    f"found {shown(value)}, but {found[0][0]} is {shown(found[0][1])}; they mean the same"
                    f"{way_out or f'; --ignore {path} leaves it out'}",
                )
        return found[0]

    def refuse(self, key: str, problem: str) -> ScenarioError:
        """Make an error about this file."""
        return ScenarioError(problem, file=self.file, key=key)

    def count(
        self, *paths: str, sets: str = "", minimum: int = 1, maximum: int = LARGEST_COUNT
    ) -> int | None:
        """Read a whole number from `minimum` to `maximum`; None where no path has a value.

        Raises
        ------
        ScenarioError
            Not such a number.
        """
        path, value = self.raw(*paths, sets=sets)
        if value is None:
            return None
        if self._numbers_are_text and isinstance(value, str) and _WHOLE.fullmatch(value):
            value = int(value)
        try:
            return as_count(value, file=self.file, key=path, minimum=minimum, maximum=maximum)
        except ScenarioError as error:
            way_out = f"; --set {sets}=N states it" if sets else f"; --ignore {path} reads on without it"
            raise self.refuse(path, error.message + way_out) from None

    def required(self, *paths: str, what: str, sets: str = "", maximum: int = LARGEST_COUNT) -> int:
        """Read a count that must be there.

        Raises
        ------
        ScenarioError
            Missing, or not a count.
        """
        value = self.count(*paths, sets=sets, maximum=maximum)
        if value is None:
            also = f" (nor is there {' or '.join(paths[1:])})" if paths[1:] else ""
            way_out = f"; --set {sets}=N states it" if sets else ""
            raise self.refuse(paths[0], f"missing{also}; needed: {what}{way_out}")
        return value

    def flag(self, *paths: str, default: bool = False) -> bool:
        """Read true or false; among command-line arguments what is there is true, unless "false" follows.

        Raises
        ------
        ScenarioError
            Anything else.
        """
        if self._numbers_are_text:
            self._used.update(paths)
            found = [self._get(path) for path in paths if self._get(path) is not None]
            return str(found[0]).lower() != "false" if found else default
        path, value = self.raw(*paths)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.refuse(path, f"found {shown(value)}; true or false is needed")
        return value

    def text(self, *paths: str, sets: str = "") -> str | None:
        """Read text; None where no path has a value.

        Raises
        ------
        ScenarioError
            Not text.
        """
        path, value = self.raw(*paths, sets=sets)
        if value is None:
            return None
        if not isinstance(value, str):
            raise self.refuse(path, f"found {shown(value)}; text is needed")
        return value

    def words(self, *paths: str) -> tuple[str, list[str]]:
        """Read words, a list of them or a text that spaces part; give the path too. None stated gives none.

        Raises
        ------
        ScenarioError
            A list of anything but words and numbers.
        """
        path, value = self.raw(*paths)
        if value is None:
            return path, []
        entries = value.split() if isinstance(value, str) else value if isinstance(value, list) else [value]
        if not all(isinstance(entry, str | int | float) for entry in entries):
            raise self.refuse(
                path, f"found {shown(value)}; a list of words is needed; --ignore {path} reads on without it"
            )
        return path, [str(entry) for entry in entries]

    def unused(self) -> dict[str, str]:
        """Name every setting that was not read, with its value; harmless ones are left out."""
        notes: dict[str, str] = {}
        for path, value in self._values.items():
            if path in self._ignored:
                notes[path] = f"{shown(value)}: left out, as --ignore {self._ignored[path]} says"
                continue
            if path in self._used:
                continue
            noted = _matching(path, self._known.noted)
            if noted and not _is_off(value):
                name, words = noted
                if name == path:
                    notes[name] = f"{shown(value)}: {words}"
                else:
                    inside = f"{path.removeprefix(f'{name}.')} = {shown(value)}"
                    notes[name] = f"{notes[name]}, {inside}" if name in notes else f"{words}: {inside}"
            elif not noted and self._known.is_harmless(_plain(path).rpartition(".")[2]):
                continue
            else:
                notes[path] = shown(value)
        return notes


def _matching(path: str, names: Mapping[str, str]) -> tuple[str, str] | None:
    """Find a known name for a path, or for a section that it lies in: where it ends, and the words."""
    parts, original = _plain(path).split("."), path.split(".")
    for depth in range(1, len(parts) + 1):
        whole, last = ".".join(parts[:depth]), parts[depth - 1]
        for name, words in names.items():
            if name in (whole, last) or ("*" in name and fnmatchcase(whole, name)):
                return ".".join(original[:depth]), words
    return None


def _plain(path: str) -> str:
    return path.lower().replace("-", "_")


def _is_off(value: Any) -> bool:
    if isinstance(value, (str, list, Mapping)):
        return not value or (isinstance(value, str) and value.lower() in _OFF)
    return value is None or value is False or value == 0


def _flat(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        path = f"{prefix}{key}"
        if isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
            value = {str(number): item for number, item in enumerate(value)}
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{path}.")
        else:
            yield path, value
