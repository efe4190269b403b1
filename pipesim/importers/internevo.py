"""InternEvo's configurations: a Python file of plain assignments, which is read and never run."""

from __future__ import annotations

import ast
from typing import Any

from pipesim.errors import ScenarioError
from pipesim.importers.facts import Facts, Limit, cut_evenly
from pipesim.importers.literals import assignments, parsed
from pipesim.importers.request import NEEDED, Request, read_shape, read_sizes
from pipesim.reading import read_text
from pipesim.scenario.settings import Settings

_SIZES = {"tensor": ("parallel.tensor.size", "parallel.tensor"), "expert": ("parallel.expert.size",)}
_SHAPE = {
    "num_hidden_layers": ("model.num_layers",),
    "hidden_size": ("model.hidden_size",),
    "num_attention_heads": ("model.num_attention_heads",),
    "num_key_value_heads": ("model.num_kv_attention_heads",),
    "head_dim": ("model.head_dim",),
    "vocab_size": ("model.vocab_size",),
    "seq_length": ("data.seq_len",),
    "num_experts": ("model.num_experts",),
    "num_experts_per_tok": ("model.top_k", "moe.top_k"),
}
_ROUNDED = 256
LIMITS = (
    Limit(
        lambda facts: (
            facts.schedule == "interleaved-1f1b" and (facts.num_microbatches or 0) % facts.pipeline > 0
        ),
        "runs its interleaved schedule with microbatches (micro_num) that the pipeline ranks divide",
        "internlm/core/scheduler/pipeline_scheduler.py, InternEvo 0.4.5 or before",
        "batch.microbatches",
        "--set batch.microbatches=N states others",
    ),
)
_SECTIONS = ("model", "parallel", "data")


def read(request: Request) -> Facts:
    """Read a file with ``model``, ``parallel`` and ``data``.

    Raises
    ------
    ScenarioError
        Not such a file, sizes that are missing, or a model that is not modelled.
    """
    path = request.paths[0]
    module = parsed(read_text(path), file=str(path))
    names = assignments(module.body, {})
    for section in _SECTIONS:
        if not isinstance(names.get(section), dict):
            raise ScenarioError(
                f"holds no {section} = dict(...), as InternEvo's files do", file=str(path), key=section
            )
    read_elsewhere = {
        node.id for node in ast.walk(module) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    own = {key: value for key, value in names.items() if not (key.isupper() and key in read_elsewhere)}
    settings = request.settings(own, str(path))
    facts = request.facts("InternEvo")
    facts.limits = LIMITS
    read_sizes(settings, facts, _SIZES)
    facts.pipeline = (
        settings.count(
            "parallel.pipeline.size", "parallel.pipeline", sets="parallel.pipeline", maximum=100_000
        )
        or 1
    )
    _sequence(facts, settings)
    facts.model = {"name": facts.name} | _model(facts, settings)
    chunks = settings.count("model.num_chunks", sets="parallel.virtual_stages") or 1
    layers = facts.model["num_hidden_layers"]
    cut_evenly(facts, layers, chunks, file=str(path), key="model.num_layers")
    facts.micro = settings.required("data.micro_bsz", what="sequences of a microbatch", sets="batch.micro")
    facts.microbatches = settings.required(
        "data.micro_num", what="microbatches of a step", sets="batch.microbatches"
    )
    _memory(facts, settings)
    return facts


def _sequence(facts: Facts, settings: Settings) -> None:
    """Read the kind of tensor parallelism: all but plain Megatron's cut the sequence too."""
    key = "parallel.tensor.mode"
    mode = settings.text(key) or "mtp"
    if mode == "isp" and facts.tensor > 1:
        raise settings.refuse(
            key,
            "found 'isp': sequence parallelism with gathered weights is not modelled; "
            f"--ignore {key} reads it as tensor parallelism",
        )
    facts.sequence_parallel = mode in ("msp", "fsp")
    weight = settings.count("parallel.weight.size", "parallel.weight")
    if weight is not None and weight > 1:
        raise settings.refuse(
            "parallel.weight.size",
            f"found {weight}: weights gathered by layer over a group are not modelled; "
            "--ignore parallel.weight.size reads on without it",
        )


def _model(facts: Facts, settings: Settings) -> dict[str, Any]:
    model = read_shape(settings, _SHAPE, **NEEDED, vocab_size="rows of the embedding")
    if model.get("num_experts") == 1:
        model.pop("num_experts")
        model.pop("num_experts_per_tok", None)
    kind = settings.text("model_type")
    if kind is not None:
        facts.inferred["model_type"] = f"{kind}, read as a decoder of Llama's form"
    key, ratio = settings.raw("model.mlp_ratio")
    if ratio is None:
        ratio = 4.0
        facts.inferred["model.mlp_ratio"] = "4 by default"
    if not isinstance(ratio, (int, float)) or isinstance(ratio, bool) or not 0 < ratio < 1000:
        raise settings.refuse(
            key,
            f"found {str(ratio)[:40]}; a positive number is needed; "
            "--set model.intermediate_size=N states the width",
        )
    if "model.intermediate_size" not in facts.stated:
        width = int(model["hidden_size"] * ratio)
        model["intermediate_size"] = -(-width // _ROUNDED) * _ROUNDED
        facts.inferred["model.intermediate_size"] = (
            f"{model['intermediate_size']} (hidden_size x {ratio:.4g}, rounded up to {_ROUNDED})"
        )
    else:
        model["intermediate_size"] = facts.stated["model.intermediate_size"]
    if "num_experts" in model:
        model.setdefault("num_experts_per_tok", 2)
        model["moe_intermediate_size"] = model["intermediate_size"]
    return model | {
        "gated_mlp": True,
        "tie_word_embeddings": settings.flag("model.tie_word_embeddings"),
        "biases": False,
        "num_learned_positions": 0,
        "source": f"InternEvo configuration {facts.files}",
    }


def _memory(facts: Facts, settings: Settings) -> None:
    shards = settings.raw("parallel.zero1.size", "parallel.zero1")[1]
    facts.optimizer = "plain" if shards == 1 else "sharded"
    if type(shards) is int and shards > 1:
        facts.shard = shards
    if settings.flag("parallel.zero1.fsdp"):
        facts.optimizer = "zero3"
    facts.overlap_gradients = settings.flag("hybrid_zero_optimizer.overlap_sync_grad")
    share = settings.raw("model.checkpoint")[1]
    facts.recompute = "none" if share in (None, False, 0) else "full"
    if isinstance(share, float) and 0 < share < 1:
        of_stage = facts.model["num_hidden_layers"] // facts.num_stages
        facts.recompute_layers = int(of_stage * share)
        facts.inferred["recompute_layers"] = (
            f"{facts.recompute_layers} ({share:g} of the {of_stage} layers of a stage, rounded down)"
        )
    dtype = str(settings.raw("model.dtype")[1] or "")
    for word, compute in (("bfloat16", "bf16"), ("float16", "fp16"), ("half", "fp16")):
        if word in dtype:
            facts.precision["compute"] = compute
            break
    if settings.flag("model.use_flash_attn", default=True):
        facts.efficiency["attention_kernel"] = "flash"
