"""nanotron's YAML configurations."""

from __future__ import annotations

from typing import Any

from pipesim.errors import ScenarioError
from pipesim.importers.facts import Facts, Limit, product
from pipesim.importers.request import NEEDED, Request, read_shape, read_sizes
from pipesim.importers.tokenizers import padded
from pipesim.scenario.counts import shown
from pipesim.scenario.loading import read_yaml_mapping
from pipesim.scenario.settings import Settings

_ENGINES = {"1f1b": "1f1b", "afab": "gpipe"}
_CONFIG = "model.model_config"
_SIZES = {
    "tensor": ("parallelism.tp",),
    "pipeline": ("parallelism.pp",),
    "context": ("parallelism.context_parallel_size",),
    "expert": ("parallelism.expert_parallel_size",),
}
_SHAPE = {
    "num_hidden_layers": (f"{_CONFIG}.num_hidden_layers",),
    "hidden_size": (f"{_CONFIG}.hidden_size",),
    "num_attention_heads": (f"{_CONFIG}.num_attention_heads",),
    "num_key_value_heads": (f"{_CONFIG}.num_key_value_heads",),
    "intermediate_size": (f"{_CONFIG}.intermediate_size",),
    "vocab_size": (f"{_CONFIG}.vocab_size",),
    "seq_length": ("tokens.sequence_length",),
    "num_experts": (f"{_CONFIG}.moe_config.num_experts",),
    "num_experts_per_tok": (f"{_CONFIG}.moe_config.top_k",),
    "moe_intermediate_size": (f"{_CONFIG}.moe_config.moe_intermediate_size",),
}
LIMITS = (
    Limit(
        lambda facts: (
            facts.schedule == "1f1b"
            and facts.pipeline > 1
            and (facts.num_microbatches or facts.pipeline) < facts.pipeline - 1
        ),
        "asks for at least pipeline ranks - 1 microbatches (batch_accumulation_per_replica) in its 1F1B",
        "nanotron/parallel/pipeline_parallel/engine.py, 0.4",
        "batch.microbatches",
        "--set batch.microbatches=N states more",
    ),
)


def read(request: Request) -> Facts:
    """Read a nanotron YAML file with ``model.model_config``, ``parallelism`` and ``tokens``.

    Raises
    ------
    ScenarioError
        Not such a file, or an unknown engine.
    """
    path = request.paths[0]
    document = read_yaml_mapping(path)
    for section in ("model", "parallelism", "tokens"):
        if not isinstance(document.get(section), dict):
            raise ScenarioError(
                "missing; nanotron's files have model, parallelism and tokens", file=str(path), key=section
            )
    settings = request.settings(document, str(path))
    facts = request.facts("nanotron")
    facts.limits = LIMITS
    for key, what in (("tp", "tensor-parallel ranks"), ("pp", "pipeline ranks")):
        settings.required(f"parallelism.{key}", what=what)
    read_sizes(settings, facts, _SIZES)
    facts.data = settings.required("parallelism.dp", what="replicas", sets="parallel.data")
    facts.model = {"name": facts.name} | _model(facts, settings)
    facts.micro = settings.required(
        "tokens.micro_batch_size", what="sequences of a microbatch", sets="batch.micro"
    )
    facts.microbatches = settings.count("tokens.batch_accumulation_per_replica", sets="batch.microbatches")
    if facts.microbatches is None:
        facts.microbatches = 1
        facts.inferred["batch.microbatches"] = "batch_accumulation_per_replica is not stated, and is 1 then"
    _schedule(facts, settings)
    _memory(facts, settings)
    total, words = product(
        tensor=facts.tensor, pipeline=facts.pipeline, context=facts.context, data=facts.data
    )
    facts.inferred["number of GPUs"] = f"{total} ({words})"
    return facts


def _memory(facts: Facts, settings: Settings) -> None:
    mode = settings.text("parallelism.tp_mode")
    facts.sequence_parallel = mode is not None and mode.upper() == "REDUCE_SCATTER"
    stage = settings.count("optimizer.zero_stage", minimum=0) or 0
    facts.optimizer = "sharded" if stage else "plain"
    if stage > 1:
        facts.not_used["optimizer.zero_stage"] = f"{stage}: nanotron has ZeRO 1"
    if not settings.flag("optimizer.accumulate_grad_in_fp32", default=True):
        facts.precision["gradient_bytes"] = 2
        facts.inferred["precision.gradient_bytes"] = "2 (optimizer.accumulate_grad_in_fp32 is off)"
    facts.recompute = "full" if settings.flag("parallelism.recompute_layer") else "none"
    kind = settings.text("model.dtype")
    compute = {"bfloat16": "bf16", "float16": "fp16"}.get(kind or "")
    if compute is not None:
        facts.precision["compute"] = compute
    elif kind is not None:
        facts.not_used["model.dtype"] = f"{kind}: not modelled"


def _model(facts: Facts, settings: Settings) -> dict[str, Any]:
    model = read_shape(
        settings,
        _SHAPE,
        **NEEDED,
        intermediate_size="width of the MLP",
        vocab_size="rows of the embedding",
    )
    llama = settings.flag(f"{_CONFIG}.is_llama_config", default=True) or settings.flag(
        f"{_CONFIG}.is_qwen2_config"
    )
    activation = settings.text(f"{_CONFIG}.hidden_act") or "silu"
    divisor = settings.count("model.make_vocab_size_divisible_by") or 1
    stated = model["vocab_size"]
    model["vocab_size"] = padded(stated, divisor, facts.tensor)
    facts.inferred["model.vocab_size"] = (
        f"{model['vocab_size']} ({stated}, a multiple of {divisor} x tensor {facts.tensor})"
    )
    return model | {
        "gated_mlp": llama and activation in ("silu", "swiglu"),
        "tie_word_embeddings": settings.flag(f"{_CONFIG}.tie_word_embeddings"),
        "biases": not llama,
        "num_learned_positions": 0,
        "source": f"nanotron configuration {facts.files}",
    }


def _schedule(facts: Facts, settings: Settings) -> None:
    engine = settings.text("parallelism.pp_engine") or "1f1b"
    if engine.lower() not in _ENGINES:
        raise settings.refuse(
            "parallelism.pp_engine",
            f"found {shown(engine)}; known: {', '.join(_ENGINES)}; --ignore parallelism.pp_engine takes 1f1b",
        )
    facts.schedule = _ENGINES[engine.lower()]
    if facts.pipeline > 1:
        facts.layers = "balanced"
        facts.inferred["layers"] = "balanced (nanotron splits by the blocks' cost)"
