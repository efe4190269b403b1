"""Megatron-LM's arguments as a scenario."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipesim.errors import ScenarioError
from pipesim.importers.facts import Facts, Imported, complete
from pipesim.importers.megatron_arguments import Arguments, read_arguments
from pipesim.importers.megatron_cut import cut
from pipesim.importers.values import Settings
from pipesim.importers.vocabulary import GPT2, embedding_rows, tokens_of
from pipesim.scenario.counts import MAX_LAYERS

_NAME_SIZES = (
    ("tp", "tensor", re.compile(r"(?<![a-z])tp(\d+)")),
    ("pp", "pipeline", re.compile(r"(?<![a-z])pp(\d+)")),
    ("cp", "context", re.compile(r"(?<![a-z])cp(\d+)")),
    ("ep", "expert", re.compile(r"(?<![a-z])em?p(\d+)")),
)


def read_megatron(
    paths: Sequence[str | Path],
    *,
    define: Mapping[str, str] | None = None,
    num_gpus: int | None = None,
    overrides: Iterable[str] = (),
) -> Imported:
    """Read shell scripts, test YAML or plain arguments of Megatron-LM.

    Parameters
    ----------
    paths : sequence of path
        In the order in which they are sourced.
    define : Mapping, optional
        Values of shell variables.
    num_gpus : int, optional
        GPUs of the run, where the files do not say.
    overrides : iterable of str
        ``KEY=VALUE`` each, laid over the scenario.

    Returns
    -------
    Imported
        A scenario that loads.

    Raises
    ------
    ScenarioError
        Arguments that are missing, hang on unknown variables, contradict each other, or drop layers.
    """
    arguments = read_arguments(paths, define or {})
    settings = arguments.settings()
    if not arguments.values:
        raise ScenarioError(
            "no arguments of Megatron-LM found (a command or variable with --num-layers, --hidden-size, ...)",
            file=arguments.files,
        )
    facts = megatron_facts(settings, arguments, Path(paths[0]), num_gpus=num_gpus)
    _batch(facts, settings)
    facts.not_used |= settings.unused()
    return complete(facts, overrides=overrides)


def megatron_facts(
    settings: Settings, arguments: Arguments, path: Path, *, num_gpus: int | None = None
) -> Facts:
    """Read all but the batch.

    Parameters
    ----------
    settings : Settings
        The arguments.
    arguments : Arguments
        For the launcher's numbers and notes.
    path : Path
        Names the scenario; sizes in its name are compared with the file's.
    num_gpus : int, optional
        As the user stated it.

    Returns
    -------
    Facts
        Without a batch.

    Raises
    ------
    ScenarioError
        As for `read_megatron`.
    """
    facts = Facts("Megatron-LM", arguments.files, _name(path), {"name": _name(path)})
    facts.inferred |= arguments.notes
    facts.tensor = settings.count("tensor-model-parallel-size", "model-parallel-size") or 1
    facts.pipeline = settings.count("pipeline-model-parallel-size", maximum=MAX_LAYERS) or 1
    facts.context = settings.count("context-parallel-size") or 1
    facts.expert = settings.count("expert-model-parallel-size") or 1
    facts.expert_tensor = settings.count("expert-tensor-parallel-size")
    facts.sequence_parallel = settings.flag("sequence-parallel")
    facts.optimizer = "sharded" if settings.flag("use-distributed-optimizer") else "plain"
    facts.overlap_gradients = settings.flag("overlap-grad-reduce")
    if facts.overlap_gradients:
        facts.inferred["parallel.overlap_gradients"] = "true (--overlap-grad-reduce)"
    if settings.flag("overlap-param-gather"):
        facts.not_used["overlap-param-gather"] = "not modelled: no weight is gathered beside a forward"
    facts.precision = _precision(settings)
    facts.recompute = _recompute(settings, facts)
    if settings.flag("no-overlap-p2p-communication"):
        facts.p2p = "blocking"
    cut(facts, settings)
    facts.model |= _model(settings, facts)
    _gpus(facts, arguments, num_gpus)
    _compare_name(facts, path)
    return facts


def _model(settings: Settings, facts: Facts) -> dict[str, Any]:
    hidden = settings.required("hidden-size", what="width of the residual stream")
    gated = settings.flag("swiglu")
    ffn = settings.count("ffn-hidden-size")
    if ffn is None:
        ffn = int(4 * hidden * 2 / 3) // 64 * 64 if gated else 4 * hidden
        facts.inferred["model.intermediate_size"] = (
            f"{ffn} (Megatron-LM's default{' of a gated MLP' if gated else ''})"
        )
    seq_length = settings.required("seq-length", "encoder-seq-length", what="tokens of one sequence")
    positions = settings.text("position-embedding-type") or "learned_absolute"
    if settings.flag("use-rotary-position-embeddings"):
        positions = "rope"
    longest = settings.count("max-position-embeddings")
    learned = (longest or seq_length) if positions == "learned_absolute" else 0
    model: dict[str, Any] = {
        "hidden_size": hidden,
        "num_attention_heads": settings.required("num-attention-heads", what="query heads"),
        "intermediate_size": ffn,
        "vocab_size": _vocabulary(settings, facts),
        "seq_length": seq_length,
        "gated_mlp": gated,
        "tie_word_embeddings": not settings.flag("untie-embeddings-and-output-weights"),
        "biases": not settings.flag("disable-bias-linear"),
        "num_learned_positions": learned,
        "source": f"Megatron-LM arguments {facts.files}",
    }
    groups = settings.count("num-query-groups")
    if settings.flag("group-query-attention"):
        model["num_key_value_heads"] = groups or 1
    elif groups is not None:
        facts.not_used["num-query-groups"] = f"{groups}: has no effect without --group-query-attention"
    head_dim = settings.count("kv-channels")
    if head_dim is not None and not settings.flag("multi-latent-attention"):
        model["head_dim"] = head_dim
    return model | _latent_attention(settings, facts) | _experts(settings, facts)


def _latent_attention(settings: Settings, facts: Facts) -> dict[str, Any]:
    if not settings.flag("multi-latent-attention"):
        return {}
    queries = settings.count("q-lora-rank")
    model = {} if queries is None else {"q_lora_rank": queries}
    for key, argument, default in (
        ("kv_lora_rank", "kv-lora-rank", 32),
        ("qk_nope_head_dim", "qk-head-dim", 128),
        ("qk_rope_head_dim", "qk-pos-emb-head-dim", 64),
        ("v_head_dim", "v-head-dim", 128),
    ):
        size = settings.count(argument)
        model[key] = default if size is None else size
        if size is None:
            facts.inferred[f"model.{key}"] = f"{default} (default of --{argument})"
    return model


def _experts(settings: Settings, facts: Facts) -> dict[str, Any]:
    experts = settings.count("num-experts")
    if experts is None:
        return {}
    model: dict[str, Any] = {
        "num_experts": experts,
        "num_experts_per_tok": settings.count("moe-router-topk") or 2,
        "moe_intermediate_size": settings.count("moe-ffn-hidden-size")
        or settings.count("ffn-hidden-size")
        or 4 * settings.required("hidden-size", what="width of the residual stream"),
    }
    shared = settings.count("moe-shared-expert-intermediate-size")
    if shared is not None:
        model["shared_expert_intermediate_size"] = shared
    frequency = settings.text("moe-layer-freq")
    if frequency is not None:
        layers = _layer_frequency(frequency, settings.file)
        model["moe_layer_freq"] = layers if isinstance(layers, int) else layers + [1] * facts.added_layers
    return model


def _layer_frequency(text: str, file: str) -> int | list[int]:
    """Read ``2`` or ``([0]*3+[1]*11)``, which Megatron-LM would evaluate as Python."""
    plain = re.sub(r"[\s\\()]", "", text)
    if re.fullmatch(r"[1-9][0-9]{0,5}", plain):
        return int(plain)
    result: list[int] = []
    for part in plain.split("+"):
        match = re.fullmatch(r"\[([01](?:,[01])*),?\](?:\*([0-9]{1,5}))?", part)
        if match is None or len(result) > MAX_LAYERS:
            raise ScenarioError(
                f"found {text[:60]!r}; a whole number or a sum such as [0]*3+[1]*11 is needed",
                file=file,
                key="moe-layer-freq",
            )
        result += [int(entry) for entry in match[1].split(",")] * int(match[2] or 1)
    return result


def _vocabulary(settings: Settings, facts: Facts) -> int:
    stated = settings.count("padded-vocab-size")
    if stated is not None:
        return stated
    divisor = settings.count("make-vocab-size-divisible-by") or 128
    tokens = settings.count("vocab-size")
    kind = settings.text("tokenizer-type")
    known: tuple[int, str] | None
    if tokens is None:
        # A path behind an unset variable tells nothing.
        files = [settings.text(name) for name in ("tokenizer-model", "vocab-file") if settings.is_known(name)]
        known = tokens_of(kind, *files) if kind else (GPT2, "the GPT-2 tokenizer, taken by default")
    elif kind == "NullTokenizer":
        known = (tokens + 1, "--vocab-size, one more for the end of a document")
    else:
        known = (tokens, "--vocab-size")
    return embedding_rows(
        facts,
        known,
        divisor=divisor,
        unknown=f"the size of {kind} is not in the file; state it with the padding",
    )


def _precision(settings: Settings) -> str | None:
    if settings.text("fp8-format", "fp8") is not None:
        return "fp8"
    return "bf16" if settings.flag("bf16") else "fp16" if settings.flag("fp16") else None


def _recompute(settings: Settings, facts: Facts) -> str:
    kind = settings.text("recompute-granularity")
    method = settings.text("recompute-method", "activations-checkpoint-method")
    layers = settings.count("recompute-num-layers", "activations-checkpoint-num-layers", minimum=0)
    if settings.flag("recompute-activations"):
        kind = kind or "selective"
    if settings.flag("checkpoint-activations") or (kind is None and method is not None):
        kind = "full"
    if kind not in (None, "full", "selective"):
        raise ScenarioError(
            f"found {kind!r}; allowed: full, selective", file=settings.file, key="recompute-granularity"
        )
    if kind == "full" and method == "block" and layers is not None:
        facts.not_used["recompute-num-layers"] = f"{layers}: not modelled; every layer is recomputed"
    return kind or "none"


def _gpus(facts: Facts, arguments: Arguments, num_gpus: int | None) -> None:
    nodes, per_node = arguments.num_nodes, arguments.gpus_per_node
    facts.gpus_per_node = per_node
    facts.num_gpus = num_gpus
    if num_gpus is not None or nodes is None:
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
    facts.micro = settings.required("micro-batch-size", "batch-size", what="sequences of a microbatch")
    facts.global_size = settings.count("global-batch-size")
    if facts.global_size is None:
        facts.microbatches = 1
        facts.inferred["batch.microbatches"] = (
            "--global-batch-size is not stated, and Megatron-LM then runs a single microbatch"
        )
    if settings.raw("rampup-batch-size")[1] is not None:
        facts.not_used["rampup-batch-size"] = "the full global batch is simulated"


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
