"""Megatron-LM's pipeline layout strings, such as ``Et*3|(tt|)*29,m|L``.

``E`` is the embedding, ``t`` a transformer layer, ``m`` a multi-token-prediction layer, ``L`` the head with
the loss, ``|`` the boundary of two stages; ``x*n`` repeats a letter, ``(...)*n`` a group, commas are ignored.
Stage s stands on rank s mod p.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pipesim.errors import ScenarioError

MAX_LETTERS = 100_000
_GROUP = re.compile(r"\(([^()]*)\)(?:\*(\d+))?")
_LETTER = re.compile(r"(.)\*(\d+)")


@dataclass(frozen=True, slots=True)
class Layout:
    """What each stage holds.

    Parameters
    ----------
    stages : tuple of str
        The letters of each stage, in order.
    """

    stages: tuple[str, ...]

    @property
    def layers(self) -> tuple[int, ...]:
        """Transformer layers of each stage; multi-token-prediction layers are not among them."""
        return tuple(stage.count("t") for stage in self.stages)

    @property
    def num_prediction_layers(self) -> int:
        """Multi-token-prediction layers in all."""
        return sum(stage.count("m") for stage in self.stages)


def parse_layout(text: str, *, file: str, key: str) -> Layout:
    """Read a layout string.

    Parameters
    ----------
    text : str
        The layout; backslashes before ``|``, ``(`` and ``)`` (from shells) are ignored.
    file, key : str
        For messages.

    Returns
    -------
    Layout
        At least one stage; the embedding first, the head last.

    Raises
    ------
    ScenarioError
        Another letter, parentheses that do not match, more than 100000 letters, an embedding that is not
        first, or a head that is not last.
    """

    def refuse(problem: str) -> ScenarioError:
        return ScenarioError(
            f"found {text[:60]!r}: {problem}; --ignore {key} splits evenly", file=file, key=key
        )

    letters = re.sub(r"[\\,\s\"']", "", text)
    for pattern in (_GROUP, _LETTER):
        size = len(letters)
        for match in pattern.finditer(letters):
            times = match[2] or "1"
            size += len(match[1]) * (int(times) if len(times) < 7 else MAX_LETTERS)
            if size > MAX_LETTERS:
                raise refuse(f"stands for more than {MAX_LETTERS} layers")
        letters = pattern.sub(lambda match: match[1] * int(match[2] or 1), letters)
    unknown = re.search(r"[^EtmL|]", letters)
    if unknown:
        raise refuse(
            f"{unknown[0]!r} is not understood; allowed: E, t, m, L, |, x*n and (...)*n without nesting"
        )
    if "t" not in letters:
        raise refuse("it holds no transformer layer (t)")
    inside = letters.replace("|", "")
    if letters[0] != "E" or "E" in letters[1:]:
        raise refuse("the embedding E must stand once, first")
    if "L" not in inside or inside.rstrip("L").count("L"):
        raise refuse("the head L must stand last")
    if "m" in inside and "t" in inside[inside.index("m") :]:
        raise refuse("prediction layers m must stand behind every transformer layer t")
    return Layout(tuple(letters.split("|")))
