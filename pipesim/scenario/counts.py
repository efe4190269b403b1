"""Whole numbers out of other tools' files, checked, and how a found value is shown in a message."""

from __future__ import annotations

from pipesim.errors import ScenarioError

LARGEST_COUNT = 10**9
MAX_LAYERS = 100_000
"""Most layers or pipeline ranks, of which readers make lists with an entry for each."""


def as_count(value: object, *, file: str, key: str, minimum: int = 1, maximum: int = LARGEST_COUNT) -> int:
    """Check a whole number from `minimum` to `maximum`.

    Raises
    ------
    ScenarioError
        Text, a fraction, a truth value, too small or too large.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
        most = f" and at most {maximum}" if isinstance(value, int) and value > maximum else ""
        raise ScenarioError(
            f"found {shown(value)}; a whole number of at least {minimum}{most} is needed", file=file, key=key
        )
    return value


def shown(value: object) -> str:
    """Write a value for a message or a comment: one line, printable, not long."""
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        value = " ".join(value)
    plain = str(value).lower() if isinstance(value, bool) else "nothing" if value is None else str(value)
    text = repr(value) if isinstance(value, str) else plain
    return clean(text, most=60)


def clean(text: str, *, most: int = 400) -> str:
    """Make text safe in a comment: printable characters of one line, cut where it is too long."""
    line = "".join(letter if letter.isprintable() else " " for letter in text[: most + 1])
    return line if len(line) <= most else line[: most - 3] + "..."
