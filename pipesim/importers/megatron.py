"""Megatron-LM's arguments as a scenario."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from pipesim.errors import ScenarioError
from pipesim.importers.adapters import read_adapters
from pipesim.importers.facts import Facts, Limit
from pipesim.importers.literals import evaluated
from pipesim.importers.megatron_arguments import NODES, PER_NODE, Arguments, read_arguments
from pipesim.importers.megatron_cut import cut
from pipesim.importers.megatron_memory import read_memory
from pipesim.importers.request import NEEDED, Request, read_shape, read_sizes
from pipesim.importers.tokenizers import GPT2, Tokenizer, embedding_rows, tokens_of
from pipesim.scenario.counts import MAX_LAYERS
from pipesim.scenario.settings import Settings

ULYSSES = "ds-sequence-parallel-size"
"""Megatron-DeepSpeed's name of context parallelism that shares heads out (Ulysses)."""
SIZES = {
    "tensor": ("tensor-model-parallel-size", "model-parallel-size"),
    "pipeline": ("pipeline-model-parallel-size",),
    "context": ("context-parallel-size", ULYSSES),
    "expert": ("expert-model-parallel-size",),
}
SHAPE = {
    "hidden_size": ("hidden-size",),
    "num_attention_heads": ("num-attention-heads",),
    "intermediate_size": ("ffn-hidden-size",),
    "seq_length": ("seq-length", "encoder-seq-length"),
    "head_dim": ("kv-channels",),
}
_EXPERTS = {
    "num_experts": ("num-experts",),
    "num_experts_per_tok": ("moe-router-topk",),
    "moe_intermediate_size": ("moe-ffn-hidden-size",),
    "shared_expert_intermediate_size": ("moe-shared-expert-intermediate-size",),
}
_LATENT = {
    "kv_lora_rank": ("kv-lora-rank", 32),
    "qk_nope_head_dim": ("qk-head-dim", 128),
    "qk_rope_head_dim": ("qk-pos-emb-head-dim", 64),
    "v_head_dim": ("v-head-dim", 128),
}
_ADAPTERS: dict[str, Any] = {
    "kind": ("train-type", "sft-type", "tuner-type"),
    "rank": ("lora-rank", "lora-r"),
    "targets": ("target-modules", "lora-target-modules"),
    "usual_rank": 8,
    "usual_targets": ("all-linear",),
}
"""Arguments of ms-swift's Megatron-SWIFT, and its values by default."""
_GATED = ("swiglu", "geglu", "quick-geglu", "reglu", "liglu", "glu-activation", "gated-linear-unit")
_OWN_LEARNED = ("learned_absolute", "learned")
_NAME_SIZES = (
    ("tp", "tensor", re.compile(r"(?<![a-z])tp(\d+)")),
    ("pp", "pipeline", re.compile(r"(?<![a-z])pp(\d+)")),
    ("cp", "context", re.compile(r"(?<![a-z])cp(\d+)")),
    ("ep", "expert", re.compile(r"(?<![a-z])em?p(\d+)")),
)
LIMITS = (
    Limit(
        lambda facts: (
            facts.schedule == "interleaved-1f1b"
            and facts.microbatch_group_size is None
            and (facts.num_microbatches or 0) % facts.pipeline > 0
        ),
        "runs its interleaved schedule with microbatches that the pipeline ranks divide, unless "
        "--microbatch-group-size-per-virtual-pipeline-stage is stated",
        "megatron/core/pipeline_parallel/schedules.py, since Megatron-LM 2.1",
        "parallel.microbatch_group_size",
        "--set parallel.microbatch_group_size=N states it",
    ),
    Limit(
        lambda facts: (
            facts.schedule == "interleaved-1f1b" and facts.pipeline == 2 and facts.p2p == "blocking"
        ),
        "asks for more than two ranks where the interleaved schedule sends without overlap",
        "megatron/training/arguments.py, core 0.9",
        "network.p2p",
        "--set network.p2p=overlapped simulates the overlap",
    ),
    Limit(
        lambda facts: facts.context > 1 and facts.model.get("seq_length", 0) % (2 * facts.context) > 0,
        "asks for a sequence that is a multiple of 2 x --context-parallel-size",
        "megatron/training/arguments.py, core 0.7",
        "model.seq_length",
        "--set model.seq_length=N states another",
    ),
    Limit(
        lambda facts: facts.expert > 1 and facts.precision.get("compute") == "fp16",
        "has no expert parallelism in fp16",
        "megatron/training/arguments.py, core 0.7",
        "precision",
        "--set precision=bf16 states another format",
    ),
    Limit(
        lambda facts: facts.pipeline > 1 and facts.offload.get("activations", 0) > 0,
        "moves whole layers' activations to the host only without a pipeline",
        "megatron/core/transformer/transformer_config.py, core 0.8 or before",
        "offload.activations",
        "--set offload.activations=0 reads on without it",
    ),
    Limit(
        lambda facts: facts.recompute != "none" and facts.offload.get("activations", 0) > 0,
        "does not recompute beside layers whose activations move to the host",
        "megatron/core/transformer/transformer_config.py, core 0.8 or before",
        "offload.activations",
        "--set offload.activations=0 reads on without it",
    ),
)


