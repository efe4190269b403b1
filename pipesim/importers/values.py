"""Typed reading of another tool's settings: what is used is remembered, what is not can be named."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from pipesim.errors import ScenarioError
from pipesim.scenario.counts import LARGEST_COUNT, as_count, clean, shown

_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
_PARALLEL = re.compile(
    r"parallel|pipeline|pipe[-_]|virtual|(?:^|[-_.])vp|overlap|recompute|checkpoint[-_.](?:activations|num)"
    r"|activation[-_]?checkpoint|activations[-_]checkpoint|offload|expert|moe|fsdp|zero|tensor[-_]|context[-_]"
    r"|cp[-_]|layout|balanc|accumul|microbatch|micro[-_]batch|rampup"
)
"""Names of settings that change how a run is cut, ordered, or what it keeps in memory."""


class Unknown(str):
    """A value that the file does not tell; the text says what it hangs on."""

    __slots__ = ()


class Settings:
    """Flat view of a file's settings, by dotted path.

    Parameters
    ----------
    values : Mapping
        May be nested; lists stay values.
    file : str
        For messages.
    numbers_are_text : bool
        Command-line arguments have no other form; elsewhere a number in quotes is refused.
    """

    def __init__(self, values: Mapping[str, Any], file: str, *, numbers_are_text: bool = False) -> None:
        self.file = file
        self._values = dict(_flat(values, ""))
        self._numbers_are_text = numbers_are_text
        self._used: set[str] = set()

    def __contains__(self, path: object) -> bool:
        return self._values.get(str(path)) is not None

    def values(self) -> dict[str, Any]:
        """Give all values by dotted path."""
        return dict(self._values)

    def is_known(self, path: str) -> bool:
        """Whether a path has a value that does not hang on something outside the file."""
        return self._values.get(path) is not None and not isinstance(self._values[path], Unknown)

    def raw(self, *paths: str) -> tuple[str, Any]:
        """Give the first of `paths` that has a value, and the value; ("", None) where there is none.

        Raises
        ------
        ScenarioError
            Two spellings of one setting with different values.
        """
        found = [(path, self._values[path]) for path in paths if self._values.get(path) is not None]
        self._used.update(paths)
        if not found:
            return paths[0], None
        for path, value in found:
            if isinstance(value, Unknown):
                raise ScenarioError(
                    f"its value hangs on {clean(value, most=120)}; give it by --define NAME=VALUE, or write "
                    "it out",
                    file=self.file,
                    key=path,
                )
        for path, value in found[1:]:
            if value != found[0][1]:
                raise ScenarioError(
                    f"found {shown(value)}, but {found[0][0]} is {shown(found[0][1])}; they mean the same",
                    file=self.file,
                    key=path,
                )
        return found[0]

    def count(self, *paths: str, minimum: int = 1, maximum: int = LARGEST_COUNT) -> int | None:
        """Read a whole number from `minimum` to `maximum`; None where no path has a value.

        Raises
        ------
        ScenarioError
            Not such a number.
        """
        path, value = self.raw(*paths)
        if value is None:
            return None
        if self._numbers_are_text and isinstance(value, str) and _WHOLE.fullmatch(value):
            value = int(value)
        return as_count(value, file=self.file, key=path, minimum=minimum, maximum=maximum)

    def required(self, *paths: str, what: str, maximum: int = LARGEST_COUNT) -> int:
        """Read a count that must be there.

        Raises
        ------
        ScenarioError
            Missing, or not a count.
        """
        value = self.count(*paths, maximum=maximum)
        if value is None:
            also = f" (nor is there {' or '.join(paths[1:])})" if paths[1:] else ""
            raise ScenarioError(f"missing{also}; needed: {what}", file=self.file, key=paths[0])
        return value

    def flag(self, *paths: str, default: bool = False) -> bool:
        """Read true or false; among command-line arguments what is there is true, whatever follows it.

        Raises
        ------
        ScenarioError
            Anything else.
        """
        if self._numbers_are_text:
            self._used.update(paths)
            found = [self._values[path] for path in paths if self._values.get(path) is not None]
            return str(found[0]).lower() != "false" if found else default
        path, value = self.raw(*paths)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ScenarioError(f"found {shown(value)}; true or false is needed", file=self.file, key=path)
        return value

    def text(self, *paths: str) -> str | None:
        """Read text; None where no path has a value.

        Raises
        ------
        ScenarioError
            Not text.
        """
        path, value = self.raw(*paths)
        if value is None:
            return None
        if not isinstance(value, str):
            raise ScenarioError(f"found {shown(value)}; text is needed", file=self.file, key=path)
        return value

    def unused(self, *sections: str) -> dict[str, str]:
        """Name the settings of parallelism, memory and overlap that were never read, with their values.

        Only those of some sections, where any are given.
        """
        return {
            path: shown(value)
            for path, value in self._values.items()
            if path not in self._used
            and value not in (None, False, 0, "", "none")
            and _PARALLEL.search(path)
            and (not sections or path.partition(".")[0] in sections)
        }


def joined(numbers: Iterable[int]) -> str:
    """Write numbers, runs of equal ones as 8 x 3."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number:
            runs[-1] = (runs[-1][0] + 1, number)
        else:
            runs.append((1, number))
    return ", ".join(f"{times} x {number}" if times > 1 else str(number) for times, number in runs)


def product(**sizes: int) -> tuple[int, str]:
    """Multiply named sizes, and write the product out: ``tensor 8 x pipeline 6 = 48``."""
    total = math.prod(sizes.values())
    return total, " x ".join(f"{name} {size}" for name, size in sizes.items()) + f" = {total}"


def _flat(values: Mapping[str, Any], prefix: str) -> Iterable[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
