"""nanotron's YAML configurations."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pipesim.errors import ScenarioError
from pipesim.importers.facts import Facts, Imported, complete
from pipesim.importers.values import Settings, product
from pipesim.importers.vocabulary import padded
from pipesim.scenario.counts import shown
from pipesim.scenario.loading import read_yaml_mapping

_ENGINES = {"1f1b": "1f1b", "afab": "gpipe"}
_SHAPE = "model.model_config"


def read_nanotron(
    path: str | Path, *, num_gpus: int | None = None, overrides: Iterable[str] = ()
) -> Imported:
    """Read a nanotron YAML file.

    Parameters
    ----------
    path : str or Path
        With ``model.model_config``, ``parallelism`` and ``tokens``.
    num_gpus : int, optional
        GPUs of the run, to check dp x pp x tp against.
    overrides : iterable of str
        ``KEY=VALUE`` each, laid over the scenario.

    Returns
    -------
    Imported
        A scenario that loads.

    Raises
    ------
    ScenarioError
        Not such a file, an unknown engine, or fewer microbatches than nanotron's 1F1B takes.
    """
    file = str(path)
    document = read_yaml_mapping(path)
    for section in ("model", "parallelism", "tokens"):
        if not isinstance(document.get(section), dict):
            raise ScenarioError(
                "missing; nanotron's files have model, parallelism and tokens", file=file, key=section
            )
    settings = Settings(document, file)
    facts = Facts("nanotron", Path(path).name, Path(path).stem, {})
    facts.num_gpus = num_gpus
    facts.data = settings.required("parallelism.dp", what="replicas")
    facts.pipeline = settings.required("parallelism.pp", what="pipeline ranks")
    facts.tensor = settings.required("parallelism.tp", what="tensor-parallel ranks")
    facts.context = settings.count("parallelism.context_parallel_size") or 1
    facts.expert = settings.count("parallelism.expert_parallel_size") or 1
    facts.model = {"name": facts.name} | _model(facts, settings)
    facts.micro = settings.required("tokens.micro_batch_size", what="sequences of a microbatch")
    facts.microbatches = settings.count("tokens.batch_accumulation_per_replica")
    if facts.microbatches is None:
        facts.microbatches = 1
        facts.inferred["batch.microbatches"] = "batch_accumulation_per_replica is not stated, and is 1 then"
    _schedule(facts, settings)
    mode = settings.text("parallelism.tp_mode")
    facts.sequence_parallel = mode is not None and mode.upper() == "REDUCE_SCATTER"
    stage = settings.count("optimizer.zero_stage", minimum=0) or 0
    facts.optimizer = "sharded" if stage else "plain"
    if stage > 1:
        facts.not_used["optimizer.zero_stage"] = f"{stage}: nanotron has ZeRO 1"
    recompute = settings.flag("parallelism.recompute_layer")
    facts.recompute = "full" if recompute else "none"
    kind = settings.text("model.dtype")
    facts.precision = {"bfloat16": "bf16", "float16": "fp16"}.get(kind or "")
    if facts.precision is None and kind is not None:
        facts.not_used["model.dtype"] = f"{kind}: not modelled"
    total, words = product(
        tensor=facts.tensor, pipeline=facts.pipeline, context=facts.context, data=facts.data
    )
    facts.inferred["number of GPUs"] = f"{total} ({words})"
    facts.not_used |= settings.unused()
    return complete(facts, overrides=overrides)


def _model(facts: Facts, settings: Settings) -> dict[str, Any]:
    def needed(key: str, what: str) -> int:
        return settings.required(f"{_SHAPE}.{key}", what=what)

    llama = settings.flag(f"{_SHAPE}.is_llama_config", default=True) or settings.flag(
        f"{_SHAPE}.is_qwen2_config"
    )
    activation = settings.text(f"{_SHAPE}.hidden_act") or "silu"
    divisor = settings.count("model.make_vocab_size_divisible_by") or 1
    stated = needed("vocab_size", "rows of the embedding")
    rows = padded(stated, divisor, facts.tensor)
    facts.inferred["model.vocab_size"] = f"{rows} ({stated}, a multiple of {divisor} x tensor {facts.tensor})"
    model: dict[str, Any] = {
        "num_hidden_layers": needed("num_hidden_layers", "transformer layers"),
        "hidden_size": needed("hidden_size", "width of the residual stream"),
        "num_attention_heads": needed("num_attention_heads", "query heads"),
        "intermediate_size": needed("intermediate_size", "width of the MLP"),
        "vocab_size": rows,
        "seq_length": settings.required("tokens.sequence_length", what="tokens of one sequence"),
        "gated_mlp": llama and activation in ("silu", "swiglu"),
        "tie_word_embeddings": settings.flag(f"{_SHAPE}.tie_word_embeddings"),
        "biases": not llama,
        "num_learned_positions": 0,
        "source": f"nanotron configuration {facts.files}",
    }
    groups = settings.count(f"{_SHAPE}.num_key_value_heads")
    if groups is not None:
        model["num_key_value_heads"] = groups
    return model


def _schedule(facts: Facts, settings: Settings) -> None:
    engine = settings.text("parallelism.pp_engine") or "1f1b"
    if engine.lower() not in _ENGINES:
        raise ScenarioError(
            f"found {shown(engine)}; known: {', '.join(_ENGINES)}",
            file=settings.file,
            key="parallelism.pp_engine",
        )
    facts.schedule = _ENGINES[engine.lower()]
    if facts.pipeline == 1:
        return
    assert facts.microbatches is not None
    if facts.schedule == "1f1b" and facts.microbatches < facts.pipeline - 1:
        raise ScenarioError(
            f"found {facts.microbatches}; nanotron's 1F1B on {facts.pipeline} ranks needs at least "
            f"{facts.pipeline - 1} microbatches",
            file=settings.file,
            key="tokens.batch_accumulation_per_replica",
        )
    facts.layers = "balanced"
    facts.inferred["layers"] = "balanced (nanotron splits by the blocks' cost)"