def read(request: Request) -> Facts:
    """Read shell scripts, test YAML or plain arguments of Megatron-LM.

    Raises
    ------
    ScenarioError
        Arguments that are missing, hang on unknown variables, contradict each other, or drop layers.
    """
    arguments = read_arguments(request.paths, request.define)
    if not arguments.values:
        raise ScenarioError(
            "no arguments of Megatron-LM found (a command or variable with --num-layers, --hidden-size, ...)",
            file=arguments.files,
        )
    settings = request.settings(arguments.values, numbers_are_text=True)
    facts = megatron_facts(request, settings, arguments, request.paths[0])
    facts.limits = LIMITS
    _narrow_gradients(facts, settings)
    _batch(facts, settings)
    return facts


def _narrow_gradients(facts: Facts, settings: Settings) -> None:
    """Count gradients in fp16 where weights are, and a copy of them in fp32 beside the optimizer's state.

    Source: NVIDIA, Megatron Core User Guide, Distributed Optimizer: 20 bytes a parameter, 18 in bf16.
    """
    wide = settings.flag("accumulate-allreduce-grads-in-fp32")
    if facts.precision.get("compute") == "fp16" and "gradient_bytes" not in facts.precision and not wide:
        facts.precision["gradient_bytes"] = 2
        facts.precision["optimizer_bytes"] = facts.precision.get("optimizer_bytes", 12) + 4
        facts.inferred["precision.gradient_bytes"] = (
            "2, and 4 of their copy in fp32 (--fp16 without --accumulate-allreduce-grads-in-fp32)"
        )


def megatron_facts(request: Request, settings: Settings, arguments: Arguments, path: Path) -> Facts:
    """Read all but the batch.

    Parameters
    ----------
    request : Request
        For what the user states.
    settings : Settings
        The arguments.
    arguments : Arguments
        For the launcher's numbers and notes.
    path : Path
        Names the scenario; sizes in its name are compared with the file's.

    Returns
    -------
    Facts
        Without a batch.

    Raises
    ------
    ScenarioError
        As for `read`.
    """
    _refuse_other_models(settings)
    request.settings(arguments.rest, arguments.files)
    settings.skip(*NODES, *PER_NODE)
    facts = request.facts("Megatron-LM", _name(path))
    facts.model = {"name": facts.name}
    facts.inferred |= arguments.notes
    read_sizes(settings, facts, SIZES)
    if ULYSSES in settings:
        facts.context_exchange = "ulysses"
    facts.expert_tensor = settings.count("expert-tensor-parallel-size")
    facts.sequence_parallel = settings.flag("sequence-parallel")
    if settings.flag("no-overlap-p2p-communication"):
        facts.p2p = "blocking"
    cut(facts, settings)
    facts.model |= _model(settings, facts)
    read_memory(settings, facts)
    read_adapters(settings, facts, **_ADAPTERS)
    _gpus(facts, arguments)
    _compare_name(facts, path)
    return facts


def _refuse_other_models(settings: Settings) -> None:
    """Refuse layers that a specification of the user's own, or one of another kind, puts together."""
    key, spec = settings.raw("spec")
    words = " ".join(spec) if isinstance(spec, list) else str(spec or "")
    if any(kind in words.lower() for kind in ("mamba", "hybrid", "bert", "t5", "heterogeneous", "hyena")):
        raise settings.refuse(
            key, f"found {words[:60]!r}: such layers are not modelled; --ignore {key} reads on without it"
        )


def _model(settings: Settings, facts: Facts) -> dict[str, Any]:
    model = read_shape(settings, SHAPE, **{key: words for key, words in NEEDED.items() if key in SHAPE})
    gated = sum(settings.flag(name) for name in _GATED) > 0
    if "intermediate_size" not in model:
        hidden = model["hidden_size"]
        model["intermediate_size"] = int(4 * hidden * 2 / 3) // 64 * 64 if gated else 4 * hidden
        facts.inferred["model.intermediate_size"] = (
            f"{model['intermediate_size']} (Megatron-LM's default{' of a gated MLP' if gated else ''})"
        )
    positions = settings.text("position-embedding-type") or _OWN_LEARNED[0]
    if settings.flag("use-rotary-position-embeddings"):
        positions = "rope"
    longest = settings.count("max-position-embeddings")
    model |= {
        "vocab_size": _vocabulary(settings, facts),
        "gated_mlp": gated,
        "tie_word_embeddings": not settings.flag("untie-embeddings-and-output-weights"),
        "biases": not settings.flag("disable-bias-linear"),
        "num_learned_positions": (longest or model["seq_length"]) if positions in _OWN_LEARNED else 0,
        "source": f"Megatron-LM arguments {facts.files}",
    }
    groups = settings.count("num-query-groups", sets="model.num_key_value_heads")
    if settings.flag("group-query-attention") or settings.is_stated("model.num_key_value_heads"):
        model["num_key_value_heads"] = groups or 1
    elif groups is not None:
        facts.not_used["num-query-groups"] = f"{groups}: has no effect without --group-query-attention"
    if settings.flag("multi-latent-attention"):
        model.pop("head_dim", None)
        model |= _latent_attention(settings, facts)
    return model | _experts(settings, facts, model)


