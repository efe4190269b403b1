"""How many rows an embedding has: tokenizers that are known by name, and Megatron's padding."""

from __future__ import annotations

import re

from pipesim.importers.facts import Facts

GPT2 = 50257
_KNOWN = (
    (re.compile(r"gpt-?2", re.I), GPT2, "the GPT-2 tokenizer"),
    (re.compile(r"20B_tokenizer|gpt-neox", re.I), 50277, "the GPT-NeoX-20B tokenizer"),
    (re.compile(r"llama-?3", re.I), 128256, "the Llama 3 tokenizer"),
    (re.compile(r"llama-?2", re.I), 32000, "the Llama 2 tokenizer"),
    (re.compile(r"mixtral|mistral", re.I), 32000, "the Mistral tokenizer"),
    (re.compile(r"deepseek-?v3", re.I), 129280, "the DeepSeek-V3 configuration"),
)


def tokens_of(*names: str | None) -> tuple[int, str] | None:
    """Look a tokenizer up by its type, file or repository name.

    Returns
    -------
    tuple of (int, str) or None
        Number of tokens before padding, and what it is known from.
    """
    for name in names:
        for pattern, size, source in _KNOWN:
            if name and pattern.search(name):
                return size, source
    return None


def padded(tokens: int, divisor: int, tensor: int) -> int:
    """Round up to a multiple of divisor * tensor, as Megatron-LM pads its embedding."""
    multiple = divisor * tensor
    return -(-tokens // multiple) * multiple


def embedding_rows(
    facts: Facts,
    known: tuple[int, str] | None,
    *,
    divisor: int,
    unknown: str = "the tokenizer's size is not in the file; state it",
) -> int:
    """Pad a tokenizer's size, and note what it is known from.

    Parameters
    ----------
    facts : Facts
        With the tensor-parallel size; receives the notes.
    known : tuple of (int, str), optional
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
        known = (GPT2, "the GPT-2 tokenizer")
        facts.placeholders["model.vocab_size"] = unknown
    tokens, source = known
    rows = padded(tokens, divisor, facts.tensor)
    facts.inferred["model.vocab_size"] = (
        f"{rows} ({tokens} of {source}, padded to a multiple of {divisor} x tensor {facts.tensor})"
    )
    return rows
