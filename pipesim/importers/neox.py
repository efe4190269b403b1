"""GPT-NeoX's configurations: YAML in braces, with comments, trailing commas and Python's True."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pipesim.errors import ScenarioError
from pipesim.importers.deepspeed import number_format, read_overlap, split_as_deepspeed, zero_level
from pipesim.importers.facts import Facts, Imported, complete
from pipesim.importers.gpus_in_comments import take_gpus_from_comments
from pipesim.importers.values import Settings
from pipesim.importers.vocabulary import embedding_rows, tokens_of
from pipesim.reading import read_text
from pipesim.scenario.counts import MAX_LAYERS
from pipesim.scenario.loading import parse_yaml

_GATED = ("swiglu", "geglu", "reglu", "bilinear", "glu")


def read_neox(
    paths: Sequence[str | Path], *, num_gpus: int | None = None, overrides: Iterable[str] = ()
) -> Imported:
    """Read one or more GPT-NeoX files.

    Parameters
    ----------
    paths : sequence of path
        Together one configuration, as on GPT-NeoX's command line.
    num_gpus : int, optional
        GPUs of the run. Without it, a comment that names a number of GPUs counts.
    overrides : iterable of str
        ``KEY=VALUE`` each, laid over the scenario.

    Returns
    -------
    Imported
        A scenario that loads.

    Raises
    ------
    ScenarioError
        Not such a file, a key in two files, or sizes that cannot be.
    """
    files = ", ".join(Path(path).name for path in paths)
    document: dict[str, Any] = {}
    text = ""
    for path in paths:
        content = read_text(path)
        text += content + "\n"
        for key, value in _mapping(content, str(path)).items():
            name = key.replace("-", "_")
            if name in document:
                raise ScenarioError("is stated twice", file=str(path), key=name)
            document[name] = value
    settings = Settings(document, files)
    facts = Facts("GPT-NeoX", files, Path(paths[0]).stem, {})
    facts.tensor = settings.count("model_parallel_size") or 1
    ranks = settings.count("pipe_parallel_size", minimum=0, maximum=MAX_LAYERS) or 0
    facts.pipeline = ranks or 1
    facts.model = {"name": facts.name} | _model(facts, settings)
    split_as_deepspeed(facts, facts.model["num_hidden_layers"], ends=0, file=files, key="num_layers")
    facts.optimizer = zero_level(settings, facts)
    read_overlap(settings, facts, pipelined=ranks > 0)
    stated = settings.text("precision")
    facts.precision = {"bfloat16": "bf16", None: number_format(settings)}.get(stated, stated)
    if facts.precision not in (None, "bf16", "fp16"):
        facts.not_used["precision"] = f"{facts.precision}: not modelled"
        facts.precision = None
    facts.recompute = "full" if settings.flag("checkpoint_activations") else "none"
    facts.sequence_parallel = settings.flag("sequence_parallel")
    facts.num_gpus = num_gpus or settings.count("global_num_gpus")
    if facts.num_gpus is None:
        take_gpus_from_comments(facts, text)
    _batch(facts, settings)
    facts.not_used |= settings.unused()
    return complete(facts, overrides=overrides)


def _mapping(text: str, file: str) -> dict[str, Any]:
    value = parse_yaml(text.replace("\t", " "), file=file)
    if not isinstance(value, dict):
        raise ScenarioError("holds no mapping of settings, as GPT-NeoX's files do", file=file)
    return value


def _model(facts: Facts, settings: Settings) -> dict[str, Any]:
    hidden = settings.required("hidden_size", what="width of the residual stream")
    seq_length = settings.required("seq_length", what="tokens of one sequence")
    activation = settings.text("activation") or "gelu"
    gated = activation in _GATED or settings.text("mlp_type") == "llama"
    learned = (settings.text("pos_emb") or "learned") == "learned"
    model: dict[str, Any] = {
        "num_hidden_layers": settings.required("num_layers", what="transformer layers", maximum=MAX_LAYERS),
        "hidden_size": hidden,
        "num_attention_heads": settings.required("num_attention_heads", what="query heads"),
        "vocab_size": _vocabulary(facts, settings),
        "seq_length": seq_length,
        "gated_mlp": gated,
        "tie_word_embeddings": not settings.flag("no_weight_tying"),
        "biases": not gated,
        "num_learned_positions": (settings.count("max_position_embeddings") or seq_length) if learned else 0,
        "source": f"GPT-NeoX configuration {facts.files}",
    }
    groups = settings.count("num_kv_heads")
    if groups is not None:
        model["num_key_value_heads"] = groups
    ffn = settings.count("intermediate_size", "ffn_hidden_size")
    if ffn is None:
        ffn = 4 * hidden
        facts.inferred["model.intermediate_size"] = f"{ffn} (4 x hidden_size by default)"
    model["intermediate_size"] = ffn
    return model


def _vocabulary(facts: Facts, settings: Settings) -> int:
    stated = settings.count("padded_vocab_size")
    if stated is not None:
        return stated
    kind = settings.text("tokenizer_type")
    known = tokens_of(settings.text("vocab_file"), kind if kind and "GPT2" in kind else None)
    divisor = settings.count("make_vocab_size_divisible_by") or 128
    return embedding_rows(facts, known, divisor=divisor)


def _batch(facts: Facts, settings: Settings) -> None:
    facts.micro = settings.required(
        "train_micro_batch_size_per_gpu", "batch_size", what="sequences of a microbatch"
    )
    facts.microbatches = settings.count("gradient_accumulation_steps", "gas")
    facts.global_size = settings.count("train_batch_size")
    if facts.microbatches is None and facts.global_size is None:
        facts.microbatches = 1
        facts.inferred["batch.microbatches"] = (
            "gradient_accumulation_steps is not stated, and is 1 then: one microbatch fills no pipeline"
        )
