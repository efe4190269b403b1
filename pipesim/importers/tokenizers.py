"""How many rows an embedding has: tokenizers that are known by name, and Megatron's padding."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pipesim.importers.facts import Facts
from pipesim.scenario.loading import read_yaml_mapping

GPT2 = 50257


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """A number of tokens before padding, and what it is known from."""

    num_tokens: int
    source: str


def tokens_of(*names: str | None) -> Tokenizer | None:
    """Look a tokenizer up by its type, file or repository name; None where no name is known."""
    for name in names:
        for pattern, tokenizer in _table():
            if name and pattern.search(name):
                return tokenizer
    return None


@cache
def _table() -> list[tuple[re.Pattern[str], Tokenizer]]:
    entries = read_yaml_mapping(Path(__file__).parent / "known" / "tokenizers.yaml")
    return [
        (re.compile(pattern, re.I), Tokenizer(entry["tokens"], entry["source"]))
        for pattern, entry in entries.items()
    ]


def padded(tokens: int, divisor: int, tensor: int) -> int:
    """Round up to a multiple of divisor * tensor, as Megatron-LM pads its embedding."""
    multiple = divisor * tensor
    return -(-tokens // multiple) * multiple


def embedding_rows(
    facts: Facts,
    known: Tokenizer | None,
    *,
    divisor: int,
    unknown: str = "the tokenizer's size is not in the file",
) -> int:
    """Pad a tokenizer's size, and note what it is known from.

    Parameters
    ----------
    facts : Facts
        With the tensor-parallel size; receives the notes.
    known : Tokenizer, optional
        From `tokens_of`; without it GPT-2's size stands in as a placeholder.
    divisor : int
        As for `padded`.
    unknown : str
        Words of the placeholder.

    Returns
    -------
    int
        Rows of the embedding.
    """
    if known is None:
        known = Tokenizer(GPT2, "the GPT-2 tokenizer")
        facts.placeholders["model.vocab_size"] = (
            f"{unknown}, so GPT-2's {GPT2} stand in: hidden_size weights a row in the first and in the last "
            "stage's memory, and in the head's time; --set model.vocab_size=N states them with the padding"
        )
    rows = padded(known.num_tokens, divisor, facts.tensor)
    facts.inferred["model.vocab_size"] = (
        f"{rows} ({known.num_tokens} of {known.source}, padded to a multiple of {divisor} x tensor "
        f"{facts.tensor})"
    )
    return rows
