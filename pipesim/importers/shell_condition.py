"""Truth of ``[ ... ]`` and ``[[ ... ]]`` on known values; None where it is not known."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

from pipesim.importers.shell_expansion import Variables
from pipesim.importers.shell_words import Token

MAX_WORDS = 200
_NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-lt": operator.lt,
    "-le": operator.le,
    "-gt": operator.gt,
    "-ge": operator.ge,
}
_COMPARISONS = ("=", "==", "!=", *_NUMBERS)


def condition(words: Sequence[Token], variables: Variables, notes: dict[str, str]) -> bool | None:
    """Evaluate a test.

    Parameters
    ----------
    words : sequence of Token
        What stands between the brackets.
    variables : Variables
        Values; what nothing assigned counts as empty, as with an empty environment.
    notes : dict
        Receives the variables that were taken as unset.

    Returns
    -------
    bool or None
        None for files that may exist, patterns, unknown values, and tests of more than 200 words.
    """
    if len(words) > MAX_WORDS:
        return None
    for separators, stop in ((("||", "-o"), True), (("&&", "-a"), False)):
        for index, token in enumerate(words):
            if token.text in separators:
                left = condition(words[:index], variables, notes)
                right = condition(words[index + 1 :], variables, notes)
                if stop in (left, right):
                    return stop
                return None if None in (left, right) else not stop
    if any(token.kind != "word" for token in words):
        return None
    if words and words[0].text == "!":
        truth = condition(words[1:], variables, notes)
        return None if truth is None else not truth
    raw = [token.text for token in words]
    if len(raw) == 2 and raw[0] == "-v":
        return variables.get(raw[1]) is not None
    values = [_value(text, variables, notes) for text in raw]
    if len(raw) == 1:
        return None if values[0] is None else values[0] != ""
    if len(raw) == 2 and raw[0] in ("-z", "-n"):
        return None if values[1] is None else (values[1] == "") is (raw[0] == "-z")
    if len(raw) == 3 and raw[1] in _COMPARISONS:
        return _compare(values[0], raw[1], values[2])
    return None


def _compare(left: str | None, sign: str, right: str | None) -> bool | None:
    if left is None or right is None:
        return None
    if sign in _NUMBERS:
        if not all(re.fullmatch(r"-?[0-9]{1,18}", side) for side in (left, right)):
            return None
        return _NUMBERS[sign](int(left), int(right))
    return fnmatchcase(left, right) is (sign != "!=")


def _value(raw: str, variables: Variables, notes: dict[str, str]) -> str | None:
    text = variables.one(raw)
    plain = variables.as_set(text)
    if plain is not None and plain != text:
        for name in re.findall(r"\$\{?([A-Za-z_]\w*)", raw):
            if variables.get(name) is None:
                notes[f"${name}"] = "not assigned, so taken as unset"
    return plain