def _latent_attention(settings: Settings, facts: Facts) -> dict[str, Any]:
    model = read_shape(settings, {"q_lora_rank": ("q-lora-rank",)})
    for key, (argument, default) in _LATENT.items():
        size = settings.count(argument, sets=f"model.{key}")
        model[key] = default if size is None else size
        if size is None:
            facts.inferred[f"model.{key}"] = f"{default} (default of --{argument})"
    return model


def _experts(settings: Settings, facts: Facts, model: dict[str, Any]) -> dict[str, Any]:
    experts = read_shape(settings, _EXPERTS)
    frequency = settings.text("moe-layer-freq")
    if "num_experts" not in experts:
        return {}
    experts.setdefault("num_experts_per_tok", 2)
    experts.setdefault("moe_intermediate_size", model["intermediate_size"])
    if settings.is_stated("model.moe_layer_freq"):
        return experts
    if frequency is not None:
        layers = _layer_frequency(frequency, settings)
        experts["moe_layer_freq"] = layers if isinstance(layers, int) else layers + [1] * facts.added_layers
    return experts


def _layer_frequency(text: str, settings: Settings) -> int | list[int]:
    """Read ``2`` or ``([0]*3+[1]*11)``, which Megatron-LM would evaluate as Python."""
    try:
        value = evaluated(ast.parse(text.replace("\\", "").strip(), mode="eval").body, {})
    except (ValueError, TypeError, ArithmeticError, SyntaxError, RecursionError, MemoryError):
        value = None
    entries = value if isinstance(value, list) else []
    if isinstance(value, int) and 0 < value <= MAX_LAYERS:
        return value
    if entries and len(entries) <= MAX_LAYERS and all(entry in (0, 1) for entry in entries):
        return [int(entry) for entry in entries]
    raise settings.refuse(
        "moe-layer-freq",
        f"found {text[:60]!r}; a whole number or a sum such as [0]*3+[1]*11 is needed; "
        "--set model.moe_layer_freq=VALUE states it",
    )


def _vocabulary(settings: Settings, facts: Facts) -> int:
    stated = settings.count("padded-vocab-size", "pad-vocab-size-to", sets="model.vocab_size")
    divisor = settings.count("make-vocab-size-divisible-by") or 128
    tokens = settings.count("vocab-size")
    kind = settings.text("tokenizer-type")
    # A path behind an unset variable tells nothing.
    names = ("tokenizer-model", "tokenizer-name-or-path", "vocab-file")
    files = [settings.text(name) for name in names if settings.is_known(name)]
    settings.skip(*names)
    if stated is not None:
        return stated
    known: Tokenizer | None
    if tokens is None:
        known = tokens_of(*files, kind) if kind else Tokenizer(GPT2, "the GPT-2 tokenizer, taken by default")
    elif kind == "NullTokenizer":
        known = Tokenizer(tokens + 1, "--vocab-size, one more for the end of a document")
    else:
        known = Tokenizer(tokens, "--vocab-size")
    return embedding_rows(facts, known, divisor=divisor, unknown=f"the size of {kind} is not in the file")


def _gpus(facts: Facts, arguments: Arguments) -> None:
    nodes, per_node = arguments.num_nodes, arguments.gpus_per_node
    facts.gpus_per_node = per_node
    if facts.num_gpus is not None or nodes is None:
        return
    if per_node is None:
        per_node = facts.gpus_per_node = 8
        facts.placeholders["cluster.gpus_per_node"] = "not stated; 8 taken"
    needed = facts.tensor * facts.pipeline * facts.context
    if nodes == 1 and needed > per_node:
        facts.inferred["launcher"] = (
            f"1 node x {per_node} GPUs, fewer than tensor {facts.tensor} x pipeline {facts.pipeline} x "
            f"context {facts.context} = {needed}: the number of nodes is taken as not filled in"
        )
        return
    facts.num_gpus = nodes * per_node


def _batch(facts: Facts, settings: Settings) -> None:
    facts.micro = settings.required(
        "micro-batch-size", "batch-size", what="sequences of a microbatch", sets="batch.micro"
    )
    facts.global_size = settings.count("global-batch-size", sets="batch.global")
    if facts.global_size is None:
        facts.microbatches = 1
        facts.inferred["batch.microbatches"] = (
            "--global-batch-size is not stated, and Megatron-LM then runs a single microbatch"
        )


def _compare_name(facts: Facts, path: Path) -> None:
    """Note sizes in the file's or folder's name that the file itself contradicts."""
    absolute = path.absolute()
    for where in (absolute.parent.name, absolute.stem):
        for short, size, pattern in _NAME_SIZES:
            found = pattern.search(where)
            if found and int(found[1][:9]) != getattr(facts, size):
                facts.inferred[f"name {where}"] = (
                    f"says {short}{found[1]}, the file says {size} {getattr(facts, size)}: the file counts"
                )


def _name(path: Path) -> str:
    return path.absolute().parent.name if path.stem == "model_config" else path.stem
