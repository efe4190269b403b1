"""GPT-NeoX's configurations: YAML in braces, with comments, trailing commas and Python's True."""

from __future__ import annotations

from typing import Any

from pipesim.errors import ScenarioError
from pipesim.importers.deepspeed import (
    LIMITS,
    number_format,
    read_formats,
    read_offload,
    read_overlap,
    split_as_deepspeed,
    zero_level,
)
from pipesim.importers.facts import Facts
from pipesim.importers.gpus_in_comments import take_gpus_from_comments
from pipesim.importers.request import NEEDED, Request, read_shape, read_sizes
from pipesim.importers.tokenizers import embedding_rows, tokens_of
from pipesim.reading import read_text
from pipesim.scenario.counts import MAX_LAYERS
from pipesim.scenario.loading import parse_yaml
from pipesim.scenario.settings import Settings

_GATED = ("swiglu", "geglu", "reglu", "bilinear", "glu")
_SHAPE = {
    "num_hidden_layers": ("num_layers",),
    "hidden_size": ("hidden_size",),
    "num_attention_heads": ("num_attention_heads",),
    "seq_length": ("seq_length",),
    "num_key_value_heads": ("num_kv_heads",),
}
_PLAIN_ATTENTION = ("global", "flash")


def read(request: Request) -> Facts:
    """Read one or more GPT-NeoX files, together one configuration.

    Without a number of GPUs, a comment that names one counts.

    Raises
    ------
    ScenarioError
        Not such a file, a key in two files, attention other than full, or sizes that cannot be.
    """
    document: dict[str, Any] = {}
    text = ""
    for path in request.paths:
        content = read_text(path)
        text += content + "\n"
        for key, value in _mapping(content, str(path)).items():
            name = key.replace("-", "_")
            if name in document:
                raise ScenarioError("is stated twice; leave one out", file=str(path), key=name)
            document[name] = value
    settings = request.settings(document)
    facts = request.facts("GPT-NeoX")
    facts.limits = LIMITS
    _refuse_other_attention(settings)
    read_sizes(settings, facts, {"tensor": ("model_parallel_size",)})
    ranks = settings.count("pipe_parallel_size", sets="parallel.pipeline", minimum=0, maximum=MAX_LAYERS) or 0
    facts.pipeline = ranks or 1
    facts.model = {"name": facts.name} | _model(facts, settings)
    split_as_deepspeed(facts, facts.model["num_hidden_layers"], ends=0, file=settings.file, key="num_layers")
    facts.optimizer = zero_level(settings, facts)
    read_overlap(settings, facts, pipelined=ranks > 0)
    read_formats(settings, facts)
    read_offload(settings, facts)
    stated = settings.text("precision")
    kind = {"bfloat16": "bf16", None: number_format(settings)}.get(stated, stated)
    if kind in ("bf16", "fp16"):
        facts.precision["compute"] = kind
    elif kind is not None:
        facts.not_used["precision"] = f"{kind}: not modelled"
    facts.recompute = "full" if settings.flag("checkpoint_activations") else "none"
    facts.sequence_parallel = settings.flag("sequence_parallel")
    facts.num_gpus = facts.num_gpus or settings.count("global_num_gpus")
    if facts.num_gpus is None:
        take_gpus_from_comments(facts, text)
    _batch(facts, settings)
    return facts


def _mapping(text: str, file: str) -> dict[str, Any]:
    value = parse_yaml(text.replace("\t", " "), file=file)
    if not isinstance(value, dict):
        raise ScenarioError("holds no mapping of settings, as GPT-NeoX's files do", file=file)
    return value


def _refuse_other_attention(settings: Settings) -> None:
    """Accept layers of full attention; kernels of it are told apart by name."""
    key, value = settings.raw("attention_config")
    kinds: set[str] = set()
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, list):
            waiting += item
        elif isinstance(item, str):
            kinds.add(item)
    other = sorted(kinds.difference(_PLAIN_ATTENTION, ("all",)))
    if other:
        raise settings.refuse(
            key,
            f"found {', '.join(other)[:60]}; layers other than of full attention are not modelled; "
            f"--ignore {key} reads on without it",
        )


def _model(facts: Facts, settings: Settings) -> dict[str, Any]:
    model = read_shape(settings, _SHAPE, **NEEDED)
    activation = settings.text("activation") or "gelu"
    llama = settings.text("mlp_type") == "llama"
    gated = activation in _GATED or llama
    learned = (settings.text("pos_emb") or "learned") == "learned"
    positions = settings.count("max_position_embeddings") or model["seq_length"]
    return model | {
        "intermediate_size": _mlp_width(facts, settings, model["hidden_size"], gated=gated, llama=llama),
        "vocab_size": _vocabulary(facts, settings),
        "gated_mlp": gated,
        "tie_word_embeddings": not settings.flag("no_weight_tying"),
        "biases": not gated,
        "num_learned_positions": positions if learned else 0,
        "source": f"GPT-NeoX configuration {facts.files}",
    }


def _mlp_width(facts: Facts, settings: Settings, hidden: int, *, gated: bool, llama: bool) -> int:
    """Width of the MLP: for gated ones what is stated is that of both halves of a plain MLP.

    GPT-NeoX since May 2024 (`megatron/model/transformer.py`, ``ParallelMLP``) takes two thirds of the stated
    width, halves it, and rounds it up to 256, so that as many parameters remain. Before, and with
    ``mlp_type: llama`` (``ParallelLLamaMLP``), a stated width is taken as it is.
    """
    stated = settings.count("intermediate_size", "ffn_hidden_size", sets="model.intermediate_size")
    if settings.is_stated("model.intermediate_size") and stated is not None:
        return stated
    whole = 4 * hidden if stated is None else stated
    how = "4 x hidden_size by default" if stated is None else "as stated"
    if not gated:
        if stated is None:
            facts.inferred["model.intermediate_size"] = f"{whole} ({how})"
        return whole
    if llama and stated is not None:
        return stated
    two_thirds = int(2 * whole / 3)
    width = -(-(two_thirds if llama else two_thirds // 2) // 256) * 256
    facts.inferred["model.intermediate_size"] = (
        f"{width} (two thirds of {whole}, {how}, {'' if llama else 'halved and '}rounded up to 256, as "
        f"GPT-NeoX since 2024 makes gated MLPs; before, {whole} itself: "
        f"--set model.intermediate_size={whole})"
    )
    return width


def _vocabulary(facts: Facts, settings: Settings) -> int:
    stated = settings.count("padded_vocab_size", sets="model.vocab_size")
    kind = settings.text("tokenizer_type")
    file = settings.text("vocab_file")
    divisor = settings.count("make_vocab_size_divisible_by") or 128
    if stated is not None:
        return stated
    known = tokens_of(file, kind if kind and "GPT2" in kind else None)
    return embedding_rows(facts, known, divisor=divisor)


def _batch(facts: Facts, settings: Settings) -> None:
    facts.micro = settings.required(
        "train_micro_batch_size_per_gpu", "batch_size", what="sequences of a microbatch", sets="batch.micro"
    )
    facts.microbatches = settings.count("gradient_accumulation_steps", "gas", sets="batch.microbatches")
    facts.global_size = settings.count("train_batch_size", sets="batch.global")
    if facts.microbatches is None and facts.global_size is None:
        facts.microbatches = 1
        facts.inferred["batch.microbatches"] = (
            "gradient_accumulation_steps is not stated, and is 1 then: one microbatch fills no pipeline"
        )
